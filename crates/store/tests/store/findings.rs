//! Findings: package groups, kinds of servers, counts and lists of CVEs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::finding::{MatchReport, Unassessed, UnassessedCause};
use store::findings::{
    self, AssessedSet, Carrier, Cve, CveChange, Filter, KindCounts, ServerKind, Sort, Summary,
    WithSuppressed,
};
use store::servers::{self, Server};
use store::{Page, StoreError};
use vocab::{Assessment, Digest, Environment, Os, Severity};

use crate::servers::server;
use crate::support::{Open as _, TestDatabase, at, org, other_org};

const ALL: Page = Page { limit: 100, offset: 0 };

fn cve(id: &str, severity_order: i64, kev_order: i64, servers: i64) -> Cve {
    Cve {
        id: id.into(),
        severity_order,
        kev_order,
        servers_order: -servers,
        suppressed: 0,
        severity_source: Some("debian".into()),
        cvss: Some("CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H".into()),
        published: Some(at(1)),
        packages: vec!["curl".into()],
    }
}

fn kind(set: Digest) -> ServerKind {
    ServerKind {
        package_set: set,
        update_set: None,
        os_release: "debian 12.5".into(),
        kernel: "6.1.0-18-amd64".into(),
        runs: String::new(),
        os: Os::new("debian", "12.5", "Debian GNU/Linux 12 (bookworm)").unwrap(),
        environment: None,
        servers: 1,
    }
}

fn report(source: &str) -> MatchReport {
    let unassessed = Unassessed {
        package: source.into(),
        version: "1".into(),
        reason: UnassessedCause::UnknownVersion,
    };
    MatchReport { findings: Vec::new(), unassessed: vec![unassessed] }
}

async fn findings_of_groups_and_sets_are_stored_and_deleted(database: TestDatabase) {
    let db = database.open().await;
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let [set, one, two] = [b"set", b"one", b"two"].map(|text| Digest::compute(text));
    let judged = |changed| AssessedSet { package_set: set, base: "Debian:12".into(), changed };
    let mut tx = db.begin().await.unwrap();
    findings::put_groups(&mut tx, ours, "Debian:12", &[(one, &report("a")), (two, &report("b"))])
        .await
        .unwrap();
    findings::put_groups(&mut tx, ours, "Debian:12", &[(one, &report("c"))]).await.unwrap();
    let both = BTreeMap::from([(one, report("c")), (two, report("b"))]);
    assert_eq!(findings::groups(&mut tx, ours, "Debian:12", &[one, two, set]).await.unwrap(), both);
    assert_eq!(
        findings::all_groups(&mut tx, ours).await.unwrap(),
        BTreeMap::from([("Debian:12".to_owned(), both)])
    );
    assert_eq!(
        findings::groups(&mut tx, ours, "Debian:11", &[one]).await.unwrap(),
        BTreeMap::new()
    );
    assert_eq!(
        findings::groups(&mut tx, theirs, "Debian:12", &[one]).await.unwrap(),
        BTreeMap::new()
    );
    findings::delete_groups(&mut tx, ours, "Debian:12", &[one]).await.unwrap();
    assert_eq!(
        findings::groups(&mut tx, ours, "Debian:12", &[one]).await.unwrap(),
        BTreeMap::new()
    );

    findings::put_assessed(&mut tx, ours, &[judged(1)]).await.unwrap();
    findings::save_report(&mut tx, ours, set, "Debian:12", &report("d")).await.unwrap();
    findings::put_assessed(&mut tx, ours, &[judged(3)]).await.unwrap();
    assert_eq!(findings::assessed_sets(&mut tx, ours).await.unwrap(), [judged(3)]);
    assert_eq!(
        findings::saved_report(&mut tx, ours, set, "Debian:12").await.unwrap(),
        Some(report("d"))
    );
    assert_eq!(findings::last_changed(&mut tx, ours, set, "Debian:12").await.unwrap(), Some(3));
    assert_eq!(findings::last_changed(&mut tx, theirs, set, "Debian:12").await.unwrap(), None);
    findings::delete_assessed(&mut tx, ours, "Debian:12", &[set]).await.unwrap();
    assert_eq!(findings::assessed_sets(&mut tx, ours).await.unwrap(), []);
}

