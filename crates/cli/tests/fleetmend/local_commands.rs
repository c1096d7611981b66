//! Snapshots of every command that works on the installation itself: on a terminal, in a pipe, with
//! `--json`, and when it fails.
//!
//! Commands that use the API are in `operator_commands`.

mod normalize;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::dev::{installed_package_count, isolate_network};
use crate::doctor::{findings_of, run_doctor};
use crate::feeds::{ADVISORY, publisher};
use crate::operator_commands::{GROUPS, all_commands};
use crate::support::{Dir, Running, first_key, fleetmend};
use crate::terminal::{CommandOutput, command_output, run_in_pty};
use normalize::{normalize_json, normalize_text};

const WIDTH: u16 = 120;

/// Runs commands and records their output.
struct SnapshotRecorder {
    dir: Dir,
    tried: BTreeSet<String>,
    log: String,
}

impl SnapshotRecorder {
    fn new() -> SnapshotRecorder {
        SnapshotRecorder { dir: Dir::new(), tried: BTreeSet::new(), log: String::new() }
    }

    /// A path below this test's directory.
    fn at(&self, name: &str) -> String {
        self.dir.0.join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = fleetmend(args);
        command.env("SSL_CERT_FILE", self.at("authority.pem")).env("HOME", self.at("home"));
        command
    }

    /// Runs a command on a terminal, in a pipe and with `--json`, each time for another target,
    /// which replaces `{}`.
    fn run_all_forms(&mut self, args: &[&str], to: [&str; 3]) {
        self.run_on_terminal(&fill_target(args, to[0]), "", 0);
        self.run_piped(&fill_target(args, to[1]), 0);
        self.run_json(&fill_target(args, to[2]), 0);
    }

    /// Runs a command that only reads or can be repeated in all three modes.
    fn run_read_only(&mut self, args: &[&str]) {
        self.run_all_forms(args, [""; 3]);
    }

    /// Runs a command that must fail with an error message.
    fn run_failing(&mut self, args: &[&str]) {
        self.run_on_terminal(args, "", 1);
        self.run_piped(args, 1);
    }

    fn run_on_terminal(&mut self, args: &[&str], keys: &str, code: i32) {
        let output = run_in_pty(self.command(args), WIDTH, keys, |_, _| {});
        self.record("on a terminal", args, &output, code);
    }

    fn run_piped(&mut self, args: &[&str], code: i32) {
        let output = command_output(self.command(args).output().unwrap());
        assert!(
            code == 0 || args[0] == "doctor" || output.out.is_empty(),
            "{args:?}: {}",
            output.out
        );
        self.record("in a pipe", args, &output, code);
    }

    fn run_json(&mut self, args: &[&str], code: i32) {
        let args = [args, &["--json"]].concat();
        let mut output = command_output(self.command(&args).output().unwrap());
        let lines = output.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines =
            lines.map(|value| serde_json::to_string_pretty(&normalize_json(value)).unwrap());
        output.out = lines.map(|line| line + "\n").collect();
        self.record("JSON", &args, &output, code);
    }

    fn record(&mut self, how: &str, args: &[&str], output: &CommandOutput, code: i32) {
        assert_eq!(output.code, code, "{args:?}: {}{}", output.out, output.err);
        let words = args.iter().take_while(|word| !word.starts_with(['-', '/'])).take(2);
        let words = words.copied().collect::<Vec<_>>();
        let group = ["orgs", "secrets", "users", "feeds"].contains(&words[0]);
        self.tried.insert(words[..if group { 2 } else { 1 }].join(" "));
        let settled = |text: &str| normalize_text(text, &self.dir.0);
        let end = if code == 0 { String::new() } else { format!(", exit code {code}") };
        let command = settled(&args.join(" "));
        writeln!(self.log, "$ fleetmend {} ({how}{end})", command.trim_end()).unwrap();
        self.log += &settled(&output.out);
        if !output.err.is_empty() {
            write!(self.log, "[stderr]\n{}", settled(&output.err)).unwrap();
        }
        self.log.push('\n');
    }

