//! `migrate --to`: a database is copied to the other engine during a batch, copies are interrupted,
//! and targets are refused.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr as _;
use std::sync::mpsc;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions as _, Connection as _};
use swarm::behavior::Script;

use crate::backup::{run_ok, run_refused, text};
use crate::database::Database;
use crate::doctor::run_doctor;
use crate::operator::Operator;
use crate::support::{Dir, Running, first_key, fleetmend};
use crate::terminal::Cli;
use crate::whole_machine::fleet::{allow_files, slow_agents};

const SERVERS: usize = 20;
const MAX_PARALLEL: usize = 4;
/// Agents that hang in a reboot while the database is copied, first to PostgreSQL, then back: as
/// many as may run in parallel.
const HANGING: [std::ops::Range<usize>; 2] = [6..10, 14..18];

/// Stops a service, copies its database, and checks the result.
fn move_database(service: &mut Running, data: &Path, to: &str) {
    let migrate = ["migrate", "--data-dir", text(data), "--to", to, "--switch", "--json"];
    let refused = run_refused(&migrate);
    assert!(refused.contains("a service is using this database"), "{refused}");
    service.signal(Signal::SIGTERM);
    assert!(service.ended_well());

    let mut plan = migrate.to_vec();
    plan.push("--dry-run");
    let planned: Value = serde_json::from_str(&run_ok(&plan)).unwrap();
    let file = data.join("fleetmend.db");
    let before = std::fs::read(&file).unwrap();
    let copied: Value = serde_json::from_str(&run_ok(&migrate)).unwrap();
    assert!(std::fs::read(&file).unwrap() == before, "the copy changed its source");
    assert_eq!((&planned["rows"], &planned["dry_run"]), (&copied["rows"], &json!(true)));
    assert_eq!(copied["switched"], true);
    for table in ["servers", "rollout_tasks", "audit_entries", "events", "package_sets"] {
        let tables = copied["tables"].as_array().unwrap();
        let found = tables.iter().find(|content| content["table"] == table).unwrap();
        assert!(found["rows"].as_u64() > Some(0), "{table}");
    }
    let settings = data.join("fleetmend.toml");
    let written = std::fs::read_to_string(&settings).unwrap();
    assert_eq!(written, format!("database = {}\nrequests_burst = 3000\n", json!(to)));
    let mode = std::fs::metadata(&settings).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640, "{mode:o}");
    assert_doctor_finds_no_problem(data);
}

/// The simulated fleet has no feeds, which doctor also reports.
#[track_caller]
fn assert_doctor_finds_no_problem(data: &Path) {
    let (_, report) = run_doctor(data, &[]);
    let findings = report["findings"].as_array().unwrap().iter();
    let problems = findings.filter(|one| one["state"] == "problem" && one["check"] != "feeds");
    assert_eq!(problems.count(), 0, "{report}");
}

