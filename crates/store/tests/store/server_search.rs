//! Search for servers by name, alone and combined with other filters.
//!
//! `find_hostnames` compares the list, its total and the ids of all matching servers, so each line checks
//! all three.

use store::server_list::{self, Filter, OnlineSpan, Sort};
use store::servers::{self, Server};
use store::{Db, Page};
use vocab::{OrgId, Status};

use crate::servers::{enroll, find_hostnames, server};
use crate::support::{at, org, other_org};

fn named(org: OrgId, n: u32, name: &str) -> Server {
    Server { hostname: name.parse().unwrap(), ..server(org, n) }
}

fn q(text: &str) -> Filter {
    Filter { q: Some(text.into()), ..Filter::default() }
}

async fn search_follows_enrollment_renaming_and_removal(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let fleet = [named(ours, 1, "web-1"), named(ours, 2, "Web-2"), named(ours, 3, "db-1")];
    enroll(&db, &fleet).await;
    enroll(&db, &[named(theirs, 4, "web-4")]).await;
    let search = async |text: &str| find_hostnames(&db, ours, &q(text)).await.join(" ");
    assert_eq!(search("web").await, "web-1 Web-2");
    assert_eq!(find_hostnames(&db, theirs, &q("web")).await, ["web-4"]);
    let renamed = Server { hostname: "cache-1".parse().unwrap(), ..fleet[0].clone() };
    let mut tx = db.begin().await.unwrap();
    servers::save(&mut tx, &fleet[0], &renamed, at(1)).await.unwrap();
    // Another spelling of the same name is shown; the search finds it as before.
    let respelled = Server { hostname: "WEB-2".parse().unwrap(), ..fleet[1].clone() };
    servers::save(&mut tx, &fleet[1], &respelled, at(1)).await.unwrap();
    servers::remove(&mut tx, &fleet[2], at(1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(search("web").await, "WEB-2");
    assert_eq!(search("cache").await, "cache-1");
    assert_eq!(search("1").await, "cache-1");
    assert_eq!(search("db").await, "");
    // A transaction that is rolled back changes no search.
    let mut tx = db.begin().await.unwrap();
    servers::enroll(&mut tx, &named(ours, 5, "web-5")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(search("web").await, "WEB-2");
}

async fn server_with_a_display_name_is_found_by_both_names_and_sorted_by_that(db: Db) {
    let ours = org(&db).await;
    let fleet = [named(ours, 1, "web-1"), named(ours, 2, "web-2"), named(ours, 3, "web-3")];
    enroll(&db, &fleet).await;
    let display_name = Some("Zürich 100% Shop".to_owned());
    let renamed = Server { display_name, ..fleet[0].clone() };
    let mut tx = db.begin().await.unwrap();
    servers::save(&mut tx, &fleet[0], &renamed, at(1)).await.unwrap();
    tx.commit().await.unwrap();
    let search = async |text: &str| find_hostnames(&db, ours, &q(text)).await.join(" ");
    assert_eq!(search("").await, "web-2 web-3 web-1");
    assert_eq!(search("web-1").await, "web-1");
    assert_eq!(search("ZÜRICH").await, "web-1");
    let by_name = async |name: &str| {
        let mut reader = db.read().await.unwrap();
        server_list::by_name(&mut reader, ours, name).await.unwrap()
    };
    for name in ["web-1", "WEB-1", "zürich 100% shop"] {
        assert_eq!(by_name(name).await, [fleet[0].id], "{name}");
    }
    for name in ["web", "zürich", "%", "", "zürich 100% shop web-1"] {
        assert_eq!(by_name(name).await, [], "{name}");
    }
    assert_eq!(by_name("web-2").await, [fleet[1].id]);
}

async fn search_text_is_matched_literally(db: Db) {
    let ours = org(&db).await;
    let long = format!("{}.{}.internal", "a".repeat(63), "b".repeat(63));
    let fleet = [named(ours, 1, "a_b"), named(ours, 2, "axb"), named(ours, 3, &long)];
    enroll(&db, &fleet).await;
    for (text, wanted) in [
        ("_", "a_b"),
        ("A_B", "a_b"),
        ("x", "axb"),
        ("%", ""),
        ("a%b", ""),
        ("\\", ""),
        ("\\_", ""),
        ("a\\", ""),
        ("*", ""),
        ("'", ""),
        ("ä", ""),
        (".B", long.as_str()),
        (long.as_str(), long.as_str()),
        ("a".repeat(200).as_str(), ""),
        ("", &format!("a_b {long} axb")),
    ] {
        assert_eq!(find_hostnames(&db, ours, &q(text)).await.join(" "), wanted, "{text:?}");
    }
}

/// Few or many servers with the name, few or many with the status: the result is the same,
/// whichever query is used.
async fn search_works_with_every_filter_and_order(db: Db) {
    let ours = org(&db).await;
    let fleet: Vec<Server> = (0..49_u32)
        .map(|n| Server {
            last_seen_at: at(if n.is_multiple_of(20) { 0 } else { 100 + i64::from(n % 7) }),
            environment: (n % 2 == 0).then(|| "staging".parse().unwrap()),
            security_updates: n % 5,
            ..named(ours, n, &format!("{}-{n:02}", if n % 10 == 3 { "rare" } else { "often" }))
        })
        .collect();
    enroll(&db, &fleet).await;
    let since = OnlineSpan::since(at(50));
    for text in ["rare", "often", "none", "-0", "1"] {
        let environment: Option<vocab::Environment> = "staging".parse().ok();
        for status in [None, Some((Status::Online, since)), Some((Status::Offline, since))] {
            for environment in [None, environment.clone()] {
                let filter = Filter { status, environment, ..q(text) };
                find_hostnames(&db, ours, &filter).await;
                let mut reader = db.read().await.unwrap();
                let mut all = server_list::ids(&mut reader, ours, &filter).await.unwrap();
                all.sort_unstable();
                for sort in [Sort::Hostname, Sort::LastSeen, Sort::SecurityUpdates, Sort::Newest] {
                    let mut seen = Vec::new();
                    for offset in (0..49).step_by(5) {
                        let page = Page { limit: 5, offset };
                        let page = server_list::list(&mut reader, ours, &filter, sort, page)
                            .await
                            .unwrap();
                        assert_eq!(page.total, all.len() as u64, "{filter:?} {sort:?}");
                        seen.extend(page.items);
                    }
                    let key = |it: &Server| match sort {
                        Sort::Hostname => (0, it.hostname.to_string()),
                        Sort::LastSeen => (it.last_seen_at.as_second(), String::new()),
                        Sort::SecurityUpdates => {
                            (-i64::from(it.security_updates), it.hostname.to_string())
                        }
                        Sort::Newest => (0, String::new()),
                    };
                    assert!(seen.is_sorted_by_key(key), "{filter:?} {sort:?}");
                    let mut ids: Vec<_> = seen.iter().map(|it| it.id).collect();
                    ids.sort_unstable();
                    assert_eq!(ids, all, "{filter:?} {sort:?}");
                }
            }
        }
    }
}

testkit::both!(
    crate::support::db:
    search_follows_enrollment_renaming_and_removal,
    server_with_a_display_name_is_found_by_both_names_and_sorted_by_that,
    search_text_is_matched_literally,
    search_works_with_every_filter_and_order,
);
