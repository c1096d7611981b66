//! Servers, contacts, lists and package sets.

use serde_json::json;
use store::package_sets::{self, PackedSet, SetKind};
use store::presence::{self, Contact};
use store::server_list::{self, Filter, OnlineSpan, Sort};
use store::servers::{self, Server};
use store::{Db, Page, StoreError};
use vocab::{Digest, Installed, OrgId, Os, Selector, ServerId, Status};

use crate::support::{at, nth, org, other_org};

const PAGE: Page = Page { limit: 50, offset: 0 };

pub(crate) fn server(org_id: OrgId, n: u32) -> Server {
    Server {
        id: nth!(ServerId, n),
        org_id,
        hostname: format!("web-{n}").parse().unwrap(),
        display_name: None,
        notes: String::new(),
        environment: Some("production".parse().unwrap()),
        tags: vec!["role=web".parse().unwrap()],
        os: Os::new("debian", "12.5", "Debian GNU/Linux 12 (bookworm)").unwrap(),
        kernel: "6.1.0-18-amd64".into(),
        arch: "x86_64".into(),
        package_manager: Some(vocab::PackageManager::Apt),
        agent_version: "0.1.0".into(),
        public_key: n.to_be_bytes().repeat(8),
        enrolled_at: at(0),
        last_scan_at: None,
        reboot_required: false,
        reboot_reasons: Vec::new(),
        activity: "idle".into(),
        package_set: None,
        update_set: None,
        packages: 0,
        updates: 0,
        security_updates: 0,
        facts: json!({}),
        runs: String::new(),
        quarantine: None,
        generation: 1,
        last_seen_at: at(0),
        counter: 1,
    }
}

pub(crate) async fn enroll(db: &Db, servers: &[Server]) {
    let mut tx = db.begin().await.unwrap();
    for server in servers {
        servers::enroll(&mut tx, server).await.unwrap();
    }
    tx.commit().await.unwrap();
}

fn contact(server: &Server, seconds: i64, counter: i64) -> Contact {
    Contact { org: server.org_id, server_id: server.id, seen_at: at(seconds), counter }
}

pub(crate) fn packages(n: u32) -> PackedSet {
    let list: Vec<_> =
        (0..n).map(|n| Installed::new(&format!("package-{n}"), "1.0", "amd64")).collect();
    PackedSet::new(n, &vocab::listing::encode(&list))
}

fn names(servers: &[Server]) -> Vec<&str> {
    servers.iter().map(|server| server.hostname.as_str()).collect()
}

pub(crate) async fn find_hostnames(db: &Db, org: OrgId, filter: &Filter) -> Vec<String> {
    let mut reader = db.read().await.unwrap();
    let page = server_list::list(&mut reader, org, filter, Sort::Hostname, PAGE).await.unwrap();
    let ids = server_list::ids(&mut reader, org, filter).await.unwrap();
    assert_eq!(page.items.iter().map(|server| server.id).collect::<Vec<_>>(), ids);
    assert_eq!(page.total, ids.len() as u64, "{filter:?}");
    names(&page.items).into_iter().map(str::to_owned).collect()
}

async fn server_is_readable_only_in_its_organization(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let mut created = server(ours, 1);
    created.facts = json!({"updaters": ["unattended-upgrades"], "name": "Zürich"});
    enroll(&db, &[created.clone()]).await;
    let mut reader = db.read().await.unwrap();
    assert_eq!(servers::get(&mut reader, ours, created.id).await.unwrap(), created);
    assert!(matches!(
        servers::get(&mut reader, theirs, created.id).await,
        Err(StoreError::NotFound { kind: "server", .. })
    ));
    let identity = servers::identity(&mut reader, created.id).await.unwrap().unwrap();
    assert_eq!(
        (identity.public_key, identity.counter, identity.removed_at),
        (created.public_key, Some(1), None)
    );
    assert_eq!(servers::identity(&mut reader, nth!(ServerId, 9_u32)).await.unwrap(), None);
}

async fn key_belongs_to_one_server(db: Db) {
    let ours = org(&db).await;
    enroll(&db, &[server(ours, 1)]).await;
    let copy = Server { public_key: server(ours, 1).public_key, ..server(ours, 2) };
    let mut tx = db.begin().await.unwrap();
    let refused = servers::enroll(&mut tx, &copy).await;
    assert!(matches!(refused, Err(StoreError::AlreadyExists { what: "the agent's key" })));
}

