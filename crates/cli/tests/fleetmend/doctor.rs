//! `fleetmend doctor`: each problem is found and includes a fix.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Executor as _};

use crate::database::Database;
use crate::operator::Operator;
use crate::support::{Dir, Running, first_key, first_key_with, fleetmend};
use crate::whole_machine::fleet::slow_agents;

/// Runs `doctor --json`. Returns its exit code and output.
pub(crate) fn run_doctor(data: &Path, more: &[&str]) -> (i32, Value) {
    let args = ["doctor", "--data-dir", data.to_str().unwrap(), "--json"];
    // Doctor fetches nothing, so it needs no protection from publishers.
    let mut doctor = fleetmend(&[&args[..], more].concat());
    let done = doctor.env_remove("FLEETMEND_FEEDS").output().unwrap();
    let reported: Value = serde_json::from_slice(&done.stdout).unwrap();
    (done.status.code().unwrap(), reported)
}

pub(crate) fn findings_of<'a>(reported: &'a Value, check: &str, state: &str) -> Vec<&'a Value> {
    let all = reported["findings"].as_array().unwrap().iter();
    all.filter(|found| found["check"] == check && found["state"] == state).collect()
}

/// Asserts that this check is the only problem and has a remedy. Returns its detail.
#[track_caller]
fn only_problem(data: &Path, check: &str) -> String {
    let (code, report) = run_doctor(data, &[]);
    assert_eq!((code, &report["healthy"]), (1, &json!(false)), "{report:#}");
    let problems = findings_of(&report, check, "problem");
    assert_eq!(problems.len(), 1, "{check}: {report:#}");
    assert!(!problems[0]["remedy"].as_str().unwrap().is_empty());
    let all = report["findings"].as_array().unwrap().iter();
    assert_eq!(all.filter(|found| found["state"] == "problem").count(), 1, "{report:#}");
    problems[0]["detail"].as_str().unwrap().to_owned()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn new_installation_is_healthy_and_notes_have_remedies() {
    let dir = Dir::new();
    first_key(&dir.data());
    let (code, report) = run_doctor(&dir.data(), &[]);
    assert_eq!((code, &report["healthy"]), (0, &json!(true)), "{report:#}");
    for check in [
        "data directory",
        "schema",
        "integrity",
        "audit log",
        "clock",
        "disk space",
        "listen address",
        "feeds",
    ] {
        assert_eq!(findings_of(&report, check, "ok").len(), 1, "{check}: {report:#}");
    }
    assert_eq!(findings_of(&report, "keys", "ok").len(), 2);
    for check in ["backup", "leader"] {
        assert!(
            findings_of(&report, check, "note")[0]["remedy"].is_string(),
            "{check}: {report:#}"
        );
    }
    let service = Running::start(&dir.data(), &[]);
    let listen = format!("listen = \"{}\"\n", service.address.strip_prefix("http://").unwrap());
    std::fs::write(dir.data().join("fleetmend.toml"), listen).unwrap();
    let backup = dir.0.join("acme.backup");
    let backup = ["backup", "--data-dir", dir.data().to_str().unwrap(), backup.to_str().unwrap()]
        .map(str::to_owned);
    let backup: Vec<&str> = backup.iter().map(String::as_str).collect();
    assert!(fleetmend(&backup).output().unwrap().status.success());
    // A service that has just started becomes the leader in a moment.
    let reported = loop {
        let (_, told) = run_doctor(&dir.data(), &[]);
        if !findings_of(&told, "leader", "ok").is_empty() {
            break told;
        }
    };
    assert_eq!(findings_of(&reported, "backup", "ok").len(), 1, "{reported:#}");
    assert!(findings_of(&reported, "service", "note").is_empty(), "{reported:#}");
}

#[tokio::test]
async fn postgres_gets_the_same_checks() {
    let Some(database) = Database::new().await else { return };
    let dir = Dir::new();
    let url = database.url.clone();
    let more = ["--database", url.as_str()];
    first_key_with(&dir.data(), &more);
    let (code, report) = run_doctor(&dir.data(), &more);
    assert_eq!((code, &report["healthy"]), (0, &json!(true)), "{report:#}");
    assert!(
        findings_of(&report, "schema", "ok")[0]["detail"].as_str().unwrap().starts_with("postgres")
    );
    database.remove().await;
    let (code, report) = run_doctor(&dir.data(), &more);
    assert_eq!(code, 1);
    assert_eq!(findings_of(&report, "database", "problem").len(), 1, "{report:#}");
}

#[test]
fn readable_files_and_missing_keys_are_found() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    set_mode(&data, 0o755);
    assert!(only_problem(&data, "data directory").contains("0755"));
    set_mode(&data, 0o700);
    set_mode(&data.join("orders.key"), 0o640);
    assert!(only_problem(&data, "keys").contains("orders.key"));
    std::fs::remove_file(data.join("orders.key")).unwrap();
    assert!(only_problem(&data, "keys").contains("orders.key"));
    let absent = dir.0.join("absent");
    assert!(only_problem(&absent, "data directory").contains("does not exist"));
}

