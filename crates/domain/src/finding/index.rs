//! The advisories of one release, indexed so that a set of packages is matched in one pass.
//!
//! A package name may have thousands of CVEs but few distinct version spans: kernel CVEs are fixed
//! in batches. So a version is compared with each distinct span once, and each CVE only looks up
//! the result.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use pkgver::Scheme;
use vocab::{FixState, Installed, Severity};

use crate::advisory::{
    Advisory, Affected, Channel, CvssScore, Ecosystem, Family, PackageNameKind, Rating,
    RatingSummary, Span, SpanEnd,
};

use super::lookup_key::{LookupUnit, Map, lookup_units};
use super::resolve::{MatchContext, SpanPosition, covers_stream, locate};
use super::version::{VersionRule, is_modular, is_readable_version};
use super::{Evidence, Finding, MatchReport, Unassessed, UnassessedCause};

/// The advisories for one [base](Ecosystem::base), by package name.
#[derive(Debug)]
pub struct AdvisoryIndex {
    base: Ecosystem,
    family: Family,
    /// By kind of name: [`PackageNameKind::Source`] first.
    names: [Map<Arc<str>, NameEntry>; 2],
}

fn table_index(name_kind: PackageNameKind) -> usize {
    match name_kind {
        PackageNameKind::Source => 0,
        PackageNameKind::Binary => 1,
    }
}

/// Everything known about one package name.
#[derive(Debug, Default)]
pub(super) struct NameEntry {
    /// Without duplicates. First the spans without a start that end with a fix, ordered by fix:
    /// most spans are of this kind, and locating a version among them takes few comparisons.
    pub(super) spans: Vec<IndexedSpan>,
    /// The number of these ordered spans.
    ordered_count: usize,
    /// Sorted by CVE.
    cves: Vec<IndexedCve>,
}

/// A span, and the fixed version of this release that ends it.
#[derive(Debug)]
pub(super) struct IndexedSpan {
    pub(super) span: Arc<Span>,
    fixed: Option<Arc<str>>,
}

/// Everything known about one CVE under one package name.
#[derive(Debug)]
pub(super) struct IndexedCve {
    cve: Arc<str>,
    pub(super) statements: Vec<Statement>,
    severity: Severity,
    severity_source: Option<Arc<str>>,
    cvss: Option<Arc<CvssScore>>,
    published: Option<Timestamp>,
    aliases: Arc<[Arc<str>]>,
}

/// A statement of one advisory about a CVE.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Statement {
    pub(super) advisory: Arc<str>,
    pub(super) ecosystem: Arc<str>,
    pub(super) channel: Channel,
    /// Index into the spans of the name.
    pub(super) span: usize,
    pub(super) stance: Option<FixState>,
    pub(super) modules: Vec<Arc<str>>,
    /// Whether it is about a package of a module, even if it does not name the module.
    pub(super) modular: bool,
}

impl IndexedSpan {
    fn new(span: Span) -> Self {
        let fixed = match &span.end {
            SpanEnd::Fixed(fixed) => Some(Arc::from(fixed.as_str())),
            _ => None,
        };
        IndexedSpan { span: Arc::new(span), fixed }
    }
}

impl AdvisoryIndex {
    /// Builds the index of all `advisories` for `base`. They may come from a stream: only what
    /// matching needs is kept.
    pub fn new<A: AsRef<Advisory>>(
        base: &Ecosystem,
        advisories: impl IntoIterator<Item = A>,
    ) -> AdvisoryIndex {
        let mut building = IndexBuilder::default();
        for advisory in advisories {
            building.add(base, advisory.as_ref());
        }
        building.finish(base)
    }

    pub fn base(&self) -> &Ecosystem {
        &self.base
    }

    /// Number of package names with advisories.
    pub fn name_count(&self) -> usize {
        self.names.iter().map(Map::len).sum()
    }

