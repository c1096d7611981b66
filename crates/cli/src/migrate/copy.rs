//! `fleetmend migrate --to`: copies the database of a stopped service to another database.

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use serde_json::json;
use service::clock::Clock;
use service::commands::database_copy;
use store::transfer::{self, Source, TableContent};
use store::{SCHEMA_VERSION, StoreError, leases};
use vocab::Digest;

use super::Migrate;
use super::progress::ProgressLine;
use super::target::Target;
use crate::doctor::configuration::{PACKAGED_ENV_FILE, packaged_variables};
use crate::installation;
use crate::installation::{
    DATABASE_VARIABLE, become_owner, long_running_options, shell_quote, use_recorded_key,
};

use crate::operator::table::{group_thousands, pluralize};
use crate::settings;
use crate::settings::{SETTINGS_FILE, SettingsFile};

/// What was copied, or would be.
struct Report {
    engines: [&'static str; 2],
    tables: Vec<TableReport>,
    seconds: f64,
}

#[derive(Serialize)]
struct TableReport {
    table: &'static str,
    rows: u64,
    /// Only after a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
}

impl Migrate {
    pub(super) async fn copy(&self, to: &str) -> anyhow::Result<()> {
        let data = &self.installation.data_dir;
        let secrets = settings::load_secrets(data)?;
        // Files that root creates in the data directory could not be opened by the service.
        become_owner(data)?;
        let file = SettingsFile::load(None, data)?;
        self.refuse_other_settings(&file)?;
        let options = long_running_options(&self.installation.url(&file), &secrets);
        let source = Source::open(&options).await.map_err(|error| match error {
            StoreError::Busy(_) => anyhow::Error::from(error).context(IN_USE),
            error => anyhow::Error::from(error).context("cannot read the database"),
        })?;
        let target = Target::open(to, &secrets).await?;
        let copied = self.copy_into(source, &target).await;
        match copied {
            Ok(report) if !self.dry_run => {
                target.finish().await?;
                if self.switch {
                    settings::write_database(data, to)
                        .context("the database was copied, but the settings were not changed")?;
                }
                self.print_copied(&report, to)
            }
            Ok(report) => {
                target.discard().await;
                self.print_plan(&report)
            }
            Err(error) => {
                target.discard().await;
                Err(error)
            }
        }
    }

    /// Copies everything, and commits it if the copy equals the source.
    async fn copy_into(&self, mut source: Source, target: &Target) -> anyhow::Result<Report> {
        let now = Clock::system().now();
        let lease = leases::get(source.reader(), "engine").await?;
        ensure!(lease.is_none_or(|lease| lease.until <= now), IN_USE);
        let engines = [source.engine(), target.db.engine()];
        let Some(mut tx) =
            transfer::begin(&target.db).await.context("cannot write to the target database")?
        else {
            bail!(
                "the target database already has Fleetmend's tables and was not changed: \
                 create an empty database, or drop these tables"
            );
        };
        let counts = source.count_rows().await?;
        if self.dry_run {
            tx.rollback().await?;
            source.close().await?;
            let report = |(table, rows)| TableReport { table, rows, digest: None };
            let tables = counts.into_iter().map(report).collect();
            return Ok(Report { engines, tables, seconds: 0.0 });
        }
        let mut progress = ProgressLine::new(counts);
        let mut observe = |step| progress.show(step);
        let tables = transfer::copy(&mut source, &mut tx, &mut observe).await.context(UNCHANGED)?;
        transfer::verify(&mut tx, &tables, &mut observe).await.context(UNCHANGED)?;
        let seconds = progress.seconds();
        drop(progress);
        use_recorded_key(&mut tx, &self.installation.data_dir).await?;
        database_copy::prepare_for_service(&mut tx, engines, now).await.context(UNCHANGED)?;
        source.close().await.map_err(|error| match error {
            StoreError::Stale => anyhow::anyhow!(
                "the database was changed during the copy, which was discarded: {IN_USE}"
            ),
            error => error.into(),
        })?;
        tx.commit().await.context(UNCHANGED)?;
        let report = |TableContent { table, rows, digest }| {
            let digest = Some(digest);
            TableReport { table, rows, digest }
        };
        let tables = tables.into_iter().map(report).collect();
        Ok(Report { engines, tables, seconds })
    }

