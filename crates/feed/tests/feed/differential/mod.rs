//! Compares our matcher with the real debsecan on the same generated facts.
//!
//! Each seed generates random statements of Debian's tracker about the packages of a dpkg database,
//! and writes them in the formats that we read and in debsecan's format. Both must then report the
//! same CVEs in the same packages, except for the differences listed in `differences.toml`.

mod facts;
mod formats;
mod lab;
mod rules;
pub(crate) mod tally;

use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::Advisory;
use feed::FeedKind;
use vocab::Installed;

use self::facts::{Fact, Sources, advisory_name};
use self::rules::{Case, FeedFormats, RULES};
use self::tally::Tally;
use crate::debsecan;
use crate::debsecan::{installed, our_findings};
use crate::support::{Folder, advisories, has_program};

const SEEDS: u64 = 40;
const FACTS: usize = 1_500;
/// How many of the seeds are also compared on the packages of this machine.
const MACHINE_SEEDS: u64 = 8;

/// CVE and package.
type Pair = (String, String);

/// One dpkg database.
struct Host<'a> {
    status: &'a str,
    packages: Vec<Installed>,
    /// Packages by the source package name that advisories use.
    by_source: BTreeMap<String, Vec<Installed>>,
    sources: Sources,
}

impl Host<'_> {
    fn new(status: &str) -> Host<'_> {
        let packages = installed(status);
        let mut by_source: BTreeMap<String, Vec<Installed>> = BTreeMap::new();
        for package in &packages {
            by_source.entry(advisory_name(package).to_owned()).or_default().push(package.clone());
        }
        let sources = facts::sources(&packages);
        Host { status, packages, by_source, sources }
    }

    fn debsecan(&self, folder: &Folder, facts: &[Fact]) -> Option<BTreeSet<Pair>> {
        let data = formats::debsecan(facts, &self.sources);
        let status = folder.write("status", self.status);
        Some(pairs(debsecan::run(folder, &data, &status)?))
    }

    fn ours(&self, feed: &[Advisory]) -> BTreeSet<Pair> {
        pairs(our_findings(feed, &self.packages))
    }

    /// The packages that a fact is about.
    fn packages_of(&self, fact: &Fact) -> impl Iterator<Item = &Installed> {
        self.by_source.get(&fact.source).into_iter().flatten()
    }

    /// Records every pair on which the two differ, with the rule that explains it.
    fn compare(
        &self,
        form: FeedFormats,
        facts: &[Fact],
        theirs: &BTreeSet<Pair>,
        ours: &BTreeSet<Pair>,
        tally: &mut Tally,
    ) {
        let fixes = formats::fixes(facts);
        let mut seen = BTreeSet::new();
        for fact in facts {
            for package in self.packages_of(fact) {
                let pair = (fact.cve.clone(), package.name.clone());
                let (is_theirs, is_ours) = (theirs.contains(&pair), ours.contains(&pair));
                seen.insert(pair);
                tally.pairs += 1;
                tally.found += usize::from(is_theirs && is_ours);
                if is_theirs == is_ours {
                    continue;
                }
                let case = Case {
                    fact,
                    package: &package.name,
                    formats: form,
                    source: package.source(),
                    version: package.source_version(),
                    is_ours,
                    exported: formats::debsecan_entry(fact, &fixes, &self.sources),
                    sources: &self.sources,
                };
                match RULES.iter().find(|(_, explains)| explains(&case)) {
                    Some((name, _)) => tally.explain(name),
                    None => tally.unexplained.push(format!(
                        "{form:?}: {} {} ({} {}): {} only: {fact:?}",
                        fact.cve,
                        package.name,
                        case.source,
                        case.version,
                        if is_ours { "we" } else { "debsecan" },
                    )),
                }
            }
        }
        let mut surplus = theirs.union(ours).filter(|pair| !seen.contains(*pair));
        assert_eq!(surplus.next(), None, "a finding in a package that no fact is about");
    }
}

fn pairs(lines: BTreeSet<String>) -> BTreeSet<Pair> {
    let pair = |line: String| {
        let (cve, package) = line.split_once(' ').unwrap();
        (cve.to_owned(), package.to_owned())
    };
    lines.into_iter().map(pair).collect()
}

