//! Parses `apt-get --print-uris -V install …`: the changes, the download size and the disk usage.
//! One command provides all of this; `apt-get -s` does not print sizes.

use std::collections::BTreeMap;

use super::parse::{disk_bytes, total_download_bytes};
use crate::backend::{Change, Transaction};

/// The lists of changes in the output, by the ends of their headings.
const CHANGE_LISTS: [(&str, ChangeKind); 4] = [
    ("will be REMOVED:", ChangeKind::Removed),
    ("NEW packages will be installed:", ChangeKind::New),
    ("will be upgraded:", ChangeKind::Moved),
    ("will be DOWNGRADED:", ChangeKind::Moved),
];

#[derive(Clone, Copy)]
enum ChangeKind {
    New,
    Moved,
    Removed,
}

/// Parses the output of a successful apt-get. The listed changes must add up to the printed counts.
/// `native` is the architecture that apt-get omits, and `is_all` tells which installed packages
/// have the architecture `all`.
pub(super) fn parse_preview(
    output: &str,
    native: &str,
    is_all: impl Fn(&str) -> bool,
) -> Result<Transaction, String> {
    let archs = architectures(output);
    let mut changes = Vec::new();
    let mut list = None;
    for line in output.lines() {
        let Some(item) = line.strip_prefix("   ") else {
            list = CHANGE_LISTS.iter().find(|(end, _)| line.ends_with(end)).map(|(_, kind)| *kind);
            continue;
        };
        let Some(kind) = list else { continue };
        let change =
            parse_change(item, kind, native).ok_or_else(|| format!("unexpected line {line:?}"))?;
        changes.push(with_real_arch(change, &archs, native, &is_all));
    }
    match printed_count(output) {
        Some(count) if count == changes.len() => {}
        count => {
            return Err(format!("{} changes are listed, but {count:?} are counted", changes.len()));
        }
    }
    let (download_bytes, disk_bytes) = (Some(total_download_bytes(output)), disk_bytes(output));
    Ok(Transaction { changes, download_bytes, disk_bytes })
}

/// `NAME (NEW)`, `NAME (OLD => NEW)` or `NAME (OLD)`; names of a foreign architecture end in
/// `:ARCH`.
fn parse_change(item: &str, kind: ChangeKind, native: &str) -> Option<Change> {
    let (full, versions) = item.strip_suffix(')')?.split_once(" (")?;
    let full = full.trim_end_matches('*');
    let (name, home) = full.split_once(':').unwrap_or((full, native));
    let (from, to) = match kind {
        ChangeKind::New => (None, Some(versions)),
        ChangeKind::Removed => (Some(versions), None),
        ChangeKind::Moved => {
            versions.split_once(" => ").map(|(from, to)| (Some(from), Some(to)))?
        }
    };
    let [from, to] = [from, to].map(|version| version.map(str::to_owned));
    Some(Change { name: name.to_owned(), arch: home.to_owned(), from, to })
}

/// apt-get prints packages with the architecture `all` as native. The name of the file to download
/// contains the real architecture; without a download, the installed one is assumed.
fn with_real_arch(
    change: Change,
    archs: &BTreeMap<(String, String), String>,
    native: &str,
    is_all: &impl Fn(&str) -> bool,
) -> Change {
    let key = (change.name.clone(), change.to.clone().unwrap_or_default());
    let of_none = match archs.get(&key) {
        Some(arch) => arch == "all",
        None => change.from.is_some() && change.arch == native && is_all(&change.name),
    };
    if of_none { Change { arch: "all".to_owned(), ..change } } else { change }
}

/// The architectures of the downloads, by name and version:
/// `'URI' NAME_VERSION_ARCH.deb BYTES HASH`.
fn architectures(output: &str) -> BTreeMap<(String, String), String> {
    let file = |line: &str| {
        let (_, rest) = line.strip_prefix('\'')?.split_once("' ")?;
        let (stem, arch) = rest.split(' ').next()?.strip_suffix(".deb")?.rsplit_once('_')?;
        let (name, version) = stem.split_once('_')?;
        Some(((name.to_owned(), version.replace("%3a", ":")), arch.to_owned()))
    };
    output.lines().filter_map(file).collect()
}

/// `2 upgraded, 1 newly installed, 1 downgraded, 0 to remove and 3 not upgraded.`
fn printed_count(output: &str) -> Option<usize> {
    let line = output.lines().find(|line| line.ends_with(" not upgraded."))?;
    let (counts, _) = line.rsplit_once(" and ")?;
    counts.split(", ").map(|part| part.split(' ').next()?.parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Reading package lists...\n\
        The following additional packages will be installed:\n   newdep (1:7)\n\
        The following packages will be REMOVED:\n   victim (1.0)\n   purged* (2)\n\
        The following NEW packages will be installed:\n   newdep (1:7)\n\
        The following packages will be upgraded:\n   grows (1 => 2)\n   libc6:i386 (2.36-9 => 2.36-10)\n\
        The following packages will be DOWNGRADED:\n   back (3 => 2)\n\
        2 upgraded, 1 newly installed, 1 downgraded, 2 to remove and 4 not upgraded.\n\
        Need to get 41.3 kB of archives.\n\
        After this operation, 1234 kB of additional disk space will be used.\n\
        'copy:/repo/a_1.deb' grows_2_amd64.deb 20672 MD5Sum:091f\n\
        'http://x/b%20c_1.deb' newdep_1%3a7_all.deb 20628 SHA256:00\n";

    #[test]
    fn output_contains_changes_and_sizes() {
        let transaction = parse_preview(OUTPUT, "amd64", |name| name == "back").unwrap();
        let version = |v: &Option<String>| v.clone().unwrap_or_else(|| "-".to_owned());
        let shown: Vec<String> = transaction
            .changes
            .iter()
            .map(|c| format!("{}:{} {} > {}", c.name, c.arch, version(&c.from), version(&c.to)))
            .collect();
        assert_eq!(
            shown,
            [
                "victim:amd64 1.0 > -",
                "purged:amd64 2 > -",
                "newdep:all - > 1:7",
                "grows:amd64 1 > 2",
                "libc6:i386 2.36-9 > 2.36-10",
                "back:all 3 > 2",
            ]
        );
        assert_eq!(transaction.download_bytes, Some(41_300));
        assert_eq!(transaction.disk_bytes, Some(1_234_000));
    }

    #[test]
    fn output_that_does_not_add_up_is_rejected() {
        let less = OUTPUT.replace("   grows (1 => 2)\n", "");
        assert_eq!(
            parse_preview(&less, "amd64", |_| false).unwrap_err(),
            "5 changes are listed, but Some(6) are counted"
        );
        assert!(parse_preview("Reading package lists...\n", "amd64", |_| false).is_err());
        let nothing = "0 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n";
        assert_eq!(parse_preview(nothing, "amd64", |_| false).unwrap().changes, []);
    }
}
