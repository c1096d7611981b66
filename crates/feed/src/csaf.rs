//! CSAF documents of Red Hat and SUSE: VEX documents (one per CVE) and security advisories.
//!
//! A document has a product tree and, for each CVE, lists of product ids by status. A product id
//! names a package in a product (`AppStream-9.4.0.GA:openssl-1:3.0.7-27.el9.x86_64`), but ids
//! cannot be split reliably: `relationships` state which package and which product an id combines.
//! `product` resolves packages and products, `schema` is the JSON, and this module turns the
//! statuses into statements:
//!
//! | status | remediation | statement |
//! |---|---|---|
//! | `fixed`, `first_fixed`, `recommended` (SUSE) | | fixed in this version |
//! | `known_affected` | `none_available`: Affected | affected |
//! | | `none_available`: Fix deferred | deferred |
//! | | `no_fix_planned`: Will not fix | will not be fixed |
//! | | `no_fix_planned`: Out of support scope | end of life |
//! | none (SUSE) | `no_fix_planned` | will not be fixed |
//! | `known_not_affected` | | not affected |
//! | `under_investigation` | | unknown |
//!
//! Only packages of RHEL, SLES, SL Micro and openSUSE themselves are read. Containers and layered
//! products are skipped. A document without any such package still becomes an advisory, with no
//! packages, so that it replaces an earlier version of the document that had some.

mod product;
mod schema;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::BufRead;

use domain::advisory::{
    Advisory, Affected, CveRating, CvssScore, Ecosystem, PackageNameKind, Rating, Span,
    parse_vendor_severity,
};
use jiff::Timestamp;
use vocab::{FixState, Severity};

use crate::Record;
use crate::error::{FeedLocation, PassError};
use crate::{records, text};

use product::{ProductIndex, Publisher};
use schema::{Csaf, Document, Vulnerability};

/// Maximum distinct ratings. Products are rated one by one, and most ratings are identical.
const RATINGS_MAX: usize = 100;
/// Longer titles are truncated.
const TITLE_CHARS_MAX: usize = 1_000;

pub(crate) fn read(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    each: &mut dyn FnMut(Record) -> Result<(), PassError>,
) -> Result<(), PassError> {
    records::read(input, location, &mut |csaf: Csaf, number| {
        // Directories also contain index files that list the documents.
        let Some(document) = &csaf.document else {
            return match csaf.feed.is_some() || csaf.canonical_url.is_some() {
                true => Ok(()),
                false => Err(location
                    .invalid_record(number, "not a CSAF document: no `document`")
                    .into()),
            };
        };
        if !document.category.starts_with("csaf_") {
            let why = "not a CSAF document: `category` does not begin with `csaf_`";
            return Err(location.invalid_record(number, why).into());
        }
        let name = &document.publisher.name;
        let Some(publisher) = Publisher::new(name) else {
            let why = format!(
                "only CSAF documents of Red Hat and SUSE can be read, not those of `{}`",
                text::excerpt(name)
            );
            return Err(location.invalid_record(number, why).into());
        };
        csaf.check().map_err(|limit| location.too_large(number, limit))?;
        if document.tracking.id.is_empty() {
            return Err(location
                .invalid_record(number, "the CSAF document has no tracking id")
                .into());
        }
        advisories(&csaf, document, publisher)
            .into_iter()
            .try_for_each(|advisory| each(Record::Advisory(Box::new(advisory))))
    })
}

/// One advisory per CVE, so that ids and statements do not change when a document gains a CVE.
fn advisories(csaf: &Csaf, document: &Document, publisher: Publisher) -> Vec<Advisory> {
    let tracking = &document.tracking;
    let is_vex = document.category == "csaf_vex";
    let product_index = ProductIndex::new(publisher, csaf.product_tree.as_ref());
    let advisory = |cve: &str, vulnerability: Option<&Vulnerability>| {
        let id = match is_vex {
            true => format!("{}-vex:{cve}", publisher.as_str()),
            false => format!("{}-csaf:{}/{cve}", publisher.as_str(), tracking.id),
        };
        let title = vulnerability.and_then(|one| one.title.as_deref());
        let title = title.or(document.title.as_deref()).unwrap_or_default();
        // The title may be copied into every advisory of the document.
        let title = title.char_indices().nth(TITLE_CHARS_MAX).map_or(title, |(at, _)| &title[..at]);
        let mut advisory = Advisory {
            id,
            flaws: vec![cve.to_owned()],
            aliases: Vec::new(),
            summary: if title == cve { String::new() } else { title.to_owned() },
            description: String::new(),
            published: parse_time(tracking.initial_release_date.as_ref()),
            modified: parse_time(tracking.current_release_date.as_ref()),
            withdrawn: None,
            ratings: Vec::new(),
            affected: Vec::new(),
        };
        if let Some(vulnerability) = vulnerability {
            add_packages_and_severity(&mut advisory, document, vulnerability, &product_index);
        }
        advisory
    };
    let mut all: Vec<Advisory> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for vulnerability in csaf.vulnerabilities.iter().flatten() {
        let cve = vulnerability.cve.as_deref().filter(|cve| !cve.is_empty());
        let one = advisory(cve.unwrap_or(&tracking.id), Some(vulnerability));
        // A document may have several entries for one CVE, but advisory ids must be unique.
        match places.get(&one.id) {
            Some(place) => all[*place].affected.extend(one.affected),
            None => {
                places.insert(one.id.clone(), all.len());
                all.push(one);
            }
        }
    }
    if all.is_empty() {
        all.push(advisory(&tracking.id, None));
    }
    all
}

