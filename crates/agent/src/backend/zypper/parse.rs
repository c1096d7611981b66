//! Parses the output of zypper, with `--xmlout` where available.

use super::xml::{Element, Event, parse_events};
use crate::backend::rpm::advisory::{AdvisoryFix, parse_severity, parse_update_type};
use crate::backend::rpm::nevra::Nevra;
use crate::backend::rpm::nevra::without_zero_epoch;
use crate::backend::rpm::transaction::PackageMoves;
use crate::backend::{BackendError, OfferedVersion};

/// An available update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AvailableUpdate {
    pub(super) name: String,
    pub(super) arch: String,
    pub(super) candidate: String,
}

/// A patch that is needed by an installed package; zypper's term for an advisory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Patch {
    pub(super) name: String,
    category: String,
    severity: String,
    cves: Vec<String>,
}

fn parse_output(command_output: &str) -> Result<Vec<Event>, BackendError> {
    parse_events(command_output)
        .map_err(|why| BackendError::Unreadable { what: "the output of zypper".to_owned(), why })
}

fn open_elements(output: &str) -> Result<Vec<Element>, BackendError> {
    let elements = parse_output(output)?.into_iter().filter_map(|event| match event {
        Event::Open(element) => Some(element),
        _ => None,
    });
    Ok(elements.collect())
}

/// Parses `list-updates`.
pub(super) fn parse_updates(output: &str) -> Result<Vec<AvailableUpdate>, BackendError> {
    let packages = open_elements(output)?
        .into_iter()
        .filter(|element| element.name == "update" && element.get("kind") == "package");
    Ok(packages
        .map(|element| AvailableUpdate {
            name: element.get("name").to_owned(),
            arch: element.get("arch").to_owned(),
            candidate: element.get("edition").to_owned(),
        })
        .collect())
}

/// Parses `list-patches`, including patches that require a newer zypper.
pub(super) fn parse_patches(output: &str) -> Result<Vec<Patch>, BackendError> {
    let mut patches: Vec<Patch> = Vec::new();
    for element in open_elements(output)? {
        match (element.name.as_str(), patches.last_mut()) {
            ("update", _) if element.get("kind") == "patch" => patches.push(Patch {
                name: element.get("name").to_owned(),
                category: element.get("category").to_owned(),
                severity: element.get("severity").to_owned(),
                cves: Vec::new(),
            }),
            ("issue", Some(patch)) if element.get("type") == "cve" => {
                patch.cves.push(element.get("id").to_owned());
            }
            _ => {}
        }
    }
    Ok(patches)
}

/// Joins patches with the output of `info -t patch`: a patch conflicts with every version of a
/// package that is older than its fix.
pub(super) fn parse_fixes(patches: &[Patch], info: &str) -> Vec<AdvisoryFix> {
    let mut fixes = Vec::new();
    let mut patch = None;
    let mut in_conflicts = false;
    for line in info.lines() {
        let field = line.split_once(" : ").map(|(key, value)| (key.trim(), value.trim()));
        let conflict = match field {
            Some(("Name", name)) => {
                patch = patches.iter().find(|patch| patch.name == name);
                in_conflicts = false;
                continue;
            }
            Some(("Conflicts", value)) => {
                in_conflicts = true;
                value
            }
            _ if in_conflicts && line.starts_with(' ') => line.trim(),
            _ => {
                in_conflicts = false;
                continue;
            }
        };
        let Some(((name, arch), evr, patch)) = patch.and_then(|patch| {
            let (name, evr) = conflict.split_once(" < ")?;
            (!name.contains(':')).then(|| (name_and_arch(name), evr, patch))
        }) else {
            continue;
        };
        fixes.push(AdvisoryFix {
            advisory: patch.name.clone(),
            update_type: parse_update_type(&patch.category),
            severity: parse_severity(&patch.severity),
            cves: patch.cves.clone(),
            name: name.to_owned(),
            arch: arch.to_owned(),
            evr: evr.trim().to_owned(),
        });
    }
    fixes
}

