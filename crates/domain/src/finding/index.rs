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
    Advisory, Affected, Channel, CvssScore, Ecosystem, End, Family, Names, Rating, Span, Verdict,
};

use super::decide::{Hit, Scene, covers_stream, place};
use super::subject::{Map, Subject, subjects};
use super::version::{Rule, is_modular, readable};
use super::{Finding, Found, Reason, Report, Unassessed};

/// The advisories for one [base](Ecosystem::base), by package name.
#[derive(Debug)]
pub struct Index {
    base: Ecosystem,
    family: Family,
    /// By kind of name: [`Names::Source`] first.
    names: [Map<Arc<str>, Named>; 2],
}

fn table(names: Names) -> usize {
    match names {
        Names::Source => 0,
        Names::Binary => 1,
    }
}

/// Everything known about one package name.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Without duplicates. First the spans without a start that end with a fix, ordered by fix:
    /// most spans are of this kind, and locating a version among them takes few comparisons.
    pub(super) spans: Vec<Known>,
    /// The number of these ordered spans.
    ordered: usize,
    /// Sorted by CVE.
    flaws: Vec<Flaw>,
}

/// A span, and the fixed version of this release that ends it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) span: Arc<Span>,
    fixed: Option<Arc<str>>,
}

/// Everything known about one CVE under one package name.
#[derive(Debug)]
pub(super) struct Flaw {
    cve: Arc<str>,
    pub(super) claims: Vec<Claim>,
    severity: Severity,
    severity_source: Option<Arc<str>>,
    cvss: Option<Arc<CvssScore>>,
    published: Option<Timestamp>,
    aliases: Arc<[Arc<str>]>,
}

/// A statement of one advisory about a CVE.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
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

impl Known {
    fn new(span: Span) -> Self {
        let fixed = match &span.end {
            End::Fixed(fixed) => Some(Arc::from(fixed.as_str())),
            _ => None,
        };
        Known { span: Arc::new(span), fixed }
    }
}

impl Index {
    /// Builds the index of all `advisories` for `base`. They may come from a stream: only what
    /// matching needs is kept.
    pub fn new<A: AsRef<Advisory>>(
        base: &Ecosystem,
        advisories: impl IntoIterator<Item = A>,
    ) -> Index {
        let mut building = Building::default();
        for advisory in advisories {
            building.take(base, advisory.as_ref());
        }
        building.finish(base)
    }

    pub fn base(&self) -> &Ecosystem {
        &self.base
    }

    /// Number of package names with advisories.
    pub fn names(&self) -> usize {
        self.names.iter().map(Map::len).sum()
    }

    /// Matches a set of packages: returns the findings, and the packages that could not be
    /// assessed.
    pub fn judge(&self, packages: &[Installed]) -> Report {
        let mut report = Report::default();
        let Some(scheme) = self.family.scheme() else { return report };
        let usual = self.family.names();
        self.judge_by(usual, scheme, packages, &mut report);
        if !self.names[table(usual.other())].is_empty() {
            let mut other = Report::default();
            self.judge_by(usual.other(), scheme, packages, &mut other);
            report.findings.extend(other.findings);
            drop_duplicates(&mut report.findings);
        }
        report.sort();
        report
    }

    /// Matches against the advisories that use source package names, or against those that use
    /// binary package names.
    fn judge_by(&self, names: Names, scheme: Scheme, packages: &[Installed], report: &mut Report) {
        let mut hits = Vec::new();
        for subject in subjects(self.family, names, packages) {
            let third_party = subject.third_party(self.family);
            if let Some(origin) = &third_party {
                let reason = Reason::ThirdParty(origin.clone());
                report.unassessed.push(unassessed(&subject, reason));
            }
            let known = &self.names[table(names)];
            if !subject.names.iter().any(|name| known.contains_key(name.as_ref())) {
                continue;
            }
            let epochs = self.family.writes_epochs() && !subject.epoch_unknown();
            let rule = Rule { scheme, epochs };
            if readable(scheme, subject.version) {
                self.judge_one(names, &subject, rule, third_party, &mut hits, report);
            } else if third_party.is_none() {
                report.unassessed.push(unassessed(&subject, Reason::UnknownVersion));
            }
        }
    }

    /// Whether advisories with the other kind of names have an installed fix for a CVE.
    fn is_fixed_by_other_names(&self, names: Names, subject: &Subject<'_>, cve: &str) -> bool {
        let others = &self.names[table(names.other())];
        let Some(scheme) = self.family.scheme() else { return false };
        // The epoch of a source package is not known here.
        let rule = Rule { scheme, epochs: names == Names::Source };
        !others.is_empty()
            && subject.members().iter().any(|package| {
                let (name, version) = match names {
                    Names::Source => (package.name.as_str(), package.version.as_str()),
                    Names::Binary => (subject.source(), package.source_version()),
                };
                let Some(named) = others.get(name) else { return false };
                let found = named.flaws.binary_search_by(|flaw| flaw.cve.as_ref().cmp(cve));
                let claims = found.map_or(&[][..], |place| &named.flaws[place].claims);
                claims.iter().any(|claim| {
                    let span = &named.spans[claim.span].span;
                    matches!(span.end, End::Fixed(_))
                        && place(rule, version, span) == Hit::After
                        && covers_stream(self.family, claim, span, version)
                })
            })
    }