    fn take_log(&mut self) -> String {
        std::mem::take(&mut self.log)
    }
}

fn fill_target<'a>(args: &[&'a str], whom: &'a str) -> Vec<&'a str> {
    args.iter().map(|arg| if *arg == "{}" { whom } else { arg }).collect()
}

/// Signals a command once it has printed this text, and only once: a second signal ends it
/// immediately.
fn signal_after<'a>(last: &'a str, signal: Signal) -> impl Fn(&Child, &str) + 'a {
    let prompted = Cell::new(false);
    move |child, seen| {
        if seen.contains(last) && !prompted.replace(true) {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        }
    }
}

/// The commands that work on the installation: all except the operator commands.
pub(crate) fn installation_commands() -> BTreeSet<String> {
    let asks = |command: &String| {
        let first = command.split(' ').next().unwrap();
        GROUPS.contains(&first) || ["summary", "explain", "forecast"].contains(&first)
    };
    all_commands().into_iter().filter(|command| !asks(command)).collect()
}

#[test]
fn installation_commands_match_snapshots() {
    let mut recorder = SnapshotRecorder::new();
    init(&mut recorder);
    insta::assert_snapshot!("init", recorder.take_log());
    users_and_orgs(&mut recorder);
    insta::assert_snapshot!("users_and_orgs", recorder.take_log());
    secrets(&mut recorder);
    // The width of the column depends on how long ago a key was created.
    let mut log = recorder.take_log();
    while log.contains("CREATED   ") {
        log = log.replace("CREATED   ", "CREATED  ");
    }
    insta::assert_snapshot!("secrets", log);
    feeds(&mut recorder);
    insta::assert_snapshot!("feeds", recorder.take_log());
    backup_restore_migrate_doctor(&mut recorder);
    insta::assert_snapshot!("backup_restore_migrate_doctor", recorder.take_log());
    openapi_completions_man(&mut recorder);
    insta::assert_snapshot!("openapi_completions_man", recorder.take_log());
    server(&mut recorder);
    insta::assert_snapshot!("server", recorder.take_log());
    let here = installation_commands();
    assert!(here.len() > 15, "{here:?}");
    let forgotten: Vec<&String> = here.difference(&recorder.tried).collect();
    // Two run until stopped, and have their own tests below. `feeds add` uses the API.
    assert_eq!(forgotten, ["demo", "dev", "feeds add"]);
}

fn init(recorder: &mut SnapshotRecorder) {
    let [one, two, three] = ["one", "two", "three"].map(|name| recorder.at(name));
    recorder.run_all_forms(&["init", "--org", "Acme", "--data-dir", "{}"], [&one, &two, &three]);
    recorder.run_failing(&["init", "--org", "Other", "--data-dir", &one]);
    recorder.run_failing(&["init", "--org", " ", "--data-dir", &recorder.at("four")]);
    let file = recorder.at("file");
    std::fs::write(&file, "").unwrap();
    recorder.run_failing(&["init", "--org", "Acme", "--data-dir", &file]);
}