/// `bash.x86_64` is bash for x86_64, and `python3.11` is python3.11 for any architecture.
fn name_and_arch(text: &str) -> (&str, &str) {
    const ARCHITECTURES: [&str; 12] = [
        "noarch", "x86_64", "aarch64", "i386", "i486", "i586", "i686", "ppc64le", "s390x",
        "riscv64", "armv7hl", "ppc64",
    ];
    match text.rsplit_once('.') {
        Some((name, arch)) if ARCHITECTURES.contains(&arch) => (name, arch),
        _ => (text, ""),
    }
}

/// The transaction that zypper would run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UpdateSummary {
    pub(super) moves: PackageMoves,
    pub(super) download_bytes: Option<u64>,
    pub(super) disk_bytes: Option<i64>,
}

/// Parses the summary of `update --dry-run`.
pub(super) fn parse_summary(output: &str) -> Result<UpdateSummary, BackendError> {
    let mut summary = UpdateSummary::default();
    let mut section = String::new();
    for element in open_elements(output)? {
        match element.name.as_str() {
            "install-summary" => {
                summary.download_bytes = element.get("download-size").parse().ok();
                summary.disk_bytes = element.get("space-usage-diff").parse().ok();
            }
            "solvable" if element.get("type") == "package" => {
                let nevra = |evr: &str, arch: &str| Nevra {
                    name: element.get("name").to_owned(),
                    evr: evr.to_owned(),
                    arch: arch.to_owned(),
                };
                let (arch, old) = (element.get("arch"), element.get("edition-old"));
                match section.as_str() {
                    "to-remove" => summary.moves.removed.push(nevra(element.get("edition"), arch)),
                    _ => {
                        let old_arch = match element.get("arch-old") {
                            "" => arch,
                            other => other,
                        };
                        summary
                            .moves
                            .removed
                            .extend((!old.is_empty()).then(|| nevra(old, old_arch)));
                        summary.moves.added.push(nevra(element.get("edition"), arch));
                    }
                }
            }
            name if name.starts_with("to-") => section = name.to_owned(),
            _ => {}
        }
    }
    Ok(summary)
}