/// The batch is in the middle each time: the agents continue with the service on the other engine.
#[tokio::test(flavor = "multi_thread")]
async fn batch_continues_on_postgres_and_back_on_sqlite() {
    let Some(database) = Database::new().await else { return };
    let _ = rustls::crypto::ring::default_provider().install_default();
    allow_files();
    let dir = Dir::new();
    let data = dir.data();
    let key = first_key(&data);
    let settings = data.join("fleetmend.toml");
    std::fs::write(&settings, "requests_burst = 3000\n").unwrap();
    std::fs::set_permissions(&settings, std::fs::Permissions::from_mode(0o640)).unwrap();
    let mut service = Running::start(&data, &[]);
    let operator = Operator::new(&service.address, &key);
    let fleet = operator.fleet(SERVERS as u64, slow_agents).await;
    for range in HANGING {
        range.for_each(|agent| fleet.script(agent, Script::HangInReboot));
    }
    let pace = json!({"max_parallel": MAX_PARALLEL, "reboot": "always"});
    let batch = operator.orders(&fleet, 0..SERVERS, pace).await;
    let back = dir.0.join("back.db");
    let places = [database.url.clone(), format!("sqlite:{}", text(&back))];
    let listen = service.address.strip_prefix("http://").unwrap().to_owned();
    for (to, hanging) in places.iter().zip(HANGING) {
        let under_way = |seen: &Value| {
            let count = |state: &str| seen["progress"][state].as_u64().unwrap() as usize;
            (count("succeeded"), count("rebooting")) == (hanging.start, hanging.len())
        };
        operator.until(&batch, under_way).await;
        move_database(&mut service, &data, to);
        service = Running::at(&listen, &data, &[]);
        operator.until(&batch, under_way).await;
        hanging.for_each(|agent| fleet.script(agent, Script::Random));
    }
    operator.until_ended(&batch).await;
    let views = operator.batch_views(&fleet, &batch).await;
    views.assert_all_finished(SERVERS);
    assert_eq!(views.count("succeeded"), SERVERS);
    assert!(views.most_at_once() <= MAX_PARALLEL, "{} at once", views.most_at_once());
    let violations = fleet.ledger().violations();
    assert!(violations.is_empty(), "{violations:?}");
    for server in operator.all("/v1/servers").await {
        assert!(server["quarantine"].is_null(), "{server}");
    }
    // The first database continues from where it was, for those who go back to it.
    let cli = Cli { url: service.address.clone(), key };
    cli.run_ok(&["batches", "list"]);
    assert_doctor_finds_no_problem(&data);
    fleet.stop().await;
    drop(service);
    database.remove().await;
}

/// Forwards connections to PostgreSQL until a client sends `stop_at`; that never arrives. Returns
/// the address of the database through the proxy, and when it stopped.
fn stalling_proxy(url: &str, stop_at: &'static str) -> (String, mpsc::Receiver<()>) {
    let database = PgConnectOptions::from_str(url).unwrap();
    let name = format!(".s.PGSQL.{}", database.get_port());
    let socket = database.get_socket().expect("tests use a socket").join(name);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(listener.local_addr().unwrap().port())
        .username(database.get_username())
        .database(database.get_database().unwrap())
        .ssl_mode(PgSslMode::Disable);
    let (stopped, stops) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&socket).unwrap());
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
            });
            let stopped = stopped.clone();
            std::thread::spawn(move || forward_until(client, server, stop_at, &stopped));
        }
    });
    (through.to_url_lossy().to_string(), stops)
}

