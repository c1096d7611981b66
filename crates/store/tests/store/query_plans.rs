//! Frequent queries use an index and do not scan a table.
//!
//! A list that is fast with ten servers and slow with 100,000 looks the same in every other test.
//! These tests call the store's functions on tables with some rows and fresh statistics, and ask
//! the database to explain the recorded SQL. `server_filters` checks that the results are right.

use domain::rollout::{
    ActiveTask, HealthProgress, Pace, Phase, RolloutHead, TaskStatus, WaveProgress,
};
use sqlx::AssertSqlSafe;
use store::audit::{self, EntryKey};
use store::findings::{CveChange, WithSuppressed};
use store::server_list::{Filter, OnlineSpan, Sort};
use store::{
    Conn, Db, Page, Paged, Tx, findings, health, patches, presence, presence_transitions,
    recorded_sql, rollout_pins, rollout_tasks, rollouts, saved_views, schedules, seals,
    security_counts, server_list, servers,
};
use vocab::{OrgId, ServerId, Stage, Status};

use crate::support::{Open as _, TestDatabase, at, nth, org};

/// Instead of the 2,500 in production, so that 2,000 servers are enough to exceed it.
pub(crate) const CANDIDATES_MAX: u64 = 25;
const FLEET: u32 = 2_000;

pub(crate) fn server(org_id: OrgId, n: u32) -> servers::Server {
    servers::Server {
        id: nth!(ServerId, n),
        org_id,
        hostname: format!("web-{n}").parse().unwrap(),
        display_name: None,
        notes: String::new(),
        environment: Some(
            if n.is_multiple_of(10) { "staging" } else { "production" }.parse().unwrap(),
        ),
        tags: vec![format!("rack={}", n % 40).parse().unwrap()],
        os: vocab::Os::new("debian", "12", "").unwrap(),
        kernel: String::new(),
        arch: String::new(),
        package_manager: None,
        agent_version: String::new(),
        public_key: n.to_be_bytes().to_vec(),
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
        facts: serde_json::Value::Null,
        runs: String::new(),
        quarantine: None,
        generation: 1,
        last_seen_at: at(if n.is_multiple_of(1000) { 0 } else { 1000 }),
        counter: 1,
    }
}

fn schedule(org_id: OrgId, n: u32) -> schedules::Schedule {
    schedules::Schedule {
        id: nth!(ScheduleId, n),
        org_id,
        name: format!("schedule {n}"),
        description: String::new(),
        enabled: true,
        cron: "0 3 * * *".parse().unwrap(),
        timezone: "UTC".parse().unwrap(),
        targets: vocab::Selector::All,
        options: serde_json::json!({}),
        next_run_at: (!n.is_multiple_of(10)).then(|| at(i64::from(n))),
        created_at: at(0),
        updated_at: at(0),
        generation: 1,
        seal: seals::SealCode::default(),
    }
}

fn busy(server: ServerId) -> rollout_tasks::StateChange {
    let next = TaskStatus::Busy(ActiveTask {
        stage: Stage::Dispatched,
        started_at: at(1),
        by: at(60),
        wave: 1,
    });
    rollout_tasks::StateChange {
        server_id: server,
        from: TaskStatus::Waiting,
        seen: 1,
        next,
        result: None,
        health: None,
    }
}

