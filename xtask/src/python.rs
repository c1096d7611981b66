//! A virtual environment with the Python programs that `contract/requirements.txt` pins.
//!
//! It is in the target directory, is created once for each set of versions, and does not touch the
//! machine's Python installation. `contract` runs the programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Processes, TERMINATE_GROUP, TaskError};
use crate::screen::Screen;
use crate::workspace::{Workspace, directory_entries};

/// Written when the installation is complete. An environment without this file was interrupted.
const COMPLETE_MARKER: &str = "complete";
const PREFIX: &str = "python-";

/// A complete virtual environment.
pub(crate) struct Python {
    programs: PathBuf,
}

impl Python {
    /// Returns the environment for the current requirements, and creates it if necessary.
    pub(crate) fn ensure_installed(
        workspace: &Workspace,
        processes: &mut Processes,
        screen: &mut Screen,
    ) -> Result<Python, TaskError> {
        let requirements = workspace.path("xtask/contract/requirements.txt");
        let wanted = std::fs::read_to_string(&requirements).map_err(|error| {
            TaskError::Failed(format!("cannot read {}: {error}", requirements.display()))
        })?;
        let python = interpreter(processes)?.ok_or_else(|| {
            TaskError::Failed("no python3 with the modules venv and ensurepip found".to_owned())
        })?;
        let version = run_for_output(Command::new(&python).arg("--version"), processes)?;
        let base = workspace.target().join("contract");
        let name = format!("{PREFIX}{:016x}", fingerprint(&[&wanted, &version]));
        let home = base.join(&name);
        if !home.join(COMPLETE_MARKER).exists() {
            remove_others(&base);
            screen.show_activity("installing the contract checkers");
            run_for_output(Command::new(&python).args(["-m", "venv"]).arg(&home), processes)?;
            let mut pip = Command::new(home.join("bin/python"));
            pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "install"]);
            run_for_output(pip.args(["--quiet", "--requirement"]).arg(&requirements), processes)?;
            std::fs::write(home.join(COMPLETE_MARKER), version).map_err(|error| {
                TaskError::Failed(format!("cannot write to {}: {error}", home.display()))
            })?;
        }
        Ok(Python { programs: home.join("bin") })
    }

    /// A program of the environment, with the environment first in `PATH`.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.programs.clone()).chain(std::env::split_paths(&others));
        if let Ok(path) = std::env::join_paths(all) {
            command.env("PATH", path);
        }
        // The caller's settings could add modules from elsewhere.
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// A Python that can create virtual environments: the one in `PATH`, otherwise the system's, if it
/// is complete.
pub(crate) fn interpreter(processes: &mut Processes) -> Result<Option<PathBuf>, TaskError> {
    for python in ["python3", "/usr/bin/python3"] {
        let mut command = Command::new(python);
        command.args(["-c", "import ensurepip, venv"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match processes.run(&mut command) {
            Ok(status) if status.success() => return Ok(Some(PathBuf::from(python))),
            // Not installed, or without the modules that Debian packages separately.
            Ok(_) | Err(TaskError::Failed(_)) => {}
            Err(TaskError::Interrupted) => return Err(TaskError::Interrupted),
        }
    }
    Ok(None)
}

/// Runs a command and returns its output. Fails if the command fails.
pub(crate) fn run_for_output(
    command: &mut Command,
    processes: &mut Processes,
) -> Result<String, TaskError> {
    let mut output = String::new();
    let status = processes.run_with_lines(command, TERMINATE_GROUP, &mut |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    if status.success() {
        return Ok(output);
    }
    Err(TaskError::Failed(format!("{command:?} failed ({status}):\n{output}")))
}

/// Removes environments of other versions and incomplete ones.
fn remove_others(base: &Path) {
    for path in directory_entries(base) {
        let name = path.file_name().unwrap_or_default();
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// FNV-1a. Stable across builds, which the standard library does not guarantee for its hasher.
pub(crate) fn fingerprint(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_depends_on_requirements_and_python() {
        let one = fingerprint(&["a==1\n", "Python 3.11.2\n"]);
        assert_eq!(one, fingerprint(&["a==1\n", "Python 3.11.2\n"]));
        assert_ne!(one, fingerprint(&["a==2\n", "Python 3.11.2\n"]));
        assert_ne!(one, fingerprint(&["a==1\n", "Python 3.12.1\n"]));
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
    }

    #[test]
    fn environments_of_other_versions_are_removed() {
        let base = std::env::temp_dir().join(format!("xtask-python-{}", std::process::id()));
        for name in ["python-1", "python-2/bin", "other"] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        remove_others(&base);
        assert_eq!(directory_entries(&base), [base.join("other")]);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
