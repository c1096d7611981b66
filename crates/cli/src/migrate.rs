//! `fleetmend migrate`: migrates the database to the schema of this release.

use clap::Args;
use serde_json::json;
use store::SCHEMA_VERSION;

use crate::installation::Installation;

/// Migrate the database to the current schema, and list the migrations.
///
/// `fleetmend server` also migrates when it starts. Take a backup first: the only way back is to
/// restore it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend migrate --data-dir /var/lib/fleetmend --dry-run
  fleetmend backup --data-dir /var/lib/fleetmend /srv/backups && fleetmend migrate --data-dir /var/lib/fleetmend")]
pub(crate) struct Migrate {
    #[command(flatten)]
    installation: Installation,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
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
