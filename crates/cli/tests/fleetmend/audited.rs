//! Every command on the installation that changes something leaves an entry in the audit log; and
//! `fleetmend audit` with a real service.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, Executor as _, Row as _, SqliteConnection};

use crate::feeds::{ADVISORY, publisher};
use crate::local_commands::installation_commands;
use crate::support::{Dir, Running, first_key, fleetmend};
use crate::terminal::{CommandOutput, command_output};

/// Commands that change nothing in the database.
const READ_ONLY: &[(&str, &str)] = &[
    ("backup", "reads the database"),
    ("completions", "prints text"),
    ("demo", "a demonstration with invented data, in its own directory"),
    ("dev", "runs the service; what it creates has the entries of `init`"),
    ("doctor", "reads the database"),
    ("feeds add", "uses the API, which writes the entry"),
    ("feeds export", "reads the database"),
    ("feeds key", "reads a file"),
    ("feeds status", "reads the database"),
    ("health", "asks the service"),
    ("man", "writes manual pages"),
    ("openapi", "prints text"),
    ("orgs list", "reads the database"),
    ("secrets list", "reads the database"),
    ("server", "runs the service"),
    ("users list", "reads the database"),
];

async fn connect(data: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(data.join("fleetmend.db"));
    SqliteConnection::connect_with(&options).await.unwrap()
}