async fn every_order_of_cves_is_the_same_in_memory(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let published = |second, row| Cve { published: Some(at(second)), ..row };
    let rows = [
        published(1, cve("CVE-4", 1, 1, 9)),
        Cve { published: None, ..cve("CVE-3", 1, 0, 1) },
        published(2, cve("CVE-2", 1, 1, 9)),
        published(2, cve("CVE-1", 4, 1, 99)),
    ];
    let mut tx = db.begin().await.unwrap();
    findings::update_rows(&mut tx, ours, &rows.each_ref(), &[]).await.unwrap();
    let ids = |rows: &[Cve]| rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>();
    for (sort, expected) in [
        (Sort::Severity, ["CVE-3", "CVE-2", "CVE-4", "CVE-1"]),
        (Sort::AffectedServers, ["CVE-1", "CVE-2", "CVE-4", "CVE-3"]),
        (Sort::Published, ["CVE-1", "CVE-2", "CVE-4", "CVE-3"]),
        (Sort::Id, ["CVE-1", "CVE-2", "CVE-3", "CVE-4"]),
    ] {
        let filter = Filter { sort, ..Filter::default() };
        let listed = findings::list(&mut tx, ours, &filter, ALL).await.unwrap().items;
        assert_eq!(ids(&listed), expected, "{sort:?}");
        let mut sorted = rows.to_vec();
        sorted.sort_by(|a, b| sort.compare(a, b));
        assert_eq!(ids(&sorted), expected, "{sort:?} in memory");
    }
    let facets = findings::count_by_severity(&mut tx, ours, WithSuppressed::Yes).await.unwrap();
    assert_eq!(facets.iter().map(|one| one.cves).sum::<u64>(), 4);
}

async fn cves_are_sorted_by_severity_exploitation_servers_id(database: TestDatabase) {
    let db = database.open().await;
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let rows = [
        cve("CVE-4", 1, 1, 9),
        cve("CVE-3", 1, 0, 1),
        cve("CVE-2", 1, 1, 9),
        cve("CVE-1", 4, 1, 99),
        cve("CVE-9", 0, 1, 1),
    ];
    let mut tx = db.begin().await.unwrap();
    findings::update_rows(&mut tx, ours, &rows.each_ref(), &[]).await.unwrap();
    let listed = async |tx: &mut store::Tx, filter: Filter, page| {
        let paged = findings::list(tx, ours, &filter, page).await.unwrap();
        (paged.items.into_iter().map(|row| row.id).collect::<Vec<_>>(), paged.total)
    };
    let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>();
    assert_eq!(
        listed(&mut tx, Filter::default(), ALL).await,
        (ids(&["CVE-9", "CVE-3", "CVE-2", "CVE-4", "CVE-1"]), 5)
    );
    let high = Filter { severities: vec![1], ..Filter::default() };
    assert_eq!(listed(&mut tx, high, Page { limit: 1, offset: 1 }).await, (ids(&["CVE-2"]), 3));
    assert_eq!(
        listed(&mut tx, Filter { kev: Some(true), ..Filter::default() }, ALL).await,
        (ids(&["CVE-3"]), 1)
    );
    assert_eq!(
        listed(&mut tx, Filter { q: Some("E-4".into()), ..Filter::default() }, ALL).await,
        (ids(&["CVE-4"]), 1)
    );
    assert_eq!(findings::list(&mut tx, theirs, &Filter::default(), ALL).await.unwrap().total, 0);
    let again = [Cve { packages: vec!["vim".into()], ..cve("CVE-4", 0, 0, 3) }];
    findings::update_rows(&mut tx, ours, &again.each_ref(), &["CVE-1".into()]).await.unwrap();
    let all = findings::all(&mut tx, ours).await.unwrap();
    assert_eq!((all.len(), &all[2]), (4, &again[0]));
    assert_eq!(
        findings::by_ids(&mut tx, ours, &["CVE-4".into(), "CVE-1".into()]).await.unwrap(),
        again
    );
    assert_eq!(all[0].score(), Some(7.5));
}

