//! `fleetmend migrate`: migrates the database to the schema of this release.
//!
//! With `--to`, it copies the database to another one instead (`copy`).

mod copy;
mod progress;
mod target;

use clap::Args;
use serde_json::json;
use store::SCHEMA_VERSION;

use crate::installation::Installation;

/// Migrate the database to the current schema, or copy it to another database.
///
/// Without --to, this updates the tables and lists the migrations. `fleetmend server` also does
/// that when it starts. Take a backup first: the only way back is to restore it.
///
/// With --to, this copies the whole database to an empty one, from SQLite to PostgreSQL or back.
/// Stop the service on all replicas first. The copy is compared with the original before it is
/// kept, and the original is not changed. If the copy is interrupted, run the command again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend migrate --data-dir /var/lib/fleetmend --dry-run
  fleetmend backup --data-dir /var/lib/fleetmend /srv/backups && fleetmend migrate --data-dir /var/lib/fleetmend
  fleetmend migrate --data-dir /var/lib/fleetmend --to postgres://fleetmend@db/fleetmend --dry-run
  FLEETMEND_MIGRATE_TO=postgres://fleetmend:SECRET@db/fleetmend fleetmend migrate --data-dir /var/lib/fleetmend --switch
  fleetmend migrate --data-dir /var/lib/fleetmend --to sqlite:/var/lib/fleetmend/new.db --switch")]
pub(crate) struct Migrate {
    #[command(flatten)]
    installation: Installation,
    /// Copy the database to this empty one: postgres://…, or sqlite: and the path of a new file
    #[arg(long, value_name = "URL", env = "FLEETMEND_MIGRATE_TO", hide_env_values = true)]
    to: Option<String>,
    /// After the copy, set `database` in fleetmend.toml to the new database
    #[arg(long, requires = "to")]
    switch: bool,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match &self.to {
            Some(to) => self.copy(to).await,
            None => self.migrate().await,
        }
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        let db = self.installation.open_as_is().await?;
        let worked = async {
            let from = db.schema_version().await?;
            let steps = match self.dry_run {
                true => db.pending_migrations().await?,
                false => db.migrate().await?,
            };
            Ok::<_, store::StoreError>((from, steps))
        };
        let worked = worked.await;
        db.close().await;
        let (from, steps) = worked?;
        if self.json {
            let steps: Vec<_> = steps
                .iter()
                .map(|step| json!({"version": step.version, "name": step.name}))
                .collect();
            let report = json!({"from": from, "to": SCHEMA_VERSION, "dry_run": self.dry_run, "migrations": steps});
            return crate::print_line(&report.to_string());
        }
        if steps.is_empty() {
            return crate::print_line(&format!("The database is up to date (schema {from})."));
        }
        let done = if self.dry_run { "Would apply" } else { "Applied" };
        for step in &steps {
            crate::print_line(&format!("{done} {}", step.name))?;
        }
        let end = if self.dry_run { "would be" } else { "is" };
        crate::print_line(&format!(
            "The database {end} at schema {SCHEMA_VERSION}, migrated from {from}."
        ))
    }
}