async fn fill(db: &Db) -> (OrgId, vocab::BatchId) {
    let ours = org(db).await;
    let batch = nth!(BatchId, 1_u32);
    let mut tx = db.begin().await.unwrap();
    let ids: Vec<_> = (0..FLEET).map(|n| (nth!(TaskId, n), nth!(ServerId, n))).collect();
    for n in 0..FLEET {
        servers::enroll(&mut tx, &server(ours, n)).await.unwrap();
        schedules::create(&mut tx, &schedule(ours, n)).await.unwrap();
    }
    let rollout = rollouts::Rollout {
        id: batch,
        org_id: ours,
        name: "Batch".into(),
        head: RolloutHead {
            id: batch,
            phase: Phase::Running,
            pace: Pace::default(),
            starts_at: at(0),
            start_by: at(600),
            last_start: None,
            forgiven: 0,
            canary_waived: false,
            expected: None,
            canary_unchanged: false,
            waves: WaveProgress::default(),
            health: HealthProgress::default(),
            clock: at(0),
        },
        options: serde_json::json!({}),
        origin: "api".into(),
        started_by: "test".into(),
        run_id: None,
        retry_of: None,
        total: 0,
        created_at: at(0),
        ended_at: None,
        generation: 1,
        revision: 1,
        counts: None,
        wave_counts: None,
        counted: 0,
        seal: seals::SealCode::default(),
        head_seal: seals::SealCode::default(),
    };
    rollouts::create(&mut tx, &rollout, &ids).await.unwrap();
    let some: Vec<_> = (0..200_u32).map(|n| busy(nth!(ServerId, n * 7))).collect();
    rollout_tasks::claim(&mut tx, batch, &some).await.unwrap();
    tx.commit().await.unwrap();
    (ours, batch)
}