async fn second_of_two_concurrent_computations_is_stale(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let assessments = BTreeMap::from([(Assessment::Partial, 3)]);
    let next = Summary {
        org_id: ours,
        basis: Digest::compute(b"a"),
        made_at: at(0),
        generation: 0,
        revision: 7,
        rules: 1,
        assessments,
    };
    let mut tx = db.begin().await.unwrap();
    findings::lock_summary(&mut tx, &next).await.unwrap();
    findings::save_summary(&mut tx, &next).await.unwrap();
    assert!(matches!(findings::save_summary(&mut tx, &next).await, Err(StoreError::Stale)));
    assert!(matches!(findings::lock_summary(&mut tx, &next).await, Err(StoreError::Stale)));
    let seen = findings::summary(&mut tx, ours).await.unwrap().unwrap();
    assert_eq!((seen.basis, seen.generation, seen.revision), (Digest::compute(b"a"), 1, 7));
    findings::lock_summary(&mut tx, &seen).await.unwrap();
    findings::save_summary(&mut tx, &seen).await.unwrap();
}

async fn servers_of_a_kind_are_counted_and_found_together(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let set = Digest::compute(b"list");
    let count_key = |n| Server { package_set: Some(set), ..server(ours, n) };
    let other_kernel = Server { kernel: "6.1.0-17-amd64".into(), ..count_key(3) };
    let mut tx = db.begin().await.unwrap();
    servers::enroll_all(&mut tx, &[count_key(1), count_key(2), other_kernel, server(ours, 4)])
        .await
        .unwrap();
    let kinds = findings::kinds(&mut tx, ours, None, &[]).await.unwrap();
    let ours_kind = ServerKind { servers: 2, ..kind(set) };
    assert_eq!((kinds.len(), &kinds[1]), (2, &ours_kind));
    assert_eq!(findings::kinds(&mut tx, ours, Some(&[]), &[]).await.unwrap(), []);
    let ServerKind { package_set, os_release, kernel, runs, .. } = ours_kind.clone();
    // On the second page of numbers; the number at the same position on the first page is
    // another kind.
    let ours_carrier = Carrier { number: 300, package_set, os_release, kernel, runs };
    let another = Carrier { number: 44, kernel: "6.1.0-99-amd64".into(), ..ours_carrier.clone() };
    assert_eq!(ours_carrier.digest(), ours_kind.digest());
    findings::put_carriers(&mut tx, ours, &[ours_carrier.clone(), another.clone()]).await.unwrap();
    let shift = |cve: &str, gained: &[u32], lost: &[u32]| CveChange {
        cve: Arc::from(cve),
        gained: gained.to_vec(),
        lost: lost.to_vec(),
    };
    findings::apply_cve_changes(
        &mut tx,
        ours,
        &[&shift("CVE-1", &[300, 44], &[]), &shift("CVE-2", &[44], &[])],
    )
    .await
    .unwrap();
    findings::apply_cve_changes(
        &mut tx,
        ours,
        &[&shift("CVE-2", &[300], &[]), &shift("CVE-1", &[], &[300])],
    )
    .await
    .unwrap();
    assert_eq!(findings::carriers(&mut tx, ours).await.unwrap(), [another, ours_carrier]);
    let mut carried = findings::carriers_by_cve(&mut tx, ours).await.unwrap();
    carried.sort();
    assert_eq!(
        carried,
        [("CVE-1".into(), vec![44]), ("CVE-2".into(), vec![44]), ("CVE-2".into(), vec![300])]
    );
    let found = findings::servers(&mut tx, ours, "CVE-2", None, ALL).await.unwrap();
    assert_eq!(
        found.iter().map(|server| server.id).collect::<Vec<_>>(),
        [count_key(1).id, count_key(2).id]
    );
    assert_eq!(findings::servers(&mut tx, ours, "CVE-1", None, ALL).await.unwrap(), []);
    let elsewhere = ["elsewhere".parse().unwrap()];
    assert_eq!(findings::servers(&mut tx, ours, "CVE-2", Some(&elsewhere), ALL).await.unwrap(), []);
    findings::delete_carriers(&mut tx, ours, &[300]).await.unwrap();
    assert_eq!(findings::servers(&mut tx, ours, "CVE-2", None, ALL).await.unwrap(), []);
}