fn parse_time(text: Option<&String>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// Adds the packages and the severity. Publishers rate a CVE per product or per document. A rating
/// of a product takes precedence, so the document's rating is used only if no product has one.
fn add_packages_and_severity(
    advisory: &mut Advisory,
    document: &Document,
    vulnerability: &Vulnerability,
    product_index: &ProductIndex<'_>,
) {
    let scores = vulnerability.scores.iter().flatten().flat_map(schema::Score::vectors);
    for score in scores.filter_map(|vector| CvssScore::parse(vector).ok()) {
        let rated = CveRating { flaw: None, rating: Rating::Cvss(score) };
        if advisory.ratings.len() < RATINGS_MAX && !advisory.ratings.contains(&rated) {
            advisory.ratings.push(rated);
        }
    }
    let impacts = || vulnerability.threats.iter().flatten().filter(|one| one.category == "impact");
    let general = document.aggregate_severity.as_ref();
    let general =
        general.and_then(|severity| parse_vendor_severity(&severity.text)).or_else(|| {
            let mut unbound = impacts().filter(|one| one.product_ids.is_none());
            unbound.find_map(|one| parse_vendor_severity(&one.details))
        });
    let mut by_product: HashMap<&str, Severity> = HashMap::new();
    for impact in impacts() {
        let Some(word) = parse_vendor_severity(&impact.details) else { continue };
        for id in impact.product_ids.iter().flatten() {
            by_product.insert(id, word);
        }
    }
    let mut statements = Statements::new(product_index, by_product);
    statements.collect(vulnerability);
    advisory.affected = statements.finish();
    match (advisory.affected.iter().any(|one| one.severity.is_some()), general) {
        (_, None) => {}
        (true, Some(word)) => {
            for one in &mut advisory.affected {
                one.severity.get_or_insert(word);
            }
        }
        (false, Some(word)) => {
            advisory.ratings.insert(0, CveRating { flaw: None, rating: Rating::Word(word) });
        }
    }
}

/// A package of one product. Architectures and repositories are merged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PackageKey {
    ecosystem: String,
    package: String,
    module: Option<String>,
    name_kind: PackageNameKind,
}

#[derive(Debug, Default)]
struct Statement {
    fixes: BTreeSet<String>,
    stance: Option<FixState>,
    severity: Option<Severity>,
    /// Whether the product is a minor release with its own support period (EUS and so on).
    is_minor_stream: bool,
}

struct Statements<'a> {
    product_index: &'a ProductIndex<'a>,
    severities: HashMap<&'a str, Severity>,
    by_package: BTreeMap<PackageKey, Statement>,
}

impl<'a> Statements<'a> {
    fn new(product_index: &'a ProductIndex<'a>, severities: HashMap<&'a str, Severity>) -> Self {
        Self { product_index, severities, by_package: BTreeMap::new() }
    }

    fn collect(&mut self, vulnerability: &Vulnerability) {
        let remedies = fix_states_from_remediations(vulnerability);
        let mut listed: HashSet<&str> = HashSet::new();
        if let Some(status) = &vulnerability.product_status {
            for id in [&status.fixed, &status.first_fixed, &status.recommended]
                .into_iter()
                .flatten()
                .flatten()
            {
                listed.insert(id);
                self.add_statement(id, None);
            }
            for id in [&status.known_affected, &status.first_affected, &status.last_affected]
                .into_iter()
                .flatten()
                .flatten()
            {
                listed.insert(id);
                let stance = remedies.get(id.as_str()).copied().unwrap_or(FixState::Affected);
                self.add_statement(id, Some(stance));
            }
            for id in status.known_not_affected.iter().flatten() {
                listed.insert(id);
                self.add_statement(id, Some(FixState::NotAffected));
            }
            for id in status.under_investigation.iter().flatten() {
                listed.insert(id);
                self.add_statement(id, Some(FixState::Unknown));
            }
        }
        for (id, stance) in remedies {
            if !listed.contains(id) {
                self.add_statement(id, Some(stance));
            }
        }
    }

