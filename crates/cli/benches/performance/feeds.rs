//! Benchmark 7: feeds, from the import of advisories until their findings are in API responses.
//!
//! Fifty servers share a package set: 100,000 servers have 2,000 sets. The command imports a feed
//! with several records per server. Then every distinct package set is matched, and matched again
//! after updates that touch all packages, 50, and one: with the function that the service calls
//! when a feed has changed, without its pauses. As in the service, earlier results are kept in
//! memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use domain::advisory::Ecosystem;
use domain::finding::invalidation;
use serde_json::{Value, json};
use server::app::{App, AppParts, Settings};
use service::clock::Clock;
use service::commands::feeds::{ImportRequest, import};
use service::projections::findings::{Matcher, RoundScope};
use swarm::fleet::Fleet;

use crate::fleet;
use crate::fleet::SEED;
use crate::installation::{Engine, Installation};
use crate::lists::{Figures, p99_of};
use crate::table::{Table, Target};
use crate::{BenchArgs, clock, now};

/// Number of records in the feed per server, and in total at most.
const RECORDS_PER_SERVER: u64 = 3;
const RECORDS_MAX: u64 = 300_000;
/// One of this many records is a vulnerability that is not fixed in the installed version.
const OPEN_ONE_IN: u64 = 50;
/// Number of packages that a small update touches.
const UPDATED_PACKAGES: usize = 50;

const IMPORT: &str = "records imported with `feeds import`";
const PEAK: &str = "  peak memory of the import";
const IMPORT_AGAIN: &str = "  the same feed again";
const FIRST: &str = "first match of every package set";
const PACKAGE_SETS: &str = "  number of package sets";
const FULL: &str = "rematch after an update of every record";
const SOME: &str = "update of 50 packages, import and rematch";
const ONE: &str = "one new CVE, import until it is listed";
const LIST: &str = "GET /v1/cves, p99";
const GET: &str = "GET /v1/cves/{id}, p99";

pub(crate) async fn measure_feeds(engine: Engine, args: &BenchArgs, table: &mut Table) {
    let mut figures = Figures::new(engine, "");
    for size in args.sizes() {
        let installation = Installation::new(engine, &format!("published_{size}")).await;
        fleet::fill_with_shared_sets(&installation, size).await;
        FeedBenchmark { installation: &installation, size, figures: &mut figures }.measure().await;
        installation.remove().await;
    }
    for (what, unit, target) in [
        (IMPORT, "/s", Target::None),
        (PEAK, "MiB", Target::None),
        (IMPORT_AGAIN, "/s", Target::None),
        (FIRST, "ms", Target::None),
        (PACKAGE_SETS, "", Target::None),
        (FULL, "ms", Target::Most(3_000.0)),
        (SOME, "ms", Target::Most(3_000.0)),
        (ONE, "ms", Target::Most(100.0)),
        (LIST, "ms", Target::Flat(10.0, 0.1)),
        (GET, "ms", Target::Most(25.0)),
    ] {
        figures.line(table, 7, (what, unit, target));
    }
}

/// Imports a feed with several records per server, some of them open vulnerabilities.
pub(crate) fn import_feed(installation: &Installation, size: u64) {
    let names = package_names(size);
    let records = (size * RECORDS_PER_SERVER).min(RECORDS_MAX);
    let path = installation.file("Everything.jsonl");
    write(&path, (0..records).map(|nth| feed_record(&names, nth, "2026-11-01T00:00:00Z", "0.0.1")));
    let (summary, _) = run_import(installation, &path);
    assert_eq!(summary["records"], records);
}

struct FeedBenchmark<'a> {
    installation: &'a Installation,
    size: u64,
    figures: &'a mut Figures,
}