async fn separated_environments_are_counted_separately(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let set = Digest::compute(b"list");
    let [staging, elsewhere] =
        ["staging", "elsewhere"].map(|name| name.parse::<Environment>().unwrap());
    let count_key =
        |n, environment| Server { package_set: Some(set), environment, ..server(ours, n) };
    let fleet =
        [count_key(1, Some(staging.clone())), count_key(2, Some(elsewhere)), count_key(3, None)];
    let mut tx = db.begin().await.unwrap();
    servers::enroll_all(&mut tx, &fleet).await.unwrap();
    let apart = [staging.clone()];
    let mut kinds = findings::kinds(&mut tx, ours, None, &apart).await.unwrap();
    kinds.sort_by_key(|kind| kind.servers);
    let split: Vec<_> = kinds.iter().map(|kind| (kind.environment.clone(), kind.servers)).collect();
    assert_eq!(split, [(Some(staging), 1), (None, 2)]);
    assert_eq!(kinds[0].digest(), kinds[1].digest());
    assert_ne!(kinds[0].count_key(), kinds[1].count_key(), "the same CVEs, but separate counts");
    let counts = |n| KindCounts { cves: BTreeMap::from([(Severity::High, n)]), unassessed: n + 1 };
    let written = [(kinds[0].count_key(), counts(1)), (kinds[1].count_key(), counts(2))];
    findings::put_counts(&mut tx, ours, &written).await.unwrap();
    let all = BTreeMap::from(written);
    assert_eq!(findings::counts(&mut tx, ours, None).await.unwrap(), all);
    let some = findings::counts(&mut tx, ours, Some(&[kinds[1].count_key()])).await.unwrap();
    assert_eq!(some, BTreeMap::from([(kinds[1].count_key(), counts(2))]));
    findings::delete_counts(&mut tx, ours, &[kinds[1].count_key()]).await.unwrap();
    assert_eq!(findings::counts(&mut tx, ours, None).await.unwrap().len(), 1);
}

async fn servers_with_a_vendor_reported_cve_are_found(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let [list, telling, silent] =
        [b"list..", b"tells.", b"silent"].map(|text| Digest::compute(text));
    let with = |n, updates| Server {
        package_set: Some(list),
        update_set: Some(updates),
        ..server(ours, n)
    };
    let mut tx = db.begin().await.unwrap();
    servers::enroll_all(&mut tx, &[with(1, telling), with(2, silent), server(ours, 3)])
        .await
        .unwrap();
    let kinds = findings::kinds(&mut tx, ours, None, &[]).await.unwrap();
    assert_eq!(kinds.len(), 2, "different pending updates make different kinds");
    assert_eq!(kinds[0].digest(), kinds[1].digest(), "feeds give the same findings for both");
    findings::put_vendor_reported(&mut tx, ours, &[(Arc::from("CVE-1"), telling)]).await.unwrap();
    let found = async |tx: &mut store::Tx| {
        let found = findings::servers(tx, ours, "CVE-1", None, ALL).await.unwrap();
        found.into_iter().map(|server| server.id).collect::<Vec<_>>()
    };
    assert_eq!(found(&mut tx).await, [with(1, telling).id]);
    assert_eq!(
        findings::vendor_reported_sets(&mut tx, ours).await.unwrap(),
        BTreeSet::from([telling])
    );
    findings::delete_vendor_reported(&mut tx, ours, &[telling]).await.unwrap();
    assert_eq!(found(&mut tx).await, []);
}

testkit::both!(
    crate::support::database:
    findings_of_groups_and_sets_are_stored_and_deleted,
    cves_are_sorted_by_severity_exploitation_servers_id,
    every_order_of_cves_is_the_same_in_memory,
    second_of_two_concurrent_computations_is_stale,
    servers_of_a_kind_are_counted_and_found_together,
    separated_environments_are_counted_separately,
    servers_with_a_vendor_reported_cve_are_found,
);