    /// Rejects a copy of a database that the packaged service does not use, and a switch that would
    /// have no effect.
    fn refuse_other_settings(&self, file: &SettingsFile) -> anyhow::Result<()> {
        let data = &self.installation.data_dir;
        let in_env_file = packaged_variables(data).remove(DATABASE_VARIABLE);
        if let Some(used) = &in_env_file {
            ensure!(
                *used == self.installation.url(file),
                "{PACKAGED_ENV_FILE} sets {DATABASE_VARIABLE}, so the service uses another database \
                 than this one: set the same variable for this command"
            );
        }
        ensure!(
            !self.switch || (self.installation.database.is_none() && in_env_file.is_none()),
            "--switch changes `database` in {SETTINGS_FILE}, but --database or {DATABASE_VARIABLE} \
             takes precedence over it: leave out --switch, and change the address there"
        );
        Ok(())
    }

    fn print_plan(&self, report: &Report) -> anyhow::Result<()> {
        if self.json {
            return crate::print_line(&report.json(true, false).to_string());
        }
        let rows = group_thousands(report.rows());
        let [from, to] = report.engines;
        crate::print_line(&format!(
            "Would copy {}, {rows} rows, from {from} to {to}. The target is empty, and no service uses the source.",
            pluralize(report.tables.len(), "table", "tables"),
        ))
    }

    fn print_copied(&self, report: &Report, to: &str) -> anyhow::Result<()> {
        let data = &self.installation.data_dir;
        if self.json {
            return crate::print_line(&report.json(false, self.switch).to_string());
        }
        let [from, engine] = report.engines;
        let rate = report.rows() as f64 / report.seconds.max(0.001);
        let mut text = format!(
            "Copied {}, {} rows, from {from} to {engine} in {:.1} s ({} rows/s). Every table was compared.\n\
             The old database was not changed. Do not start a service on it again: it does not know what happens from now on.\n\n",
            pluralize(report.tables.len(), "table", "tables"),
            group_thousands(report.rows()),
            report.seconds,
            group_thousands(rate as u64),
        );
        let settings = data.join(SETTINGS_FILE);
        text += &match self.switch {
            true => format!("{} now has the address of the new database.", settings.display()),
            false => format!(
                "Set the database in {}, on every replica:\n\n  database = {}",
                settings.display(),
                serde_json::to_string(&without_password(to))?
            ),
        };
        text += &format!(
            "\n\nThen check the installation, and start the service:\n\n  fleetmend doctor --data-dir {}\n  {}",
            shell_quote(&data.display().to_string()),
            installation::server_command(data, None),
        );
        crate::print_line(&text)
    }
}

const IN_USE: &str = "a service is using this database, or was a few seconds ago: stop it on all replicas and try again";
const UNCHANGED: &str = "the copy failed; neither database was changed";

impl Report {
    fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    fn json(&self, dry_run: bool, switched: bool) -> serde_json::Value {
        json!({
            "source": self.engines[0], "target": self.engines[1], "schema_version": SCHEMA_VERSION,
            "dry_run": dry_run, "switched": switched, "rows": self.rows(), "seconds": self.seconds,
            "tables": self.tables,
        })
    }
}

/// The address with the word PASSWORD in place of a password.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let address = match address.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:PASSWORD@{host}"),
            None => format!("{user}@{host}"),
        },
        None => address.to_owned(),
    };
    let hide = |parameter: &str| match parameter.split_once('=') {
        Some(("password", _)) => "password=PASSWORD".to_owned(),
        _ => parameter.to_owned(),
    };
    let parameters: Vec<_> = parameters.split('&').map(hide).collect();
    let mark = if rest.contains('?') { "?" } else { "" };
    format!("{scheme}://{address}{mark}{}", parameters.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_printed() {
        for (url, shown) in [
            ("sqlite:/var/lib/x.db", "sqlite:/var/lib/x.db"),
            ("postgres://db/f", "postgres://db/f"),
            ("postgres://f@db/f?sslmode=require", "postgres://f@db/f?sslmode=require"),
            ("postgres://f:s3:cr@t@db:5432/f", "postgres://f:PASSWORD@db:5432/f"),
            (
                "postgres:///f?host=/run&password=s3cret&user=f",
                "postgres:///f?host=/run&password=PASSWORD&user=f",
            ),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
