//! Alpine's database of fixes: which version of a package fixes which CVEs.
//!
//! It knows fixes only: a flaw that nothing fixes is not in it.

use std::collections::BTreeMap;
use std::io::BufRead;

use domain::advisory::{Advisory, Affected, Span};
use jiff::Timestamp;
use serde::Deserialize;

use crate::Record;
use crate::error::{Halt, Place};
use crate::text;

#[derive(Deserialize)]
struct Database {
    distroversion: String,
    reponame: String,
    packages: Vec<Wrapped>,
}

#[derive(Deserialize)]
struct Wrapped {
    pkg: Package,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    /// Some packages have none, and then it may be null.
    #[serde(default)]
    secfixes: Option<BTreeMap<String, Option<Vec<String>>>>,
}

pub(crate) fn read(
    input: &mut dyn BufRead,
    place: &Place,
    as_of: Option<Timestamp>,
    each: &mut dyn FnMut(Record) -> Result<(), Halt>,
) -> Result<(), Halt> {
    let mut document = Vec::new();
    text::rest(input, place, &mut document)?;
    let Database { distroversion, reponame, packages } =
        serde_json::from_slice(&document).map_err(|source| place.broken(1, source))?;
    for (Wrapped { pkg }, number) in packages.into_iter().zip(1..) {
        if pkg.name.is_empty() {
            return Err(place.nonsense(number, "a package without a name").into());
        }
        for (flaw, fixes) in by_flaw(pkg.secfixes.unwrap_or_default()) {
            // One flaw may be fixed in several versions: the first fix was not enough.
            let mut affected = Affected::new(&format!("Alpine:{distroversion}"), &pkg.name);
            affected.spans = fixes.iter().map(|fix| Span::until(fix)).collect();
            each(Record::Advisory(Box::new(Advisory {
                id: format!("secdb:{distroversion}/{reponame}/{}/{flaw}", pkg.name),
                flaws: vec![flaw],
                summary: String::new(),
                published: None,
                modified: as_of,
                withdrawn: None,
                ratings: Vec::new(),
                affected: vec![affected],
            })))?;
        }
    }
    Ok(())
}

/// Each flaw with the versions that fix it. An entry may hold several ids and remarks.
fn by_flaw(fixes: BTreeMap<String, Option<Vec<String>>>) -> BTreeMap<String, Vec<String>> {
    let mut flaws: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (version, ids) in fixes {
        for entry in ids.unwrap_or_default() {
            let ids = entry.split_whitespace().filter(|word| is_id(word));
            for id in ids {
                let versions = flaws.entry(id.to_owned()).or_default();
                if !versions.contains(&version) {
                    versions.push(version.clone());
                }
            }
        }
    }
    flaws
}

/// `CVE-2024-1`, `XSA-466`, `GHSA-…`: capital letters, a hyphen, and something behind it.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(kind, rest)| {
        !kind.is_empty() && !rest.is_empty() && kind.bytes().all(|b| b.is_ascii_uppercase())
    })
}