/// The number of entries with each action, in all organizations.
async fn actions(data: &Path) -> BTreeMap<String, i64> {
    let mut by_hand = connect(data).await;
    let query = "select action, count(*) from audit_entries group by action";
    let rows = by_hand.fetch_all(query).await.unwrap();
    by_hand.close().await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn run(args: &[&str]) -> CommandOutput {
    command_output(fleetmend(args).output().unwrap())
}

/// Runs a command on the installation in `dir`, which trusts the publisher there.
fn run_local(dir: &Dir, command: &str, args: &[&str]) -> CommandOutput {
    let data = dir.data();
    let words: Vec<&str> = command.split(' ').collect();
    let mut command = fleetmend(&[&words, args, &["--data-dir", data.to_str().unwrap()]].concat());
    command.env("SSL_CERT_FILE", dir.0.join("authority.pem"));
    command_output(command.output().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_local_command_that_writes_leaves_an_audit_entry() {
    let dir = Dir::new();
    let (data, file) = (dir.data(), dir.0.join("Alma.json"));
    std::fs::write(&file, ADVISORY).unwrap();
    let (file, backup) = (file.to_str().unwrap(), dir.0.join("a.backup"));
    let (restored, moved) = (dir.0.join("restored"), dir.0.join("moved.db"));
    let moved = format!("sqlite:{}", moved.display());
    first_key(&data);
    let (url, served) = publisher(&dir.0, 2);
    let mut tried = BTreeSet::from(["init".to_owned()]);
    assert!(actions(&data).await.contains_key("organization.create"), "init");
    for (command, args, action) in [
        ("users create", &["ann"][..], "user.create"),
        ("users reset", &["ann"], "user.reset"),
        ("orgs create", &["Labs"], "organization.create"),
        ("orgs remove", &["Labs", "--yes"], "organization.remove"),
        ("secrets rotate", &["orders"], "secrets.rotate"),
        ("secrets retire", &["orders"], "secrets.retire"),
        ("feeds import", &[file], "feed.import"),
        ("feeds import", &[&url], "feed.import"),
        ("feeds update", &[], "feed.update"),
        ("feeds forget", &["Debian"], "feed.forget"),
        ("feeds remove", &["Debian", "--yes"], "feed.remove"),
    ] {
        let before = actions(&data).await.remove(action).unwrap_or(0);
        let output = run_local(&dir, command, args);
        assert_eq!(output.code, 0, "{command}: {}", output.err);
        let after = actions(&data).await.remove(action).unwrap_or(0);
        assert!(after > before, "{command} leaves no entry `{action}`");
        tried.insert(command.to_owned());
    }
    served.join().unwrap();

    let (data_text, backup) = (data.to_str().unwrap(), backup.to_str().unwrap());
    assert_eq!(run(&["backup", "--data-dir", data_text, backup]).code, 0);
    let output = run(&["restore", backup, "--data-dir", restored.to_str().unwrap()]);
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(actions(&restored).await.contains_key("installation.restore"), "restore");
    tried.insert("restore".to_owned());
    let output = run(&["migrate", "--data-dir", restored.to_str().unwrap(), "--to", &moved]);
    assert_eq!(output.code, 0, "{}", output.err);
    std::fs::create_dir(dir.0.join("moved")).unwrap();
    std::fs::rename(dir.0.join("moved.db"), dir.0.join("moved/fleetmend.db")).unwrap();
    let found = actions(&dir.0.join("moved")).await;
    assert!(found.contains_key("installation.migrate"), "migrate: {found:?}");
    tried.insert("migrate".to_owned());

    let read_only = READ_ONLY.iter().map(|(command, _)| (*command).to_owned());
    let known: BTreeSet<String> = tried.into_iter().chain(read_only).collect();
    assert_eq!(known, installation_commands(), "a new command needs a step here, or a reason");
}

/// `audit` on a running service, with a log that someone changes in the database.
#[tokio::test(flavor = "multi_thread")]
async fn audit_log_is_listed_exported_and_verified() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let data = dir.data();
    let created = run(&["users", "create", "=ann", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(created.code, 0, "{}", created.err);
    let service = Running::start(&data, &[]);
    let audit = |args: &[&str]| {
        let mut command = fleetmend(&[&["audit"], args].concat());
        command.env("FLEETMEND_URL", &service.address).env("FLEETMEND_API_KEY", &key);
        command_output(command.output().unwrap())
    };
    let listed = audit(&["list", "--action", "user.*"]);
    assert!(listed.code == 0 && listed.out.contains("user.create"), "{listed:?}");
    assert!(!listed.out.contains("organization.create"), "{listed:?}");
    let listed = audit(&["list", "--limit", "1"]);
    assert!(listed.out.contains("user.create"), "{listed:?}");
    assert!(listed.err.contains("use --before "), "{listed:?}");
    let wrong = audit(&["list", "--action", "user.dance"]);
    assert!(wrong.code == 1 && wrong.err.contains("not an action"), "{wrong:?}");

    let printed = audit(&["export"]);
    assert!(printed.code == 0 && printed.out.contains("'=ann"), "{printed:?}");
    let file = dir.0.join("audit.csv");
    let written = audit(&["export", "--output", file.to_str().unwrap()]);
    assert_eq!(written.code, 0, "{}", written.err);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed.out);
    assert!(!dir.0.join("audit.csv.part").exists());
    let lines = audit(&["export", "--json"]).out;
    let entries: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), printed.out.lines().count() - 1);
    assert_eq!(entries[0]["action"], "user.create");
    let nowhere = audit(&["export", "--output", "/nowhere/audit.csv"]);
    assert!(nowhere.code == 1 && nowhere.err.contains("cannot write /nowhere"), "{nowhere:?}");

    let intact = audit(&["verify", "--json"]);
    assert_eq!(intact.code, 0, "{}", intact.err);
    let intact: Value = serde_json::from_str(&intact.out).unwrap();
    assert_eq!((&intact["valid"], &intact["complete"]), (&Value::Bool(true), &Value::Bool(true)));
    let shown = audit(&["verify"]);
    assert!(shown.out.contains("entries are intact"), "{shown:?}");

    let mut by_hand = connect(&data).await;
    by_hand.execute("update audit_entries set actor = 'someone else' where seq = 2").await.unwrap();
    by_hand.close().await.unwrap();
    let changed = audit(&["verify", "--json"]);
    assert!(changed.code == 1 && changed.err.contains("the audit log was changed"), "{changed:?}");
    let changed: Value = serde_json::from_str(&changed.out).unwrap();
    assert_eq!(changed["first_invalid"], 2, "{changed}");
}