fn forward_until(
    mut client: TcpStream,
    mut server: UnixStream,
    stop_at: &str,
    stopped: &mpsc::Sender<()>,
) {
    let mut piece = vec![0; 1 << 16];
    loop {
        let length = client.read(&mut piece).unwrap_or(0);
        let sent = &piece[..length];
        if length == 0 {
            break;
        }
        if sent.windows(stop_at.len()).any(|found| found == stop_at.as_bytes()) {
            let _ = stopped.send(());
            // The client waits until it is killed.
            let _ = client.read(&mut piece);
            break;
        }
        server.write_all(sent).unwrap();
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// Starts a copy, and kills it when the proxy has stopped.
fn kill_at(args: &[&str], stops: &mpsc::Receiver<()>) {
    let mut child = fleetmend(args).spawn().unwrap();
    stops.recv().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

async fn count_tables(url: &str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let text = "select count(*) from pg_tables where schemaname = 'public'";
    sqlx::query_scalar(text).fetch_one(&mut connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_copy_to_postgres_is_repeated() {
    let Some(database) = Database::new().await else { return };
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    // The tables of another program stay.
    let mut other = PgConnection::connect(&database.url).await.unwrap();
    sqlx::query("create table theirs (x int)").execute(&mut other).await.unwrap();
    let (through, stops) = stalling_proxy(&database.url, "copy rollout_tasks (");
    let migrate = |to: &str| ["migrate", "--data-dir", text(&data), "--to", to].map(str::to_owned);
    let args = migrate(&through);
    kill_at(&args.each_ref().map(String::as_str), &stops);
    assert_eq!(count_tables(&database.url).await, 1);
    let args = migrate(&database.url);
    let copied = run_ok(&args.each_ref().map(String::as_str));
    assert!(copied.contains("Every table was compared"), "{copied}");
    assert!(count_tables(&database.url).await > 40);
    // A finished copy is not repeated.
    let refused = run_refused(&args.each_ref().map(String::as_str));
    assert!(refused.contains("the target database already has Fleetmend's tables"), "{refused}");
    let (code, report) = run_doctor(&data, &["--database", &database.url]);
    assert_eq!(code, 0, "{report}");
    drop(other);
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_copy_to_sqlite_is_repeated() {
    let Some(database) = Database::new().await else { return };
    let dir = Dir::new();
    let data = dir.data();
    crate::support::first_key_with(&data, &["--database", &database.url]);
    let target = dir.0.join("new.db");
    let to = format!("sqlite:{}", text(&target));
    let (through, stops) = stalling_proxy(&database.url, "from rollout_tasks order by");
    let migrate = ["migrate", "--data-dir", text(&data), "--to", &to];
    kill_at(&[&migrate[..], &["--database", &through]].concat(), &stops);
    let unfinished = dir.0.join("new.db.unfinished");
    assert!(unfinished.exists() && !target.exists());
    let copied = run_ok(&[&migrate[..], &["--database", &database.url]].concat());
    assert!(copied.contains("Every table was compared"), "{copied}");
    assert!(!unfinished.exists());
    let mode = std::fs::metadata(&target).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
    let (code, report) = run_doctor(&data, &["--database", &to]);
    assert_eq!(code, 0, "{report}");
    database.remove().await;
}

#[test]
fn targets_that_are_not_new_are_refused() {
    let dir = Dir::new();
    let data = dir.data();
    first_key(&data);
    let migrate = |more: &[&str]| {
        let args = [&["migrate", "--data-dir", text(&data)], more].concat();
        let done = fleetmend(&args).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let own = format!("sqlite:{}", text(&data.join("fleetmend.db")));
    let new = format!("sqlite:{}", text(&dir.0.join("new.db")));
    let nowhere = format!("sqlite:{}", text(&dir.0.join("nowhere/new.db")));
    for (args, code, reason) in [
        (&["--to", &own][..], 1, "already exists and was not changed"),
        (&["--to", &nowhere], 1, "does not exist: create it first"),
        (&["--to", "mysql://db/x"], 1, "--to must be postgres://"),
        (&["--switch"], 2, "--to"),
        (&["--to", &new, "--switch", "--database", &own], 1, "leave out --switch"),
    ] {
        let (found, output) = migrate(args);
        assert_eq!(found, Some(code), "{args:?}: {output}");
        assert!(output.contains(reason), "{args:?}: {output}");
    }
    std::os::unix::fs::symlink("/dev/null", dir.0.join("new.db.unfinished")).unwrap();
    let (code, output) = migrate(&["--to", &new]);
    assert_eq!(code, Some(1));
    assert!(output.contains("is a symbolic link"), "{output}");
    std::fs::remove_file(dir.0.join("new.db.unfinished")).unwrap();
    let left = || {
        let names = std::fs::read_dir(&dir.0).unwrap().map(|found| found.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(left(), ["data"]);
    // Nothing is written for a plan, either.
    run_ok(&["migrate", "--data-dir", text(&data), "--to", &new, "--dry-run"]);
    assert_eq!(left(), ["data"]);
}

/// Files that belong to root could not be opened by the service.
#[test]
fn root_copies_with_the_rights_of_the_owner() {
    const OWNER: u32 = 65_534;
    let dir = Dir::new();
    if dir.0.metadata().unwrap().uid() != 0 {
        println!("skipped: only root can copy for another user");
        return;
    }
    let data = dir.data();
    first_key(&data);
    let files = || std::fs::read_dir(&data).unwrap().map(|found| found.unwrap().path());
    files().chain([data.clone()]).for_each(|path| chown(path, Some(OWNER), Some(OWNER)).unwrap());
    let to = format!("sqlite:{}", text(&data.join("new.db")));
    run_ok(&["migrate", "--data-dir", text(&data), "--to", &to, "--switch"]);
    assert!(data.join("new.db").exists() && data.join("fleetmend.toml").exists());
    for path in files() {
        assert_eq!(path.metadata().unwrap().uid(), OWNER, "{}", path.display());
    }
}