/// All messages for people, one per line.
pub(super) fn messages(output: &str) -> String {
    let Ok(events) = parse_events(output) else { return output.to_owned() };
    let texts = events.into_iter().filter_map(|event| match event {
        Event::Text(text) => Some(text),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Parses `search`: the names that were found.
pub(super) fn parse_search(output: &str) -> Result<Vec<String>, BackendError> {
    let solvables = open_elements(output)?.into_iter().filter(|element| element.name == "solvable");
    Ok(solvables.map(|element| element.get("name").to_owned()).collect())
}

/// Parses `search --details`: every version that a repository offers.
pub(super) fn parse_versions(output: &str) -> Result<Vec<OfferedVersion>, BackendError> {
    // An installed version that no repository has is listed with this one.
    const SYSTEM: [&str; 2] = ["(System Packages)", "@System"];
    let offers = open_elements(output)?.into_iter().filter(|element| {
        element.name == "solvable" && !SYSTEM.contains(&element.get("repository"))
    });
    Ok(offers
        .map(|element| OfferedVersion {
            name: element.get("name").to_owned(),
            arch: element.get("arch").to_owned(),
            version: without_zero_epoch(element.get("edition")).to_owned(),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::{Severity, UpdateType};

    /// zypper 1.14.42, shortened.
    const PATCHES: &str = r#"<?xml version='1.0'?>
<stream>
<message type="info">Loading repository data...</message>
<update-status version="0.6">
<update-list>
<update kind="patch" name="TSA-2024:0001" edition="2.0" arch="noarch" status="needed" category="security" severity="important" pkgmanager="false" restart="false" interactive="false"><summary>Important: openssl security update</summary><description>d</description><license/><source url="file:/r" alias="t"/><issue-list><issue type="cve" id="CVE-2022-3602"><title>CVE-2022-3602</title></issue><issue type="bugzilla" id="123"><title>bz</title></issue></issue-list></update><update kind="patch" name="TBA-2024:0003" edition="2.0" arch="noarch" status="needed" category="recommended" severity="none" restart="true" interactive="true"><issue-list/></update></update-list>
</update-status>
</stream>"#;
    const INFO: &str = "\
Information for patch TSA-2024:0001:
------------------------------------
Repository  : t
Name        : TSA-2024:0001
Version     : 2.0
Summary     : Important: openssl security update
Description :
    The Conflicts : of others < 1
Provides    : patch:TSA-2024:0001 = 2.0
Conflicts   : openssl-libs < 1:3.0.1-43.el9_0

Information for patch TBA-2024:0003:
------------------------------------
Name        : TBA-2024:0003
Conflicts   : [3]
    bash.x86_64 < 5.1.8-6.el9
    python3.11 < 3.11.2-1
    srcpackage:bash < 5.1.8-6.el9

";

    #[test]
    fn patch_fixes_versions_older_than_its_conflict() {
        let fixes = parse_fixes(&parse_patches(PATCHES).unwrap(), INFO);
        let lines: Vec<String> = fixes
            .iter()
            .map(|fix| format!("{} {} {} {}", fix.advisory, fix.name, fix.arch, fix.evr))
            .collect();
        assert_eq!(
            lines,
            [
                "TSA-2024:0001 openssl-libs  1:3.0.1-43.el9_0",
                "TBA-2024:0003 bash x86_64 5.1.8-6.el9",
                "TBA-2024:0003 python3.11  3.11.2-1",
            ]
        );
        assert_eq!(fixes[0].cves, ["CVE-2022-3602"]);
        assert_eq!(
            (fixes[0].update_type, fixes[0].severity),
            (UpdateType::Security, Some(Severity::High))
        );
        assert_eq!((fixes[1].update_type, fixes[1].severity), (UpdateType::Bugfix, None));
    }

    #[test]
    fn only_packages_are_listed_as_updates() {
        let output = r#"<stream><update-list><update kind="package" name="bash" edition="5.1.8-6.el9" arch="noarch" edition-old="5.1.8-4.el9"><summary>a</summary></update><update kind="product" name="SLES" edition="15" arch="x86_64"/></update-list></stream>"#;
        let updates = parse_updates(output).unwrap();
        assert_eq!(updates.len(), 1);
        assert_eq!(
            (updates[0].name.as_str(), updates[0].candidate.as_str()),
            ("bash", "5.1.8-6.el9")
        );
    }

    /// zypper 1.14.42, `update --dry-run`, shortened.
    const SUMMARY: &str = r#"<stream>
<install-summary download-size="6326" space-usage-diff="-8" packages-to-change="3">
<to-upgrade>
<solvable type="package" name="eater" edition="2-1" arch="noarch" edition-old="1-1" arch-old="noarch" summary="test eater">
<description>test</description></solvable>
</to-upgrade>
<to-install>
<solvable type="package" name="extra" edition="1-1" arch="noarch" summary="test extra"/>
</to-install>
<to-remove>
<solvable type="package" name="victim" edition="1-1" arch="noarch" summary="test victim"/>
</to-remove>
</install-summary>
</stream>"#;

    #[test]
    fn summary_lists_added_and_removed_packages() {
        let summary = parse_summary(SUMMARY).unwrap();
        assert_eq!((summary.download_bytes, summary.disk_bytes), (Some(6326), Some(-8)));
        let texts: Vec<String> = summary
            .moves
            .changes()
            .iter()
            .map(|c| format!("{} {:?} {:?}", c.name, c.from.as_deref(), c.to.as_deref()))
            .collect();
        assert_eq!(
            texts,
            [
                r#"eater Some("1-1") Some("2-1")"#,
                r#"extra None Some("1-1")"#,
                r#"victim Some("1-1") None"#,
            ]
        );
    }

    #[test]
    fn truncated_output_is_an_error() {
        assert!(parse_updates("<stream><update kind=\"pack").is_err());
        let prompt = "<prompt id=\"1\">\n<description>Problem: nothing provides nowhere\n Solution 1: no\n\
                      </description>\n<text>Choose</text></prompt>";
        assert!(messages(prompt).contains("Problem: nothing provides nowhere\n"));
    }
}