    /// Locates `version` relative to each span of a name.
    fn place_all(&self, rule: Rule, version: &str, named: &Named, hits: &mut Vec<Hit>) {
        hits.clear();
        // They are ordered by versions with epochs, if the family writes epochs.
        let ordered = if rule.epochs == self.family.writes_epochs() { named.ordered } else { 0 };
        let (ordered, others) = named.spans.split_at(ordered);
        let is_past = |known: &Known| {
            known.fixed.as_ref().is_some_and(|fixed| rule.compare(version, fixed).is_ge())
        };
        // Most packages are past the last fix, and then one comparison is enough.
        let past = match ordered.last() {
            Some(last) if is_past(last) => ordered.len(),
            _ => ordered.partition_point(is_past),
        };
        hits.resize(past, Hit::After);
        hits.resize(ordered.len(), Hit::Inside);
        hits.extend(others.iter().map(|known| place(rule, version, &known.span)));
    }

    fn judge_one(
        &self,
        names: Names,
        subject: &Subject<'_>,
        rule: Rule,
        third_party: Option<String>,
        hits: &mut Vec<Hit>,
        report: &mut Report,
    ) {
        let is_third_party = third_party.is_some();
        let mut module_unknown = false;
        let mut package = None;
        let start = report.findings.len();
        for name in &subject.names {
            let known = self.names[table(names)].get_key_value(name.as_ref());
            let Some((name, named)) = known else { continue };
            self.place_all(rule, subject.version, named, hits);
            // The version is past every fix and there are no other statements, as for most
            // packages.
            let past_all = hits.iter().all(|hit| *hit == Hit::After);
            if past_all && !subject.is_modular() {
                continue;
            }
            let mut scene = Scene::new(self.family, rule, subject, &named.spans, hits);
            for flaw in &named.flaws {
                let Some(decision) = scene.decide(flaw) else { continue };
                if !decision.has_fix && self.is_fixed_by_other_names(names, subject, &flaw.cve) {
                    continue;
                }
                let package = package
                    .get_or_insert_with(|| Arc::new(subject.package(third_party.clone())))
                    .clone();
                let known = &named.spans[decision.claim.span];
                report.findings.push(Finding {
                    cve: flaw.cve.clone(),
                    aliases: flaw.aliases.clone(),
                    package,
                    state: if is_third_party { FixState::Unknown } else { decision.state },
                    fixed_version: known.fixed.clone().filter(|_| decision.has_fix),
                    severity: flaw.severity,
                    severity_source: flaw.severity_source.clone(),
                    cvss: flaw.cvss.clone(),
                    published: flaw.published,
                    found: Found {
                        advisory: decision.claim.advisory.clone(),
                        ecosystem: decision.claim.ecosystem.clone(),
                        name: name.clone(),
                        names,
                        span: known.span.clone(),
                        told: false,
                    },
                });
            }
            module_unknown |= scene.module_unknown;
        }
        if module_unknown && !is_third_party {
            report.unassessed.push(unassessed(subject, Reason::UnknownModule));
        }
        if subject.names.len() > 1 {
            merge(&mut report.findings, start, rule);
        }
    }
}

/// Merges findings of one CVE in several packages of one source into one finding, with the later of
/// two fixes.
fn merge(findings: &mut Vec<Finding>, start: usize, rule: Rule) {
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
    let mut places: Map<(Arc<str>, String, Option<String>), usize> = Map::default();
    let mut kept: Vec<Finding> = Vec::with_capacity(findings.len());
    for finding in findings.drain(..) {
        let boots = finding.package.kernel.as_ref().map(ToString::to_string);
        let key = (finding.cve.clone(), finding.package.source.clone(), boots);
        match places.get(&key) {
            // Several versions of one source package may be installed in parallel.
            Some(place) if kept[*place].found.names != finding.found.names => {
                let known = &mut kept[*place];
                if known.fixed_version.is_none() && finding.fixed_version.is_some() {
                    *known = finding;
                }
            }
            _ => {
                places.insert(key, kept.len());
                kept.push(finding);
            }
        }
    }
    *findings = kept;
}

fn unassessed(subject: &Subject<'_>, reason: Reason) -> Unassessed {
    let (package, version) = (subject.source().to_owned(), subject.version.to_owned());
    Unassessed { package, version, reason }
}

#[derive(Default)]
struct Building {
    names: [Map<Arc<str>, BuildingName>; 2],
    /// Interned strings.
    texts: Map<Arc<str>, ()>,
}

#[derive(Default)]
struct BuildingName {
    spans: Map<Span, usize>,
    flaws: BTreeMap<Arc<str>, BuildingFlaw>,
}

#[derive(Default)]
struct BuildingFlaw {
    claims: Vec<Claim>,
    verdict: Verdict,
    published: Option<Timestamp>,
    aliases: BTreeSet<Arc<str>>,
}