impl FeedBenchmark<'_> {
    async fn measure(mut self) {
        let names = package_names(self.size);
        let records = (self.size * RECORDS_PER_SERVER).min(RECORDS_MAX);
        let path = self.installation.file("Everything.jsonl");
        write(
            &path,
            (0..records).map(|nth| feed_record(&names, nth, "2026-11-01T00:00:00Z", "0.0.1")),
        );
        self.measure_import(&path, records);
        self.installation.analyze().await;

        let settings = Settings::default();
        let (db, secrets) = (self.installation.db().await, self.installation.secrets());
        let app = App::new(AppParts { db, clock: Clock::system(), secrets, settings });
        let mut matcher = Matcher::new(self.installation.org);
        let first = rematch(&app, &mut matcher, RoundScope::All).await;
        self.add(FIRST, (first, "ms"));
        let kinds = self.installation.number("select count(*) from server_kinds").await;
        self.add(PACKAGE_SETS, (kinds as f64, ""));
        let open =
            store::findings::all(&mut app.db.read().await.unwrap(), self.installation.org).await;
        assert!(open.unwrap().len() as u64 > records / OPEN_ONE_IN / 2, "too few findings");

        write(
            &path,
            (0..records).map(|nth| feed_record(&names, nth, "2026-11-02T00:00:00Z", "0.0.2")),
        );
        self.import_changed(&app, &path, records).await;
        let full = rematch(&app, &mut matcher, RoundScope::FeedsAndSuppressions).await;
        self.add(FULL, (full, "ms"));

        let step = (names.len() / UPDATED_PACKAGES).max(1);
        let some: Vec<&PackageName> = names.iter().step_by(step).take(UPDATED_PACKAGES).collect();
        self.update((&app, &mut matcher), SOME, &some, "SOME").await;
        let most_common = &names[0];
        self.update((&app, &mut matcher), ONE, &[most_common], "ONE").await;
        app.db.close().await;
        self.measure_requests().await;
    }

    /// Imports a file with the command, twice.
    fn measure_import(&mut self, path: &Path, records: u64) {
        for what in [IMPORT, IMPORT_AGAIN] {
            let start = clock();
            let (summary, peak) = run_import(self.installation, path);
            let seconds = start.elapsed().as_secs_f64();
            assert_eq!(summary["records"], records);
            assert_eq!(summary["changed"], if what == IMPORT { records } else { 0 });
            self.add(what, (records as f64 / seconds, "/s"));
            if what == IMPORT {
                self.add(PEAK, (peak / 1_048_576.0, "MiB"));
            }
        }
    }

    /// Measures a new open CVE in each of these packages, from the import until it is listed.
    async fn update(
        &mut self,
        (app, matcher): (&App, &mut Matcher),
        what: &'static str,
        names: &[&PackageName],
        word: &str,
    ) {
        let path = self.installation.file("Update.jsonl");
        let fresh = |(nth, name): (usize, &&PackageName)| {
            record(
                &format!("{word}-{nth}"),
                name,
                version_above_all(&name.ecosystem),
                "2026-11-03T00:00:00Z",
            )
        };
        write(&path, names.iter().enumerate().map(fresh));
        let start = clock();
        self.import_changed(app, &path, names.len() as u64).await;
        rematch(app, matcher, RoundScope::FeedsAndSuppressions).await;
        self.add(what, (start.elapsed().as_secs_f64() * 1e3, "ms"));
        let ids: Vec<String> = (0..names.len()).map(|nth| cve(&format!("{word}-{nth}"))).collect();
        let mut reader = app.db.read().await.unwrap();
        let found =
            store::findings::by_ids(&mut reader, self.installation.org, &ids).await.unwrap();
        assert_eq!(found.len(), names.len(), "not all new CVEs are listed");
        assert!(found.iter().all(|row| row.servers_order < 0), "no server is affected");
    }

    async fn import_changed(&self, app: &App, path: &Path, changed: u64) {
        let wanted = ImportRequest { path: path.to_owned(), name: None, kind: None, as_of: None };
        let done = import(&app.db, wanted, now(), |_| {}).await.unwrap();
        assert_eq!(done.changed, changed);
    }

    async fn measure_requests(&mut self) {
        fleet::mark_all_seen(self.installation, self.size).await;
        self.installation.analyze().await;
        let service = self.installation.serve();
        // Its first round finds nothing to do; wait until it is over.
        tokio::time::sleep(Duration::from_secs(2)).await;
        for (what, path) in
            [(LIST, "/v1/cves".to_owned()), (GET, format!("/v1/cves/{}", cve("ONE-0")))]
        {
            let p99 = p99_of(self.installation, &service, &path).await;
            self.add(what, (p99, "ms"));
        }
    }

    fn add(&mut self, what: &'static str, figure: (f64, &str)) {
        self.figures.add(what, self.size, figure);
    }
}