#[test]
fn settings_address_certificate_and_backup_are_checked() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    let settings = |text: &str| std::fs::write(data.join("fleetmend.toml"), text).unwrap();
    settings("listne = \"x\"\n");
    assert!(only_problem(&data, "settings").contains("listne"));
    settings("listen = \"0.0.0.0:0\"\n");
    assert!(only_problem(&data, "listen address").contains("without TLS"));
    let (cert, private) = (dir.0.join("cert.pem"), dir.0.join("key.pem"));
    let key = rcgen::KeyPair::generate().unwrap();
    let mut wanted = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    wanted.not_after = rcgen::date_time_ymd(2024, 5, 6);
    wanted.not_before = rcgen::date_time_ymd(2024, 5, 5);
    std::fs::write(&cert, wanted.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&private, key.serialize_pem()).unwrap();
    settings(&format!("tls_cert = {cert:?}\ntls_key = {private:?}\nlisten = \"127.0.0.1:1\"\n"));
    assert!(only_problem(&data, "certificate").contains("expired at 2024-05-06"));
    settings("listen = \"127.0.0.1:1\"\n");
    let last = json!({"at": "2024-01-01T00:00:00Z", "file": "/srv/old.backup"});
    std::fs::write(data.join("last-backup.json"), last.to_string()).unwrap();
    assert!(only_problem(&data, "backup").contains("2024-01-01"));
}

#[tokio::test]
async fn newer_and_damaged_databases_are_found() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    let path = data.join("fleetmend.db");
    let by_hand = async |sql: &str| {
        let options = SqliteConnectOptions::new().filename(&path);
        let mut hand = SqliteConnection::connect_with(&options).await.unwrap();
        hand.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap();
        hand.close().await.unwrap();
    };
    by_hand(
        "insert into schema_migrations (version, name, checksum) values (9999, 'later', x'00')",
    )
    .await;
    let (code, report) = run_doctor(&data, &[]);
    assert_eq!(code, 1);
    assert_eq!(findings_of(&report, "database", "problem").len(), 1, "{report:#}");
    by_hand("delete from schema_migrations where version = 9999").await;
    let (named, unnamed) = ("set actor = 'nobody' || actor", "set actor = substr(actor, 7)");
    for (table, change, back, place) in [
        ("audit_entries", named, unnamed, "entry 1 "),
        ("audit_entries", "set seq = 7", "set seq = 1", "entry 1 "),
        ("audit_heads", "set seq = 2", "set seq = 1", "entry 2 "),
    ] {
        by_hand(&format!("update {table} {change}")).await;
        let reported = only_problem(&data, "audit log");
        assert!(reported.contains(place), "{reported}");
        by_hand(&format!("update {table} {back}")).await;
        assert_eq!(findings_of(&run_doctor(&data, &[]).1, "audit log", "ok").len(), 1);
    }
    by_hand("pragma foreign_keys = off; update api_keys set org_id = 'org_nobody'").await;
    assert!(only_problem(&data, "integrity").contains("refer to rows that do not exist"));
}

#[tokio::test]
async fn truncated_audit_log_is_found() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    let url = format!("sqlite:{}", data.join("fleetmend.db").display());
    let secrets = service::secrets::Secrets::load(&data).unwrap();
    let options = store::Options::new(url, service::commands::setup::seal(&secrets));
    let app = server::app::App::new(server::app::AppParts {
        db: store::Db::open(&options).await.unwrap(),
        clock: service::clock::Clock::system(),
        secrets,
        settings: server::app::Settings::default(),
    });
    service::audit_anchor::check(&app, &data).await.unwrap();
    app.db.close().await;
    assert_eq!(findings_of(&run_doctor(&data, &[]).1, "audit log", "ok").len(), 1);
    let hand = SqliteConnectOptions::new().filename(data.join("fleetmend.db"));
    let mut hand = SqliteConnection::connect_with(&hand).await.unwrap();
    hand.execute("delete from audit_entries").await.unwrap();
    hand.execute("update audit_heads set seq = 0, hash = x''").await.unwrap();
    hand.close().await.unwrap();
    assert!(only_problem(&data, "audit log").contains("entry 1 existed earlier"));
}