async fn stale_save_is_refused(db: Db) {
    let ours = org(&db).await;
    let before = server(ours, 1);
    enroll(&db, &[before.clone()]).await;
    let after =
        Server { kernel: "6.1.0-20-amd64".into(), activity: "patching".into(), ..before.clone() };
    let mut tx = db.begin().await.unwrap();
    servers::save(&mut tx, &before, &after, at(1)).await.unwrap();
    let late = Server { kernel: "5.10".into(), ..before.clone() };
    assert!(matches!(servers::save(&mut tx, &before, &late, at(1)).await, Err(StoreError::Stale)));
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let expected = Server { generation: 2, ..after };
    assert_eq!(servers::get(&mut reader, ours, before.id).await.unwrap(), expected);
}

async fn tagged_servers_are_sorted_by_current_name(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    for number in 0..3 {
        servers::enroll(&mut tx, &server(ours, number)).await.unwrap();
    }
    let first = servers::get(&mut tx, ours, nth!(ServerId, 0_u32)).await.unwrap();
    let renamed = Server { hostname: "ZZ-last".parse().unwrap(), ..first.clone() };
    servers::save(&mut tx, &first, &renamed, at(1)).await.unwrap();
    let (offline, online) =
        [Status::Offline, Status::Online].map(|status| (status, OnlineSpan::since(at(1)))).into();
    for (status, total) in [(None, 3), (Some(offline), 3), (Some(online), 0)] {
        let with = Filter { tags: first.tags.clone(), status, ..Filter::default() };
        let found = server_list::list(&mut tx, ours, &with, Sort::Hostname, PAGE).await.unwrap();
        assert_eq!((found.items.len() as u64, found.total), (total, total));
    }
    let with = Filter { tags: first.tags.clone(), ..Filter::default() };
    for sort in [Sort::Hostname, Sort::SecurityUpdates] {
        let found = server_list::list(&mut tx, ours, &with, sort, PAGE).await.unwrap();
        let ids: Vec<_> = found.items.iter().map(|server| server.id).collect();
        assert_eq!(ids, [nth!(ServerId, 1_u32), nth!(ServerId, 2_u32), first.id], "{sort:?}");
    }
    tx.commit().await.unwrap();
}

async fn new_tags_replace_the_old_ones(db: Db) {
    let ours = org(&db).await;
    let before = server(ours, 1);
    enroll(&db, &[before.clone()]).await;
    let tags = vec!["role=db".parse().unwrap(), "team:shop".parse().unwrap()];
    let after = Server { tags, ..before.clone() };
    let mut tx = db.begin().await.unwrap();
    servers::save(&mut tx, &before, &after, at(1)).await.unwrap();
    tx.commit().await.unwrap();
    let with = |tag: &str| Filter { tags: vec![tag.parse().unwrap()], ..Filter::default() };
    assert_eq!(find_hostnames(&db, ours, &with("role=web")).await.len(), 0);
    assert_eq!(find_hostnames(&db, ours, &with("team:shop")).await, ["web-1"]);
    let both = Filter {
        tags: vec!["role=db".parse().unwrap(), "role=web".parse().unwrap()],
        ..Filter::default()
    };
    assert_eq!(find_hostnames(&db, ours, &both).await.len(), 0);
}