    /// Matches a set of packages: returns the findings, and the packages that could not be
    /// assessed.
    pub fn match_packages(&self, packages: &[Installed]) -> MatchReport {
        let mut report = MatchReport::default();
        let Some(scheme) = self.family.scheme() else { return report };
        let usual = self.family.name_kind();
        self.match_by_names(usual, scheme, packages, &mut report);
        if !self.names[table_index(usual.other())].is_empty() {
            let mut other = MatchReport::default();
            self.match_by_names(usual.other(), scheme, packages, &mut other);
            report.findings.extend(other.findings);
            drop_duplicates(&mut report.findings);
        }
        report.sort();
        report
    }

    /// Matches against the advisories that use source package names, or against those that use
    /// binary package names.
    fn match_by_names(
        &self,
        name_kind: PackageNameKind,
        scheme: Scheme,
        packages: &[Installed],
        report: &mut MatchReport,
    ) {
        let mut hits = Vec::new();
        for subject in lookup_units(self.family, name_kind, packages) {
            let third_party = subject.third_party(self.family);
            if let Some(origin) = &third_party {
                let reason = UnassessedCause::ThirdParty(origin.clone());
                report.unassessed.push(unassessed(&subject, reason));
            }
            let known = &self.names[table_index(name_kind)];
            if !subject.names.iter().any(|name| known.contains_key(name.as_ref())) {
                continue;
            }
            let epochs = self.family.writes_epochs() && !subject.epoch_unknown();
            let rule = VersionRule { scheme, epochs };
            if is_readable_version(scheme, subject.version) {
                self.match_unit(name_kind, &subject, rule, third_party, &mut hits, report);
            } else if third_party.is_none() {
                report.unassessed.push(unassessed(&subject, UnassessedCause::UnknownVersion));
            }
        }
    }

    /// Whether advisories with the other kind of names have an installed fix for a CVE.
    fn is_fixed_by_other_names(
        &self,
        name_kind: PackageNameKind,
        lookup_unit: &LookupUnit<'_>,
        cve: &str,
    ) -> bool {
        let others = &self.names[table_index(name_kind.other())];
        let Some(scheme) = self.family.scheme() else { return false };
        // The epoch of a source package is not known here.
        let rule = VersionRule { scheme, epochs: name_kind == PackageNameKind::Source };
        !others.is_empty()
            && lookup_unit.members().iter().any(|package| {
                let (name, version) = match name_kind {
                    PackageNameKind::Source => (package.name.as_str(), package.version.as_str()),
                    PackageNameKind::Binary => (lookup_unit.source(), package.source_version()),
                };
                let Some(named) = others.get(name) else { return false };
                let found =
                    named.cves.binary_search_by(|indexed_cve| indexed_cve.cve.as_ref().cmp(cve));
                let claims = found.map_or(&[][..], |place| &named.cves[place].statements);
                claims.iter().any(|claim| {
                    let span = &named.spans[claim.span].span;
                    matches!(span.end, SpanEnd::Fixed(_))
                        && locate(rule, version, span) == SpanPosition::After
                        && covers_stream(self.family, claim, span, version)
                })
            })
    }

    /// Locates `version` relative to each span of a name.
    fn locate_all(
        &self,
        rule: VersionRule,
        version: &str,
        entry: &NameEntry,
        positions: &mut Vec<SpanPosition>,
    ) {
        positions.clear();
        // They are ordered by versions with epochs, if the family writes epochs.
        let ordered =
            if rule.epochs == self.family.writes_epochs() { entry.ordered_count } else { 0 };
        let (ordered, others) = entry.spans.split_at(ordered);
        let is_past = |indexed_span: &IndexedSpan| {
            indexed_span.fixed.as_ref().is_some_and(|fixed| rule.compare(version, fixed).is_ge())
        };
        // Most packages are past the last fix, and then one comparison is enough.
        let past = match ordered.last() {
            Some(last) if is_past(last) => ordered.len(),
            _ => ordered.partition_point(is_past),
        };
        positions.resize(past, SpanPosition::After);
        positions.resize(ordered.len(), SpanPosition::Inside);
        positions.extend(others.iter().map(|known| locate(rule, version, &known.span)));
    }