/// Two valid root keys are one more than needed: an unfinished rotation is a problem after 30 days.
#[tokio::test]
async fn unfinished_root_key_rotation_is_a_problem_after_30_days() {
    let dir = Dir::new();
    first_key(&dir.data());
    let data = dir.data();
    let rotate = ["secrets", "rotate", "root", "--data-dir", data.to_str().unwrap()];
    assert!(fleetmend(&rotate).output().unwrap().status.success());
    // Starting the service puts the new key into use.
    drop(Running::start(&dir.data(), &[]));
    let (code, report) = run_doctor(&dir.data(), &[]);
    assert_eq!((code, findings_of(&report, "root key", "ok").len()), (0, 1), "{report:#}");
    let options = SqliteConnectOptions::new().filename(dir.data().join("fleetmend.db"));
    let mut hand = SqliteConnection::connect_with(&options).await.unwrap();
    let day = 24 * 3600 * 1_000_000_i64;
    for (days, ends) in [(30, "ok"), (1, "problem")] {
        let back = sqlx::query("update root_keys set since = since - $1").bind(days * day);
        assert_eq!(back.execute(&mut hand).await.unwrap().rows_affected(), 1);
        let (_, report) = run_doctor(&dir.data(), &[]);
        assert_eq!(findings_of(&report, "root key", ends).len(), 1, "{days}: {report:#}");
    }
    let detail = only_problem(&dir.data(), "root key");
    assert!(detail.contains("both keys have been valid for 31 days"), "{detail}");
}

/// The service's settings are in its flags and in the unit's environment file, not only in
/// `fleetmend.toml`.
#[test]
fn settings_in_flags_and_environment_file_are_checked() {
    let dir = Dir::new();
    let data = dir.data();
    let (database, env_file) = (dir.0.join("elsewhere.db"), dir.0.join("server.env"));
    first_key_with(&data, &["--database", database.to_str().unwrap()]);
    let service = Running::start(&data, &["--database", database.to_str().unwrap()]);
    let address = service.address.strip_prefix("http://").unwrap().to_owned();
    let settings = "# Nothing listens here.\nlisten = \"127.0.0.1:1\"\n";
    std::fs::write(data.join("fleetmend.toml"), settings).unwrap();
    let variables = format!(
        "# The service.\nFLEETMEND_DATABASE=\"{}\"\nFLEETMEND_LISTEN={address}\n",
        database.display()
    );
    std::fs::write(&env_file, variables).unwrap();
    let env_file = env_file.to_str().unwrap();
    let sources = |report: &Value| {
        let found = findings_of(report, "settings", "ok");
        assert_eq!(found.len(), 1, "{report:#}");
        found[0]["detail"].as_str().unwrap().to_owned()
    };

    // Without more, doctor finds the flags of the process. Port 0 is not an address.
    let process = format!("flags of the running service (process {})", service.child.id());
    let (code, report) = run_doctor(&data, &[]);
    assert_eq!((code, findings_of(&report, "service", "note").len()), (0, 1), "{report:#}");
    assert!(sources(&report).contains(&format!("database: {process}, listen: ")), "{report:#}");
    assert!(sources(&report).contains("fleetmend.toml, tls_cert: not set"), "{report:#}");

    let (code, report) = run_doctor(&data, &["--env-file", env_file]);
    assert_eq!((code, findings_of(&report, "service", "note").len()), (0, 0), "{report:#}");
    let expected = format!("database: {process}, listen: {env_file}, tls_cert: not set");
    assert!(sources(&report).starts_with(&expected), "{report:#}");

    let flags = ["--database", database.to_str().unwrap(), "--listen", &address];
    let (code, report) = run_doctor(&data, &flags);
    assert_eq!((code, findings_of(&report, "service", "note").len()), (0, 0), "{report:#}");
    assert!(sources(&report).contains("listen: --listen or FLEETMEND_LISTEN"), "{report:#}");

    let public = ["--env-file", env_file, "--listen", "0.0.0.0:0"];
    let (code, report) = run_doctor(&data, &public);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(findings_of(&report, "listen address", "problem").len(), 1, "{report:#}");

    // Without the process, the environment file counts; without both, there is no such database.
    drop(service);
    let (code, report) = run_doctor(&data, &["--env-file", env_file]);
    assert_eq!(code, 0, "{report:#}");
    let expected = format!("database: {env_file}, listen: {env_file}, tls_cert: not set");
    assert!(sources(&report).starts_with(&expected), "{report:#}");
    let (code, report) = run_doctor(&data, &[]);
    assert_eq!(code, 1, "{report:#}");
    assert!(sources(&report).contains("database: not set"), "{report:#}");
    let service = Running::start(&data, &["--database", database.to_str().unwrap()]);
    let address = service.address.strip_prefix("http://").unwrap();

    let other = dir.0.join("other.toml");
    std::fs::write(&other, format!("listen = {address:?}\ndatabase = {database:?}\n")).unwrap();
    let (code, report) = run_doctor(&data, &["--config", other.to_str().unwrap()]);
    assert_eq!((code, findings_of(&report, "service", "note").len()), (0, 0), "{report:#}");
    assert!(sources(&report).contains("other.toml"), "{report:#}");

    let (code, report) = run_doctor(&data, &["--env-file", "absent.env"]);
    assert_eq!(code, 1, "{report:#}");
    assert!(
        findings_of(&report, "settings", "problem")[0]["detail"]
            .as_str()
            .unwrap()
            .contains("absent.env")
    );
}

