//! Stories of the flaws that an organization's servers have.

use std::collections::BTreeMap;

use domain::finding::{Report, Unjudged, Why};
use store::findings::{self, Cve, Filter, Judged, Kind, Summary};
use store::servers::{self, Server};
use store::{Page, StoreError};
use vocab::{Digest, Environment, Os, Severity};

use crate::servers::server;
use crate::support::{Place, at, both, org, other_org};

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

fn kind(set: Digest) -> Kind {
    Kind {
        package_set: set,
        os_release: "debian 12.5".into(),
        kernel: "6.1.0-18-amd64".into(),
        runs: String::new(),
        os: Os::new("debian", "12.5", "Debian GNU/Linux 12 (bookworm)").unwrap(),
        environment: None,
        servers: 1,
    }
}

fn report(source: &str) -> Report {
    let unjudged =
        Unjudged { source: source.into(), version: "1".into(), why: Why::UnreadableVersion };
    Report { findings: Vec::new(), unjudged: vec![unjudged] }
}

both! {
    async fn what_is_known_of_a_list_is_kept_until_nobody_carries_it(place: Place) {
        let db = place.open().await;
        let (ours, theirs) = (org(&db).await, other_org(&db).await);
        let set = Digest::of(b"one");
        let judged = |revision| Judged { package_set: set, base: "Debian:12".into(), revision, changed: revision };
        let mut tx = db.begin().await.unwrap();
        findings::put_report(&mut tx, ours, &judged(1), &report("a")).await.unwrap();
        findings::put_report(&mut tx, ours, &judged(3), &report("b")).await.unwrap();
        findings::put_report(&mut tx, ours, &judged(2), &report("late")).await.unwrap();
        assert_eq!(findings::judged(&mut tx, ours).await.unwrap(), [judged(3)]);
        assert_eq!(findings::report(&mut tx, ours, set, "Debian:12").await.unwrap(), Some(report("b")));
        assert_eq!(findings::report(&mut tx, ours, set, "Debian:11").await.unwrap(), None);
        assert_eq!(findings::report(&mut tx, theirs, set, "Debian:12").await.unwrap(), None);
        findings::still_true(&mut tx, ours, "Debian:12", &[set], 7).await.unwrap();
        assert_eq!(findings::judged(&mut tx, ours).await.unwrap(), [Judged { changed: 3, ..judged(7) }]);
        findings::drop_reports(&mut tx, ours, &[set]).await.unwrap();
        assert_eq!(findings::judged(&mut tx, ours).await.unwrap(), []);
    }

    async fn the_list_is_sorted_by_severity_exploitation_servers_and_id(place: Place) {
        let db = place.open().await;
        let (ours, theirs) = (org(&db).await, other_org(&db).await);
        let rows = [cve("CVE-4", 1, 1, 9), cve("CVE-3", 1, 0, 1), cve("CVE-2", 1, 1, 9), cve("CVE-1", 4, 1, 99), cve("CVE-9", 0, 1, 1)];
        let mut tx = db.begin().await.unwrap();
        findings::change(&mut tx, ours, &rows, &[]).await.unwrap();
        let listed = async |tx: &mut store::Tx, filter: Filter, page| {
            let paged = findings::list(tx, ours, &filter, page).await.unwrap();
            (paged.items.into_iter().map(|row| row.id).collect::<Vec<_>>(), paged.total)
        };
        let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>();
        assert_eq!(listed(&mut tx, Filter::default(), ALL).await, (ids(&["CVE-9", "CVE-3", "CVE-2", "CVE-4", "CVE-1"]), 5));
        let high = Filter { severities: vec![1], ..Filter::default() };
        assert_eq!(listed(&mut tx, high, Page { limit: 1, offset: 1 }).await, (ids(&["CVE-2"]), 3));
        assert_eq!(listed(&mut tx, Filter { kev: Some(true), ..Filter::default() }, ALL).await, (ids(&["CVE-3"]), 1));
        assert_eq!(listed(&mut tx, Filter { q: Some("E-4".into()), ..Filter::default() }, ALL).await, (ids(&["CVE-4"]), 1));
        assert_eq!(findings::list(&mut tx, theirs, &Filter::default(), ALL).await.unwrap().total, 0);
        let again = [Cve { packages: vec!["vim".into()], ..cve("CVE-4", 0, 0, 3) }];
        findings::change(&mut tx, ours, &again, &["CVE-1".into()]).await.unwrap();
        let all = findings::all(&mut tx, ours).await.unwrap();
        assert_eq!((all.len(), &all[2]), (4, &again[0]));
        assert_eq!(findings::of_ids(&mut tx, ours, &["CVE-4".into(), "CVE-1".into()]).await.unwrap(), again);
        assert_eq!(all[0].score(), Some(7.5));
    }

    async fn of_two_who_make_the_rows_one_is_told_to_look_again(place: Place) {
        let db = place.open().await;
        let ours = org(&db).await;
        let next = Summary { org_id: ours, basis: Digest::of(b"a"), made_at: at(0), generation: 0 };
        let mut tx = db.begin().await.unwrap();
        findings::begin(&mut tx, &next).await.unwrap();
        assert!(matches!(findings::begin(&mut tx, &next).await, Err(StoreError::Stale)));
        let seen = findings::summary(&mut tx, ours).await.unwrap().unwrap();
        assert_eq!((seen.basis, seen.generation), (Digest::of(b"a"), 1));
        findings::begin(&mut tx, &seen).await.unwrap();
    }

    async fn servers_of_a_kind_are_counted_and_found_together(place: Place) {
        let db = place.open().await;
        let ours = org(&db).await;
        let set = Digest::of(b"list");
        let alike = |n| Server { package_set: Some(set), ..server(ours, n) };
        let other_kernel = Server { kernel: "6.1.0-17-amd64".into(), ..alike(3) };
        let mut tx = db.begin().await.unwrap();
        servers::enroll_all(&mut tx, &[alike(1), alike(2), other_kernel, server(ours, 4)]).await.unwrap();
        let kinds = findings::kinds(&mut tx, ours, None, &[]).await.unwrap();
        let ours_kind = Kind { servers: 2, ..kind(set) };
        assert_eq!((kinds.len(), &kinds[1]), (2, &ours_kind));
        assert_eq!(findings::kinds(&mut tx, ours, Some(&[]), &[]).await.unwrap(), []);
        let basis = Digest::of(b"basis");
        findings::put_kind(&mut tx, ours, &ours_kind, basis, &["CVE-1", "CVE-2"]).await.unwrap();
        findings::put_kind(&mut tx, ours, &ours_kind, basis, &["CVE-2"]).await.unwrap();
        assert_eq!(findings::known_kinds(&mut tx, ours).await.unwrap(), BTreeMap::from([(ours_kind.digest(), basis)]));
        let found = findings::servers(&mut tx, ours, "CVE-2", None, ALL).await.unwrap();
        assert_eq!(found.iter().map(|server| server.id).collect::<Vec<_>>(), [alike(1).id, alike(2).id]);
        assert_eq!(findings::servers(&mut tx, ours, "CVE-1", None, ALL).await.unwrap(), []);
        let elsewhere = ["elsewhere".parse().unwrap()];
        assert_eq!(findings::servers(&mut tx, ours, "CVE-2", Some(&elsewhere), ALL).await.unwrap(), []);
        let counts = BTreeMap::from([(Severity::High, 1)]);
        assert_eq!(findings::recount(&mut tx, ours, &ours_kind, &[], &counts).await.unwrap(), 2);
        assert_eq!(findings::recount(&mut tx, ours, &ours_kind, &[], &counts).await.unwrap(), 0);
        findings::drop_kinds(&mut tx, ours, &[ours_kind.digest()]).await.unwrap();
        assert_eq!(findings::servers(&mut tx, ours, "CVE-2", None, ALL).await.unwrap(), []);
    }

    async fn servers_of_an_environment_that_is_named_are_counted_apart(place: Place) {
        let db = place.open().await;
        let ours = org(&db).await;
        let set = Digest::of(b"list");
        let [staging, elsewhere] = ["staging", "elsewhere"].map(|name| name.parse::<Environment>().unwrap());
        let alike = |n, environment| Server { package_set: Some(set), environment, ..server(ours, n) };
        let fleet = [alike(1, Some(staging.clone())), alike(2, Some(elsewhere)), alike(3, None)];
        let mut tx = db.begin().await.unwrap();
        servers::enroll_all(&mut tx, &fleet).await.unwrap();
        let apart = [staging.clone()];
        let mut kinds = findings::kinds(&mut tx, ours, None, &apart).await.unwrap();
        kinds.sort_by_key(|kind| kind.servers);
        let split: Vec<_> = kinds.iter().map(|kind| (kind.environment.clone(), kind.servers)).collect();
        assert_eq!(split, [(Some(staging), 1), (None, 2)]);
        assert_eq!(kinds[0].digest(), kinds[1].digest());
        let counts = |n| BTreeMap::from([(Severity::High, n)]);
        assert_eq!(findings::recount(&mut tx, ours, &kinds[0], &apart, &counts(1)).await.unwrap(), 1);
        assert_eq!(findings::recount(&mut tx, ours, &kinds[1], &apart, &counts(2)).await.unwrap(), 2);
        let counted: Vec<_> = fleet.iter().map(|server| server.id).collect();
        let mut counted = servers::get_all(&mut tx, &counted).await.unwrap();
        counted.sort_by_key(|server| server.id);
        let cves: Vec<_> = counted.iter().map(|server| server.cves.clone()).collect();
        assert_eq!(cves, [counts(1), counts(2), counts(2)]);
    }
}