    /// Records the statement about one product id. Without a stance, the package is fixed in the
    /// version that the id names.
    fn add_statement(&mut self, id: &str, stance: Option<FixState>) {
        let Some((product, package)) = self.product_index.resolve(id, stance.is_none()) else {
            return;
        };
        if stance.is_none() && package.version.is_none() {
            return;
        }
        let key = PackageKey {
            ecosystem: product.ecosystem.clone(),
            package: package.name,
            module: package.module,
            name_kind: package.name_kind,
        };
        // Such a statement could only contradict OSV's records, which name source packages.
        if self.product_index.publisher() == Publisher::Suse
            && key.name_kind == PackageNameKind::Binary
            && stance == Some(FixState::NotAffected)
        {
            return;
        }
        let severity = self.severities.get(id).copied();
        let statement = self.by_package.entry(key).or_default();
        statement.severity = statement.severity.max(severity);
        statement.is_minor_stream = product.is_minor_stream;
        match (stance, package.version) {
            (None, Some(version)) => drop(statement.fixes.insert(version)),
            (stance, _) => {
                statement.stance = statement
                    .stance
                    .into_iter()
                    .chain(stance)
                    .max_by_key(|one| attention_rank(*one));
            }
        }
    }

    fn finish(mut self) -> Vec<Affected> {
        self.drop_redundant();
        let affected = |(key, statement): (PackageKey, Statement)| {
            let mut affected = Affected::new(&key.ecosystem, &key.package);
            affected.names = Some(key.name_kind)
                .filter(|names| *names != affected.ecosystem.family().name_kind());
            affected.spans = statement.fixes.iter().map(|fix| Span::until(fix)).collect();
            affected.stance = statement.stance;
            if affected.spans.is_empty() && affected.stance != Some(FixState::NotAffected) {
                affected.spans.push(Span::ALL);
            }
            affected.severity = statement.severity;
            affected.modules = key.module.into_iter().collect();
            affected
        };
        self.by_package.into_iter().map(affected).collect()
    }

    /// Drops statements that would contradict a better one about the same package. Minor releases
    /// are merged into their major release, and each minor release has its own statements.
    fn drop_redundant(&mut self) {
        let fixed =
            |name_kind: Option<PackageNameKind>| -> BTreeSet<(String, Option<String>, String)> {
                self.by_package
                    .iter()
                    .filter(|(key, one)| {
                        !one.fixes.is_empty()
                            && name_kind.is_none_or(|names| key.name_kind == names)
                    })
                    .map(|(key, _)| {
                        (key.ecosystem.clone(), key.module.clone(), key.package.clone())
                    })
                    .collect()
            };
        let lists_sources = self.product_index.publisher() == Publisher::RedHat;
        let fixed_names = fixed(None);
        let binary_fixes: BTreeSet<(String, Option<String>)> = fixed(Some(PackageNameKind::Binary))
            .into_iter()
            .map(|(product, module, _)| (product, module))
            .collect();
        let base = |key: &PackageKey| {
            let (base, _) = Ecosystem::new(&key.ecosystem).base();
            (base, key.module.clone(), key.package.clone(), key.name_kind)
        };
        let affected: BTreeSet<_> = self
            .by_package
            .iter()
            .filter(|(_, one)| !one.fixes.is_empty() || one.stance != Some(FixState::NotAffected))
            .map(|(key, _)| base(key))
            .collect();
        self.by_package.retain(|key, statement| {
            let product = (key.ecosystem.clone(), key.module.clone());
            if !statement.fixes.is_empty() {
                statement.stance = None;
                // Red Hat lists the source package next to the binary packages that are built from
                // it.
                return !lists_sources
                    || key.name_kind == PackageNameKind::Binary
                    || !binary_fixes.contains(&product);
            }
            let (ecosystem, module) = product;
            // Servers are matched by major release, so the state of one minor release must not
            // apply to others.
            !statement.is_minor_stream
                && !fixed_names.contains(&(ecosystem, module, key.package.clone()))
                && (statement.stance != Some(FixState::NotAffected)
                    || !affected.contains(&base(key)))
        });
    }
}

/// Higher means that the state needs more attention from an operator.
fn attention_rank(stance: FixState) -> u8 {
    match stance {
        FixState::NotAffected => 0,
        FixState::EndOfLife => 1,
        FixState::WontFix => 2,
        FixState::Unknown => 3,
        FixState::Deferred => 4,
        _ => 5,
    }
}

/// The state of each product without a fix, from the remediations.
fn fix_states_from_remediations(vulnerability: &Vulnerability) -> BTreeMap<&str, FixState> {
    let mut remedies = BTreeMap::new();
    for remediation in vulnerability.remediations.iter().flatten() {
        let details = remediation.details.as_deref().unwrap_or_default().to_ascii_lowercase();
        let stance = match remediation.category.as_str() {
            "none_available" if details.contains("deferred") => FixState::Deferred,
            "none_available" if details.contains("investigation") => FixState::Unknown,
            "none_available" => FixState::Affected,
            "no_fix_planned" if details.contains("out of support") => FixState::EndOfLife,
            "no_fix_planned" => FixState::WontFix,
            _ => continue,
        };
        for id in remediation.product_ids.iter().flatten() {
            remedies.insert(id.as_str(), stance);
        }
    }
    remedies
}