/// The advisories that our readers produce from the facts, for each combination of feeds that can
/// express them.
fn feeds(folder: &Folder, facts: &[Fact]) -> [(FeedFormats, Vec<Advisory>); 3] {
    let tracker =
        FeedKind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() };
    let list = advisories(&folder.write("list", formats::list(facts)), tracker);
    let osv = advisories(&folder.write("osv.jsonl", formats::osv(facts)), FeedKind::Osv);
    let dsa = advisories(&folder.write("dsa.jsonl", formats::advisories(facts)), FeedKind::Osv);
    let join = |parts: &[&Vec<Advisory>]| parts.iter().copied().flatten().cloned().collect();
    [
        (FeedFormats::Osv, join(&[&osv, &dsa])),
        (FeedFormats::TrackerList, join(&[&list, &dsa])),
        (FeedFormats::Both, join(&[&list, &osv, &dsa])),
    ]
}

/// Compares one seed on one host. `None` if debsecan is not installed.
fn compare_seed(seed: u64, host: &Host<'_>, tally: &mut Tally) -> Option<()> {
    let folder = Folder::new(&format!("differential-{seed}"));
    let facts = facts::generate(seed, FACTS, &host.sources);
    let theirs = host.debsecan(&folder, &facts)?;
    for (form, feed) in feeds(&folder, &facts) {
        let ours = host.ours(&feed);
        if form == FeedFormats::TrackerList {
            // The list cannot express that a bug came back.
            let (expressible, unsaid): (Vec<Fact>, Vec<Fact>) =
                facts.iter().cloned().partition(|fact| fact.ranges.is_empty());
            let inexpressible: BTreeSet<Pair> = unsaid
                .iter()
                .flat_map(|fact| {
                    let packages = host.packages_of(fact);
                    packages.map(|package| (fact.cve.clone(), package.name.clone()))
                })
                .collect();
            let theirs = theirs.difference(&inexpressible).cloned().collect();
            host.compare(form, &expressible, &theirs, &ours, tally);
        } else {
            host.compare(form, &facts, &theirs, &ours, tally);
        }
    }
    Some(())
}

#[test]
fn debsecan_agrees_on_generated_facts() {
    if !has_program("debsecan", "debsecan") {
        return;
    }
    let Some(status) = lab::status() else { return };
    let machine = std::fs::read_to_string("/var/lib/dpkg/status").ok();
    let lab = Host::new(status);
    let machine = machine.as_deref().map(Host::new).filter(|host| !host.packages.is_empty());
    if machine.is_none() {
        println!("skipped: this machine has no dpkg database; only the lab's is compared");
    }
    // Two workers, because each waits for its debsecan process.
    let work = |parity: u64| {
        let mut tally = Tally::default();
        for seed in (0..SEEDS).filter(|seed| seed % 2 == parity) {
            compare_seed(seed, &lab, &mut tally)?;
            if let Some(machine) = machine.as_ref().filter(|_| seed < MACHINE_SEEDS) {
                compare_seed(SEEDS + seed, machine, &mut tally)?;
            }
        }
        Some(tally)
    };
    let tally = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        let one = work(0);
        Some(one?.merge(other.join().unwrap()?))
    });
    let Some(tally) = tally else { return };
    tally.check("debsecan", RULES.iter().map(|(name, _)| *name));
}

/// Proof that the comparison can fail: dropping one advisory is detected.
#[test]
fn a_dropped_advisory_is_reported_as_a_difference() {
    if !has_program("debsecan", "debsecan") {
        return;
    }
    let Some(status) = lab::status() else { return };
    let host = Host::new(status);
    let folder = Folder::new("differential-sabotage");
    let facts = facts::generate(1, 300, &host.sources);
    let Some(theirs) = host.debsecan(&folder, &facts) else { return };
    let [(FeedFormats::Osv, feed), ..] = feeds(&folder, &facts) else { panic!("OSV is the first") };
    let count = |feed: &[Advisory]| {
        let mut tally = Tally::default();
        host.compare(FeedFormats::Osv, &facts, &theirs, &host.ours(feed), &mut tally);
        tally.unexplained.len()
    };
    assert_eq!(count(&feed), 0);
    // A decisive advisory: without it, we report fewer findings.
    let all = host.ours(&feed);
    let decisive = (0..feed.len()).filter(|dropped| {
        let mut rest = feed.clone();
        rest.remove(*dropped);
        let lost: Vec<Pair> = all.difference(&host.ours(&rest)).cloned().collect();
        lost.iter().any(|pair| theirs.contains(pair)) && {
            assert_ne!(count(&rest), 0, "no difference without {}", feed[*dropped].id);
            true
        }
    });
    assert!(decisive.take(20).count() > 10);
}
