//! dpkg's own database, read without dpkg: what is installed, and what is half done.
//!
//! dpkg writes what it does into numbered files beside its database, and puts them into it when it ends. While there are
//! none, the file says everything that dpkg-query and `dpkg --audit` would say, and costs no process. While
//! there are some, dpkg itself is asked.

use vocab::Line;
use vocab::listing::Installed;

use super::{native, system};
use crate::backend::{BackendError, Choice};
use crate::root::Root;

/// Where it lies.
pub(super) const PATH: &str = "/var/lib/dpkg/status";

/// A package of which there is at least a part.
#[derive(Debug, PartialEq)]
pub(super) struct Package {
    pub(super) installed: Installed,
    state: String,
    /// dpkg wants it installed again.
    messed: bool,
}

/// The packages that are there, whole or half; nothing while the file is not the whole truth.
pub(super) fn read(root: &Root) -> Result<Option<Vec<Package>>, BackendError> {
    // In this order: if dpkg begins in between, the file is what it was when there was nothing beside it.
    if system::is_interrupted(root)? {
        return Ok(None);
    }
    let Some(text) = system::read(root, PATH)? else { return Ok(None) };
    let unreadable = |why| BackendError::Unreadable { what: PATH.to_owned(), why };
    packages(&text).map(Some).map_err(unreadable)
}

fn packages(text: &str) -> Result<Vec<Package>, String> {
    let stanzas = text.split("\n\n").filter(|stanza| !stanza.trim().is_empty());
    let mut packages: Vec<Package> =
        stanzas.map(package).filter_map(Result::transpose).collect::<Result<_, _>>()?;
    let key = |package: &Package| (package.installed.name.clone(), package.installed.arch.clone());
    packages.sort_by_cached_key(key);
    Ok(packages)
}

/// What a stanza tells of; nothing if of the package at most configuration is left.
fn package(stanza: &str) -> Result<Option<Package>, String> {
    let (mut name, mut status, mut arch, mut version, mut source) = ("", "", "", "", "");
    for line in stanza.lines() {
        // What is indented goes on with the field before it.
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
        return Err(format!("the package {name:?} with the status {status:?}"));
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
    Ok(Some(Package { installed, state: state.to_owned(), messed: flag == "reinstreq" }))
}

/// What is half done, a line a package, in the words of [`super::read::audit`].
pub(super) fn damage(packages: &[Package]) -> Vec<Line> {
    let line = |package: &Package| {
        let kind = match (package.messed, package.state.as_str()) {
            (true, _) => "must be installed again",
            (false, "installed") => return None,
            (false, "unpacked") => "unpacked, not configured",
            (false, "half-configured") => "half configured",
            (false, "half-installed") => "half installed",
            (false, "triggers-awaited") => "waits for triggers of others",
            (false, "triggers-pending") => "its triggers have not run",
            (false, other) => other,
        };
        let Installed { name, arch, .. } = &package.installed;
        let foreign = arch != "all" && arch != native();
        let name = if foreign { format!("{name}:{arch}") } else { name.clone() };
        Some(Line::made_of(&format!("{name}: {kind}")))
    };
    packages.iter().filter_map(line).collect()
}

/// What must be installed again, in the version that is there.
pub(super) fn messed(packages: &[Package]) -> Vec<Choice> {
    let choice = |package: &Package| Choice {
        name: package.installed.name.clone(),
        arch: package.installed.arch.clone(),
        from: package.installed.version.clone(),
        to: package.installed.version.clone(),
    };
    packages.iter().filter(|package| package.messed).map(choice).collect()
}

/// Reads dpkg's file of states, and what is damaged in it.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(text: &str) {
    if let Ok(packages) = packages(text) {
        let _ = (damage(&packages), messed(&packages));
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
    fn what_is_half_installed_is_listed_and_what_is_only_remembered_is_not() {
        let packages = packages(STATUS).unwrap();
        let shown: Vec<String> = packages
            .iter()
            .map(|Package { installed, .. }| {
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
        assert_eq!(lines, ["ep: must be installed again", "sec: half configured"]);
        assert_eq!(messed(&packages)[0].to, "1:1.0-1");
    }

    #[test]
    fn a_stanza_without_a_name_or_a_status_is_not_taken_for_nothing() {
        let odd = packages("Package: odd\nVersion: 1\n\n").unwrap_err();
        assert_eq!(odd, "the package \"odd\" with the status \"\"");
        assert!(packages("Status: install ok installed\nVersion: 1\n").is_err());
    }
}