fn users_and_orgs(recorder: &mut SnapshotRecorder) {
    let data = recorder.at("one");
    recorder.run_read_only(&["users", "list", "--data-dir", &data]);
    let url = ["--url", "https://fleet.example"];
    let names = ["ann@example.org", "bob@example.org", "eve@example.org"];
    recorder.run_all_forms(
        &[&["users", "create", "{}", "--data-dir", &data], &url[..]].concat(),
        names,
    );
    recorder.run_all_forms(&["users", "reset", "{}", "--data-dir", &data], names);
    recorder.run_read_only(&["users", "list", "--data-dir", &data]);
    recorder.run_failing(&["users", "create", "ANN@example.org", "--data-dir", &data]);
    recorder.run_failing(&["users", "create", " ", "--data-dir", &data]);
    recorder.run_failing(&["users", "reset", "unknown", "--data-dir", &data]);
    recorder
        .run_all_forms(&["orgs", "create", "{}", "--data-dir", &data], ["Labs", "Shop", "Bank"]);
    recorder.run_read_only(&["orgs", "list", "--data-dir", &data]);
    recorder.run_failing(&["orgs", "create", "Labs", "--data-dir", &data]);
    recorder.run_failing(&["users", "create", "dan@example.org", "--data-dir", &data]);
    recorder.run_failing(&[
        "users",
        "create",
        "dan@example.org",
        "--org",
        "Nobody",
        "--data-dir",
        &data,
    ]);
    let remove = ["orgs", "remove", "--data-dir", &data];
    recorder.run_on_terminal(&[&remove[..], &["Labs"]].concat(), "n\n", 1);
    recorder.run_on_terminal(&[&remove[..], &["Labs"]].concat(), "y\n", 0);
    recorder.run_piped(&[&remove[..], &["Shop"]].concat(), 2);
    recorder.run_piped(&[&remove[..], &["Shop", "--yes"]].concat(), 0);
    recorder.run_json(&[&remove[..], &["Bank", "--yes"]].concat(), 0);
    recorder.run_failing(&["orgs", "remove", "--yes", "Nobody", "--data-dir", &data]);
}

fn secrets(recorder: &mut SnapshotRecorder) {
    let [one, two, three] = ["one", "two", "three"].map(|name| recorder.at(name));
    recorder.run_read_only(&["secrets", "list", "--data-dir", &one]);
    recorder.run_failing(&["secrets", "retire", "orders", "--data-dir", &one]);
    recorder
        .run_all_forms(&["secrets", "rotate", "orders", "--data-dir", "{}"], [&one, &two, &three]);
    recorder.run_failing(&["secrets", "rotate", "orders", "--data-dir", &one]);
    recorder.run_read_only(&["secrets", "list", "--data-dir", &one]);
    recorder
        .run_all_forms(&["secrets", "retire", "orders", "--data-dir", "{}"], [&one, &two, &three]);
    recorder.run_failing(&["secrets", "retire", "root", "--data-dir", &one]);
    recorder
        .run_all_forms(&["secrets", "rotate", "root", "--data-dir", "{}"], [&one, &two, &three]);
    recorder.run_failing(&["secrets", "rotate", "root", "--data-dir", &one]);
    recorder.run_read_only(&["secrets", "list", "--data-dir", &one]);
    recorder.run_failing(&["secrets", "retire", "root", "--data-dir", &one]);
    recorder.run_piped(&["secrets", "rotate", "tls", "--data-dir", &one], 2);
}

fn feeds(recorder: &mut SnapshotRecorder) {
    let data = recorder.at("one");
    recorder.run_read_only(&["feeds", "status", "--data-dir", &data]);
    recorder.run_on_terminal(&["feeds", "update", "--data-dir", &data], "", 0);
    recorder.run_piped(&["feeds", "update", "--data-dir", &data], 0);
    let (file, cut, bundle) =
        (recorder.at("Alma.json"), recorder.at("Cut.json"), recorder.at("feeds.zst"));
    std::fs::write(&file, ADVISORY).unwrap();
    std::fs::write(&cut, &ADVISORY[..60]).unwrap();
    recorder.run_read_only(&["feeds", "import", &file, "--data-dir", &data]);
    recorder.run_failing(&["feeds", "import", &cut, "--data-dir", &data]);
    recorder.run_failing(&[
        "feeds",
        "import",
        &recorder.at("absent.zip"),
        &cut,
        "--data-dir",
        &data,
    ]);
    let (url, served) = publisher(&recorder.dir.0, 4);
    recorder.run_piped(&["feeds", "import", &url, "--data-dir", &data], 0);
    recorder.run_read_only(&["feeds", "update", "--data-dir", &data]);
    served.join().unwrap();
    // The publisher has stopped.
    recorder.run_failing(&["feeds", "update", "Debian", "--data-dir", &data]);
    recorder.run_failing(&["feeds", "update", "Debain", "--data-dir", &data]);
    recorder.run_read_only(&["feeds", "status", "--data-dir", &data]);
    recorder.run_read_only(&["feeds", "export", &bundle, "--data-dir", &data]);
    recorder.run_read_only(&["feeds", "key", "--data-dir", &data]);
    recorder.run_failing(&[
        "feeds",
        "export",
        &recorder.at("nowhere/feeds.zst"),
        "--data-dir",
        &data,
    ]);
    recorder.run_on_terminal(&["feeds", "forget", "Debian", "--data-dir", &data], "", 0);
    recorder.run_failing(&["feeds", "forget", "Debian", "--data-dir", &data]);
    recorder.run_failing(&["feeds", "forget", "--data-dir", &data]);
    recorder.run_on_terminal(&["feeds", "remove", "Debian", "--data-dir", &data], "n\n", 1);
    recorder.run_piped(&["feeds", "remove", "Debian", "--data-dir", &data], 2);
    recorder.run_on_terminal(&["feeds", "remove", "Debian", "--data-dir", &data], "y\n", 0);
    recorder.run_failing(&["feeds", "remove", "Debian", "--yes", "--data-dir", &data]);
    let there = recorder.at("two");
    let stranger = "c3RyYW5nZXIgc3RyYW5nZXIgc3RyYW5nZXIgc3RyYW4=";
    recorder.run_failing(&["feeds", "import", &bundle, "--trust", stranger, "--data-dir", &there]);
    recorder.run_read_only(&["feeds", "import", &bundle, "--data-dir", &there]);
}

