//! All combinations of filters, in every sort order, give the same result as a simple check of each
//! server.
//!
//! `query_plans` checks which indexes the queries use.

use store::security_counts::CountCorrection;
use store::server_list::{Filter, OnlineSpan, Sort};
use store::servers::{Scan, Server};
use store::{Conn, Db, Page, Tx, recorded_sql, security_counts, server_list, servers};
use vocab::{OrgId, ServerId, Status};

use crate::query_plans;
use crate::support::{at, nth, org};

const FLEET: u32 = 120;
const SORTS: [Sort; 4] = [Sort::Hostname, Sort::LastSeen, Sort::SecurityUpdates, Sort::Newest];

fn server(org_id: OrgId, n: u32) -> Server {
    let tags: &[&str] = match n % 4 {
        0 => &["web", "db"],
        1 | 2 => &["web"],
        _ => &[],
    };
    let os = if n.is_multiple_of(3) { ("ubuntu", "24.04") } else { ("debian", "12") };
    Server {
        // Neither in the order of ids nor of times.
        hostname: format!("{}-{:03}", if n % 5 < 3 { "Web" } else { "db" }, n * 77 % FLEET)
            .parse()
            .unwrap(),
        environment: match n % 3 {
            0 => None,
            1 => Some("staging".parse().unwrap()),
            _ => Some("production".parse().unwrap()),
        },
        tags: tags.iter().map(|tag| tag.parse().unwrap()).collect(),
        os: vocab::Os::new(os.0, os.1, "").unwrap(),
        reboot_required: n % 7 < 3,
        security_updates: n % 11,
        last_seen_at: at(i64::from(n * 31 % FLEET)),
        ..query_plans::server(org_id, n)
    }
}

fn filters() -> Vec<Filter> {
    // Few, many or all servers are offline.
    let spans = [
        OnlineSpan::since(at(4)),
        OnlineSpan { since: at(60), until: at(90) },
        OnlineSpan { since: at(2), until: at(117) },
        OnlineSpan::since(at(1_000)),
    ];
    let pairs_for = |status: Status| spans.map(move |online| Some((status, online)));
    let statuses = [[None; 4], pairs_for(Status::Offline), pairs_for(Status::Online)].concat();
    let mut filters = Vec::new();
    for status in &statuses[3..] {
        for environment in [None, Some("staging")] {
            for os in [None, Some("debian"), Some("ubuntu 24.04")] {
                for tags in [&[][..], &["web"], &["web", "db"]] {
                    for q in [None, Some("EB-"), Some("b-01")] {
                        for reboot_required in [None, Some(true)] {
                            filters.push(Filter {
                                status: *status,
                                environment: environment.map(|name| name.parse().unwrap()),
                                os: os.map(|name| name.parse().unwrap()),
                                tags: tags.iter().map(|tag| tag.parse().unwrap()).collect(),
                                q: q.map(str::to_owned),
                                reboot_required,
                                ..Filter::default()
                            });
                        }
                    }
                }
            }
        }
    }
    let some: Vec<_> = (0..FLEET).step_by(9).map(|n| nth!(ServerId, n)).collect();
    let limits =
        [Some(vec!["production".parse().unwrap(), "staging".parse().unwrap()]), Some(Vec::new())];
    for (n, ids) in [Vec::new(), some].into_iter().enumerate() {
        for environments in &limits {
            for status in &statuses[3..] {
                let environments = environments.clone();
                let q = (n == 1).then(|| "w".to_owned());
                filters.push(Filter {
                    status: *status,
                    environments,
                    ids: ids.clone(),
                    q,
                    ..Filter::default()
                });
            }
        }
    }
    filters
}

fn matches(filter: &Filter, server: &Server) -> bool {
    let name = server.hostname.as_str().to_ascii_lowercase();
    let os = server.os.to_string().to_ascii_lowercase();
    let Filter { status, environment, environments, os: system, tags, ids, q, reboot_required } =
        filter;
    status.is_none_or(|(status, online)| online.matches(status, server.last_seen_at))
        && (environment.is_none() || *environment == server.environment)
        && environments.as_ref().is_none_or(|some| {
            server.environment.as_ref().is_some_and(|environment| some.contains(environment))
        })
        && system.as_ref().is_none_or(|system| os.starts_with(system.as_str()))
        && tags.iter().all(|tag| server.tags.contains(tag))
        && (ids.is_empty() || ids.contains(&server.id))
        && q.as_ref().is_none_or(|q| name.contains(&q.to_ascii_lowercase()))
        && reboot_required.is_none_or(|required| required == server.reboot_required)
}

fn in_order(mut fleet: Vec<&Server>, sort: Sort) -> Vec<ServerId> {
    let name = |server: &Server| server.hostname.as_str().to_ascii_lowercase();
    match sort {
        Sort::Hostname => fleet.sort_by_key(|s| (name(s), s.id)),
        Sort::LastSeen => fleet.sort_by_key(|s| (s.last_seen_at, s.id)),
        Sort::SecurityUpdates => {
            fleet.sort_by_key(|s| (std::cmp::Reverse(s.security_updates), name(s), s.id));
        }
        Sort::Newest => fleet.sort_by_key(|s| std::cmp::Reverse(s.id)),
    }
    fleet.iter().map(|server| server.id).collect()
}