/// Something listens at the service's address, and the process is hidden or has unknown flags.
#[test]
fn unknown_flags_of_the_running_service_are_noted() {
    use std::os::unix::process::CommandExt as _;
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    let noted = |more: &[&str]| {
        let (code, report) = run_doctor(&data, more);
        assert_eq!(code, 0, "{report:#}");
        let notes = findings_of(&report, "settings", "note");
        let details = notes.iter().map(|note| {
            assert!(note["remedy"].as_str().unwrap().contains("pass the flags"), "{note}");
            note["detail"].as_str().unwrap().to_owned()
        });
        details.collect::<Vec<_>>()
    };
    assert_eq!(noted(&["--listen", "127.0.0.1:1"]), [""; 0]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let [detail] = &noted(&["--listen", &address])[..] else { panic!("one note") };
    assert!(detail.contains("no process of a service with this data directory"), "{detail}");

    // A shell that runs the script `server`, under the name of our program.
    std::fs::write(dir.0.join("server"), "read line\n").unwrap();
    let mut later = std::process::Command::new("/bin/sh");
    later.arg0("fleetmend").args(["server", "--data-dir"]).arg(&data).arg("--later");
    let mut later = later.current_dir(&dir.0).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let [detail] = &noted(&["--listen", "127.0.0.1:1"])[..] else { panic!("one note") };
    let expected = format!("(process {}): unexpected argument '--later'", later.id());
    assert!(detail.contains(&expected), "{detail}");
    drop(later.stdin.take());
    later.wait().unwrap();
}

/// A missing feed is a problem only where the service should have imported it.
#[tokio::test(flavor = "multi_thread")]
async fn missing_feed_is_a_note_in_manual_and_offline_mode() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let data = dir.data();
    let key = first_key(&data);
    let service = Running::start(&data, &["--feeds", "manual"]);
    let operator = Operator::new(&service.address, &key);
    let fleet = operator.fleet(6, slow_agents).await;
    let uncovered = |more: &[&str], state: &str, remedy: &str| {
        let (code, report) = run_doctor(&data, more);
        assert_eq!(code, i32::from(state == "problem"), "{more:?}: {report:#}");
        let found = findings_of(&report, "feeds", state);
        let debian = found.iter().find(|one| one["remedy"].as_str().unwrap().contains(remedy));
        let debian = debian.unwrap_or_else(|| panic!("{more:?}: {report:#}"));
        assert!(debian["detail"].as_str().unwrap().contains("no imported feed covers"), "{debian}");
        let settings = findings_of(&report, "settings", "ok")[0]["detail"].as_str().unwrap();
        settings.to_owned()
    };
    // The flags of the running service.
    let add = "run `fleetmend feeds add 'Debian'`";
    let settings = uncovered(&[], "note", add);
    assert!(settings.contains("feeds: flags of the running service"), "{settings}");
    let settings = uncovered(&["--feeds", "auto"], "problem", add);
    assert!(settings.contains("feeds: --feeds or FLEETMEND_FEEDS"), "{settings}");
    uncovered(&["--offline"], "note", "the service is offline");
    fleet.stop().await;
    drop(service);

    uncovered(&[], "problem", add);
    let file = dir.0.join("server.env");
    let env_file = ["--env-file", file.to_str().unwrap()];
    for (variables, remedy) in [
        ("FLEETMEND_FEEDS=manual\n", add),
        ("FLEETMEND_OFFLINE=yes\nFLEETMEND_FEED_MIRROR=https://m\n", "the service is offline"),
    ] {
        std::fs::write(&file, variables).unwrap();
        let settings = uncovered(&env_file, "note", remedy);
        let name = variables.split_once('=').unwrap().0.trim_start_matches("FLEETMEND_");
        let expected = format!("{}: {}", name.to_lowercase(), file.display());
        assert!(settings.contains(&expected), "{settings}");
    }
    std::fs::write(&file, "FLEETMEND_FEEDS=never\n").unwrap();
    let (_, report) = run_doctor(&data, &env_file);
    let problems = findings_of(&report, "settings", "problem");
    assert!(problems[0]["detail"].as_str().unwrap().contains("(got \"never\")"), "{report:#}");
    std::fs::write(data.join("fleetmend.toml"), "feeds = \"manual\"\n").unwrap();
    uncovered(&[], "note", add);
}
