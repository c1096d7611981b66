//! Installs npm packages at the versions of a `package-lock.json`: those of the browser tests (a
//! real OIDC identity provider, and axe-core for accessibility checks), and the linters of the
//! OpenAPI document.
//!
//! They are installed into the target directory, once for each set of versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Processes, TaskError};
use crate::python::{fingerprint, run_for_output};
use crate::screen::Screen;
use crate::workspace::Workspace;

/// Written when the installation is complete; contains the fingerprint of its versions.
const COMPLETE_MARKER: &str = "complete";
const MANIFESTS: [&str; 2] = ["package.json", "package-lock.json"];

/// A set of packages with its own manifest and lock file.
#[derive(Clone, Copy)]
pub(crate) struct Packages {
    /// The directory of the manifest, in the workspace.
    manifest: &'static str,
    /// The directory of the installation, in the target directory.
    home: &'static str,
    /// What needs the packages, for messages.
    purpose: &'static str,
}

/// The browser tests expect their packages in this directory.
pub(crate) const BROWSER: Packages =
    Packages { manifest: "xtask/browser", home: "browser", purpose: "the browser tests" };
pub(crate) const LINTERS: Packages =
    Packages { manifest: "xtask/contract", home: "contract/npm", purpose: "the contract check" };

/// Installs the packages unless they are already installed. Returns their directory.
pub(crate) fn ensure_installed(
    packages: Packages,
    workspace: &Workspace,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<PathBuf, TaskError> {
    let from = workspace.path(packages.manifest);
    let home = workspace.target().join(packages.home);
    let mut texts = Vec::new();
    for name in MANIFESTS {
        let path = from.join(name);
        texts.push(std::fs::read_to_string(&path).map_err(|error| io_error(&path, &error))?);
    }
    texts.push(run_for_output(Command::new("node").arg("--version"), processes)?);
    let wanted =
        format!("{:016x}", fingerprint(&texts.iter().map(String::as_str).collect::<Vec<_>>()));
    if std::fs::read_to_string(home.join(COMPLETE_MARKER)).is_ok_and(|there| there == wanted) {
        return Ok(home);
    }
    screen.show_activity(&format!("installing npm packages for {}", packages.purpose));
    std::fs::create_dir_all(&home).map_err(|error| io_error(&home, &error))?;
    // An interrupted installation does not count.
    let _ = std::fs::remove_file(home.join(COMPLETE_MARKER));
    for (name, text) in MANIFESTS.iter().zip(&texts) {
        std::fs::write(home.join(name), text).map_err(|error| io_error(&home, &error))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    run_for_output(npm.current_dir(&home), processes)?;
    std::fs::write(home.join(COMPLETE_MARKER), wanted).map_err(|error| io_error(&home, &error))?;
    Ok(home)
}

fn io_error(path: &Path, error: &std::io::Error) -> TaskError {
    TaskError::Failed(format!("cannot read or write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    /// No fixed registry URLs: developers with an npm mirror must be able to use it.
    #[test]
    fn package_versions_are_exact_without_registry_urls() {
        let sets = [
            (include_str!("../browser/package.json"), include_str!("../browser/package-lock.json")),
            (
                include_str!("../contract/package.json"),
                include_str!("../contract/package-lock.json"),
            ),
        ];
        for (wanted, lock) in sets {
            assert!(lock.contains("\"integrity\"") && !lock.contains("\"resolved\""));
            assert!(!wanted.contains('^') && !wanted.contains('~') && !wanted.contains("://"));
        }
    }
}