/// More servers than fit into one statement, in every list that names them.
async fn edits_of_many_servers_are_saved_together_or_not_at_all(db: Db) {
    const COUNT: u32 = 620;
    let ours = org(&db).await;
    let before: Vec<Server> = (0..COUNT).map(|n| server(ours, n)).collect();
    let mut tx = db.begin().await.unwrap();
    servers::enroll_all(&mut tx, &before).await.unwrap();
    tx.commit().await.unwrap();
    let edit = |server: &Server| {
        let after = Server {
            display_name: Some(format!("shop {}", server.hostname)),
            notes: "two\nlines".into(),
            environment: None,
            tags: vec!["team:shop".parse().unwrap()],
            ..server.clone()
        };
        (server.clone(), after)
    };
    let mut edits: Vec<_> = before.iter().map(edit).collect();
    // One of them changed in between: none is saved.
    edits[COUNT as usize - 1].0.generation = 7;
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(servers::save_edits(&mut tx, &edits).await, Err(StoreError::Stale)));
    drop(tx);
    let production = || Filter { environment: "production".parse().ok(), ..Filter::default() };
    let reads = server_list::count(&mut db.read().await.unwrap(), ours, &production()).await;
    assert_eq!(reads.unwrap(), u64::from(COUNT));

    edits[COUNT as usize - 1].0.generation = 1;
    let mut tx = db.begin().await.unwrap();
    servers::save_edits(&mut tx, &edits).await.unwrap();
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    for (_, after) in [&edits[0], &edits[COUNT as usize - 1]] {
        let expected = Server { generation: 2, ..after.clone() };
        assert_eq!(servers::get(&mut reader, ours, after.id).await.unwrap(), expected);
    }
    let count = async |filter: Filter| {
        let mut reader = db.read().await.unwrap();
        let total = server_list::count(&mut reader, ours, &filter).await.unwrap();
        assert_eq!(total, server_list::ids(&mut reader, ours, &filter).await.unwrap().len() as u64);
        total
    };
    let with = |tag: &str| Filter { tags: vec![tag.parse().unwrap()], ..Filter::default() };
    assert_eq!(count(production()).await, 0);
    assert_eq!(count(with("role=web")).await, 0);
    assert_eq!(count(with("team:shop")).await, u64::from(COUNT));
    let found = Filter { q: Some("shop web-619".into()), ..Filter::default() };
    assert_eq!(count(found).await, 1);
}

/// The agent must learn that its server was removed, so the identity stays; everything else is
/// gone.
async fn removed_server_is_unlisted_and_its_key_refused(db: Db) {
    let ours = org(&db).await;
    enroll(&db, &[server(ours, 1), server(ours, 2)]).await;
    let mut tx = db.begin().await.unwrap();
    let seen = servers::get(&mut tx, ours, nth!(ServerId, 1_u32)).await.unwrap();
    servers::remove(&mut tx, &seen, at(5)).await.unwrap();
    assert!(matches!(servers::remove(&mut tx, &seen, at(6)).await, Err(StoreError::Stale)));
    assert!(servers::get(&mut tx, ours, seen.id).await.is_err());
    assert_eq!(servers::identity(&mut tx, seen.id).await.unwrap().unwrap().removed_at, Some(at(5)));
    assert_eq!(
        presence::record_contacts(&mut tx, &[contact(&seen, 9, 9)], at(1_000_000)).await.unwrap(),
        0
    );
    tx.commit().await.unwrap();
    assert_eq!(find_hostnames(&db, ours, &Filter::default()).await, ["web-2"]);
    let tagged = Filter { tags: seen.tags.clone(), ..Filter::default() };
    assert_eq!(find_hostnames(&db, ours, &tagged).await, ["web-2"]);
    let mut tx = db.begin().await.unwrap();
    let again = Server { public_key: seen.public_key, ..server(ours, 3) };
    assert!(servers::enroll(&mut tx, &again).await.is_err());
}

async fn contact_times_and_counters_never_decrease(db: Db) {
    let ours = org(&db).await;
    let fleet: Vec<_> = (1..=1203).map(|n| server(ours, n)).collect();
    enroll(&db, &fleet).await;
    let mut tx = db.begin().await.unwrap();
    let beats: Vec<_> = fleet.iter().map(|server| contact(server, 60, 5)).collect();
    assert_eq!(presence::record_contacts(&mut tx, &beats, at(1_000_000)).await.unwrap(), 1203);
    let late = [
        contact(&fleet[0], 30, 4),
        contact(&fleet[1], 90, 3),
        contact(&fleet[1], 80, 7),
        contact(&fleet[2], 50, 9),
    ];
    assert_eq!(presence::record_contacts(&mut tx, &late, at(1_000_000)).await.unwrap(), 2);
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let all = presence::all(&mut reader, ours).await.unwrap();
    let seen: Vec<_> = all[..4].iter().map(|one| (one.last_seen_at, one.counter)).collect();
    assert_eq!(seen, [(at(60), 5), (at(90), 7), (at(60), 9), (at(60), 5)]);
    assert_eq!(all.len(), 1203);
    // A contact is not a change, so it makes no plan stale.
    assert_eq!(servers::get(&mut reader, ours, fleet[1].id).await.unwrap().generation, 1);
}

