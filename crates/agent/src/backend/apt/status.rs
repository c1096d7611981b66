//! Reads dpkg's database without running dpkg: installed packages and damaged ones.
//!
//! dpkg writes its changes to numbered files next to the database, and merges them when it ends.
//! While there are none, the database contains everything that dpkg-query and `dpkg --audit` would
//! print, and no process is needed. Otherwise dpkg itself is run.

use vocab::Line;
use vocab::listing::Installed;

use super::{native_arch, system};
use crate::backend::{BackendError, Choice};
use crate::root::Root;

pub(super) const PATH: &str = "/var/lib/dpkg/status";

/// A package that is installed at least partly.
#[derive(Debug, PartialEq)]
pub(super) struct StatusEntry {
    pub(super) installed: Installed,
    state: String,
    /// Whether dpkg requires a reinstallation.
    needs_reinstall: bool,
}

/// The packages that are installed, completely or partly; `None` while the database is incomplete.
pub(super) fn read_packages(root: &Root) -> Result<Option<Vec<StatusEntry>>, BackendError> {
    // The order matters: if dpkg starts in between, the database is still in the state from before.
    if system::is_interrupted(root)? {
        return Ok(None);
    }
    let Some(text) = system::read_file(root, PATH)? else { return Ok(None) };
    let unreadable = |why| BackendError::Unreadable { what: PATH.to_owned(), why };
    parse_packages(&text).map(Some).map_err(unreadable)
}

fn parse_packages(text: &str) -> Result<Vec<StatusEntry>, String> {
    let stanzas = text.split("\n\n").filter(|stanza| !stanza.trim().is_empty());
    let mut packages: Vec<StatusEntry> =
        stanzas.map(parse_stanza).filter_map(Result::transpose).collect::<Result<_, _>>()?;
    let key =
        |package: &StatusEntry| (package.installed.name.clone(), package.installed.arch.clone());
    packages.sort_by_cached_key(key);
    Ok(packages)
}

/// Parses a stanza; `None` if at most the package's configuration is left.
fn parse_stanza(stanza: &str) -> Result<Option<StatusEntry>, String> {
    let (mut name, mut status, mut arch, mut version, mut source) = ("", "", "", "", "");
    for line in stanza.lines() {
        // Indented lines continue the previous field.
        let Some((field, value)) = line.split_once(':').filter(|_| !line.starts_with([' ', '\t']))
        else {
            continue;
        };
        let place = match field {
            "Package" => &mut name,
            "Status" => &mut status,
            "Architecture" => &mut arch,
            "Version" => &mut version,
            "Source" => &mut source,
            _ => continue,
        };
        *place = value.trim();
    }
    let mut words = status.split(' ');
    let (Some(want), Some(flag), Some(state), None, false) =
        (words.next(), words.next(), words.next(), words.next(), name.is_empty())
    else {
        return Err(format!("package {name:?} with the invalid status {status:?}"));
    };
    if version.is_empty() || matches!(state, "not-installed" | "config-files") {
        return Ok(None);
    }
    // `Source: name` or `Source: name (version)`.
    let (source, source_version) = match source.split_once(" (") {
        Some((source, rest)) => (source, rest.trim_end_matches(')')),
        None if source.is_empty() => (name, version),
        None => (source, version),
    };
    let mut installed = Installed::new(name, version, arch).with_source(source, source_version);
    installed.held = want == "hold";
    Ok(Some(StatusEntry {
        installed,
        state: state.to_owned(),
        needs_reinstall: flag == "reinstreq",
    }))
}

/// The damaged packages, one line each, in the format of [`super::parse::parse_audit`].
pub(super) fn damage(packages: &[StatusEntry]) -> Vec<Line> {
    let line = |package: &StatusEntry| {
        let kind = match (package.needs_reinstall, package.state.as_str()) {
            (true, _) => "must be reinstalled",
            (false, "installed") => return None,
            (false, "unpacked") => "unpacked, not configured",
            (false, "half-configured") => "half configured",
            (false, "half-installed") => "half installed",
            (false, "triggers-awaited") => "waiting for triggers of other packages",
            (false, "triggers-pending") => "its triggers have not run",
            (false, other) => other,
        };
        let Installed { name, arch, .. } = &package.installed;
        let foreign = arch != "all" && arch != native_arch();
        let name = if foreign { format!("{name}:{arch}") } else { name.clone() };
        Some(Line::sanitize(&format!("{name}: {kind}")))
    };
    packages.iter().filter_map(line).collect()
}

/// The packages that must be reinstalled, in their installed version.
pub(super) fn to_reinstall(packages: &[StatusEntry]) -> Vec<Choice> {
    let choice = |package: &StatusEntry| Choice {
        name: package.installed.name.clone(),
        arch: package.installed.arch.clone(),
        from: package.installed.version.clone(),
        to: package.installed.version.clone(),
    };
    packages.iter().filter(|package| package.needs_reinstall).map(choice).collect()
}

/// Parses dpkg's database, including damaged packages.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(text: &str) {
    if let Ok(packages) = parse_packages(text) {
        let _ = (damage(&packages), to_reinstall(&packages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Package: sec\nStatus: install ok half-configured\nArchitecture: all\n\
        Version: 1.1\nConffiles:\n /etc/sec.conf 0123\nDescription: a tale\n Status: of no meaning\n\n\
        Package: ep\nStatus: install reinstreq half-installed\nSource: epsrc (3.0-1)\n\
        Architecture: amd64\nVersion: 1:1.0-1\n\n\
        Package: held\nStatus: hold ok installed\nSource: other\nArchitecture: amd64\nVersion: 1.0\n\n\
        Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 2\n\n\
        Package: never\nStatus: unknown ok not-installed\n\n";

    #[test]
    fn partly_installed_packages_are_listed_and_removed_are_not() {
        let packages = parse_packages(STATUS).unwrap();
        let shown: Vec<String> = packages
            .iter()
            .map(|StatusEntry { installed, .. }| {
                let held = if installed.held { " held" } else { "" };
                let (source, of) = (installed.source(), installed.source_version());
                format!("{} {} from {source} {of}{held}", installed.name, installed.version)
            })
            .collect();
        assert_eq!(
            shown,
            ["ep 1:1.0-1 from epsrc 3.0-1", "held 1.0 from other 1.0 held", "sec 1.1 from sec 1.1"]
        );
        let lines: Vec<String> = damage(&packages).iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["ep: must be reinstalled", "sec: half configured"]);
        assert_eq!(to_reinstall(&packages)[0].to, "1:1.0-1");
    }

    #[test]
    fn stanza_without_name_or_status_is_an_error() {
        let odd = parse_packages("Package: odd\nVersion: 1\n\n").unwrap_err();
        assert_eq!(odd, "package \"odd\" with the invalid status \"\"");
        assert!(parse_packages("Status: install ok installed\nVersion: 1\n").is_err());
    }
}
