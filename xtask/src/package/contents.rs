//! The contents of a package, common to .deb and .rpm.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::process::TaskError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    Agent,
    Server,
}

/// When a maintainer script runs. All four scripts are shell fragments; each package format places
/// them where it needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptEvent {
    Installed,
    Removing,
    Removed,
    Purged,
}

/// Files below `deploy` that the server's package carries as examples.
const EXAMPLES: [&str; 3] = ["nginx.conf", "Caddyfile", "prometheus/alerts.yml"];

/// The directory of the agents in the server's package.
pub(super) const AGENTS_DIR: &str = "usr/lib/fleetmend/agents";

impl Product {
    pub(crate) const ALL: [Product; 2] = [Product::Agent, Product::Server];

    /// The name of the package and of its program.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Product::Agent => "fleetmend-agent",
            Product::Server => "fleetmend",
        }
    }

    /// The cargo package that contains the program, and the flags for its features.
    pub(crate) fn cargo_package(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Product::Agent => ("agent", &[]),
            // Without the feature `demo`: production packages contain no simulator.
            Product::Server => ("cli", &["--no-default-features"]),
        }
    }

    pub(crate) fn summary(self) -> &'static str {
        match self {
            Product::Agent => "reports packages and installs updates for a Fleetmend server",
            Product::Server => "patch management for Linux servers: server and command line",
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Product::Agent => {
                "Runs on every server of a fleet. It installs updates with the server's own package \
                 manager when the Fleetmend server orders it, within the limits that the host's \
                 administrator has set."
            }
            Product::Server => {
                "Tracks the installed packages and pending updates of a fleet of servers, and rolls out \
                 updates at the pace that you choose."
            }
        }
    }

    pub(crate) fn script(self, root: &Path, event: ScriptEvent) -> Result<String, TaskError> {
        let when = match event {
            ScriptEvent::Installed => "installed",
            ScriptEvent::Removing => "removing",
            ScriptEvent::Removed => "removed",
            ScriptEvent::Purged => "purged",
        };
        read(&root.join("packaging/scripts").join(format!("{}.{when}", self.name())))
    }

    /// Files as (source, destination, whether it is a program).
    fn files(
        self,
        root: &Path,
        program: &Path,
        agents: &[(PathBuf, String)],
    ) -> Vec<(PathBuf, String, bool)> {
        let name = self.name();
        let packaging = root.join("packaging");
        let doc = format!("usr/share/doc/{name}");
        let mut files = vec![
            (program.to_owned(), format!("usr/bin/{name}"), true),
            (
                packaging.join(format!("systemd/{name}.service")),
                format!("usr/lib/systemd/system/{name}.service"),
                false,
            ),
            (
                packaging.join(format!("man/{name}.8")),
                format!("usr/share/man/man8/{name}.8"),
                false,
            ),
            (root.join("LICENSE"), format!("{doc}/copyright"), false),
            (root.join("CHANGELOG.md"), format!("{doc}/changelog.md"), false),
            (root.join("docs/install.md"), format!("{doc}/install.md"), false),
        ];
        if self == Product::Server {
            let users = packaging.join("fleetmend.sysusers");
            files.push((users, "usr/lib/sysusers.d/fleetmend.conf".to_owned(), false));
            for unit in ["fleetmend-backup.service", "fleetmend-backup.timer"] {
                let source = packaging.join("systemd").join(unit);
                files.push((source, format!("usr/lib/systemd/system/{unit}"), false));
            }
            for example in EXAMPLES {
                let source = root.join("deploy").join(example);
                let name = example.rsplit('/').next().unwrap_or(example);
                files.push((source, format!("{doc}/examples/{name}"), false));
            }
            files.extend(
                agents
                    .iter()
                    .map(|(path, name)| (path.clone(), format!("{AGENTS_DIR}/{name}"), true)),
            );
        }
        files
    }

    /// Directories that are initially empty.
    fn directories(self) -> &'static [&'static str] {
        match self {
            Product::Agent => &[
                "etc/fleetmend/hooks/pre-install.d",
                "etc/fleetmend/hooks/post-install.d",
                "etc/fleetmend/hooks/pre-reboot.d",
            ],
            Product::Server => &["etc/fleetmend"],
        }
    }

    /// Copies everything into a new directory, laid out as under `/`. The server's package carries
    /// `agents`, given as path and file name.
    pub(crate) fn stage(
        self,
        root: &Path,
        program: &Path,
        agents: &[(PathBuf, String)],
        stage: &Path,
    ) -> Result<(), TaskError> {
        let _ = fs::remove_dir_all(stage);
        for directory in self.directories() {
            create_dir(&stage.join(directory))?;
        }
        for (source, place, is_program) in self.files(root, program, agents) {
            let place = stage.join(place);
            create_dir(place.parent().unwrap_or(stage))?;
            fs::copy(&source, &place).map_err(|error| io_error("copy", &source, &error))?;
            let mode = if is_program { 0o755 } else { 0o644 };
            fs::set_permissions(&place, fs::Permissions::from_mode(mode))
                .map_err(|error| io_error("set the mode of", &place, &error))?;
        }
        if self == Product::Server {
            generate_man_pages_and_completions(program, stage)?;
        }
        // The directories may have been created with any umask.
        for directory in directories_below(stage) {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))
                .map_err(|error| io_error("set the mode of", &directory, &error))?;
        }
        Ok(())
    }
}