/// The most frequent calls, and those that matter most in a large fleet.
async fn call_frequent_queries(
    tx: &mut Tx,
    ours: OrgId,
    batch: vocab::BatchId,
    mut after: impl AsyncFnMut(&mut Tx, &str),
) {
    let page = Page { limit: 50, offset: 0 };
    macro_rules! call {
        ($name:literal, $call:expr) => {
            $call.await.unwrap();
            after(tx, $name).await;
        };
    }
    after(tx, "").await;
    call!("due schedules", schedules::due(tx, at(50), 100));
    call!("next due", schedules::next_due(tx));
    call!("overdue tasks", rollout_tasks::overdue(tx, at(50), 100));
    call!("claim", rollout_tasks::claim(tx, batch, &[busy(nth!(ServerId, 1_u32))]));
    let first = busy(nth!(ServerId, 1_u32));
    let more = rollout_tasks::StateChange { from: first.next, seen: 2, ..first };
    call!("save", rollout_tasks::save(tx, batch, &[more]));
    call!("active tasks", rollout_tasks::active_by_servers(tx, &[nth!(ServerId, 1_u32)]));
    call!("changed", rollout_tasks::changed_since(tx, batch, 3));
    call!("pins", rollout_pins::all(tx, batch));
    call!("systems", servers::systems(tx, &[nth!(ServerId, 1_u32)]));
    call!(
        "unfinished tasks of a server",
        rollout_tasks::unfinished_by_server(tx, nth!(ServerId, 1_u32))
    );
    call!("unfinished retry", rollouts::unfinished_retry(tx, batch));
    call!("one server", servers::get(tx, ours, nth!(ServerId, 5_u32)));
    let beat = presence::Contact {
        org: ours,
        server_id: nth!(ServerId, 5_u32),
        seen_at: at(9),
        counter: 2,
    };
    call!("contacts", presence::record_contacts(tx, &[beat], at(1_000_000)));
    let list = async |tx: &mut Tx, filter: Filter| {
        server_list::list_with_candidate_limit(
            tx,
            ours,
            &filter,
            Sort::Hostname,
            page,
            CANDIDATES_MAX,
        )
        .await
    };
    call!("servers", list(tx, Filter::default()));
    let environment = Some("staging".parse().unwrap());
    call!("servers in an environment", list(tx, Filter { environment, ..Filter::default() }));
    let os = Some("debian 12".parse().unwrap());
    call!("servers with an operating system", list(tx, Filter { os, ..Filter::default() }));
    let tags = vec!["rack=7".parse().unwrap()];
    call!("tagged servers", list(tx, Filter { tags, ..Filter::default() }));
    let status = Some((Status::Online, OnlineSpan::since(at(500))));
    call!("online servers", list(tx, Filter { status, ..Filter::default() }));
    let status = Some((Status::Offline, OnlineSpan::since(at(500))));
    call!("offline servers", list(tx, Filter { status, ..Filter::default() }));
    let by = async |tx: &mut Tx, sort: Sort| {
        server_list::list_with_candidate_limit(
            tx,
            ours,
            &Filter::default(),
            sort,
            page,
            CANDIDATES_MAX,
        )
        .await
    };
    call!("servers by security updates", by(tx, Sort::SecurityUpdates));
    let count_key = patches::PatchServerKind {
        update_set: Some(vocab::Digest::compute(b"updates")),
        package_set: Some(vocab::Digest::compute(b"packages")),
        os_release: "debian 12".into(),
        kernel: String::new(),
        runs: String::new(),
        os: vocab::Os::new("debian", "12", "").unwrap(),
        servers: 0,
        reboot_required: 0,
        quarantined: 0,
        outdated: 0,
        stale: 0,
        insecure: 0,
        fewest: 0,
        most: 0,
    };
    call!("servers with a wrong count", security_counts::find_wrong(tx, ours, &[(&count_key, 1)]));
    let right = security_counts::CountCorrection {
        id: nth!(ServerId, 5_u32),
        generation: 9,
        security_updates: 1,
    };
    call!("correct the count", security_counts::write(tx, &[right]));
    call!("servers by last contact", by(tx, Sort::LastSeen));
    let reboot_required = Some(true);
    let waiting = Filter { reboot_required, ..Filter::default() };
    call!("servers that require a reboot", list(tx, waiting.clone()));
    call!(
        "count of required reboots",
        server_list::count_with_candidate_limit(tx, ours, &waiting, CANDIDATES_MAX)
    );
    let q = Some("b-1999".into());
    let called = Filter { q, ..Filter::default() };
    call!("servers by part of the name", list(tx, called.clone()));
    call!(
        "count by part of the name",
        server_list::count_with_candidate_limit(tx, ours, &called, CANDIDATES_MAX)
    );
    call!("tasks of a server", rollout_tasks::list_by_server(tx, nth!(ServerId, 5_u32), page));
    let row = rollouts::load(tx, batch).await.unwrap();
    call!("tasks of a batch", rollout_tasks::list(tx, &row, &[], page));
    call!("states of tasks", rollout_tasks::states(tx, batch, 0, 100));
    let user = nth!(UserId, 1_u32);
    call!("saved views of a list", saved_views::list(tx, ours, user, "servers", 100));
    call!("saved views of a user", saved_views::count(tx, user));
    call!("patches by severity", patches::count_by_severity(tx, ours));
    call!("server by name", server_list::by_name(tx, ours, "web-1"));
    call!("open CVEs", findings::count_by_severity(tx, ours, WithSuppressed::No));
    call!("ages of patches", patches::ages(tx, ours, [at(3), at(2), at(1)]));
    call!("offline for presence", presence_transitions::list_offline(tx, at(500), at(5_000)));
    call!(
        "total",
        server_list::count_with_candidate_limit(tx, ours, &Filter::default(), CANDIDATES_MAX)
    );
    call!(
        "total of offline servers",
        server_list::count_with_candidate_limit(
            tx,
            ours,
            &Filter { status, ..Filter::default() },
            CANDIDATES_MAX
        )
    );
}

/// SQLite's query plan for a text; empty on PostgreSQL.
pub(crate) async fn steps(tx: &mut Tx, sql: &str) -> Vec<String> {
    let Conn::SqliteTx(c) = &mut **tx else { return Vec::new() };
    let sql = AssertSqlSafe(format!("explain query plan {sql}"));
    let rows: Vec<(i64, i64, i64, String)> = sqlx::query_as(sql).fetch_all(&mut **c).await.unwrap();
    rows.into_iter().map(|(.., step)| step).collect()
}

/// The sequential scans of this transaction, as PostgreSQL counts them. Without `presence`: offline
/// servers are found by scanning it.
async fn sequential_scans(tx: &mut Tx) -> i64 {
    let Conn::PgTx(c) = &mut **tx else { return 0 };
    let (scans,) = sqlx::query_as(
        "select coalesce(sum(seq_scan), 0)::bigint from pg_stat_xact_user_tables
          where relname in ('servers', 'server_tags', 'schedules', 'rollout_tasks')",
    )
    .fetch_one(&mut **c)
    .await
    .unwrap();
    scans
}

