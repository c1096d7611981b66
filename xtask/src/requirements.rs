//! The tools that the checks need, and how they are installed.
//!
//! One table: a new requirement, such as a browser or another package manager, is one more row.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use crate::apt;
use crate::args::Check;
use crate::process::{Processes, TERMINATE_GROUP, TaskError};
use crate::python;
use crate::screen::Screen;
use crate::workspace::{cargo_program, directory_entries};

#[derive(Clone, Copy)]
pub(crate) struct Requirement {
    /// The name shown to the user.
    pub(crate) name: &'static str,
    pub(crate) detection: Detection,
    pub(crate) source: Source,
    /// The checks that need it.
    pub(crate) checks: &'static [Check],
}

/// How to detect that it is installed.
#[derive(Clone, Copy)]
pub(crate) enum Detection {
    Program(&'static str),
    PostgresServer,
    CargoCommand(&'static str),
    /// A Python that can create a virtual environment.
    Python,
}

/// How to install it.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Debian(&'static [&'static str]),
    Rustup(&'static str),
}

const COMPILING_CHECKS: &[Check] = &[Check::Clippy, Check::Test, Check::Doc, Check::Contract];

const TABLE: &[Requirement] = &[
    Requirement {
        name: "rustfmt",
        detection: Detection::CargoCommand("fmt"),
        source: Source::Rustup("rustfmt"),
        checks: &[Check::Fmt],
    },
    Requirement {
        name: "clippy",
        detection: Detection::CargoCommand("clippy"),
        source: Source::Rustup("clippy"),
        checks: &[Check::Clippy],
    },
    // SQLite is compiled from C source. Without recommended packages, gcc comes without the libc
    // headers.
    Requirement {
        name: "a C compiler",
        detection: Detection::Program("cc"),
        source: Source::Debian(&["gcc", "libc6-dev"]),
        checks: COMPILING_CHECKS,
    },
    Requirement {
        name: "a PostgreSQL server",
        detection: Detection::PostgresServer,
        source: Source::Debian(&["postgresql"]),
        checks: &[Check::Test],
    },
    // PostgreSQL and the service are started through it, so that they exit when we do.
    Requirement {
        name: "setpriv",
        detection: Detection::Program("setpriv"),
        source: Source::Debian(&["util-linux"]),
        checks: &[Check::Test, Check::Contract],
    },
    // The contract checkers are written in Python and installed with pip.
    Requirement {
        name: "Python 3 with venv",
        detection: Detection::Python,
        source: Source::Debian(&["python3", "python3-venv"]),
        checks: &[Check::Contract],
    },
    // For the browser tests of the dashboard; it comes with Chromium.
    Requirement {
        name: "chromedriver",
        detection: Detection::Program("chromedriver"),
        source: Source::Debian(&["chromium", "chromium-driver"]),
        checks: &[Check::Test],
    },
    // Runs the npm packages that the browser tests and the linters of the OpenAPI document need;
    // the module `node` installs them.
    Requirement {
        name: "Node.js",
        detection: Detection::Program("node"),
        source: Source::Debian(&["nodejs"]),
        checks: &[Check::Test, Check::Contract],
    },
    Requirement {
        name: "npm",
        detection: Detection::Program("npm"),
        source: Source::Debian(&["npm"]),
        checks: &[Check::Test, Check::Contract],
    },
    // The SMTP server that the tests of notifications send to.
    Requirement {
        name: "aiosmtpd",
        detection: Detection::Program("aiosmtpd"),
        source: Source::Debian(&["python3-aiosmtpd"]),
        checks: &[Check::Test],
    },
    // References for our version comparison.
    Requirement {
        name: "rpm",
        detection: Detection::Program("rpm"),
        source: Source::Debian(&["rpm"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "vercmp",
        detection: Detection::Program("vercmp"),
        source: Source::Debian(&["makepkg"]),
        checks: &[Check::Test],
    },
    // Build our own packages.
    Requirement {
        name: "dpkg-deb",
        detection: Detection::Program("dpkg-deb"),
        source: Source::Debian(&["dpkg"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "rpmbuild",
        detection: Detection::Program("rpmbuild"),
        source: Source::Debian(&["rpm"]),
        checks: &[Check::Test],
    },
    // With `repo-add`, which comes with vercmp: a repository of test packages.
    Requirement {
        name: "pacman",
        detection: Detection::Program("pacman"),
        source: Source::Debian(&["pacman-package-manager"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "bsdtar",
        detection: Detection::Program("bsdtar"),
        source: Source::Debian(&["libarchive-tools"]),
        checks: &[Check::Test],
    },
    // Separate systems for the tests of the agent, and archives for them.
    Requirement {
        name: "mmdebstrap",
        detection: Detection::Program("mmdebstrap"),
        source: Source::Debian(&["mmdebstrap"]),
        checks: &[Check::Test],
    },
    // For the script that installs agents.
    Requirement {
        name: "shellcheck",
        detection: Detection::Program("shellcheck"),
        source: Source::Debian(&["shellcheck"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "curl",
        detection: Detection::Program("curl"),
        source: Source::Debian(&["curl"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "dnf",
        detection: Detection::Program("dnf"),
        source: Source::Debian(&["dnf"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "zypper",
        detection: Detection::Program("zypper"),
        source: Source::Debian(&["zypper"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "createrepo_c",
        detection: Detection::Program("createrepo_c"),
        source: Source::Debian(&["createrepo-c"]),
        checks: &[Check::Test],
    },
    // The shell of minimal systems.
    Requirement {
        name: "busybox",
        detection: Detection::Program("busybox"),
        source: Source::Debian(&["busybox-static"]),
        checks: &[Check::Test],
    },
    Requirement {
        name: "apt-ftparchive",
        detection: Detection::Program("apt-ftparchive"),
        source: Source::Debian(&["apt-utils"]),
        checks: &[Check::Test],
    },
    // The reference for our vulnerability matching.
    Requirement {
        name: "debsecan",
        detection: Detection::Program("debsecan"),
        source: Source::Debian(&["debsecan"]),
        checks: &[Check::Test],
    },
];

pub(crate) fn all() -> Vec<Requirement> {
    TABLE.to_vec()
}

pub(crate) fn for_checks(checks: &[Check]) -> Vec<Requirement> {
    TABLE
        .iter()
        .filter(|row| row.checks.iter().any(|check| checks.contains(check)))
        .copied()
        .collect()
}

pub(crate) fn for_packaging() -> Vec<Requirement> {
    let needed = ["cc", "dpkg-deb", "rpmbuild"];
    TABLE
        .iter()
        .filter(|row| matches!(row.detection, Detection::Program(name) if needed.contains(&name)))
        .copied()
        .collect()
}

pub(crate) fn for_postgres() -> Vec<Requirement> {
    TABLE
        .iter()
        .filter(|row| {
            matches!(row.detection, Detection::PostgresServer | Detection::Program("setpriv"))
        })
        .copied()
        .collect()
}

/// The requirements of benchmarks: a private PostgreSQL, and lab systems with agents on them.
pub(crate) fn for_benchmarks() -> Vec<Requirement> {
    let lab = ["cc", "mmdebstrap", "apt-ftparchive", "dpkg-deb"];
    let of_lab = |row: &&Requirement| matches!(row.detection, Detection::Program(name) if lab.contains(&name));
    let mut rows = for_postgres();
    rows.extend(TABLE.iter().filter(of_lab).copied());
    rows
}

/// Installs missing requirements, or fails with instructions.
pub(crate) fn ensure_installed(
    needs: &[Requirement],
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<(), TaskError> {
    let missing = missing(needs, processes)?;
    if missing.is_empty() {
        return Ok(());
    }
    let packages = packages(&missing);
    let components = components(&missing);
    let can_install =
        packages.is_empty() || (geteuid().is_root() && find_in_path("apt-get").is_some());
    let can_add = components.is_empty() || find_in_path("rustup").is_some();
    if !can_install || !can_add {
        return Err(TaskError::Failed(install_instructions(&missing)));
    }
    if !components.is_empty() {
        add_components(&components, processes, screen)?;
    }
    if !packages.is_empty() {
        apt::install(&packages, processes, screen)?;
    }
    let still = self::missing(needs, processes)?;
    if !still.is_empty() {
        return Err(TaskError::Failed(format!(
            "after the installation: {}",
            install_instructions(&still)
        )));
    }
    Ok(())
}

fn missing(
    needs: &[Requirement],
    processes: &mut Processes,
) -> Result<Vec<Requirement>, TaskError> {
    let mut missing = Vec::new();
    for row in needs {
        let there = match row.detection {
            Detection::Program(name) => find_in_path(name).is_some(),
            Detection::PostgresServer => postgres_directory().is_some(),
            Detection::Python => python::interpreter(processes)?.is_some(),
            Detection::CargoCommand(name) => {
                let mut cargo = Command::new(cargo_program());
                cargo.args([name, "--version"]).stdin(Stdio::null());
                processes.run(cargo.stdout(Stdio::null()).stderr(Stdio::null()))?.success()
            }
        };
        if !there {
            missing.push(*row);
        }
    }
    Ok(missing)
}

fn packages(missing: &[Requirement]) -> Vec<&'static str> {
    let of_row = |row: &Requirement| match row.source {
        Source::Debian(names) => names,
        Source::Rustup(_) => &[],
    };
    missing.iter().flat_map(of_row).copied().collect()
}

fn components(missing: &[Requirement]) -> Vec<&'static str> {
    let of_row = |row: &Requirement| match row.source {
        Source::Rustup(name) => Some(name),
        Source::Debian(_) => None,
    };
    missing.iter().filter_map(of_row).collect()
}

/// One sentence: what is missing, and the commands to install it.
fn install_instructions(missing: &[Requirement]) -> String {
    let what: Vec<&str> = missing.iter().map(|row| row.name).collect();
    let mut ways = Vec::new();
    let packages = packages(missing);
    if !packages.is_empty() {
        let names = packages.join(" ");
        ways.push(format!(
            "as root, `apt-get install {names}` (or the equivalent on other systems)"
        ));
    }
    let components = components(missing);
    if !components.is_empty() {
        ways.push(format!("`rustup component add {}`", components.join(" ")));
    }
    format!("missing: {}; please run {}", what.join(", "), ways.join(" and "))
}

fn add_components(
    components: &[&str],
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<(), TaskError> {
    screen.show_activity(&format!("adding {}", components.join(", ")));
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "add"]).args(components);
    let mut output = String::new();
    let status = processes.run_with_lines(&mut rustup, TERMINATE_GROUP, &mut |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    if status.success() {
        return Ok(());
    }
    Err(TaskError::Failed(format!("rustup failed ({status}):\n{output}")))
}

/// The directory with `initdb` and `postgres`: from `PATH`, otherwise Debian's newest version.
pub(crate) fn postgres_directory() -> Option<PathBuf> {
    let complete = |directory: &Path| {
        ["initdb", "postgres"].iter().all(|name| is_program(&directory.join(name)))
    };
    // `PATH` may contain only a symbolic link; the other programs are next to the real file.
    let named = find_in_path("initdb")
        .and_then(|path| path.canonicalize().ok())
        .and_then(|path| path.parent().map(Path::to_path_buf))
        .filter(|directory| complete(directory));
    named.or_else(|| {
        let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
        let mut installed: Vec<(u32, PathBuf)> =
            directory_entries(Path::new("/usr/lib/postgresql"))
                .into_iter()
                .filter_map(|path| Some((version(&path)?, path.join("bin"))))
                .filter(|(_, directory)| complete(directory))
                .collect();
        installed.sort();
        installed.pop().map(|(_, directory)| directory)
    })
}

fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|p| is_program(p))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_missing_tools_and_install_commands() {
        let missing: Vec<Requirement> = TABLE
            .iter()
            .filter(|row| ["clippy", "rpm", "a C compiler"].contains(&row.name))
            .copied()
            .collect();
        assert_eq!(
            install_instructions(&missing),
            "missing: clippy, a C compiler, rpm; please run as root, \
             `apt-get install gcc libc6-dev rpm` (or the equivalent on other systems) and \
             `rustup component add clippy`"
        );
    }

    #[test]
    fn formatting_check_needs_only_rustfmt() {
        let needs = for_checks(&[Check::Fmt]);
        assert_eq!(needs.iter().map(|row| row.name).collect::<Vec<_>>(), ["rustfmt"]);
    }

    #[test]
    fn private_postgres_needs_server_and_setpriv() {
        let needs = for_postgres();
        let what: Vec<_> = needs.iter().map(|row| row.name).collect();
        assert_eq!(what, ["a PostgreSQL server", "setpriv"]);
    }
}