fn backup_restore_migrate_doctor(recorder: &mut SnapshotRecorder) {
    let data = recorder.at("two");
    let files = ["first.backup", "second.backup", "third.backup"].map(|name| recorder.at(name));
    let files = files.each_ref().map(String::as_str);
    recorder.run_all_forms(&["backup", "--data-dir", &data, "{}"], files);
    recorder.run_failing(&["backup", "--data-dir", &data, files[0]]);
    recorder.run_failing(&["backup", "--data-dir", &data, &recorder.at("nowhere/x.backup")]);
    recorder.run_read_only(&["restore", "--check", files[0]]);
    let places = ["there", "elsewhere", "beyond"].map(|name| recorder.at(name));
    recorder.run_all_forms(
        &["restore", files[0], "--data-dir", "{}"],
        places.each_ref().map(String::as_str),
    );
    recorder.run_failing(&["restore", files[0], "--data-dir", &data]);
    recorder.run_failing(&["restore", files[0], "--data-dir", &recorder.at("one")]);
    recorder.run_failing(&["restore", &recorder.at("absent.backup"), "--data-dir", &data]);
    let cut = recorder.at("cut.backup");
    let whole = std::fs::read(files[0]).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    recorder.run_failing(&["restore", "--check", &cut]);
    recorder.run_read_only(&["migrate", "--data-dir", &data]);
    let (own, new) = (recorder.at("two/fleetmend.db"), recorder.at("new.db"));
    recorder.run_failing(&["migrate", "--data-dir", &data, "--to", &own]);
    let switch = ["--to", &new, "--switch", "--database", &own];
    recorder.run_failing(&[&["migrate", "--data-dir", &data][..], &switch].concat());
    let emptied = recorder.at("there");
    for (database, args) in [("fleetmend.db", &["--dry-run"][..]), ("fleetmend.db", &[])] {
        std::fs::write(Path::new(&emptied).join(database), "").unwrap();
        recorder.run_piped(&[&["migrate", "--data-dir", &emptied], args].concat(), 0);
    }
    // An address where nothing listens, whatever else runs on this machine.
    let well = recorder.at("three");
    std::fs::write(Path::new(&well).join("fleetmend.toml"), "listen = \"127.0.0.1:1\"\n").unwrap();
    recorder.run_read_only(&["doctor", "--data-dir", &well]);
}

