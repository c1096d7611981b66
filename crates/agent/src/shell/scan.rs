//! `fleetmend-agent scan`: prints what the agent sees on this host. Needs no server.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use vocab::listing::{Installed, Pending};

use super::{resolve_root, resolve_state_dir};
use crate::backend;
use crate::backend::Backend;
use crate::root::Root;
use crate::work::query_cache_path;

/// Timeout for refreshing the package lists.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(600);

/// Scan the packages of this host and print pending updates; changes and reports nothing
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  fleetmend-agent scan\n  fleetmend-agent scan --json --no-refresh"
)]
pub struct Scan {
    /// Scan the system installed under this directory instead of the running one
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// State directory with the cached package manager output; a scan does not change it
    #[arg(long, value_name = "DIR", hide = true)]
    state_dir: Option<PathBuf>,
    /// Do not refresh the package lists first
    #[arg(long)]
    no_refresh: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Scan {
    /// Returns the text to print.
    pub fn run(self) -> anyhow::Result<String> {
        let root = resolve_root(self.root.as_deref())?;
        let backend = backend::detect(&root)?;
        let missing = backend::missing_program(&root, backend.manager());
        let scanned = self.scan(&root, backend.as_ref());
        match missing {
            Some(missing) => scanned.context(missing),
            None => scanned,
        }
    }

    fn scan(self, root: &Root, backend: &dyn Backend) -> anyhow::Result<String> {
        if !self.no_refresh {
            for command in backend.refresh() {
                let command_output = command.query(REFRESH_TIMEOUT)?;
                if command_output.exit != Some(0) {
                    let output = format!("{}\n{}", command_output.stdout, command_output.stderr);
                    let diagnosis = backend.diagnose(command_output.exit, &output);
                    anyhow::bail!(
                        "cannot refresh the package lists: {} (use `--no-refresh` to skip this)",
                        diagnosis.message
                    );
                }
            }
        }
        if let Ok(memory) =
            std::fs::read(query_cache_path(&resolve_state_dir(self.state_dir, root)))
        {
            backend.load_cache(&memory);
        }
        let installed = backend.installed().context("cannot list the installed packages")?;
        let pending = backend.pending(&installed).context("cannot list the pending updates")?;
        if self.json {
            let value = json!({"package_manager": backend.manager(),
                "installed": installed.iter().map(package_json).collect::<Vec<_>>(),
                "pending": pending.iter().map(update_json).collect::<Vec<_>>()});
            return Ok(serde_json::to_string_pretty(&value)?);
        }
        Ok(format_text(&installed, &pending))
    }
}

fn package_json(package: &Installed) -> serde_json::Value {
    json!({"name": package.name, "version": package.version, "arch": package.arch,
        "source": package.source(), "source_version": package.source_version(),
        "origin": package.origin, "held": package.held, "module": package.module})
}

fn update_json(update: &Pending) -> serde_json::Value {
    json!({"name": update.name, "arch": update.arch, "installed": update.installed,
        "candidate": update.candidate, "security": update.security, "type": update.update_type,
        "severity": update.severity, "advisories": update.advisories, "cves": update.cves,
        "blocked_by": update.blocked_by})
}

fn format_text(installed: &[Installed], pending: &[Pending]) -> String {
    let security = pending.iter().filter(|update| update.security).count();
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let mut text = format!(
        "{} package{}, {} update{} pending, {security} of them security updates",
        installed.len(),
        plural(installed.len()),
        pending.len(),
        plural(pending.len())
    );
    let width =
        |measure: fn(&Pending) -> usize| pending.iter().map(measure).max().unwrap_or(0).min(50);
    let (name, from) = (width(|update| update.name.len()), width(|update| update.installed.len()));
    for update in pending {
        let mark = if update.security { "security" } else { "" };
        let blocked = update.blocked_by.map(|why| format!("  ({why})")).unwrap_or_default();
        let line = format!(
            "  {:<name$}  {:<from$}  →  {}  {mark}{blocked}",
            update.name, update.installed, update.candidate
        );
        let _ = write!(text, "\n{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::BlockedBy;

    #[test]
    fn pending_updates_show_security_and_block_reason() {
        let installed = [Installed::new("bash", "5.2-1", "amd64")];
        let mut security = Pending::new("bash", "amd64", "5.2-1", "5.2-2");
        security.security = true;
        let mut held = Pending::new("nginx", "amd64", "1.22-1", "1.24-1");
        held.blocked_by = Some(BlockedBy::Held);
        assert_eq!(
            format_text(&installed, &[security, held]),
            "1 package, 2 updates pending, 1 of them security updates\n  \
             bash   5.2-1   →  5.2-2  security\n  \
             nginx  1.22-1  →  1.24-1    (held)"
        );
    }
}
