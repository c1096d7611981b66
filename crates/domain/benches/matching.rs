//! Cost of matching: `cargo xtask bench matching`.
//!
//! The advisories are synthetic, in the proportions of a real release: some 3,500 source packages,
//! most with few CVEs, and a kernel with thousands that are fixed in batches.

use divan::Bencher;
use divan::counter::ItemsCount;
use domain::advisory::{Advisory, Affected, CveRating, Ecosystem, Rating, Span};
use domain::finding::AdvisoryIndex;
use domain::finding::exposure_counts::{ExposureCounts, OccurrenceId};
use vocab::{Digest, Installed, Severity};

const BASE: &str = "Debian:12";
const PACKAGES: u32 = 600;
/// The number of distinct package sets in a fleet of 100,000 servers.
const SETS: u32 = 2_000;
const SOURCES: u32 = 3_500;
const KERNEL_CVES: u32 = 5_000;
const KERNEL_FIXES: u32 = 300;

fn main() {
    divan::main();
}

fn advisory(id: u32, package: &str, fixed: &str) -> Advisory {
    let mut affected = Affected::new(BASE, package);
    affected.spans.push(Span::until(fixed));
    Advisory {
        id: format!("DSA-{id}-1"),
        flaws: vec![format!("CVE-2026-{id}")],
        aliases: Vec::new(),
        summary: String::new(),
        description: String::new(),
        published: None,
        modified: None,
        withdrawn: None,
        ratings: vec![CveRating { flaw: None, rating: Rating::Word(Severity::High) }],
        affected: vec![affected],
    }
}

/// Ten CVEs per source package, each fixed by a different update; those of the kernel are fixed in
/// batches.
fn advisories() -> Vec<Advisory> {
    let sources = (0..SOURCES).flat_map(|source| {
        (0..10).map(move |fix| {
            let fixed = format!("1.{source}-2+deb12u{}", fix + 1);
            advisory(source * 10 + fix, &format!("source{source}"), &fixed)
        })
    });
    let kernel = (0..KERNEL_CVES).map(|number| {
        advisory(1_000_000 + number, "linux", &format!("6.1.{}-1", number % KERNEL_FIXES))
    });
    sources.chain(kernel).collect()
}

fn index() -> AdvisoryIndex {
    AdvisoryIndex::new(&Ecosystem::new(BASE), advisories())
}

/// The packages of one server. Most are up to date, one in twenty is outdated, and no two sets
/// agree on which; the kernel lacks the last tenth of the fixes.
fn set(number: u32) -> Vec<Installed> {
    let mut packages: Vec<Installed> = (0..PACKAGES - 1)
        .map(|package| {
            // Every fourth package comes from a source package that has advisories.
            let source = (package * 7 + number * 3) % (SOURCES * 2);
            let behind = (package + number).is_multiple_of(20);
            let version = format!("1.{source}-2+deb12u{}", if behind { 5 } else { 10 });
            Installed::new(&format!("package{package}"), &version, "amd64")
                .with_source(&format!("source{source}"), &version)
        })
        .collect();
    let kernel = format!("6.1.{}-1", KERNEL_FIXES * 9 / 10 + number % 20);
    packages.push(
        Installed::new("linux-image-6.1.0-18-amd64", &kernel, "amd64")
            .with_source("linux-signed-amd64", "6.1+1"),
    );
    packages
}

/// Performance table, row 7: a full rematch costs at least this much for each distinct set.
#[divan::bench]
fn one_set_of_600_packages(bencher: Bencher<'_, '_>) {
    let (index, set) = (index(), set(1));
    let report = index.match_packages(&set);
    assert!(report.findings.len() > 500, "{} findings", report.findings.len());
    bencher.bench_local(|| index.match_packages(divan::black_box(&set)));
}

#[divan::bench(sample_count = 5)]
fn two_thousand_distinct_sets(bencher: Bencher<'_, '_>) {
    let index = index();
    let sets: Vec<Vec<Installed>> = (0..SETS).map(set).collect();
    bencher.counter(ItemsCount::new(SETS)).bench_local(|| {
        sets.iter().map(|set| index.match_packages(set).findings.len()).sum::<usize>()
    });
}

/// One new CVE in a package that every set contains in one of ten versions: builds an index for
/// that name alone, matches each version once, and then counts every set again.
#[divan::bench(sample_count = 5)]
fn one_new_cve_in_every_set(bencher: Bencher<'_, '_>) {
    let index = index();
    let base = Ecosystem::new(BASE);
    let mut tally = ExposureCounts::default();
    let mut cells: Vec<Vec<(OccurrenceId, bool)>> = Vec::new();
    for number in 0..SETS {
        let findings = index.match_packages(&set(number)).findings;
        let has = findings.iter().map(|one| (tally.register(one.into()), true));
        cells.push(has.collect());
        tally.set_group(key(number), 50, cells[number as usize].iter().copied());
    }
    let new = advisory(9_999_999, "openssl", "3.0.11-99");
    let versions: Vec<Installed> =
        (0..10).map(|n| Installed::new("openssl", &format!("3.0.11-{n}"), "amd64")).collect();
    bencher.counter(ItemsCount::new(SETS)).bench_local(|| {
        let index = AdvisoryIndex::new(&base, [&new]);
        let found =
            versions.iter().map(|one| index.match_packages(std::slice::from_ref(one)).findings);
        let found: Vec<OccurrenceId> = found.map(|one| tally.register((&one[0]).into())).collect();
        for number in 0..SETS {
            let has = cells[number as usize].iter().copied();
            tally.set_group(key(number), 50, has.chain([(found[number as usize % 10], true)]));
        }
        let changes = tally.take_changes().len();
        (0..SETS)
            .for_each(|n| drop(tally.set_group(key(n), 50, cells[n as usize].iter().copied())));
        changes
    });
}

fn key(number: u32) -> Digest {
    Digest::compute(&number.to_be_bytes())
}

#[divan::bench(sample_count = 5)]
fn building_the_index(bencher: Bencher<'_, '_>) {
    let advisories = advisories();
    let base = Ecosystem::new(BASE);
    bencher
        .counter(ItemsCount::new(advisories.len()))
        .bench_local(|| AdvisoryIndex::new(&base, &advisories));
}