/// Writes scans and corrected counts to some servers. A save that was based on a row from before a
/// correction must still succeed.
async fn count_updates(tx: &mut Tx, fleet: &mut [Server]) {
    let scan = |server: &Server| Scan {
        id: server.id,
        seen: server.generation,
        last_scan_at: Some(at(1)),
        activity: String::new(),
        package_set: None,
        update_set: None,
        packages: 0,
        updates: 40,
        security_updates: 11 - server.security_updates,
    };
    let right = |server: &Server| CountCorrection {
        id: server.id,
        generation: server.generation,
        security_updates: 7,
    };
    let some = |fleet: &[Server], nth: usize| fleet.iter().skip(nth).step_by(10).cloned().collect();
    let [scanned, overtaken, counted]: [Vec<Server>; 3] = [3, 5, 6].map(|nth| some(fleet, nth));
    let counted: Vec<_> = counted.iter().chain(&overtaken).map(right).collect();
    security_counts::write(tx, &counted).await.unwrap();
    for before in &overtaken {
        servers::save(tx, before, &Server { activity: "busy".into(), ..before.clone() }, at(1))
            .await
            .unwrap();
    }
    let scanned: Vec<_> = scanned.iter().map(scan).collect();
    assert_eq!(servers::save_scans(tx, &scanned).await.unwrap().len(), scanned.len());
    for server in fleet {
        *server = servers::get(tx, server.org_id, server.id).await.unwrap();
    }
}

/// Checks that every lookup in a second table uses a whole key, and returns the number of lookups.
/// SQLite has no statistics here and cannot know how selective a part of a key is.
async fn count_whole_key_lookups(tx: &mut Tx) -> usize {
    let mut looked_up = 0;
    for sql in recorded_sql() {
        let steps = query_plans::steps(tx, &sql).await;
        for step in steps.iter().filter(|step| step.starts_with("SEARCH")).skip(1) {
            let whole = [" id=?", "server_id=?", "named=?"];
            assert!(whole.iter().any(|key| step.contains(key)), "{step}: {sql}");
            looked_up += 1;
        }
    }
    looked_up
}

async fn combined_filters_match_a_check_of_each_server(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let mut fleet: Vec<_> = (0..FLEET).map(|n| server(ours, n)).collect();
    servers::enroll_all(&mut tx, &fleet).await.unwrap();
    // Some servers have changed since they were enrolled, and one was removed.
    for (n, server) in fleet.iter_mut().enumerate().filter(|(n, _)| n % 10 == 0) {
        let before = server.clone();
        server.hostname = format!("web-new-{n}").parse().unwrap();
        server.environment = Some("staging".parse().unwrap());
        server.reboot_required = !before.reboot_required;
        server.tags = vec!["db".parse().unwrap(), "web".parse().unwrap()];
        servers::save(&mut tx, &before, server, at(1)).await.unwrap();
        server.generation += 1;
    }
    servers::remove(&mut tx, &fleet.remove(7), at(2)).await.unwrap();
    let joined: Vec<_> = fleet.iter().map(|server| server.security_updates).collect();
    count_updates(&mut tx, &mut fleet).await;
    let others = fleet.iter().zip(joined).filter(|(server, n)| server.security_updates != *n);
    assert!(others.count() > 15, "too few numbers have changed");
    tx.commit().await.unwrap();

    let mut tx = db.begin().await.unwrap();
    let (mut found, mut empty) = (0, 0);
    let mut looked_up = 0;
    for (n, filter) in filters().into_iter().enumerate() {
        let (sort, offset) = (SORTS[n % 4], if n % 3 == 2 { 3 } else { 0 });
        let page = Page { limit: if n % 5 == 0 { 50 } else { 4 }, offset };
        let wanted =
            in_order(fleet.iter().filter(|server| matches(&filter, server)).collect(), sort);
        recorded_sql();
        let seen = server_list::list_with_candidate_limit(
            &mut tx,
            ours,
            &filter,
            sort,
            page,
            query_plans::CANDIDATES_MAX,
        )
        .await
        .unwrap();
        looked_up += count_whole_key_lookups(&mut tx).await;
        let ids: Vec<_> = seen.items.iter().map(|server| server.id).collect();
        let on_page = wanted.iter().skip(offset as usize).take(page.limit as usize);
        assert_eq!(ids, on_page.copied().collect::<Vec<_>>(), "{filter:?} {sort:?} {page:?}");
        assert_eq!(seen.total, wanted.len() as u64, "{filter:?}");
        let any = server_list::any(&mut tx, ours, &filter).await.unwrap();
        assert_eq!(any, !wanted.is_empty(), "{filter:?}");
        if n % 7 == 0 {
            let all = server_list::ids(&mut tx, ours, &filter).await.unwrap();
            let by_name = fleet.iter().filter(|server| matches(&filter, server)).collect();
            assert_eq!(all, in_order(by_name, Sort::Hostname), "{filter:?}");
        }
        found += usize::from(!wanted.is_empty());
        empty += usize::from(wanted.is_empty());
    }
    assert!(found > 300 && empty > 100, "{found} filters found servers, {empty} found none");
    let is_sqlite = matches!(*tx, Conn::SqliteTx(_));
    assert_eq!(looked_up > 300, is_sqlite, "{looked_up} lookups in another table");
}

testkit::both!(
    crate::support::db:
    combined_filters_match_a_check_of_each_server,
);
