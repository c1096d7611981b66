//! Parses the output that is the same in dnf 4 and dnf 5.

use std::collections::BTreeMap;

use vocab::Line;

use crate::backend::rpm::nevra::{Nevra, evr};
use crate::backend::{BackendError, OfferedVersion};

/// The format of `repoquery`. dnf 4 adds a line break and dnf 5 does not; none of these fields
/// contains a `|`, and dnf 5 does not expand a tab.
pub(super) const FORMAT: &str = "%{name}|%{epoch}|%{version}|%{release}|%{arch}\\n";

/// Parses the output of `repoquery` in [`FORMAT`].
fn parse_packages(output: &str) -> impl Iterator<Item = Result<Nevra, BackendError>> {
    // A plugin may print in between, even with `-q`.
    output.lines().map(str::trim).filter(|line| line.contains('|')).map(|line| {
        let fields: Vec<&str> = line.split('|').collect();
        let [name, epoch, version, release, arch] = fields[..] else {
            return Err(BackendError::Unreadable {
                what: "the list of packages".to_owned(),
                why: format!("`{line}` is not a package"),
            });
        };
        let evr = evr(epoch, version, release);
        Ok(Nevra { name: name.to_owned(), evr, arch: arch.to_owned() })
    })
}

/// Parses `repoquery NAME…`: every version.
pub(super) fn parse_versions(output: &str) -> Result<Vec<OfferedVersion>, BackendError> {
    let version = |Nevra { name, evr, arch }| OfferedVersion { name, arch, version: evr };
    parse_packages(output).map(|package| package.map(version)).collect()
}

/// Parses `repoquery --upgrades`: the newest version of each name and architecture.
pub(super) fn parse_candidates(output: &str) -> Result<Vec<Nevra>, BackendError> {
    let mut newest: BTreeMap<(String, String), String> = BTreeMap::new();
    for package in parse_packages(output) {
        let Nevra { name, evr, arch } = package?;
        let known = newest.entry((name, arch)).or_insert_with(|| evr.clone());
        if pkgver::rpm::compare(known, &evr).is_lt() {
            *known = evr;
        }
    }
    Ok(newest.into_iter().map(|((name, arch), evr)| Nevra { name, evr, arch }).collect())
}

/// The packages whose update would remove another package: the rows followed by `replacing` with
/// another name.
pub(super) fn parse_replacers(output: &str) -> Vec<String> {
    let mut owner = "";
    let mut found = Vec::new();
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // dnf 4 prints `name.arch version`, dnf 5 `name arch version …`.
            ["replacing", replaced, ..] if line.starts_with("  ") => {
                let name = match replaced.rsplit_once('.') {
                    Some((name, _)) if words.len() == 3 => name,
                    _ => replaced,
                };
                if name != owner && !found.iter().any(|known| known == owner) {
                    found.push(owner.to_owned());
                }
            }
            // A row is indented by one space, its continuation lines further.
            [name, ..] if line.starts_with(' ') && !line.starts_with("  ") => owner = name,
            _ => {}
        }
    }
    found
}

/// The download size: `Total download size: 1.3 M`, `Need to download 19 KiB.`
pub(super) fn parse_download_bytes(output: &str) -> Option<u64> {
    let after = |sign: &str| output.lines().find_map(|line| Some(line.split_once(sign)?.1));
    let text = after("Total download size:").or_else(|| after("Need to download"))?;
    parse_size(text)
}

/// The additional disk usage: `After this operation, 22 B extra will be used (…)`.
pub(super) fn parse_disk_bytes(output: &str) -> Option<i64> {
    let line = output.lines().find_map(|line| line.strip_prefix("After this operation, "))?;
    let size = i64::try_from(parse_size(line)?).ok()?;
    Some(if line.contains("will be freed") { -size } else { size })
}

/// Parses `1.3 M`, `19 KiB.`, `812`.
fn parse_size(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let factor = match words.next().and_then(|unit| unit.chars().next()) {
        Some('k' | 'K') => 1024.0,
        Some('M') => 1024.0 * 1024.0,
        Some('G') => 1024.0 * 1024.0 * 1024.0,
        Some('T') => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => 1.0,
    };
    // These are estimates of some gigabytes: the rounding does not matter.
    let bytes = (number * factor).max(0.0);
    (bytes < 1e18).then_some(bytes as u64)
}

