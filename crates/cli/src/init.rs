//! `fleetmend init`: creates a new installation.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use server::app::{App, AppParts, Settings};
use service::auth::root_keys;
use service::clock::Clock;
use service::commands::setup;
use service::secrets::Secrets;

use crate::installation::{create_private_dir, server_command, start_hint};
use crate::orgs::validate_name;
use crate::settings;
use crate::settings::{Durability, SettingsFile};

/// Create the database, the secrets, an organization and its first admin key.
///
/// The key is printed once and not stored. The data directory holds the installation's secrets:
/// back it up separately from the database.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend init --data-dir /var/lib/fleetmend --org Acme
  fleetmend init --data-dir D --org Acme --json | jq -r .api_key
  fleetmend init --data-dir D --org Acme --database postgres://fleetmend@db/fleetmend")]
pub(crate) struct Init {
    /// Directory for the secrets, and for the database unless --database is set
    #[arg(long, value_name = "D", env = "FLEETMEND_DATA_DIR")]
    data_dir: PathBuf,
    /// Name of the first organization
    #[arg(long, value_name = "NAME")]
    org: String,
    /// Database address: postgres://…, or the path of a SQLite file [default: the one in
    /// fleetmend.toml, or fleetmend.db in the data directory]
    #[arg(long, value_name = "URL", env = "FLEETMEND_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Print JSON: {"organization": {…}, "api_key": "fmk_…"}
    #[arg(long)]
    json: bool,
}

impl Init {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let name = validate_name(&self.org)?;
        let dir = self.data_dir.display();
        create_private_dir(&self.data_dir)?;
        let had_secrets = self.data_dir.join("root.key").exists();
        // As the service reads it: otherwise `init` would set up another database than it uses.
        let file = SettingsFile::load(None, &self.data_dir)?;
        let named = self.database.clone().or(file.database);
        let url = named.unwrap_or_else(|| settings::default_database_url(&self.data_dir));
        let secrets = Secrets::create(&self.data_dir)?;
        let db = settings::open(&url, Durability::Full, &secrets).await?;
        let organizations = store::organizations::list(&mut *db.read().await?).await?;
        if let Some(first) = organizations.first() {
            db.close().await;
            let first = &first.name;
            match had_secrets {
                true => bail!(
                    "{dir} is already set up, for the organization `{first}`, and was not changed; \
                     start it with `{}`",
                    server_command(&self.data_dir, self.database.as_deref())
                ),
                false => {
                    // Created above by this run and used by nothing yet.
                    for secret in ["root.key", "orders.key"] {
                        let _ = std::fs::remove_file(self.data_dir.join(secret));
                    }
                    bail!(
                        "this database belongs to another installation, with the organization `{first}`, and was not changed; \
                     use that installation's data directory, or an empty database"
                    )
                }
            }
        }
        root_keys::check_and_record(&db, &secrets, Clock::system().now()).await?;
        let settings = Settings::default();
        let app = App::new(AppParts { db, clock: Clock::system(), secrets, settings });
        let (organization, api_key) = setup::create_organization(&app, name).await?;
        app.db.close().await;
        let id = organization.id.to_string();
        if self.json {
            let made = json!({"id": id, "name": organization.name, "created_at": organization.created_at.to_string()});
            return crate::print_line(
                &json!({"organization": made, "api_key": api_key}).to_string(),
            );
        }
        crate::print_line(&format!(
            "Created organization `{name}` ({id}) in {dir}.\n\n\
             Its first admin key, which is shown only once:\n\n  {api_key}\n\n\
             {}",
            start_hint(&self.data_dir, self.database.as_deref())
        ))
    }
}