async fn counter_can_be_set_back(db: Db) {
    let ours = org(&db).await;
    let one = Server { counter: 40, ..server(ours, 1) };
    enroll(&db, &[one.clone()]).await;
    let mut tx = db.begin().await.unwrap();
    presence::set_counter(&mut tx, ours, one.id, 12).await.unwrap();
    assert_eq!(presence::all(&mut tx, ours).await.unwrap()[0].counter, 12);
    tx.commit().await.unwrap();
}

/// Two replicas write contacts of the same servers at the same time.
async fn replicas_may_record_the_same_servers_at_once(db: Db) {
    let ours = org(&db).await;
    let fleet: Vec<_> = (1..=300).map(|n| server(ours, n)).collect();
    enroll(&db, &fleet).await;
    let tasks: Vec<_> = (1..=4_i64)
        .map(|replica| {
            let (db, mut beats) = (
                db.clone(),
                fleet.iter().map(|server| contact(server, replica, replica)).collect::<Vec<_>>(),
            );
            tokio::spawn(async move {
                if replica % 2 == 0 {
                    beats.reverse();
                }
                for _ in 0..5 {
                    loop {
                        let mut tx = db.begin().await.unwrap();
                        match presence::record_contacts(&mut tx, &beats, at(1_000_000)).await {
                            Ok(_) => break tx.commit().await.unwrap(),
                            Err(StoreError::Busy(_)) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut reader = db.read().await.unwrap();
    let all = presence::all(&mut reader, ours).await.unwrap();
    assert!(all.iter().all(|one| one.last_seen_at == at(4) && one.counter == 4));
}

async fn each_filter_finds_what_it_describes(db: Db) {
    let ours = org(&db).await;
    let theirs = other_org(&db).await;
    let os = |id: &str, version: &str| Os::new(id, version, "").unwrap();
    let fleet = [
        server(ours, 1),
        Server {
            hostname: "DB-1".parse().unwrap(),
            environment: None,
            tags: Vec::new(),
            os: os("ubuntu", "24.04"),
            ..server(ours, 2)
        },
        Server {
            hostname: "a_b".parse().unwrap(),
            environment: Some("staging".parse().unwrap()),
            os: os("debian", "12"),
            ..server(ours, 3)
        },
        Server {
            hostname: "axb".parse().unwrap(),
            os: os("debian", "120"),
            reboot_required: true,
            last_seen_at: at(100),
            ..server(ours, 4)
        },
        server(theirs, 5),
    ];
    enroll(&db, &fleet).await;
    let all = Filter::default();
    assert_eq!(find_hostnames(&db, ours, &all).await, ["a_b", "axb", "DB-1", "web-1"]);
    assert_eq!(find_hostnames(&db, theirs, &all).await, ["web-5"]);
    let of = async |filter: Filter| find_hostnames(&db, ours, &filter).await.join(" ");
    let status =
        |status| Filter { status: Some((status, OnlineSpan::since(at(50)))), ..Filter::default() };
    assert_eq!(of(status(Status::Online)).await, "axb");
    assert_eq!(of(status(Status::Offline)).await, "a_b DB-1 web-1");
    // A contact after the end of the span does not make a server online.
    let online = OnlineSpan { since: at(50), until: at(60) };
    let narrow = |status| Filter { status: Some((status, online)), ..Filter::default() };
    assert_eq!(of(narrow(Status::Online)).await, "");
    assert_eq!(of(narrow(Status::Offline)).await, "a_b axb DB-1 web-1");
    let q = |q: &str| Filter { q: Some(q.into()), ..Filter::default() };
    assert_eq!(of(q("db")).await, "DB-1");
    assert_eq!(of(q("A_B")).await, "a_b");
    assert_eq!(of(q("%")).await, "");
    assert_eq!(of(q("\\")).await, "");
    assert_eq!(of(q("' or 1=1 --")).await, "");
    let system = |text: &str| Filter { os: Some(text.parse().unwrap()), ..Filter::default() };
    assert_eq!(of(system("Debian")).await, "a_b axb web-1");
    assert_eq!(of(system("Debian 12")).await, "a_b web-1");
    assert_eq!(of(system("ubuntu 24.04")).await, "DB-1");
    let environment = |text: &str| Some(text.parse().unwrap());
    assert_eq!(
        of(Filter { environment: environment("staging"), ..Filter::default() }).await,
        "a_b"
    );
    assert_eq!(of(Filter { environments: Some(vec![]), ..Filter::default() }).await, "");
    let two = Some(vec!["staging".parse().unwrap(), "none".parse().unwrap()]);
    assert_eq!(of(Filter { environments: two, ..Filter::default() }).await, "a_b");
    assert_eq!(of(Filter { reboot_required: Some(true), ..Filter::default() }).await, "axb");
    assert_eq!(
        of(Filter { ids: vec![fleet[0].id, fleet[4].id], ..Filter::default() }).await,
        "web-1"
    );
    let mixed = Filter { environment: environment("production"), ..status(Status::Offline) };
    assert_eq!(of(mixed).await, "web-1");
    let selector = Selector::parse(&json!({"os": "debian", "tags": ["role=web"]})).unwrap();
    assert_eq!(of(Filter::from(&selector)).await, "a_b axb web-1");
    assert_eq!(of(Filter::from(&Selector::All)).await, "a_b axb DB-1 web-1");
}

async fn pages_have_no_gaps_or_repetitions(db: Db) {
    let ours = org(&db).await;
    let fleet: Vec<_> = (1..=25_u32)
        .map(|n| Server {
            hostname: format!("host-{}", n % 3).parse().unwrap(),
            security_updates: n % 4,
            last_seen_at: at(i64::from(n % 5)),
            ..server(ours, n)
        })
        .collect();
    enroll(&db, &fleet).await;
    for sort in [Sort::Hostname, Sort::LastSeen, Sort::SecurityUpdates, Sort::Newest] {
        let mut seen: Vec<ServerId> = Vec::new();
        for offset in [0, 10, 20] {
            let mut reader = db.read().await.unwrap();
            let page = Page { limit: 10, offset };
            let page =
                server_list::list(&mut reader, ours, &Filter::default(), sort, page).await.unwrap();
            assert_eq!(page.total, 25);
            seen.extend(page.items.iter().map(|server| server.id));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 25, "{sort:?}");
    }
}

async fn totals_follow_enrollment_changes_and_removal(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let all: Vec<Server> = (0..6).map(|n| server(ours, n)).collect();
    enroll(&db, &all).await;
    enroll(&db, &[server(theirs, 6)]).await;
    let total = async |filter: Filter| {
        let mut reader = db.read().await.unwrap();
        let total = server_list::count(&mut reader, ours, &filter).await.unwrap();
        let ids = server_list::ids(&mut reader, ours, &filter).await.unwrap();
        assert_eq!(total, ids.len() as u64, "{filter:?}");
        total
    };
    let staging = || Filter { environment: "staging".parse().ok(), ..Filter::default() };
    let named = |os: &str| Filter { os: os.parse().ok(), ..Filter::default() };
    assert_eq!(total(Filter::default()).await, 6);
    assert_eq!(total(staging()).await, 0);
    let moved = Server {
        environment: "staging".parse().ok(),
        os: Os::new("ubuntu", "24.04", "").unwrap(),
        ..all[0].clone()
    };
    let mut tx = db.begin().await.unwrap();
    servers::save(&mut tx, &all[0], &moved, at(1)).await.unwrap();
    // A part that is rolled back is not counted.
    let undone = tx.attempt(async |tx| {
        servers::enroll(tx, &server(ours, 7)).await?;
        servers::enroll(tx, &server(ours, 0)).await
    });
    assert!(matches!(undone.await.unwrap(), Err(StoreError::AlreadyExists { .. })));
    servers::remove(&mut tx, &all[1], at(1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(total(Filter::default()).await, 5);
    assert_eq!(total(staging()).await, 1);
    assert_eq!(total(named("debian")).await, 4);
    assert_eq!(total(named("debian 12")).await, 4);
    assert_eq!(total(named("ubuntu")).await, 1);
    assert_eq!(total(Filter { os: "ubuntu".parse().ok(), ..staging() }).await, 1);
    let limited = Filter { environments: Some(Vec::new()), ..Filter::default() };
    assert_eq!(total(limited).await, 0);
    let mut tx = db.begin().await.unwrap();
    presence::record_contacts(
        &mut tx,
        &[contact(&all[0], 100, 2), contact(&all[2], 100, 2)],
        at(1_000_000),
    )
    .await
    .unwrap();
    tx.commit().await.unwrap();
    for (status, of_all, of_staging) in [(Status::Online, 2, 1), (Status::Offline, 3, 0)] {
        let status = Some((status, OnlineSpan::since(at(50))));
        assert_eq!(total(Filter { status, ..Filter::default() }).await, of_all);
        assert_eq!(total(Filter { status, ..staging() }).await, of_staging);
    }
}

async fn stale_scan_is_left_out_of_many(db: Db) {
    let ours = org(&db).await;
    let all: Vec<Server> = (0..3).map(|n| server(ours, n)).collect();
    enroll(&db, &all).await;
    let list = packages(3);
    let mut tx = db.begin().await.unwrap();
    let lists = [(ours, SetKind::Packages, &list), (ours, SetKind::Packages, &list)];
    assert_eq!(package_sets::store_all(&mut tx, &lists, at(0)).await.unwrap(), 1);
    assert_eq!(package_sets::store_all(&mut tx, &lists, at(0)).await.unwrap(), 0);
    let unknown = Digest::compute(b"unknown");
    let wanted = [unknown, list.digest()];
    let missing =
        package_sets::mark_all_used(&mut tx, ours, SetKind::Packages, &wanted, at(0)).await;
    assert_eq!(missing.unwrap(), [unknown]);
    let scan = |n: usize, seen| servers::Scan {
        id: all[n].id,
        seen,
        last_scan_at: Some(at(9)),
        activity: "scanning".into(),
        package_set: Some(list.digest()),
        update_set: None,
        packages: 3,
        updates: 0,
        security_updates: 0,
    };
    servers::remove(&mut tx, &all[2], at(1)).await.unwrap();
    let scans = [scan(2, 1), scan(1, 7), scan(0, 1)];
    let saved = servers::save_scans(&mut tx, &scans).await.unwrap();
    assert_eq!(saved.into_iter().collect::<Vec<_>>(), [all[0].id]);
    tx.commit().await.unwrap();
    let ids: Vec<ServerId> = all.iter().map(|server| server.id).collect();
    let mut found = servers::get_all(&mut db.read().await.unwrap(), &ids).await.unwrap();
    found.sort_by_key(|server| server.id);
    let after = Server {
        last_scan_at: Some(at(9)),
        activity: "scanning".into(),
        package_set: Some(list.digest()),
        packages: 3,
        generation: 2,
        ..all[0].clone()
    };
    assert_eq!(found, [after, all[1].clone()]);
}

/// The clock was a day or ten years ahead and was then corrected; or it was behind.
async fn contact_replaces_a_time_from_the_future(db: Db) {
    const DAY: i64 = 86_400;
    let ours = org(&db).await;
    let seen = server(ours, 1);
    enroll(&db, &[seen.clone()]).await;
    let mut counter = 1;
    for wrong in [DAY, 3_650 * DAY, -DAY, -3_650 * DAY] {
        for now in [wrong, 100] {
            counter += 1;
            let mut tx = db.begin().await.unwrap();
            presence::record_contacts(&mut tx, &[contact(&seen, now, counter)], at(now))
                .await
                .unwrap();
            tx.commit().await.unwrap();
            let stored = presence::all(&mut db.read().await.unwrap(), ours).await.unwrap();
            assert_eq!((stored[0].last_seen_at, stored[0].counter), (at(now), counter), "{wrong}");
        }
    }
    // Collected under the wrong clock, written under the right one.
    let gathered = [contact(&seen, DAY, 20), contact(&seen, 101, 21)];
    let mut tx = db.begin().await.unwrap();
    presence::record_contacts(&mut tx, &gathered, at(101)).await.unwrap();
    tx.commit().await.unwrap();
    let stored = presence::all(&mut db.read().await.unwrap(), ours).await.unwrap();
    assert_eq!(stored[0].last_seen_at, at(101));
}

testkit::both!(
    crate::support::db:
    server_is_readable_only_in_its_organization,
    key_belongs_to_one_server,
    stale_save_is_refused,
    tagged_servers_are_sorted_by_current_name,
    new_tags_replace_the_old_ones,
    edits_of_many_servers_are_saved_together_or_not_at_all,
    removed_server_is_unlisted_and_its_key_refused,
    contact_times_and_counters_never_decrease,
    counter_can_be_set_back,
    replicas_may_record_the_same_servers_at_once,
    each_filter_finds_what_it_describes,
    pages_have_no_gaps_or_repetitions,
    totals_follow_enrollment_changes_and_removal,
    stale_scan_is_left_out_of_many,
    contact_replaces_a_time_from_the_future,
);
