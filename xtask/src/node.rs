//! Installs the npm packages for the browser tests, at the versions of `browser/package-lock.json`:
//! a real OIDC identity provider, and axe-core for accessibility checks.
//!
//! They are installed into the target directory, where the browser tests expect them, once for each
//! set of versions.

use std::path::Path;
use std::process::Command;

use crate::process::{Processes, TaskError};
use crate::python::{fingerprint, run_for_output};
use crate::screen::Screen;
use crate::workspace::Workspace;

/// Written when the installation is complete; contains the fingerprint of its versions.
const COMPLETE_MARKER: &str = "complete";
const MANIFESTS: [&str; 2] = ["package.json", "package-lock.json"];

/// Installs the packages unless they are already installed.
pub(crate) fn ensure_installed(
    workspace: &Workspace,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<(), TaskError> {
    let from = workspace.path("xtask/browser");
    let home = workspace.target().join("browser");
    let mut texts = Vec::new();
    for name in MANIFESTS {
        let path = from.join(name);
        texts.push(std::fs::read_to_string(&path).map_err(|error| io_error(&path, &error))?);
    }
    texts.push(run_for_output(Command::new("node").arg("--version"), processes)?);
    let wanted =
        format!("{:016x}", fingerprint(&texts.iter().map(String::as_str).collect::<Vec<_>>()));
    if std::fs::read_to_string(home.join(COMPLETE_MARKER)).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    screen.show_activity("installing npm packages for the browser tests");
    std::fs::create_dir_all(&home).map_err(|error| io_error(&home, &error))?;
    // An interrupted installation does not count.
    let _ = std::fs::remove_file(home.join(COMPLETE_MARKER));
    for (name, text) in MANIFESTS.iter().zip(&texts) {
        std::fs::write(home.join(name), text).map_err(|error| io_error(&home, &error))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    run_for_output(npm.current_dir(&home), processes)?;
    std::fs::write(home.join(COMPLETE_MARKER), wanted).map_err(|error| io_error(&home, &error))
}

fn io_error(path: &Path, error: &std::io::Error) -> TaskError {
    TaskError::Failed(format!("cannot read or write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    /// No fixed registry URLs: developers with an npm mirror must be able to use it.
    #[test]
    fn package_versions_are_exact_without_registry_urls() {
        let lock = include_str!("../browser/package-lock.json");
        assert!(lock.contains("\"integrity\"") && !lock.contains("\"resolved\""));
        let wanted = include_str!("../browser/package.json");
        assert!(!wanted.contains('^') && !wanted.contains('~') && !wanted.contains("://"));
    }
}
