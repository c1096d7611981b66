//! Backup and restore: a backup is taken during a batch, work continues, then the backup is
//! restored. Also `migrate`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use swarm::behavior::Script;

use crate::database::Database;
use crate::operator::{Operator, POLL_INTERVAL};
use crate::support::{Dir, Running, first_key, first_key_with, fleetmend};
use crate::terminal::Cli;
use crate::whole_machine::fleet::{allow_files, slow_agents};

const SERVERS: usize = 24;
const MAX_PARALLEL: usize = 4;
/// Servers in the batch that runs during the backup; the others belong to the schedule.
const BATCH_SERVERS: usize = 20;
/// Agents that hang in a reboot while the backup is taken: as many as may run in parallel, after
/// six that have finished.
const HANGING: std::ops::Range<usize> = 6..6 + MAX_PARALLEL;

/// Runs a command that must succeed, and returns its output.
pub(crate) fn run_ok(args: &[&str]) -> String {
    let done = fleetmend(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Runs a command that must fail, and returns its error message.
pub(crate) fn run_refused(args: &[&str]) -> String {
    let done = fleetmend(args).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{args:?}");
    String::from_utf8(done.stderr).unwrap()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_on_sqlite_repeats_no_work_and_keeps_agents() {
    backup_and_restore(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_on_postgres_repeats_no_work_and_keeps_agents() {
    let Some(database) = Database::new().await else { return };
    backup_and_restore(&["--database", &database.url]).await;
    database.remove().await;
}

/// A batch is running when the backup is taken. It ends, the schedule starts a run, another batch
/// is started and ends; the restore then undoes all of that. The hosts' ledger records what they
/// did, and the restore must not add to it.
async fn backup_and_restore(database: &[&str]) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    allow_files();
    let dir = Dir::new();
    let data = dir.data();
    let key = first_key_with(&data, database);
    let mut service = Running::start(&data, database);
    let operator = Operator::new(&service.address, &key);
    let fleet = operator.fleet(SERVERS as u64, slow_agents).await;
    let others: Vec<_> = (BATCH_SERVERS..SERVERS).map(|agent| fleet.server_id(agent)).collect();
    let schedule = json!({"name": "every minute", "cron": "* * * * *",
        "targets": {"server_ids": others}, "options": {"security_only": true}});
    let schedule =
        operator.post("/v1/schedules", schedule).await["id"].as_str().unwrap().to_owned();

    HANGING.for_each(|agent| fleet.script(agent, Script::HangInReboot));
    let pace = json!({"max_parallel": MAX_PARALLEL, "reboot": "always"});
    let halfway = operator.orders(&fleet, 0..BATCH_SERVERS, pace).await;
    let under_way = |seen: &Value| {
        let count = |state: &str| seen["progress"][state].as_u64().unwrap() as usize;
        (count("succeeded"), count("rebooting")) == (HANGING.start, HANGING.len())
    };
    operator.until(&halfway, under_way).await;
    let file = dir.0.join("acme.backup");
    let backup = [&["backup", "--data-dir", text(&data), text(&file), "--json"], database].concat();
    let taken: Value = serde_json::from_str(&run_ok(&backup)).unwrap();
    assert!(taken["bytes"].as_u64() > Some(1_000), "{taken}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    run_ok(&["restore", "--check", text(&file)]);

    HANGING.for_each(|agent| fleet.script(agent, Script::Random));
    operator.until_ended(&halfway).await;
    let forgotten = operator.orders(&fleet, 0..SERVERS, json!({})).await;
    operator.until_ended(&forgotten).await;
    let carried_out = |run: &Value| !run["finished_at"].is_null() && !run["batch_id"].is_null();
    let runs = operator.until_runs(&schedule, |runs| runs.iter().any(carried_out)).await;
    let ran: BTreeSet<_> = runs.iter().map(|run| run["scheduled_for"].to_string()).collect();

    // Let everything end before the restore, so that whatever starts afterwards is new.
    let cli = Cli { url: service.address.clone(), key };
    cli.run_ok(&["schedules", "update", "every minute", "--enabled", "false"]);
    let open = |batches: &[Value]| batches.iter().any(|batch| batch["finished_at"].is_null());
    while open(&operator.all("/v1/batches").await) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let done_before = fleet.ledger().spans();
    assert!(done_before.iter().all(|span| span.ended.is_some()));

    let restore = ["restore", "--data-dir", text(&data), text(&file), "--json"];
    let restore = [&restore[..], database].concat();
    let replace = [&restore[..], &["--replace"]].concat();
    assert!(run_refused(&replace).contains("a service is using this database"));
    service.signal(Signal::SIGTERM);
    assert!(service.ended_well());
    assert!(run_refused(&restore).contains("the database already exists"));
    let restored: Value = serde_json::from_str(&run_ok(&replace)).unwrap();
    assert_eq!((&restored["epoch"], &restored["taken_at"]), (&json!(1), &taken["taken_at"]));

    let listen = service.address.strip_prefix("http://").unwrap();
    let _again = Running::at(listen, &data, database);
    assert_eq!(operator.until_ended(&halfway).await["state"], "canceled");
    let everyone_is_back = |there: &Value| there["meta"]["total"] == json!(SERVERS);
    operator.until_at("/v1/servers?status=online&limit=1", everyone_is_back).await;
    for server in operator.all("/v1/servers").await {
        assert!(server["quarantine"].is_null(), "{server}");
    }
    let sides = operator.batch_views(&fleet, &halfway).await;
    // Tasks that were running are reconciled with the agents, not abandoned. Waiting servers may
    // have been patched since the backup, and are not patched again.
    assert_eq!(sides.count("succeeded"), HANGING.end);
    assert_eq!(sides.count("canceled"), BATCH_SERVERS - HANGING.end);

    let after = operator.orders(&fleet, 0..SERVERS, json!({})).await;
    operator.until_ended(&after).await;
    operator.batch_views(&fleet, &after).await.assert_all_finished(SERVERS);

    // Runs that had started are not started again, and everything done since was ordered since.
    let mut added = fleet.ledger().spans();
    added.retain(|span| !done_before.iter().any(|done| done.order == span.order));
    let runs = operator.all(&format!("/v1/schedules/{schedule}/runs")).await;
    for run in runs.iter().filter(|run| ran.contains(&run["scheduled_for"].to_string())) {
        // A skipped run never started; any other started before the backup.
        let at = |time: &Value| time.as_str().map(|text| text.parse::<jiff::Timestamp>().unwrap());
        let before = at(&run["started_at"]) < at(&taken["taken_at"]);
        assert!(run["state"] == "skipped" || before, "{run}");
    }
    let mut ordered = BTreeSet::new();
    let by_calendar = runs.iter().filter_map(|run| run["batch_id"].as_str());
    for batch in by_calendar.chain([after.as_str()]) {
        let sides = operator.batch_views(&fleet, batch).await;
        ordered.extend(sides.spans.iter().map(|span| span.order));
    }
    let strange: Vec<_> = added.iter().filter(|span| !ordered.contains(&span.order)).collect();
    assert!(strange.is_empty(), "nothing ordered {strange:?}");
    let violations = fleet.ledger().violations();
    assert!(violations.is_empty(), "{violations:?}");
    fleet.stop().await;
}

#[test]
fn backup_restores_to_an_empty_directory_with_its_keys() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let (cert, private) = (dir.0.join("cert.pem"), dir.0.join("key.pem"));
    std::fs::write(&cert, "a certificate").unwrap();
    std::fs::write(&private, "its key").unwrap();
    let settings =
        format!("listen = \"127.0.0.1:0\"\ntls_cert = {cert:?}\ntls_key = {private:?}\n");
    std::fs::write(dir.data().join("fleetmend.toml"), settings).unwrap();
    run_ok(&["secrets", "rotate", "orders", "--data-dir", text(&dir.data())]);
    let file = dir.0.join("acme.backup");
    let backup = ["backup", "--data-dir", text(&dir.data()), text(&file)].map(str::to_owned);
    let backup: Vec<&str> = backup.iter().map(String::as_str).collect();
    assert!(run_ok(&backup).contains("read back and verified"));
    assert!(run_refused(&backup).contains("already exists"));
    let left: Vec<_> =
        std::fs::read_dir(&dir.0).unwrap().map(|found| found.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");

    let new = dir.0.join("new");
    let output = run_ok(&["restore", "--data-dir", text(&new), text(&file)]);
    assert!(output.contains("tls/cert.pem was"), "{output}");
    for name in ["root.key", "orders.key", "orders.next.key", "fleetmend.toml"] {
        let same =
            std::fs::read(dir.data().join(name)).unwrap() == std::fs::read(new.join(name)).unwrap();
        assert!(same, "{name}");
    }
    assert_eq!(std::fs::read_to_string(new.join("tls/key.pem")).unwrap(), "its key");
    std::fs::remove_file(new.join("fleetmend.toml")).unwrap();
    let service = Running::start(&new, &[]);
    Cli { url: service.address.clone(), key }.run_ok(&["summary"]);
}

#[test]
fn truncated_or_modified_backup_is_rejected_without_changes() {
    let dir = Dir::new();
    first_key(&dir.data());
    let file = dir.0.join("acme.backup");
    run_ok(&["backup", "--data-dir", text(&dir.data()), text(&file)]);
    let whole = std::fs::read(&file).unwrap();
    let broken = dir.0.join("broken.backup");
    let place = dir.0.join("place");
    let places = (0..16).map(|sixteenth| whole.len() * sixteenth / 16);
    // The fifth byte has a bit that zstd ignores.
    for at in places.chain([4, whole.len() - 1]) {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        for bytes in [&changed[..], &whole[..at]] {
            std::fs::write(&broken, bytes).unwrap();
            let output = run_refused(&["restore", "--data-dir", text(&place), text(&broken)]);
            assert!(output.contains("is not a complete fleetmend backup"), "{at}: {output}");
        }
    }
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

#[test]
fn migrate_dry_run_then_migrates_then_is_up_to_date() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    let migrate = |more: &[&str]| run_ok(&[&["migrate", "--data-dir", text(&data)], more].concat());
    assert!(migrate(&[]).contains("up to date"));
    std::fs::write(data.join("fleetmend.db"), "").unwrap();
    for _ in 0..2 {
        let output = migrate(&["--dry-run"]);
        assert!(output.contains("Would apply 0001_baseline"), "{output}");
        assert!(output.contains("migrated from 0"), "{output}");
    }
    let refused =
        run_refused(&["backup", "--data-dir", text(&data), text(&dir.0.join("empty.backup"))]);
    assert!(refused.contains("this database is empty"), "{refused}");
    let done: Value = serde_json::from_str(&migrate(&["--json"])).unwrap();
    assert_eq!(done["migrations"][0]["name"], "0001_baseline");
    assert_eq!(done["migrations"].as_array().unwrap().last().unwrap()["version"], done["to"]);
    let done: Value = serde_json::from_str(&migrate(&["--json"])).unwrap();
    assert_eq!((&done["from"], &done["migrations"]), (&done["to"], &json!([])));
}

/// The names in a directory, sorted.
fn names_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// The nightly command of docs/backup.md, on its first and second night.
#[test]
fn backups_to_a_missing_directory_create_it() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    for name in ["slash/", "backups"] {
        let to = format!("{}/{name}", dir.0.display());
        let nightly = ["backup", "--data-dir", text(&data), &to];
        run_ok(&nightly);
        run_ok(&nightly);
        let names = names_in(Path::new(&to));
        assert_eq!(names.len(), 2, "{name}: {names:?}");
        for name in names {
            assert!(name.starts_with("fleetmend-") && name.ends_with(".backup"), "{name}");
            run_ok(&["restore", "--check", text(&Path::new(&to).join(name))]);
        }
        let mode = std::fs::metadata(&to).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{name}");
    }
}

#[test]
fn backup_directory_that_is_a_file_or_has_no_parent_is_refused() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    let at = |name: &str| format!("{}/{name}", dir.0.display());
    std::fs::write(at("file"), "kept").unwrap();
    for to in ["file", "file/"] {
        let refused = run_refused(&["backup", "--data-dir", text(&data), &at(to)]);
        assert!(refused.contains("exists but is not a directory"), "{refused}");
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"kept");
    let refused = run_refused(&["backup", "--data-dir", text(&data), &at("unmounted/backups/")]);
    assert!(refused.contains("unmounted does not exist: create it first"), "{refused}");
    // A failed backup leaves no directory behind.
    std::fs::write(data.join("fleetmend.db"), "no database").unwrap();
    run_refused(&["backup", "--data-dir", text(&data), &at("backups/")]);
    assert_eq!(names_in(&dir.0), ["data", "file"]);
}