    fn match_unit(
        &self,
        name_kind: PackageNameKind,
        lookup_unit: &LookupUnit<'_>,
        rule: VersionRule,
        third_party: Option<String>,
        positions: &mut Vec<SpanPosition>,
        report: &mut MatchReport,
    ) {
        let is_third_party = third_party.is_some();
        let mut module_unknown = false;
        let mut package = None;
        let start = report.findings.len();
        for name in &lookup_unit.names {
            let known = self.names[table_index(name_kind)].get_key_value(name.as_ref());
            let Some((name, named)) = known else { continue };
            self.locate_all(rule, lookup_unit.version, named, positions);
            // The version is past every fix and there are no other statements, as for most
            // packages.
            let past_all = positions.iter().all(|hit| *hit == SpanPosition::After);
            if past_all && !lookup_unit.is_modular() {
                continue;
            }
            let mut context =
                MatchContext::new(self.family, rule, lookup_unit, &named.spans, positions);
            for indexed_cve in &named.cves {
                let Some(decision) = context.resolve(indexed_cve) else { continue };
                if !decision.has_fix
                    && self.is_fixed_by_other_names(name_kind, lookup_unit, &indexed_cve.cve)
                {
                    continue;
                }
                let package = package
                    .get_or_insert_with(|| Arc::new(lookup_unit.package(third_party.clone())))
                    .clone();
                let known = &named.spans[decision.statement.span];
                report.findings.push(Finding {
                    cve: indexed_cve.cve.clone(),
                    aliases: indexed_cve.aliases.clone(),
                    package,
                    state: if is_third_party { FixState::Unknown } else { decision.state },
                    fixed_version: known.fixed.clone().filter(|_| decision.has_fix),
                    severity: indexed_cve.severity,
                    severity_source: indexed_cve.severity_source.clone(),
                    cvss: indexed_cve.cvss.clone(),
                    published: indexed_cve.published,
                    found: Evidence {
                        advisory: decision.statement.advisory.clone(),
                        ecosystem: decision.statement.ecosystem.clone(),
                        name: name.clone(),
                        names: name_kind,
                        span: known.span.clone(),
                        told: false,
                    },
                });
            }
            module_unknown |= context.module_unknown;
        }
        if module_unknown && !is_third_party {
            report.unassessed.push(unassessed(lookup_unit, UnassessedCause::UnknownModule));
        }
        if lookup_unit.names.len() > 1 {
            merge(&mut report.findings, start, rule);
        }
    }
}

/// Merges findings of one CVE in several packages of one source into one finding, with the later of
/// two fixes.
fn merge(findings: &mut Vec<Finding>, start: usize, rule: VersionRule) {
    findings[start..].sort_by(|a, b| a.cve.cmp(&b.cve));
    let mut several = findings.split_off(start).into_iter();
    let Some(mut kept) = several.next() else { return };
    for finding in several {
        if finding.cve != kept.cve {
            findings.push(std::mem::replace(&mut kept, finding));
            continue;
        }
        let later = match (&kept.fixed_version, &finding.fixed_version) {
            (Some(kept), Some(other)) => rule.compare(kept, other).is_lt(),
            (kept, other) => kept.is_none() && other.is_some(),
        };
        let (one, other) = if later { (finding, kept) } else { (kept, finding) };
        kept = one;
        if other.severity > kept.severity {
            kept.severity = other.severity;
            kept.severity_source = other.severity_source;
        }
    }
    findings.push(kept);
}

/// Of two findings of one CVE in one source package, matched by source name and by binary name,
/// keeps one: the one with a fix if there is one, otherwise the first.
fn drop_duplicates(findings: &mut Vec<Finding>) {
    let mut indexes: Map<(Arc<str>, String, Option<String>), usize> = Map::default();
    let mut kept: Vec<Finding> = Vec::with_capacity(findings.len());
    for finding in findings.drain(..) {
        let boots = finding.package.kernel.as_ref().map(ToString::to_string);
        let key = (finding.cve.clone(), finding.package.source.clone(), boots);
        match indexes.get(&key) {
            // Several versions of one source package may be installed in parallel.
            Some(place) if kept[*place].found.names != finding.found.names => {
                let known = &mut kept[*place];
                if known.fixed_version.is_none() && finding.fixed_version.is_some() {
                    *known = finding;
                }
            }
            _ => {
                indexes.insert(key, kept.len());
                kept.push(finding);
            }
        }
    }
    *findings = kept;
}