fn openapi_completions_man(recorder: &mut SnapshotRecorder) {
    // Long output generated by libraries: only check that it is complete and that stderr is empty.
    for args in [
        &["openapi"][..],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ] {
        let [on, in_a_pipe] = [
            run_in_pty(recorder.command(args), WIDTH, "", |_, _| {}),
            command_output(recorder.command(args).output().unwrap()),
        ];
        assert!(on.out == in_a_pipe.out && on.out.lines().count() > 100, "{args:?}: {}", on.out);
        let mut output = in_a_pipe;
        output.out = format!("{}\n…\n", output.out.lines().next().unwrap());
        recorder.record("on a terminal and in a pipe", args, &output, 0);
    }
    recorder.run_piped(&["completions", "dash"], 2);
    let pages = recorder.at("man");
    recorder.run_on_terminal(&["man", &pages], "", 0);
    recorder.run_piped(&["man", &pages], 0);
    recorder.run_failing(&["man", &recorder.at("file")]);
}

/// A service starts, prints its address, and ends on a signal.
fn server(recorder: &mut SnapshotRecorder) {
    let data = recorder.at("two");
    let args = ["server", "--data-dir", &data, "--listen", "127.0.0.1:0"];
    let started = signal_after("fleetmend is listening on http", Signal::SIGTERM);
    let mut on = run_in_pty(recorder.command(&args), WIDTH, "", started);
    // The log lines that follow come in no fixed order.
    let (before, after) = on.out.split_once("fleetmend is listening on ").unwrap();
    on.out = format!("{before}fleetmend is listening on {}\n", after.lines().next().unwrap());
    recorder.record("on a terminal", &args, &on, 0);

    let service = Running::start(Path::new(&data), &[]);
    let taken = service.address.strip_prefix("http://").unwrap().to_owned();
    recorder.run_failing(&[
        "server",
        "--log",
        "error",
        "--data-dir",
        &recorder.at("three"),
        "--listen",
        &taken,
    ]);
    // A service that has just started becomes the leader in a moment.
    while findings_of(&run_doctor(Path::new(&data), &[]).1, "leader", "ok").is_empty() {}
    recorder.run_failing(&[
        "restore",
        &recorder.at("first.backup"),
        "--replace",
        "--data-dir",
        &data,
    ]);
    drop(service);
    recorder.run_failing(&["health", "--url", "http://127.0.0.1:1"]);
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listening.local_addr().unwrap().to_string();
    for command in ["dev", "demo"] {
        recorder.run_piped(&[command, "--data-dir", &recorder.at(command), "--listen", &taken], 1);
        recorder.tried.remove(command);
    }
    let three = recorder.at("three");
    for wrong in
        [&["--listen", "nowhere"][..], &["--tls-cert", "cert.pem"], &["--config", "absent.toml"]]
    {
        recorder
            .run_failing(&[&["server", "--log", "error", "--data-dir", &three], wrong].concat());
    }
    std::fs::write(Path::new(&three).join("fleetmend.toml"), "listne = \"127.0.0.1:7600\"\n")
        .unwrap();
    recorder.run_failing(&["server", "--log", "error", "--data-dir", &three]);
}

/// The output of a command that runs until stopped, at its first and second start.
fn start_twice(args: &[&str]) -> String {
    const LAST: &str = "Press Ctrl-C to stop. The next start keeps all data.";
    let mut recorder = SnapshotRecorder::new();
    let data = recorder.at("data");
    let args = [args, &["--listen", "127.0.0.1:0", "--data-dir", &data]].concat();
    for _ in 0..2 {
        let mut command = recorder.command(&args);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let mut output = run_in_pty(command, WIDTH, "", signal_after(LAST, Signal::SIGINT));
        // What follows depends on timing.
        let (banner, _) = output.out.split_once(LAST).unwrap();
        let lines = banner.lines().filter(|line| !line.starts_with("Not running as root:"));
        output.out = lines.chain([LAST]).map(|line| format!("{line}\n")).collect();
        recorder.record("on a terminal", &args, &output, 0);
    }
    recorder.take_log()
}

