//! Where the workspace is, and cargo as it is called from there.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace that is checked.
pub(crate) struct Workspace {
    root: PathBuf,
    started_in: PathBuf,
}

impl Workspace {
    /// The workspace that this tool belongs to, from wherever it was called.
    pub(crate) fn find() -> Workspace {
        // `cargo run` says where it found us; the path of the build is for a call by hand.
        let own = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = own.parent().map_or_else(|| own.clone(), Path::to_path_buf);
        let started_in = std::env::current_dir().unwrap_or_else(|_| root.clone());
        Workspace { root, started_in }
    }

    /// The directory that the caller was in.
    pub(crate) fn started_in(&self) -> &Path {
        &self.started_in
    }

    /// Its directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A file or directory of the workspace.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Where cargo puts what it builds: where it was told to, else where it has put us.
    pub(crate) fn target(&self) -> PathBuf {
        if let Some(named) = std::env::var_os("CARGO_TARGET_DIR") {
            return self.root.join(named);
        }
        let own = std::env::current_exe().ok();
        let target = own.as_deref().and_then(|own| own.ancestors().nth(2)).map(Path::to_path_buf);
        target.unwrap_or_else(|| self.root.join("target"))
    }

    /// Cargo, in the root of the workspace.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = as_if_typed(Command::new(cargo_program()));
        cargo.current_dir(&self.root);
        cargo
    }

    /// The crates under `crates/` that have benchmarks, by name.
    pub(crate) fn crates_with_benches(&self) -> Vec<String> {
        let mut names: Vec<String> = entries(&self.root.join("crates"))
            .into_iter()
            .filter(|path| entries(&path.join("benches")).iter().any(|path| is_bench(path)))
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        names
    }

    /// Whether any Rust file of the store's crate mentions `text`.
    pub(crate) fn store_mentions(&self, text: &str) -> bool {
        mentions(&self.root.join("crates/store"), text)
    }
}

/// Without what `cargo run` told this program of itself. Some build scripts ask for such words, so that a cargo which inherits
/// ours would build their crates, and all that depends on them, anew after every cargo that was typed, and back again.
pub(crate) fn as_if_typed(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let told = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if told.iter().any(|told| name.to_string_lossy().starts_with(told)) {
            command.env_remove(name);
        }
    }
    command
}

/// The cargo that called us, so that one toolchain does all of the work.
pub(crate) fn cargo_program() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

fn mentions(directory: &Path, text: &str) -> bool {
    entries(directory).iter().any(|path| {
        if path.is_dir() {
            return mentions(path, text);
        }
        is_rust(path) && std::fs::read_to_string(path).is_ok_and(|source| source.contains(text))
    })
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// Whether cargo makes a benchmark of this: a file, or a folder that has a `main.rs`.
fn is_bench(path: &Path) -> bool {
    is_rust(path) || path.join("main.rs").is_file()
}

/// What a directory holds; nothing if it is not there.
pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .map(|read| read.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_is_a_file_or_a_folder_with_a_main() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        assert!(is_bench(&crates.join("feed/benches/memory.rs")));
        assert!(is_bench(&crates.join("cli/benches/performance")));
        assert!(!is_bench(&crates.join("cli")));
    }
}
