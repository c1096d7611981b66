//! Reads Alpine's secdb: which version of a package fixes which CVEs.
//!
//! The database contains fixes only. A vulnerability without a fix is not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use domain::advisory::{Advisory, Affected, Span};
use jiff::Timestamp;
use serde::Deserialize;

use crate::Record;
use crate::error::{FeedLocation, PassError};
use crate::limits;
use crate::limits::Limit;
use crate::text;

/// Maximum ids in one entry.
const IDS_MAX: usize = 100;
/// Maximum combinations of a vulnerability, one of its ids and a version in one package.
const PAIRS_MAX: usize = 200_000;

#[derive(Deserialize)]
struct Database {
    distroversion: String,
    reponame: String,
    packages: Vec<PackageEntry>,
}

#[derive(Deserialize)]
struct PackageEntry {
    pkg: Package,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    /// Missing or null for packages without fixes.
    #[serde(default)]
    secfixes: Option<BTreeMap<String, Option<Vec<String>>>>,
}

pub(crate) fn read(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    as_of: Option<Timestamp>,
    each: &mut dyn FnMut(Record) -> Result<(), PassError>,
) -> Result<(), PassError> {
    let mut document = Vec::new();
    text::read_rest(input, location, &mut document)?;
    let Database { distroversion, reponame, packages } = text::parse_json(&document, location, 1)?;
    limits::check_names([distroversion.as_str(), &reponame])
        .map_err(|limit| location.too_large(1, limit))?;
    for (PackageEntry { pkg }, number) in packages.into_iter().zip(1..) {
        if pkg.name.is_empty() {
            return Err(location.invalid_record(number, "the package has no name").into());
        }
        let too_large = |limit| location.too_large(number, limit);
        limits::check_names([pkg.name.as_str()]).map_err(too_large)?;
        for (id, fixes) in by_vulnerability(&pkg.secfixes.unwrap_or_default()).map_err(too_large)? {
            let mut affected = Affected::new(&format!("Alpine:{distroversion}"), &pkg.name);
            // If there are several fixes, the earlier ones were incomplete.
            affected.spans = fixes.versions.iter().map(|fix| Span::until(fix)).collect();
            each(Record::Advisory(Box::new(Advisory {
                id: format!("secdb:{distroversion}/{reponame}/{}/{id}", pkg.name),
                flaws: vec![id],
                aliases: fixes.aliases.into_iter().collect(),
                summary: String::new(),
                description: String::new(),
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

/// The fixes of one vulnerability in one package.
#[derive(Default)]
struct Fixes {
    versions: Vec<String>,
    aliases: BTreeSet<String>,
}

/// The vulnerabilities of a package, each with the versions that fix it.
///
/// An entry describes one vulnerability with all of its ids and possibly a comment: `CVE-2020-24659
/// GNUTLS-SA-2020-09-04`. The CVE is its name and the other ids are aliases. An entry that contains
/// only an alias is about the same CVE. Two CVEs in one entry are two vulnerabilities.
fn by_vulnerability(
    fixes: &BTreeMap<String, Option<Vec<String>>>,
) -> Result<BTreeMap<String, Fixes>, Limit> {
    limits::check_names(fixes.keys().map(String::as_str))?;
    let mut entries: Vec<(&str, Vec<&str>)> = Vec::new();
    for (version, texts) in fixes {
        for text in texts.iter().flatten() {
            entries.push((version, parse_ids(text)?));
        }
    }
    let mut pairs = 0;
    let mut cves_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, ids) in &entries {
        let (cves, aliases): (Vec<&str>, Vec<&str>) =
            ids.iter().copied().partition(|id| is_cve(id));
        for alias in aliases {
            cves_of.entry(alias).or_default().extend(&cves);
        }
    }
    let mut found: BTreeMap<String, Fixes> = BTreeMap::new();
    for (version, ids) in &entries {
        let mut names: BTreeSet<&str> = ids.iter().copied().filter(|id| is_cve(id)).collect();
        if names.is_empty() {
            let cves = ids.iter().filter_map(|id| cves_of.get(id)).flatten();
            names.extend(cves);
        }
        if names.is_empty() {
            names.extend(ids.first());
        }
        pairs += names.len() * (1 + ids.len());
        if pairs > PAIRS_MAX {
            return Err(Limit::Count(PAIRS_MAX, "pairs of ids"));
        }
        for name in &names {
            let fixes = found.entry((*name).to_owned()).or_default();
            // Versions are processed in order, so a duplicate can only be the last one.
            if fixes.versions.last().is_none_or(|last| last != version) {
                fixes.versions.push((*version).to_owned());
            }
            let aliases = ids.iter().filter(|id| *id != name && !is_cve(id));
            fixes.aliases.extend(aliases.map(|id| (*id).to_owned()));
        }
    }
    Ok(found)
}

/// The ids of an entry, in order. Everything after a `#` is a comment.
fn parse_ids(entry: &str) -> Result<Vec<&str>, Limit> {
    let words = entry.split('#').next().unwrap_or_default().split_whitespace();
    let ids: Vec<&str> = words.filter(|word| is_id(word)).take(IDS_MAX + 1).collect();
    limits::check_names(ids.iter().copied())?;
    match ids.len() > IDS_MAX {
        true => Err(Limit::Count(IDS_MAX, "ids per entry")),
        false => Ok(ids),
    }
}

/// Recognizes `CVE-2024-1`, `XSA-466`, `GHSA-…`, `DW202402-001`: uppercase letters and digits, a
/// hyphen, and more. A placeholder such as `CVE-????-?????` is not an id.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(kind, rest)| {
        kind.starts_with(|c: char| c.is_ascii_uppercase())
            && kind.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
            && !rest.is_empty()
            && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    })
}

fn is_cve(id: &str) -> bool {
    id.strip_prefix("CVE-").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
