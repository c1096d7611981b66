//! Python programs at the versions that `contract/requirements.txt` names, in an environment of their own.
//!
//! It lies in the target directory, is made once for each set of versions, and touches no Python of the machine.
//! `contract` runs what is in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{AT_ONCE, Halt, Processes};
use crate::screen::Screen;
use crate::workspace::{Workspace, entries};

/// Written when everything is installed: an environment without it was interrupted.
const COMPLETE: &str = "complete";
const PREFIX: &str = "python-";

/// An environment with everything in it.
pub(crate) struct Python {
    programs: PathBuf,
}

impl Python {
    /// The environment for these requirements, made if it is not there.
    pub(crate) fn provide(
        workspace: &Workspace,
        processes: &mut Processes,
        screen: &mut Screen,
    ) -> Result<Python, Halt> {
        let requirements = workspace.path("xtask/contract/requirements.txt");
        let wanted = std::fs::read_to_string(&requirements).map_err(|error| {
            Halt::Failed(format!("cannot read {}: {error}", requirements.display()))
        })?;
        let python = interpreter(processes)?.ok_or_else(|| {
            Halt::Failed("there is no python3 that can make an environment".to_owned())
        })?;
        let version = said(Command::new(&python).arg("--version"), processes)?;
        let base = workspace.target().join("contract");
        let name = format!("{PREFIX}{:016x}", fingerprint(&[&wanted, &version]));
        let home = base.join(&name);
        if !home.join(COMPLETE).exists() {
            remove_others(&base);
            screen.at("installing the programs that check the contract");
            said(Command::new(&python).args(["-m", "venv"]).arg(&home), processes)?;
            let mut pip = Command::new(home.join("bin/python"));
            pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "install"]);
            said(pip.args(["--quiet", "--requirement"]).arg(&requirements), processes)?;
            std::fs::write(home.join(COMPLETE), version).map_err(|error| {
                Halt::Failed(format!("cannot write to {}: {error}", home.display()))
            })?;
        }
        Ok(Python { programs: home.join("bin") })
    }

    /// A program of the environment, which finds the others there too.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.programs.clone()).chain(std::env::split_paths(&others));
        if let Ok(path) = std::env::join_paths(all) {
            command.env("PATH", path);
        }
        // The caller's would bring modules from elsewhere.
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// A Python that can make environments: the one in `PATH`, else the system's own, if that is complete.
pub(crate) fn interpreter(processes: &mut Processes) -> Result<Option<PathBuf>, Halt> {
    for python in ["python3", "/usr/bin/python3"] {
        let mut command = Command::new(python);
        command.args(["-c", "import ensurepip, venv"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match processes.run(&mut command) {
            Ok(status) if status.success() => return Ok(Some(PathBuf::from(python))),
            // Not there, or without what Debian packs apart.
            Ok(_) | Err(Halt::Failed(_)) => {}
            Err(Halt::Interrupted) => return Err(Halt::Interrupted),
        }
    }
    Ok(None)
}

/// What a command printed, if it succeeded.
pub(crate) fn said(command: &mut Command, processes: &mut Processes) -> Result<String, Halt> {
    let mut said = String::new();
    let status = processes.run_with_lines(command, AT_ONCE, &mut |line| {
        said.push_str(line);
        said.push('\n');
    })?;
    if status.success() {
        return Ok(said);
    }
    Err(Halt::Failed(format!("{command:?} failed ({status}):\n{said}")))
}

/// Environments of other versions, and those that were never finished.
fn remove_others(base: &Path) {
    for path in entries(base) {
        let name = path.file_name().unwrap_or_default();
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// FNV-1a: the same in every build, which the standard library does not promise of its own.
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
    fn other_versions_or_another_python_make_another_environment() {
        let one = fingerprint(&["a==1\n", "Python 3.11.2\n"]);
        assert_eq!(one, fingerprint(&["a==1\n", "Python 3.11.2\n"]));
        assert_ne!(one, fingerprint(&["a==2\n", "Python 3.11.2\n"]));
        assert_ne!(one, fingerprint(&["a==1\n", "Python 3.12.1\n"]));
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
    }

    #[test]
    fn an_environment_of_other_versions_does_not_stay() {
        let base = std::env::temp_dir().join(format!("xtask-python-{}", std::process::id()));
        for name in ["python-1", "python-2/bin", "other"] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        remove_others(&base);
        assert_eq!(entries(&base), [base.join("other")]);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