/// The rows that this transaction has read from these tables, as PostgreSQL counts them.
async fn rows_read(tx: &mut Tx) -> i64 {
    let Conn::PgTx(c) = &mut **tx else { return 0 };
    let (read,) = sqlx::query_as(
        "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables
          where relname in ('servers', 'rollout_tasks')",
    )
    .fetch_one(&mut **c)
    .await
    .unwrap();
    read
}

async fn frequent_queries_use_an_index(database: TestDatabase) {
    let db = database.open().await;
    let (ours, batch) = fill(&db).await;
    database.execute_sql("analyze").await;
    let mut tx = db.begin().await.unwrap();
    let mut scanned_before = 0;
    let mut explained = 0;
    call_frequent_queries(&mut tx, ours, batch, async |tx, name| {
        let now = sequential_scans(tx).await;
        assert!(now == scanned_before || name.is_empty(), "{name} scans a table");
        scanned_before = now;
        for sql in recorded_sql().into_iter().filter(|_| !name.is_empty()) {
            for step in steps(tx, &sql).await {
                explained += 1;
                // A statement may scan its own rows, and the few organizations.
                let own = ["SCAN v", "SCAN CONSTANT ROW", "SCAN counted", "SCAN organizations"];
                let own = own.iter().any(|own| step.starts_with(own));
                assert!(own || !step.starts_with("SCAN"), "{name}: {step}");
                let sorted = step == "USE TEMP B-TREE FOR ORDER BY";
                assert!(
                    !sorted || ["offline servers", "offline for presence"].contains(&name),
                    "{name} is sorted: {sql}"
                );
            }
        }
    })
    .await;
    assert!(explained > 20 || !database.is_sqlite());
    tx.rollback().await.unwrap();
    // Check that the counter which this test relies on does count.
    let mut tx = db.begin().await.unwrap();
    let full_scan = "select count(*) from servers where kernel = 'none'";
    match &mut *tx {
        Conn::PgTx(c) => sqlx::query(full_scan).execute(&mut **c).await.map(drop).unwrap(),
        Conn::SqliteTx(c) => sqlx::query(full_scan).execute(&mut **c).await.map(drop).unwrap(),
        Conn::SqliteRead(_) | Conn::PgRead(_) => panic!("a transaction writes"),
    }
    assert!(sequential_scans(&mut tx).await > 0 || database.is_sqlite());
    assert!(steps(&mut tx, full_scan).await.iter().all(|step| step.starts_with("SCAN")));
}