#[test]
fn dev_banner_matches_snapshot() {
    isolate_network();
    if installed_package_count().is_none() {
        let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some();
        assert!(!required, "this machine has no dpkg");
        println!("skipped: this machine has no dpkg");
        return;
    }
    insta::assert_snapshot!("dev", start_twice(&["dev"]));
}

#[test]
fn demo_banner_matches_snapshot() {
    insta::assert_snapshot!("demo", start_twice(&["demo", "--servers", "10", "--speed", "200"]));
}

/// The commands that need an installation, with their other arguments.
const NEEDS_INSTALLATION: [&[&str]; 17] = [
    &["server", "--log", "error"],
    &["backup", "FILE"],
    &["migrate"],
    &["doctor"],
    &["orgs", "create", "Labs"],
    &["orgs", "list"],
    &["orgs", "remove", "Labs"],
    &["users", "create", "ann"],
    &["users", "reset", "ann"],
    &["users", "list"],
    &["feeds", "import", "FILE"],
    &["feeds", "update"],
    &["feeds", "forget", "Debian"],
    &["feeds", "remove", "Debian", "--yes"],
    &["feeds", "export", "FILE"],
    &["feeds", "status"],
    &["feeds", "status", "--json"],
];

#[tokio::test]
async fn commands_report_a_missing_or_newer_data_directory() {
    let mut recorder = SnapshotRecorder::new();
    let needing = |recorder: &mut SnapshotRecorder, data: &str, file: &str| {
        for args in NEEDS_INSTALLATION {
            let args = args.iter().map(|arg| if *arg == "FILE" { file } else { arg });
            recorder.run_piped(&args.chain(["--data-dir", data]).collect::<Vec<_>>(), 1);
        }
    };
    let (absent, file) = (recorder.at("absent"), recorder.at("file"));
    needing(&mut recorder, &absent, &file);
    assert!(!Path::new(&absent).exists(), "the directory must not be created");
    insta::assert_snapshot!("missing_data_dir", recorder.take_log());
    let newer = recorder.at("newer");
    first_key(Path::new(&newer));
    later_release(&newer).await;
    needing(&mut recorder, &newer, &file);
    insta::assert_snapshot!("newer_database", recorder.take_log());
    assert!(!Path::new(&file).exists(), "nothing must be written");
}

/// Simulates a database migrated by a later release.
async fn later_release(data: &str) {
    use sqlx::{Connection as _, Executor as _};
    let options =
        sqlx::sqlite::SqliteConnectOptions::new().filename(Path::new(data).join("fleetmend.db"));
    let mut hand = sqlx::sqlite::SqliteConnection::connect_with(&options).await.unwrap();
    let later =
        "insert into schema_migrations (version, name, checksum) values (9999, 'later', x'00')";
    hand.execute(later).await.unwrap();
    hand.close().await.unwrap();
}

/// For every command, including operator commands.
#[test]
fn typos_get_a_suggestion() {
    let mut tried = 0;
    for command in all_commands() {
        let words: Vec<&str> = command.split(' ').collect();
        let output =
            command_output(fleetmend(&[&words[..], &["--hepl"]].concat()).output().unwrap());
        assert_eq!((output.code, output.out.as_str()), (2, ""), "{command}: {}", output.err);
        assert!(
            output.err.contains("'--hepl'") && output.err.contains("'--help'"),
            "{command}: {}",
            output.err
        );
        tried += 1;
        // The last word with its last two letters swapped.
        let mut wrong = words.clone();
        let last = wrong.pop().unwrap();
        let (start, end) = last.split_at(last.len() - 2);
        let typo = format!("{start}{}", end.chars().rev().collect::<String>());
        // With two wrong letters out of three, no suggestion is close enough.
        if typo == last || last.len() < 4 {
            continue;
        }
        wrong.push(&typo);
        let output = self::command_output(fleetmend(&wrong).output().unwrap());
        assert_eq!(output.code, 2, "{wrong:?}: {}", output.err);
        assert!(output.err.contains(&format!("'{last}'")), "{wrong:?}: {}", output.err);
    }
    assert!(tried > 45, "{tried}");
}