fn unassessed(lookup_unit: &LookupUnit<'_>, reason: UnassessedCause) -> Unassessed {
    let (package, version) = (lookup_unit.source().to_owned(), lookup_unit.version.to_owned());
    Unassessed { package, version, reason }
}

#[derive(Default)]
struct IndexBuilder {
    names: [Map<Arc<str>, NameBuilder>; 2],
    /// Interned strings.
    strings: Map<Arc<str>, ()>,
}

#[derive(Default)]
struct NameBuilder {
    spans: Map<Span, usize>,
    cves: BTreeMap<Arc<str>, CveBuilder>,
}

#[derive(Default)]
struct CveBuilder {
    statements: Vec<Statement>,
    ratings: RatingSummary,
    published: Option<Timestamp>,
    aliases: BTreeSet<Arc<str>>,
}

impl IndexBuilder {
    fn intern(&mut self, text: &str) -> Arc<str> {
        match self.strings.get_key_value(text) {
            Some((known, ())) => known.clone(),
            None => {
                let new: Arc<str> = Arc::from(text);
                self.strings.insert(new.clone(), ());
                new
            }
        }
    }

    fn add(&mut self, base: &Ecosystem, advisory: &Advisory) {
        if advisory.withdrawn.is_some() {
            return;
        }
        for affected in &advisory.affected {
            let (its_base, channel) = affected.ecosystem.base();
            if its_base == *base {
                self.add_affected(advisory, affected, channel);
            }
        }
    }

    fn add_affected(&mut self, advisory: &Advisory, affected: &Affected, channel: Channel) {
        let id = self.intern(&advisory.id);
        let ecosystem = self.intern(affected.ecosystem.as_str());
        let modules: Vec<Arc<str>> = affected.modules.iter().map(|one| self.intern(one)).collect();
        let name = self.intern(&affected.package);
        let aliases: Vec<Arc<str>> = advisory.aliases.iter().map(|one| self.intern(one)).collect();
        let cves: Vec<Arc<str>> = advisory.flaws.iter().map(|cve| self.intern(cve)).collect();
        let named = self.names[table_index(affected.name_kind())].entry(name).or_default();
        let statements: Vec<Statement> = effective_spans(affected)
            .map(|(span, stance)| {
                let next = named.spans.len();
                let modular = !modules.is_empty() || ends_in_module(&span);
                Statement {
                    modular,
                    advisory: id.clone(),
                    ecosystem: ecosystem.clone(),
                    channel,
                    span: *named.spans.entry(span).or_insert(next),
                    stance,
                    modules: modules.clone(),
                }
            })
            .collect();
        if statements.is_empty() {
            return;
        }
        let alone = advisory.flaws.len() == 1;
        let aliases: &[Arc<str>] = if alone { &aliases } else { &[] };
        for cve in cves {
            let indexed_cve = named.cves.entry(cve.clone()).or_default();
            indexed_cve.statements.extend(statements.iter().cloned());
            indexed_cve.aliases.extend(aliases.iter().cloned());
            indexed_cve.published = match (indexed_cve.published, advisory.published) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if let Some(word) = affected.severity {
                indexed_cve.ratings.add(&Rating::Word(word), alone);
            }
            for rated in &advisory.ratings {
                match &rated.flaw {
                    Some(rated_cve) if **rated_cve == *cve => {
                        indexed_cve.ratings.add(&rated.rating, true);
                    }
                    Some(_) => {}
                    None => indexed_cve.ratings.add(&rated.rating, alone),
                }
            }
        }
    }

