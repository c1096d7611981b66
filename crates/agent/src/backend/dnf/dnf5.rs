//! Parses the output of dnf 5: advisories as JSON, and the transaction table.

use serde_json::Value;

use crate::backend::BackendError;
use crate::backend::rpm::advisory::{AdvisoryFix, parse_severity, parse_update_type};
use crate::backend::rpm::nevra::{Nevra, without_zero_epoch};
use crate::backend::rpm::transaction::PackageMoves;

/// Parses `advisory info --json`.
pub(super) fn parse_fixes(output: &str) -> Result<Vec<AdvisoryFix>, BackendError> {
    let unreadable =
        |why: String| BackendError::Unreadable { what: "the advisories".to_owned(), why };
    // Without advisories there is no output, and a plugin may print before it.
    let Some(start) = output.find('[') else {
        return match output.contains('{') {
            true => Err(unreadable("not a list".to_owned())),
            false => Ok(Vec::new()),
        };
    };
    let output = &output[start..];
    let list: Value =
        serde_json::from_str(output).map_err(|error| unreadable(error.to_string()))?;
    let list = list.as_array().ok_or_else(|| unreadable("not a list".to_owned()))?;
    Ok(list.iter().flat_map(advisory_fixes).collect())
}

fn advisory_fixes(advisory: &Value) -> Vec<AdvisoryFix> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let references = advisory["references"].as_array().map(Vec::as_slice).unwrap_or_default();
    let cves: Vec<String> = references
        .iter()
        .filter(|reference| text(reference, "Type").eq_ignore_ascii_case("cve"))
        .map(|reference| text(reference, "Id"))
        .collect();
    packages(&advisory["collections"])
        .into_iter()
        .map(|package| AdvisoryFix {
            advisory: text(advisory, "Name"),
            update_type: parse_update_type(&text(advisory, "Type")),
            severity: parse_severity(&text(advisory, "Severity")),
            cves: cves.clone(),
            name: package.name,
            arch: package.arch,
            evr: package.evr,
        })
        .collect()
}

/// The packages of one collection, or of a list of collections.
fn packages(collections: &Value) -> Vec<Nevra> {
    match collections {
        Value::Array(list) => list.iter().flat_map(packages).collect(),
        one => {
            let list = one["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(|package| Nevra::parse(package.as_str()?)).collect()
        }
    }
}

/// Parses the transaction table: sections of rows, each followed by the packages that it replaces.
pub(super) fn parse_moves(output: &str) -> PackageMoves {
    let mut moves = PackageMoves::default();
    let mut goes = None;
    for line in output.lines() {
        if !line.starts_with(' ') {
            let opens = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
            goes = if opens(&["Removing"]) {
                Some(true)
            } else {
                opens(&["Upgrading", "Installing", "Downgrading", "Reinstalling"]).then_some(false)
            };
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match (goes, words.as_slice()) {
            (Some(_), ["replacing", name, arch, evr, ..]) => {
                moves.removed.push(nevra(name, arch, evr));
            }
            (Some(true), [name, arch, evr, _, ..]) => moves.removed.push(nevra(name, arch, evr)),
            (Some(false), [name, arch, evr, _, ..]) => moves.added.push(nevra(name, arch, evr)),
            _ => {}
        }
    }
    moves
}

fn nevra(name: &str, arch: &str, evr: &str) -> Nevra {
    Nevra { name: name.to_owned(), evr: without_zero_epoch(evr).to_owned(), arch: arch.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::{Severity, UpdateType};

    /// dnf 5.4, `advisory info --json`, shortened.
    const ADVISORIES: &str = r#"[
  {
    "Name":"TSA-2024:0001",
    "Severity":"Important",
    "Type":"security",
    "references":[
      {"Title":"CVE-2022-3602","Id":"CVE-2022-3602","Type":"cve","Url":"https:\/\/example.invalid"},
      {"Title":"bz","Id":"123","Type":"bugzilla","Url":"https:\/\/b"}
    ],
    "collections":{"packages":["openssl-libs-1:3.0.1-43.el9_0.noarch"]}
  },
  {
    "Name":"TBA-2024:0003","Severity":"None","Type":"bugfix","references":[],
    "collections":{"packages":["bash-5.1.8-6.el9.noarch","bash-doc-5.1.8-6.el9.noarch"]}
  }
]"#;

    #[test]
    fn advisories_are_parsed_with_cves_and_packages() {
        let fixes = parse_fixes(ADVISORIES).unwrap();
        let names: Vec<&str> = fixes.iter().map(|fix| fix.name.as_str()).collect();
        assert_eq!(names, ["openssl-libs", "bash", "bash-doc"]);
        assert_eq!(fixes[0].evr, "1:3.0.1-43.el9_0");
        assert_eq!(fixes[0].cves, ["CVE-2022-3602"]);
        assert_eq!(fixes[0].severity, Some(Severity::High));
        assert_eq!((fixes[1].update_type, fixes[1].severity), (UpdateType::Bugfix, None));
    }

    #[test]
    fn empty_output_has_no_advisories_and_invalid_is_an_error() {
        assert_eq!(parse_fixes("").unwrap(), []);
        assert_eq!(parse_fixes("[]\n").unwrap(), []);
        assert!(parse_fixes("{}").is_err());
        assert_eq!(parse_fixes("Updating and loading\n[]\n").unwrap(), []);
        assert!(parse_fixes("[ {\"Name\":").is_err());
    }

    /// dnf 5.4, `--assumeno upgrade`.
    const TABLE: &str = "\
Updating and loading repositories:
Repositories loaded.
Problem 1: cannot install the best update candidate for package broken-1-1.noarch
  - nothing provides nowhere needed by broken-2-1.noarch from t

Package                   Arch   Version          Repository      Size
Upgrading:
 eater                    noarch 0:2-1            t            8.0   B
   replacing eater        noarch 0:1-1            t            8.0   B
   replacing victim       noarch 0:1-1            t            8.0   B
 openssl-libs             noarch 1:3.0.1-43.el9_0 t           30.0   B
   replacing openssl-libs noarch 1:3.0.1-41.el9_0 t           30.0   B
Installing:
 kernel-core              noarch 0:5.14.0-162.el9 t           30.0   B
Installing dependencies:
 extra                    noarch 0:1-1            t            8.0   B
Removing:
 kernel-core              noarch 0:5.14.0-60.el9  t           30.0   B
Skipping packages with broken dependencies:
 broken                   noarch 2-1              t            8.0   B

Transaction Summary:
 Installing:         1 package
 Upgrading:          2 packages
 Replacing:          3 packages

Total size of inbound packages is 19 KiB. Need to download 19 KiB.
After this operation, 22 B extra will be used (install 68 B, remove 46 B).
Operation aborted by the user.
";

    #[test]
    fn table_lists_added_and_removed_packages() {
        let moves = parse_moves(TABLE);
        let text = |list: &[Nevra]| {
            let names: Vec<String> = list.iter().map(|p| format!("{}={}", p.name, p.evr)).collect();
            names.join(" ")
        };
        assert_eq!(
            text(&moves.added),
            "eater=2-1 openssl-libs=1:3.0.1-43.el9_0 kernel-core=5.14.0-162.el9 extra=1-1"
        );
        assert_eq!(
            text(&moves.removed),
            "eater=1-1 victim=1-1 openssl-libs=1:3.0.1-41.el9_0 kernel-core=5.14.0-60.el9"
        );
    }
}