/// The reboot reasons from `needs-restarting -r`. Exit code 1 means that a reboot is needed, but
/// also that the command does not exist, so only the text is used.
pub(super) fn parse_reboot_reasons(output: &str) -> Option<Vec<Line>> {
    if output.contains("Reboot should not be necessary")
        || output.contains("No core libraries or services have been updated")
    {
        return Some(Vec::new());
    }
    if !output.contains("Reboot is required") {
        return None;
    }
    let names = output.lines().filter_map(|line| line.trim().strip_prefix("* "));
    let mut reasons: Vec<Line> = names
        .map(|name| Line::from(format!("{} was updated since the last boot", name.trim())))
        .collect();
    if reasons.is_empty() {
        reasons.push("dnf reports that a reboot is required".into());
    }
    Some(reasons)
}

/// Whether dnf does not have the command, because its plugin is not installed.
pub(super) fn is_unknown_command(output: &str) -> bool {
    ["No such command", "Unknown argument", "Unknown command"]
        .iter()
        .any(|sign| output.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_of_several_versions_is_the_candidate() {
        let output = "bash|0|5.1.8|6.el9|noarch\n\nopenssl-libs|1|3.0.1|44.el9_0|noarch\n\n\
                      openssl-libs|1|3.0.1|43.el9_0|noarch\n";
        let list = parse_candidates(output).unwrap();
        let texts: Vec<String> = list.iter().map(|p| format!("{} {}", p.name, p.evr)).collect();
        assert_eq!(texts, ["bash 5.1.8-6.el9", "openssl-libs 1:3.0.1-44.el9_0"]);
        let noise = "Updating Subscription Management repositories.\n";
        assert_eq!(parse_candidates(&format!("{noise}{output}")).unwrap(), list);
        assert!(parse_candidates("bash|0|5.1.8|6.el9\n").is_err());
    }

    #[test]
    fn update_that_removes_another_package_is_detected() {
        let four = " eater                noarch         2-1          t         6.2 k\n     \
                    replacing  victim.noarch 1-1\n openssl-libs noarch 1 t 6.2 k\n";
        assert_eq!(parse_replacers(four), ["eater"]);
        let five = " bash              noarch 0:5.1.8-6.el9 t           24.0   B\n   \
                    replacing bash  noarch 0:5.1.8-4.el9 t           24.0   B\n eater noarch 0:2-1 t 8 B\n   \
                    replacing eater noarch 0:1-1 t 8 B\n   replacing victim noarch 0:1-1 t 8 B\n";
        assert_eq!(parse_replacers(five), ["eater"]);
    }

    #[test]
    fn sizes_are_parsed_in_both_formats() {
        assert_eq!(parse_download_bytes("Total download size: 1.5 M\n"), Some(1_572_864));
        assert_eq!(
            parse_download_bytes("Total size of inbound is 50 KiB. Need to download 19 KiB.\n"),
            Some(19_456)
        );
        assert_eq!(parse_download_bytes("Total size: 44 k\n"), None, "nothing is downloaded");
        assert_eq!(
            parse_disk_bytes("After this operation, 88 B extra will be used (install …).\n"),
            Some(88)
        );
        assert_eq!(
            parse_disk_bytes("After this operation, 2 KiB will be freed (install …).\n"),
            Some(-2048)
        );
        assert_eq!(parse_disk_bytes("Installed size: 3 k\n"), None);
    }

    #[test]
    fn reboot_need_is_determined_by_the_text() {
        let yes = "Core libraries or services have been updated since boot-up:\n  * kernel-core\n  \
                   * systemd\n\nReboot is required to fully utilize these updates.\n";
        let reasons = parse_reboot_reasons(yes).unwrap();
        assert_eq!(reasons[1].as_str(), "systemd was updated since the last boot");
        assert_eq!(reasons.len(), 2);
        let no = "No core libraries or services have been updated since boot-up.\nReboot should not be necessary.\n";
        assert_eq!(parse_reboot_reasons(no), Some(Vec::new()));
        let unknown = "No such command: needs-restarting. Please use /usr/bin/dnf --help\n";
        assert_eq!(parse_reboot_reasons(unknown), None);
        assert!(is_unknown_command(unknown) && !is_unknown_command(yes));
    }
}