/// PostgreSQL's statistics are a minute old or older. They do not include a rollout that was
/// just created, or servers that were seen since. That must not make it read whole tables.
/// SQLite has no such choice.
async fn outdated_statistics_cause_no_full_scan(database: TestDatabase) {
    const FEW: i64 = 200;
    let db = database.open().await;
    let (ours, first) = fill(&db).await;
    database.execute_sql("analyze").await;
    let mut tx = db.begin().await.unwrap();
    let second = nth!(BatchId, 2_u32);
    let new = rollouts::Rollout { id: second, ..rollouts::load(&mut tx, first).await.unwrap() };
    let targets: Vec<_> =
        (0..FLEET).map(|n| (nth!(TaskId, FLEET + n), nth!(ServerId, n))).collect();
    rollouts::create(&mut tx, &new, &targets).await.unwrap();
    let contact = |n| presence::Contact {
        org: ours,
        server_id: nth!(ServerId, n),
        seen_at: at(5_000),
        counter: 2,
    };
    presence::record_contacts(&mut tx, &(0..FLEET).map(contact).collect::<Vec<_>>(), at(1_000_000))
        .await
        .unwrap();
    tx.commit().await.unwrap();

    let mut tx = db.begin().await.unwrap();
    let mut before = 0;
    macro_rules! expect_few_rows {
        ($what:literal, $found:expr) => {
            assert_eq!($found.len(), 5, $what);
            let now = rows_read(&mut tx).await;
            let read = now - before;
            assert!(read < FEW, "{}: {read} rows were read for 5", $what);
            assert!(database.is_sqlite() || read >= 5, "{}: the counter does not count", $what);
            before = now;
        };
    }
    let start: Vec<_> = (1..6_u32).map(|n| busy(nth!(ServerId, n))).collect();
    expect_few_rows!("claim", rollout_tasks::claim(&mut tx, second, &start).await.unwrap());
    expect_few_rows!("changed", rollout_tasks::changed_since(&mut tx, second, 1).await.unwrap());
    expect_few_rows!("active", rollout_tasks::list_active(&mut tx, second).await.unwrap());
    let page = Page { limit: 5, offset: 0 };
    let row = rollouts::load(&mut tx, second).await.unwrap();
    expect_few_rows!("tasks", rollout_tasks::list(&mut tx, &row, &[], page).await.unwrap().items);
    let status = Some((Status::Online, OnlineSpan::since(at(4_000))));
    let online = Filter { status, ..Filter::default() };
    for sort in [Sort::SecurityUpdates, Sort::Hostname, Sort::LastSeen] {
        let online = server_list::list_with_candidate_limit(
            &mut tx,
            ours,
            &online,
            sort,
            page,
            CANDIDATES_MAX,
        );
        expect_few_rows!("online", online.await.unwrap().items);
    }
    // All servers of one tag may come last by name.
    let tags = vec!["rack=39".parse().unwrap()];
    let status = [None, online.status];
    for status in status {
        let tagged = Filter { tags: tags.clone(), status, ..Filter::default() };
        let by_name = server_list::list_with_candidate_limit(
            &mut tx,
            ours,
            &tagged,
            Sort::Hostname,
            page,
            CANDIDATES_MAX,
        );
        let Paged { items, total } = by_name.await.unwrap();
        assert_eq!(total, 50);
        expect_few_rows!("tagged", items);
    }
    assert!(before > 0 || database.is_sqlite());
}

/// The lookup must use the whole key: an organization has as many rows as its findings have
/// pages.
async fn kinds_with_a_cve_are_looked_up_by_number(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let gained = CveChange { cve: "CVE-1".into(), gained: vec![1, 300], lost: Vec::new() };
    recorded_sql();
    findings::apply_cve_changes(&mut tx, ours, &[&gained]).await.unwrap();
    findings::servers(&mut tx, ours, "CVE-1", None, Page { limit: 50, offset: 0 }).await.unwrap();
    let mut all = Vec::new();
    for sql in recorded_sql() {
        all.extend(steps(&mut tx, &sql).await);
    }
    for wanted in [
        "SEARCH cve_server_kinds USING PRIMARY KEY (org_id=? AND cve=? AND page=?)",
        "SEARCH k USING PRIMARY KEY (org_id=? AND cve=?)",
        "SEARCH f USING PRIMARY KEY (org_id=? AND number=?)",
    ] {
        assert!(
            all.iter().any(|step| step == wanted) || !database.is_sqlite(),
            "{wanted}: {all:?}"
        );
    }
}