    fn finish(self, base: &Ecosystem) -> AdvisoryIndex {
        let family = base.family();
        let mut sources: Map<String, Arc<str>> = Map::default();
        let mut finish = |building: NameBuilder| {
            let (spans, places, ordered) = sort_spans(building.spans, family);
            let indexed_cves = building.cves.into_iter().map(|(cve, mut indexed_cve)| {
                indexed_cve.statements.iter_mut().for_each(|claim| claim.span = places[claim.span]);
                indexed_cve.statements.sort();
                indexed_cve.statements.dedup();
                let (severity, source) = indexed_cve.ratings.severity(family.source_name());
                let severity_source = source.map(|source| {
                    sources.entry(source.to_owned()).or_insert_with(|| Arc::from(source)).clone()
                });
                let cvss = indexed_cve.ratings.cvss().cloned().map(Arc::new);
                let CveBuilder { statements: claims, published, aliases, .. } = indexed_cve;
                let aliases = aliases.into_iter().collect();
                IndexedCve {
                    cve,
                    statements: claims,
                    severity,
                    severity_source,
                    cvss,
                    published,
                    aliases,
                }
            });
            NameEntry {
                cves: indexed_cves.collect(),
                spans: spans.into_iter().map(IndexedSpan::new).collect(),
                ordered_count: ordered,
            }
        };
        let names = self.names.map(|table| {
            table.into_iter().map(|(name, building)| (name, finish(building))).collect()
        });
        AdvisoryIndex { base: base.clone(), family, names }
    }
}

/// Returns the spans in the order that [`NameEntry`] requires, the new index of each, and how many
/// are ordered.
fn sort_spans(spans: Map<Span, usize>, family: Family) -> (Vec<Span>, Vec<usize>, usize) {
    let rule = family.scheme().map(|scheme| VersionRule { scheme, epochs: family.writes_epochs() });
    let (mut ordered, mut others) = (Vec::new(), Vec::new());
    for (span, place) in spans {
        match (&span.end, rule) {
            (SpanEnd::Fixed(fixed), Some(rule))
                // pacman's order is not total where a pkgrel is missing.
                if span.from.is_none()
                    && is_readable_version(rule.scheme, fixed)
                    && rule.scheme != Scheme::Pacman =>
            {
                ordered.push((fixed.clone(), span, place));
            }
            _ => others.push((span, place)),
        }
    }
    // Equal versions are ordered by text, so that the order of advisories does not matter.
    ordered.sort_by(|(a, ..), (b, ..)| {
        rule.map_or(Ordering::Equal, |rule| rule.compare(a, b)).then_with(|| a.cmp(b))
    });
    others.sort();
    let count = ordered.len();
    let all = ordered.into_iter().map(|(_, span, place)| (span, place)).chain(others);
    let (spans, old_places): (Vec<Span>, Vec<usize>) = all.unzip();
    let mut places = vec![0; spans.len()];
    for (new, old) in old_places.into_iter().enumerate() {
        places[old] = new;
    }
    (spans, places, count)
}

fn ends_in_module(span: &Span) -> bool {
    match &span.end {
        SpanEnd::Fixed(version) | SpanEnd::FixedElsewhere(version) | SpanEnd::Last(version) => {
            is_modular(version)
        }
        SpanEnd::Open => false,
    }
}

/// Returns the meaningful spans with the publisher's status. A fix in version `0` means that the
/// package was never affected; a package without any span is affected in a way that cannot be
/// checked.
fn effective_spans(affected: &Affected) -> impl Iterator<Item = (Span, Option<FixState>)> + '_ {
    let can_match = |span: &&Span| !matches!(&span.end, SpanEnd::Fixed(fixed) if fixed == "0");
    let stance = affected.stance;
    let unspecified =
        affected.spans.is_empty().then(|| (Span::ALL, Some(stance.unwrap_or(FixState::Unknown))));
    affected
        .spans
        .iter()
        .filter(can_match)
        .map(move |span| (span.clone(), stance))
        .chain(unspecified)
}
