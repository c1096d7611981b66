//! The location of the workspace, and how cargo is called in it.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) struct Workspace {
    root: PathBuf,
    started_in: PathBuf,
}

impl Workspace {
    /// The workspace that this tool belongs to, whatever the current directory.
    pub(crate) fn find() -> Workspace {
        // `cargo run` sets this variable at run time. The compile-time path is used when the
        // program is started directly.
        let own = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = own.parent().map_or_else(|| own.clone(), Path::to_path_buf);
        let started_in = std::env::current_dir().unwrap_or_else(|_| root.clone());
        Workspace { root, started_in }
    }

    /// The caller's working directory.
    pub(crate) fn started_in(&self) -> &Path {
        &self.started_in
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The absolute path of a file or directory in the workspace.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Cargo's target directory: as configured in the environment, otherwise derived from our own
    /// path.
    pub(crate) fn target(&self) -> PathBuf {
        if let Some(named) = std::env::var_os("CARGO_TARGET_DIR") {
            return self.root.join(named);
        }
        let own = std::env::current_exe().ok();
        let target = own.as_deref().and_then(|own| own.ancestors().nth(2)).map(Path::to_path_buf);
        target.unwrap_or_else(|| self.root.join("target"))
    }

    /// A cargo command in the root of the workspace.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = without_cargo_run_variables(Command::new(cargo_program()));
        cargo.current_dir(&self.root);
        cargo
    }

    /// A test program that cargo built.
    pub(crate) fn test_program(&self, executable: &Path) -> Command {
        let mut program = without_cargo_run_variables(Command::new(executable));
        program.env("CARGO", cargo_program());
        program
    }

    /// The names of the crates under `crates/` that have benchmarks.
    pub(crate) fn crates_with_benches(&self) -> Vec<String> {
        let mut names: Vec<String> = directory_entries(&self.root.join("crates"))
            .into_iter()
            .filter(|path| {
                directory_entries(&path.join("benches")).iter().any(|path| is_bench(path))
            })
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        names
    }

    /// Whether any Rust file of the crate `store` mentions `text`.
    pub(crate) fn store_mentions(&self, text: &str) -> bool {
        mentions(&self.root.join("crates/store"), text)
    }
}

/// Removes the variables that `cargo run` set for this program. Some build scripts depend on them:
/// a cargo that inherits them would rebuild those crates, and everything that depends on them,
/// every time a developer alternates between cargo and xtask.
pub(crate) fn without_cargo_run_variables(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if prefixes.iter().any(|told| name.to_string_lossy().starts_with(told)) {
            command.env_remove(name);
        }
    }
    command
}

/// The cargo that called us, so that everything uses one toolchain.
pub(crate) fn cargo_program() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

fn mentions(directory: &Path, text: &str) -> bool {
    directory_entries(directory).iter().any(|path| {
        if path.is_dir() {
            return mentions(path, text);
        }
        is_rust(path) && std::fs::read_to_string(path).is_ok_and(|source| source.contains(text))
    })
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// Whether cargo treats the path as a benchmark: a file, or a directory with a `main.rs`.
fn is_bench(path: &Path) -> bool {
    is_rust(path) || path.join("main.rs").is_file()
}

/// The entries of a directory; empty if it does not exist.
pub(crate) fn directory_entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .map(|read| read.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmark_is_a_file_or_directory_with_main() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        assert!(is_bench(&crates.join("feed/benches/memory.rs")));
        assert!(is_bench(&crates.join("cli/benches/performance")));
        assert!(!is_bench(&crates.join("cli")));
    }
}