impl Building {
    fn text(&mut self, text: &str) -> Arc<str> {
        match self.texts.get_key_value(text) {
            Some((known, ())) => known.clone(),
            None => {
                let new: Arc<str> = Arc::from(text);
                self.texts.insert(new.clone(), ());
                new
            }
        }
    }

    fn take(&mut self, base: &Ecosystem, advisory: &Advisory) {
        if advisory.withdrawn.is_some() {
            return;
        }
        for affected in &advisory.affected {
            let (its_base, channel) = affected.ecosystem.base();
            if its_base == *base {
                self.take_affected(advisory, affected, channel);
            }
        }
    }

    fn take_affected(&mut self, advisory: &Advisory, affected: &Affected, channel: Channel) {
        let id = self.text(&advisory.id);
        let ecosystem = self.text(affected.ecosystem.as_str());
        let modules: Vec<Arc<str>> = affected.modules.iter().map(|one| self.text(one)).collect();
        let name = self.text(&affected.package);
        let aliases: Vec<Arc<str>> = advisory.aliases.iter().map(|one| self.text(one)).collect();
        let cves: Vec<Arc<str>> = advisory.flaws.iter().map(|cve| self.text(cve)).collect();
        let named = self.names[table(affected.names())].entry(name).or_default();
        let claims: Vec<Claim> = spans(affected)
            .map(|(span, stance)| {
                let next = named.spans.len();
                let modular = !modules.is_empty() || ends_in_a_module(&span);
                Claim {
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
        if claims.is_empty() {
            return;
        }
        let alone = advisory.flaws.len() == 1;
        let aliases: &[Arc<str>] = if alone { &aliases } else { &[] };
        for cve in cves {
            let flaw = named.flaws.entry(cve.clone()).or_default();
            flaw.claims.extend(claims.iter().cloned());
            flaw.aliases.extend(aliases.iter().cloned());
            flaw.published = match (flaw.published, advisory.published) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if let Some(word) = affected.severity {
                flaw.verdict.hear(&Rating::Word(word), alone);
            }
            for rated in &advisory.ratings {
                match &rated.flaw {
                    Some(of) if **of == *cve => flaw.verdict.hear(&rated.rating, true),
                    Some(_) => {}
                    None => flaw.verdict.hear(&rated.rating, alone),
                }
            }
        }
    }

    fn finish(self, base: &Ecosystem) -> Index {
        let family = base.family();
        let mut sources: Map<String, Arc<str>> = Map::default();
        let mut finish = |building: BuildingName| {
            let (spans, places, ordered) = in_order(building.spans, family);
            let flaws = building.flaws.into_iter().map(|(cve, mut flaw)| {
                flaw.claims.iter_mut().for_each(|claim| claim.span = places[claim.span]);
                flaw.claims.sort();
                flaw.claims.dedup();
                let (severity, source) = flaw.verdict.severity(family.signature());
                let severity_source = source.map(|source| {
                    sources.entry(source.to_owned()).or_insert_with(|| Arc::from(source)).clone()
                });
                let cvss = flaw.verdict.cvss().cloned().map(Arc::new);
                let BuildingFlaw { claims, published, aliases, .. } = flaw;
                let aliases = aliases.into_iter().collect();
                Flaw { cve, claims, severity, severity_source, cvss, published, aliases }
            });
            Named {
                flaws: flaws.collect(),
                spans: spans.into_iter().map(Known::new).collect(),
                ordered,
            }
        };
        let names = self.names.map(|table| {
            table.into_iter().map(|(name, building)| (name, finish(building))).collect()
        });
        Index { base: base.clone(), family, names }
    }
}

/// Returns the spans in the order that [`Named`] requires, the new index of each, and how many are
/// ordered.
fn in_order(spans: Map<Span, usize>, family: Family) -> (Vec<Span>, Vec<usize>, usize) {
    let rule = family.scheme().map(|scheme| Rule { scheme, epochs: family.writes_epochs() });
    let (mut ordered, mut others) = (Vec::new(), Vec::new());
    for (span, place) in spans {
        match (&span.end, rule) {
            (End::Fixed(fixed), Some(rule))
                // pacman's order is not total where a pkgrel is missing.
                if span.from.is_none()
                    && readable(rule.scheme, fixed)
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

fn ends_in_a_module(span: &Span) -> bool {
    match &span.end {
        End::Fixed(version) | End::FixedElsewhere(version) | End::Last(version) => {
            is_modular(version)
        }
        End::Open => false,
    }
}

/// Returns the meaningful spans with the publisher's status. A fix in version `0` means that the
/// package was never affected; a package without any span is affected in a way that cannot be
/// checked.
fn spans(affected: &Affected) -> impl Iterator<Item = (Span, Option<FixState>)> + '_ {
    let never = |span: &&Span| !matches!(&span.end, End::Fixed(fixed) if fixed == "0");
    let stance = affected.stance;
    let unsaid =
        affected.spans.is_empty().then(|| (Span::ALL, Some(stance.unwrap_or(FixState::Unknown))));
    affected.spans.iter().filter(never).map(move |span| (span.clone(), stance)).chain(unsaid)
}