/// Generates man pages and shell completions with the program itself.
fn generate_man_pages_and_completions(program: &Path, stage: &Path) -> Result<(), TaskError> {
    // Debian's zsh uses one of the two directories, other distributions use the other.
    const COMPLETIONS: [(&str, &str); 4] = [
        ("bash", "usr/share/bash-completion/completions/fleetmend"),
        ("zsh", "usr/share/zsh/vendor-completions/_fleetmend"),
        ("zsh", "usr/share/zsh/site-functions/_fleetmend"),
        ("fish", "usr/share/fish/vendor_completions.d/fleetmend.fish"),
    ];
    let pages = stage.join("usr/share/man/man1");
    create_dir(&pages)?;
    let ask = |args: &[&std::ffi::OsStr]| -> Result<Vec<u8>, TaskError> {
        let output = std::process::Command::new(program).args(args).output();
        let output = output.map_err(|error| io_error("run", program, &error))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(TaskError::Failed(format!(
                "{} cannot generate its man pages or completions: {}",
                program.display(),
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    };
    ask(&["man".as_ref(), pages.as_os_str()])?;
    for page in crate::workspace::directory_entries(&pages) {
        fs::set_permissions(&page, fs::Permissions::from_mode(0o644))
            .map_err(|error| io_error("set the mode of", &page, &error))?;
    }
    for (shell, place) in COMPLETIONS {
        let place = stage.join(place);
        create_dir(place.parent().unwrap_or(stage))?;
        let text = ask(&["completions".as_ref(), shell.as_ref()])?;
        write(&place, &String::from_utf8_lossy(&text), 0o644)?;
    }
    Ok(())
}

/// A directory and all directories below it.
fn directories_below(directory: &Path) -> Vec<PathBuf> {
    let below =
        crate::workspace::directory_entries(directory).into_iter().filter(|path| path.is_dir());
    let mut all = vec![directory.to_owned()];
    all.extend(below.flat_map(|path| directories_below(&path)));
    all
}

pub(crate) fn create_dir(path: &Path) -> Result<(), TaskError> {
    fs::create_dir_all(path).map_err(|error| io_error("create", path, &error))
}

/// Copies a file with its mode, and creates the directories above it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), TaskError> {
    create_dir(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop).map_err(|error| io_error("copy", from, &error))
}

pub(crate) fn read(path: &Path) -> Result<String, TaskError> {
    fs::read_to_string(path).map_err(|error| io_error("read", path, &error))
}

pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), TaskError> {
    fs::write(path, text).map_err(|error| io_error("write", path, &error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| io_error("set the mode of", path, &error))
}

fn io_error(verb: &str, path: &Path, error: &std::io::Error) -> TaskError {
    TaskError::Failed(format!("cannot {verb} {}: {error}", path.display()))
}