/// The rows of `servers` are wide: what is counted over many servers is read from an index, or only
/// for the servers that match.
async fn counts_do_not_read_every_server(database: TestDatabase) {
    let db = database.open().await;
    let (ours, _) = fill(&db).await;
    let mut tx = db.begin().await.unwrap();
    let gained = CveChange { cve: "CVE-1".into(), gained: vec![1], lost: Vec::new() };
    findings::apply_cve_changes(&mut tx, ours, &[&gained]).await.unwrap();
    let set = vocab::Digest::compute(b"updates");
    findings::put_vendor_reported(&mut tx, ours, &[("CVE-1".into(), set)]).await.unwrap();
    recorded_sql();
    let agents = health::agents(&mut tx, ours, None).await.unwrap();
    assert_eq!(agents, [(String::new(), String::new(), u64::from(FLEET))]);
    let mut found = Vec::new();
    for sql in recorded_sql() {
        found.extend(steps(&mut tx, &sql).await);
    }
    let is_covered = found.contains(&"SCAN servers USING INDEX servers_agent".to_owned())
        || found.contains(&"SCAN servers USING COVERING INDEX servers_agent".to_owned());
    assert!(is_covered || !database.is_sqlite(), "{found:?}");
    let counts = findings::count_by_environment(&mut tx, ours, "CVE-1", None).await.unwrap();
    assert!(counts.is_empty(), "{counts:?}");
    let mut found = Vec::new();
    for sql in recorded_sql() {
        found.extend(steps(&mut tx, &sql).await);
    }
    for step in found.iter().filter(|step| step.contains(" servers ")) {
        assert!(!step.ends_with("(org_id=?)") && !step.starts_with("SCAN"), "{found:?}");
    }
}

/// A filter of the audit log reads the entries that match it, however long the log is.
async fn audit_filters_read_only_entries_that_match(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    for n in 0..5_000_u32 {
        let (actor, action, subject) = match n {
            7..10 => ("usr_rare", "user.sign_in", "srv_rare"),
            _ => ("engine", "task.move", "tsk_1"),
        };
        tx.record(audit::NewEntry {
            org_id: ours,
            at: at(i64::from(n)),
            actor: actor.into(),
            action: action.into(),
            subject: subject.into(),
            detail: "{}".into(),
        });
    }
    tx.commit().await.unwrap();
    database.execute_sql("analyze").await;
    let mut tx = db.begin().await.unwrap();
    let read = async |tx: &mut Tx| {
        let Conn::PgTx(c) = &mut **tx else { return 0_i64 };
        let (read,) = sqlx::query_as(
            "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint
               from pg_stat_xact_user_tables where relname = 'audit_entries'",
        )
        .fetch_one(&mut **c)
        .await
        .unwrap();
        read
    };
    recorded_sql();
    for (key, index) in [
        (EntryKey::Actor("usr_rare".into()), "audit_entries_actor"),
        (EntryKey::Action("user.sign_in"), "audit_entries_action"),
        (EntryKey::Subject("srv_rare".into()), "audit_entries_subject"),
    ] {
        let before = read(&mut tx).await;
        let found = audit::between(&mut tx, ours, &key, (0, i64::MAX), 200).await.unwrap();
        assert_eq!(found.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [10, 9, 8], "{key:?}");
        assert!(read(&mut tx).await - before <= 10, "{key:?} reads {}", read(&mut tx).await);
        for sql in recorded_sql() {
            let steps = steps(&mut tx, &sql).await;
            let uses_index = steps.iter().any(|step| step.contains(index));
            assert!(uses_index || !database.is_sqlite(), "{key:?}: {steps:?}");
            assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "{key:?}: {steps:?}");
        }
    }
    let some = audit::between(&mut tx, ours, &EntryKey::All, (10, 13), 200).await.unwrap();
    assert_eq!(some.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [12, 11]);
    let before = read(&mut tx).await;
    assert_eq!(audit::first_since(&mut tx, ours, at(4_000)).await.unwrap(), Some(4_001));
    assert_eq!(audit::last_before(&mut tx, ours, at(4_000)).await.unwrap(), Some(4_000));
    assert_eq!(audit::first_since(&mut tx, ours, at(9_000)).await.unwrap(), None);
    assert_eq!(audit::last_before(&mut tx, ours, at(0)).await.unwrap(), None);
    assert!(read(&mut tx).await - before <= 10, "{}", read(&mut tx).await);
}

testkit::both!(
    crate::support::database:
    audit_filters_read_only_entries_that_match,
    counts_do_not_read_every_server,
    frequent_queries_use_an_index,
    outdated_statistics_cause_no_full_scan,
    kinds_with_a_cve_are_looked_up_by_number,
);