/// Matches again. Returns the duration in milliseconds.
async fn rematch(app: &App, matcher: &mut Matcher, scope: RoundScope) -> f64 {
    let start = clock();
    assert!(matcher.round(app, scope).await.unwrap(), "there must be something to match");
    start.elapsed().as_secs_f64() * 1e3
}

/// A package, named as in advisories.
struct PackageName {
    ecosystem: String,
    name: String,
}

/// Every package of this fleet, the most common first.
fn package_names(size: u64) -> Vec<PackageName> {
    let hosts = Fleet::new(SEED, size);
    let mut count: BTreeMap<(String, String), u64> = BTreeMap::new();
    let firsts = (0..size).filter(|nth| fleet::first_with_same_set(*nth) == *nth);
    for host in firsts.map(|nth| hosts.host(nth)) {
        let Some(base) = Ecosystem::for_os(&host.facts().os) else { continue };
        let packages = host.group().installed(host.state.packages);
        // Kernels are excluded: they are matched by the running version, with separate rules.
        let plain = |name: &Cow<'_, str>| !name.starts_with("linux") && !name.starts_with("kernel");
        for name in invalidation::lookup_names(&base, &packages)
            .into_iter()
            .filter(plain)
            .map(Cow::into_owned)
        {
            *count.entry((base.as_str().to_owned(), name)).or_default() += 1;
        }
    }
    let mut all: Vec<_> = count.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all.into_iter().map(|((ecosystem, name), _)| PackageName { ecosystem, name }).collect()
}

/// A version higher than any installed one, in the ecosystem's format.
fn version_above_all(ecosystem: &str) -> &'static str {
    if ecosystem.starts_with("Alpine") { "99999-r0" } else { "999:1-1" }
}

/// The nth record of a feed for all packages. Its text contains the date, so that a newer record
/// differs.
fn feed_record(names: &[PackageName], nth: u64, modified: &str, old: &str) -> Value {
    let name = &names[(nth % names.len() as u64) as usize];
    let fixed =
        if nth.is_multiple_of(OPEN_ONE_IN) { version_above_all(&name.ecosystem) } else { old };
    let mut record = record(&format!("ALL-{nth}"), name, fixed, modified);
    record["summary"] = json!(format!("a vulnerability, as of {modified}"));
    record
}

fn record(id: &str, name: &PackageName, fixed: &str, modified: &str) -> Value {
    json!({"id": format!("BENCH-{id}"), "modified": modified, "aliases": [cve(id)],
        "details": "A vulnerability was found in a component. ".repeat(12),
        "affected": [{"package": {"ecosystem": name.ecosystem, "name": name.name},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]}]})
}

fn cve(id: &str) -> String {
    format!("CVE-2026-{id}")
}

fn write(path: &Path, records: impl Iterator<Item = Value>) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for record in records {
        writeln!(file, "{record}").unwrap();
    }
    file.flush().unwrap();
}

/// Runs the import command. Returns its output, and its peak memory in bytes.
fn run_import(installation: &Installation, path: &Path) -> (Value, f64) {
    let path: PathBuf = path.to_owned();
    let words = ["feeds", "import", "--json", path.to_str().unwrap()];
    let mut child = installation.command(&words).stdout(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0.0;
    let watched = std::thread::spawn(move || {
        // The high-water mark only rises: the last value that can be read is the highest.
        while let Ok(text) = std::fs::read_to_string(&status) {
            let mark = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let Some(mark) = mark else { break };
            peak = mark.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0;
            std::thread::park_timeout(Duration::from_millis(20));
        }
        peak
    });
    let mut reported = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut reported).unwrap();
    assert!(child.wait().unwrap().success());
    (serde_json::from_str(&reported).unwrap(), watched.join().unwrap())
}
