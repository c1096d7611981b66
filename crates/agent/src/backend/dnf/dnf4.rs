//! Parses the output of dnf 4. Only `repoquery` has a machine-readable format; the rest is text, in
//! English because the locale is C.

use crate::backend::rpm::advisory::{AdvisoryFix, parse_severity, parse_update_type};
use crate::backend::rpm::nevra::{Nevra, without_zero_epoch};
use crate::backend::rpm::transaction::PackageMoves;
use vocab::{Severity, UpdateType};

/// Parses `updateinfo list` and `updateinfo list --with-cve`: for each package version, the first
/// column contains the advisory in one and each CVE in the other. Rows of the same version are
/// joined.
pub(super) fn parse_fixes(advisories: &str, with_cves: &str) -> Vec<AdvisoryFix> {
    let cves: Vec<(String, Nevra)> = with_cves
        .lines()
        .filter_map(parse_row)
        .map(|(cve, _, package)| (cve.to_owned(), package))
        .collect();
    advisories
        .lines()
        .filter_map(parse_row)
        .map(|(advisory, label, package)| {
            let (update_type, severity) = parse_label(label);
            let same = cves.iter().filter(|(_, of)| *of == package);
            AdvisoryFix {
                advisory: advisory.to_owned(),
                update_type,
                severity,
                // Two advisories for the same version cannot be distinguished; a bug fix has no
                // CVEs.
                cves: match update_type {
                    UpdateType::Security => same.map(|(cve, _)| cve.clone()).collect(),
                    _ => Vec::new(),
                },
                name: package.name,
                arch: package.arch,
                evr: package.evr,
            }
        })
        .collect()
}

/// `TSA-2024:0001 Important/Sec. openssl-libs-1:3.0.1-43.el9_0.noarch`.
fn parse_row(line: &str) -> Option<(&str, &str, Nevra)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [first, label, package] => Some((first, label, Nevra::parse(package)?)),
        _ => None,
    }
}

/// `Important/Sec.` is security, `bugfix` is a bug fix.
fn parse_label(label: &str) -> (UpdateType, Option<Severity>) {
    match label.strip_suffix("/Sec.") {
        Some(word) => (UpdateType::Security, parse_severity(word)),
        None => (parse_update_type(label), None),
    }
}

/// Parses the output of `dnf -v` during dependency resolution: one line per package, not wrapped to
/// the terminal's width. The second list contains the downgrades; dnf does not print the versions
/// that they replace.
pub(super) fn parse_moves(output: &str) -> (PackageMoves, Vec<Nevra>) {
    let mut moves = PackageMoves::default();
    let mut downgrades = Vec::new();
    for line in output.lines() {
        let Some(rest) = line.trim().strip_prefix("---> Package ") else { continue };
        let Some((package, what)) = rest.split_once(" will be ") else { continue };
        let Some(package) = parse_name_arch_evr(package) else { continue };
        match what.trim() {
            "installed" | "an upgrade" | "reinstalled" | "obsoleting" => moves.added.push(package),
            "a downgrade" => downgrades.push(package),
            "upgraded" | "erased" | "obsoleted" => moves.removed.push(package),
            _ => {}
        }
    }
    (moves, downgrades)
}

/// `openssl-libs.noarch 1:3.0.1-43.el9_0`.
fn parse_name_arch_evr(text: &str) -> Option<Nevra> {
    let (name_arch, evr) = text.split_once(' ')?;
    let (name, arch) = name_arch.rsplit_once('.')?;
    Some(Nevra {
        name: name.to_owned(),
        evr: without_zero_epoch(evr).to_owned(),
        arch: arch.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::rpm::nevra::Nevra;

    /// dnf 4.14: the advisory names -43, while the repository offers -44.
    const LIST: &str = "\
TBA-2024:0003 bugfix         bash-5.1.8-6.el9.noarch
TSA-2024:0002 Moderate/Sec.  kernel-core-5.14.0-162.el9.noarch
TSA-2024:0001 Important/Sec. openssl-libs-1:3.0.1-43.el9_0.noarch
";
    const WITH_CVES: &str = "\
CVE-2024-0001 Moderate/Sec.  kernel-core-5.14.0-162.el9.noarch
CVE-2022-3602 Important/Sec. openssl-libs-1:3.0.1-43.el9_0.noarch
CVE-2022-3786 Important/Sec. openssl-libs-1:3.0.1-43.el9_0.noarch
";

    #[test]
    fn advisories_and_cves_are_joined_by_version() {
        let fixes = parse_fixes(LIST, WITH_CVES);
        let lines: Vec<String> = fixes
            .iter()
            .map(|fix| format!("{} {} {} {}", fix.advisory, fix.name, fix.evr, fix.cves.join(",")))
            .collect();
        assert_eq!(
            lines,
            [
                "TBA-2024:0003 bash 5.1.8-6.el9 ",
                "TSA-2024:0002 kernel-core 5.14.0-162.el9 CVE-2024-0001",
                "TSA-2024:0001 openssl-libs 1:3.0.1-43.el9_0 CVE-2022-3602,CVE-2022-3786",
            ]
        );
        assert_eq!(fixes[2].severity, Some(Severity::High));
        assert_eq!((fixes[0].update_type, fixes[0].severity), (UpdateType::Bugfix, None));
    }

    #[test]
    fn security_advisory_without_severity_counts() {
        let fixes =
            parse_fixes("RLSA-1 Unknown/Sec. a-1-1.noarch\nLast metadata expiration check\n", "");
        assert_eq!((fixes.len(), fixes[0].update_type), (1, UpdateType::Security));
        assert_eq!(fixes[0].severity, None);
    }

    /// dnf 4.14, `-v --assumeno upgrade`.
    const RESOLVING: &str = "\
DNF version: 4.14.0
--> Starting dependency resolution
---> Package extra.noarch 1-1 will be installed
---> Package victim.noarch 1-1 will be obsoleted
---> Package eater.noarch 1-1 will be upgraded
---> Package eater.noarch 2-1 will be an upgrade
---> Package openssl-libs.noarch 1:3.0.1-41.el9_0 will be upgraded
---> Package openssl-libs.noarch 1:3.0.1-44.el9_0 will be an upgrade
---> Package older.noarch 1-1 will be a downgrade
--> Finished dependency resolution
";

    #[test]
    fn added_and_removed_packages_are_parsed_by_line() {
        let (moves, downgrades) = parse_moves(RESOLVING);
        let text = |list: &[Nevra]| {
            let names: Vec<String> = list.iter().map(|p| format!("{}={}", p.name, p.evr)).collect();
            names.join(" ")
        };
        assert_eq!(text(&moves.added), "extra=1-1 eater=2-1 openssl-libs=1:3.0.1-44.el9_0");
        assert_eq!(text(&moves.removed), "victim=1-1 eater=1-1 openssl-libs=1:3.0.1-41.el9_0");
        assert_eq!(text(&downgrades), "older=1-1");
    }
}
