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

use crate::dev::{installed_here, stay_at_home};
use crate::doctor::{examined, found};
use crate::feeds::{ADVISORY, publisher};
use crate::operator_commands::{GROUPS, all_commands};
use crate::support::{Dir, Running, first_key, fleetmend};
use crate::terminal::{Said, said, typed};
use normalize::{redacted, settled};

const WIDTH: u16 = 120;

/// Runs commands and records their output.
struct Tour {
    dir: Dir,
    tried: BTreeSet<String>,
    diary: String,
}

impl Tour {
    fn new() -> Tour {
        Tour { dir: Dir::new(), tried: BTreeSet::new(), diary: String::new() }
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
    fn all(&mut self, args: &[&str], to: [&str; 3]) {
        self.types(&with(args, to[0]), "", 0);
        self.pipes(&with(args, to[1]), 0);
        self.prints(&with(args, to[2]), 0);
    }

    /// The same for commands that only read, or can be repeated.
    fn looks(&mut self, args: &[&str]) {
        self.all(args, [""; 3]);
    }

    /// Runs a command that must fail with an error message.
    fn fails(&mut self, args: &[&str]) {
        self.types(args, "", 1);
        self.pipes(args, 1);
    }

    fn types(&mut self, args: &[&str], keys: &str, code: i32) {
        let output = typed(self.command(args), WIDTH, keys, |_, _| {});
        self.writes("on a terminal", args, &output, code);
    }

    fn pipes(&mut self, args: &[&str], code: i32) {
        let output = said(self.command(args).output().unwrap());
        assert!(
            code == 0 || args[0] == "doctor" || output.out.is_empty(),
            "{args:?}: {}",
            output.out
        );
        self.writes("in a pipe", args, &output, code);
    }

    fn prints(&mut self, args: &[&str], code: i32) {
        let args = [args, &["--json"]].concat();
        let mut output = said(self.command(&args).output().unwrap());
        let lines = output.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines = lines.map(|value| serde_json::to_string_pretty(&redacted(value)).unwrap());
        output.out = lines.map(|line| line + "\n").collect();
        self.writes("JSON", &args, &output, code);
    }

    fn writes(&mut self, how: &str, args: &[&str], output: &Said, code: i32) {
        assert_eq!(output.code, code, "{args:?}: {}{}", output.out, output.err);
        let words = args.iter().take_while(|word| !word.starts_with(['-', '/'])).take(2);
        let words = words.copied().collect::<Vec<_>>();
        let group = ["orgs", "secrets", "users", "feeds"].contains(&words[0]);
        self.tried.insert(words[..if group { 2 } else { 1 }].join(" "));
        let settled = |text: &str| settled(text, &self.dir.0);
        let end = if code == 0 { String::new() } else { format!(", exit code {code}") };
        let command = settled(&args.join(" "));
        writeln!(self.diary, "$ fleetmend {} ({how}{end})", command.trim_end()).unwrap();
        self.diary += &settled(&output.out);
        if !output.err.is_empty() {
            write!(self.diary, "[stderr]\n{}", settled(&output.err)).unwrap();
        }
        self.diary.push('\n');
    }

    fn diary(&mut self) -> String {
        std::mem::take(&mut self.diary)
    }
}

fn with<'a>(args: &[&'a str], whom: &'a str) -> Vec<&'a str> {
    args.iter().map(|arg| if *arg == "{}" { whom } else { arg }).collect()
}

/// Signals a command once it has printed this text, and only once: a second signal ends it
/// immediately.
fn ends_after<'a>(last: &'a str, signal: Signal) -> impl Fn(&Child, &str) + 'a {
    let asked = Cell::new(false);
    move |child, seen| {
        if seen.contains(last) && !asked.replace(true) {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        }
    }
}

/// The commands that work on the installation: all except the operator commands.
fn here() -> BTreeSet<String> {
    let asks = |command: &String| {
        let first = command.split(' ').next().unwrap();
        GROUPS.contains(&first) || first == "summary"
    };
    all_commands().into_iter().filter(|command| !asks(command)).collect()
}

#[test]
fn installation_commands_match_snapshots() {
    let mut tour = Tour::new();
    beginning(&mut tour);
    insta::assert_snapshot!("init", tour.diary());
    people(&mut tour);
    insta::assert_snapshot!("users_and_orgs", tour.diary());
    secrets(&mut tour);
    insta::assert_snapshot!("secrets", tour.diary());
    flaws(&mut tour);
    insta::assert_snapshot!("feeds", tour.diary());
    keeping(&mut tour);
    insta::assert_snapshot!("backup_restore_migrate_doctor", tour.diary());
    itself(&mut tour);
    insta::assert_snapshot!("openapi_completions_man", tour.diary());
    serving(&mut tour);
    insta::assert_snapshot!("server", tour.diary());
    let here = here();
    assert!(here.len() > 15, "{here:?}");
    let forgotten: Vec<&String> = here.difference(&tour.tried).collect();
    // They run until stopped, and have their own tests below.
    assert_eq!(forgotten, ["demo", "dev"]);
}

fn beginning(tour: &mut Tour) {
    let [one, two, three] = ["one", "two", "three"].map(|name| tour.at(name));
    tour.all(&["init", "--org", "Acme", "--data-dir", "{}"], [&one, &two, &three]);
    tour.fails(&["init", "--org", "Other", "--data-dir", &one]);
    tour.fails(&["init", "--org", " ", "--data-dir", &tour.at("four")]);
    let file = tour.at("file");
    std::fs::write(&file, "").unwrap();
    tour.fails(&["init", "--org", "Acme", "--data-dir", &file]);
}

fn people(tour: &mut Tour) {
    let data = tour.at("one");
    tour.looks(&["users", "list", "--data-dir", &data]);
    let url = ["--url", "https://fleet.example"];
    let names = ["ann@example.org", "bob@example.org", "eve@example.org"];
    tour.all(&[&["users", "create", "{}", "--data-dir", &data], &url[..]].concat(), names);
    tour.all(&["users", "reset", "{}", "--data-dir", &data], names);
    tour.looks(&["users", "list", "--data-dir", &data]);
    tour.fails(&["users", "create", "ANN@example.org", "--data-dir", &data]);
    tour.fails(&["users", "create", " ", "--data-dir", &data]);
    tour.fails(&["users", "reset", "unknown", "--data-dir", &data]);
    tour.all(&["orgs", "create", "{}", "--data-dir", &data], ["Labs", "Shop", "Bank"]);
    tour.looks(&["orgs", "list", "--data-dir", &data]);
    tour.fails(&["orgs", "create", "Labs", "--data-dir", &data]);
    tour.fails(&["users", "create", "dan@example.org", "--data-dir", &data]);
    tour.fails(&["users", "create", "dan@example.org", "--org", "Nobody", "--data-dir", &data]);
    let remove = ["orgs", "remove", "--data-dir", &data];
    tour.types(&[&remove[..], &["Labs"]].concat(), "n\n", 1);
    tour.types(&[&remove[..], &["Labs"]].concat(), "y\n", 0);
    tour.pipes(&[&remove[..], &["Shop"]].concat(), 2);
    tour.pipes(&[&remove[..], &["Shop", "--yes"]].concat(), 0);
    tour.prints(&[&remove[..], &["Bank", "--yes"]].concat(), 0);
    tour.fails(&["orgs", "remove", "--yes", "Nobody", "--data-dir", &data]);
}

fn secrets(tour: &mut Tour) {
    let [one, two, three] = ["one", "two", "three"].map(|name| tour.at(name));
    tour.looks(&["secrets", "list", "--data-dir", &one]);
    tour.fails(&["secrets", "retire", "orders", "--data-dir", &one]);
    tour.all(&["secrets", "rotate", "orders", "--data-dir", "{}"], [&one, &two, &three]);
    tour.fails(&["secrets", "rotate", "orders", "--data-dir", &one]);
    tour.looks(&["secrets", "list", "--data-dir", &one]);
    tour.all(&["secrets", "retire", "orders", "--data-dir", "{}"], [&one, &two, &three]);
    tour.fails(&["secrets", "retire", "root", "--data-dir", &one]);
    tour.all(&["secrets", "rotate", "root", "--data-dir", "{}"], [&one, &two, &three]);
    tour.fails(&["secrets", "rotate", "root", "--data-dir", &one]);
    tour.looks(&["secrets", "list", "--data-dir", &one]);
    tour.fails(&["secrets", "retire", "root", "--data-dir", &one]);
    tour.pipes(&["secrets", "rotate", "tls", "--data-dir", &one], 2);
}

fn flaws(tour: &mut Tour) {
    let data = tour.at("one");
    tour.looks(&["feeds", "status", "--data-dir", &data]);
    tour.types(&["feeds", "update", "--data-dir", &data], "", 0);
    tour.pipes(&["feeds", "update", "--data-dir", &data], 0);
    let (file, cut, bundle) = (tour.at("Alma.json"), tour.at("Cut.json"), tour.at("feeds.zst"));
    std::fs::write(&file, ADVISORY).unwrap();
    std::fs::write(&cut, &ADVISORY[..60]).unwrap();
    tour.looks(&["feeds", "import", &file, "--data-dir", &data]);
    tour.fails(&["feeds", "import", &cut, "--data-dir", &data]);
    tour.fails(&["feeds", "import", &tour.at("absent.zip"), &cut, "--data-dir", &data]);
    let (url, served) = publisher(&tour.dir.0, 4);
    tour.pipes(&["feeds", "import", &url, "--data-dir", &data], 0);
    tour.looks(&["feeds", "update", "--data-dir", &data]);
    served.join().unwrap();
    // The publisher has stopped.
    tour.fails(&["feeds", "update", "Debian", "--data-dir", &data]);
    tour.fails(&["feeds", "update", "Debain", "--data-dir", &data]);
    tour.looks(&["feeds", "status", "--data-dir", &data]);
    tour.looks(&["feeds", "export", &bundle, "--data-dir", &data]);
    tour.fails(&["feeds", "export", &tour.at("nowhere/feeds.zst"), "--data-dir", &data]);
    tour.types(&["feeds", "forget", "Debian", "--data-dir", &data], "", 0);
    tour.fails(&["feeds", "forget", "Debian", "--data-dir", &data]);
    tour.fails(&["feeds", "forget", "--data-dir", &data]);
    tour.types(&["feeds", "remove", "Debian", "--data-dir", &data], "n\n", 1);
    tour.pipes(&["feeds", "remove", "Debian", "--data-dir", &data], 2);
    tour.types(&["feeds", "remove", "Debian", "--data-dir", &data], "y\n", 0);
    tour.fails(&["feeds", "remove", "Debian", "--yes", "--data-dir", &data]);
    let there = tour.at("two");
    tour.looks(&["feeds", "import", &bundle, "--data-dir", &there]);
}

fn keeping(tour: &mut Tour) {
    let data = tour.at("two");
    let files = ["first.backup", "second.backup", "third.backup"].map(|name| tour.at(name));
    let files = files.each_ref().map(String::as_str);
    tour.all(&["backup", "--data-dir", &data, "{}"], files);
    tour.fails(&["backup", "--data-dir", &data, files[0]]);
    tour.fails(&["backup", "--data-dir", &data, &tour.at("nowhere/x.backup")]);
    tour.looks(&["restore", "--check", files[0]]);
    let places = ["there", "elsewhere", "beyond"].map(|name| tour.at(name));
    tour.all(&["restore", files[0], "--data-dir", "{}"], places.each_ref().map(String::as_str));
    tour.fails(&["restore", files[0], "--data-dir", &data]);
    tour.fails(&["restore", files[0], "--data-dir", &tour.at("one")]);
    tour.fails(&["restore", &tour.at("absent.backup"), "--data-dir", &data]);
    let cut = tour.at("cut.backup");
    let whole = std::fs::read(files[0]).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    tour.fails(&["restore", "--check", &cut]);
    tour.looks(&["migrate", "--data-dir", &data]);
    let emptied = tour.at("there");
    for (database, args) in [("fleetmend.db", &["--dry-run"][..]), ("fleetmend.db", &[])] {
        std::fs::write(Path::new(&emptied).join(database), "").unwrap();
        tour.pipes(&[&["migrate", "--data-dir", &emptied], args].concat(), 0);
    }
    // An address where nothing listens, whatever else runs on this machine.
    let well = tour.at("three");
    std::fs::write(Path::new(&well).join("fleetmend.toml"), "listen = \"127.0.0.1:1\"\n").unwrap();
    tour.looks(&["doctor", "--data-dir", &well]);
}

fn itself(tour: &mut Tour) {
    // Long output generated by libraries: only check that it is complete and that stderr is empty.
    for args in [
        &["openapi"][..],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ] {
        let [on, in_a_pipe] = [
            typed(tour.command(args), WIDTH, "", |_, _| {}),
            said(tour.command(args).output().unwrap()),
        ];
        assert!(on.out == in_a_pipe.out && on.out.lines().count() > 100, "{args:?}: {}", on.out);
        let mut output = in_a_pipe;
        output.out = format!("{}\n…\n", output.out.lines().next().unwrap());
        tour.writes("on a terminal and in a pipe", args, &output, 0);
    }
    tour.pipes(&["completions", "dash"], 2);
    let pages = tour.at("man");
    tour.types(&["man", &pages], "", 0);
    tour.pipes(&["man", &pages], 0);
    tour.fails(&["man", &tour.at("file")]);
}

/// A service starts, prints its address, and ends on a signal.
fn serving(tour: &mut Tour) {
    let data = tour.at("two");
    let args = ["server", "--data-dir", &data, "--listen", "127.0.0.1:0"];
    let begun = ends_after("fleetmend is listening on http", Signal::SIGTERM);
    let mut on = typed(tour.command(&args), WIDTH, "", begun);
    // The log lines that follow come in no fixed order.
    let (before, after) = on.out.split_once("fleetmend is listening on ").unwrap();
    on.out = format!("{before}fleetmend is listening on {}\n", after.lines().next().unwrap());
    tour.writes("on a terminal", &args, &on, 0);

    let service = Running::start(Path::new(&data), &[]);
    let taken = service.address.strip_prefix("http://").unwrap().to_owned();
    tour.fails(&["server", "--log", "error", "--data-dir", &tour.at("three"), "--listen", &taken]);
    // A service that has just started becomes the leader in a moment.
    while found(&examined(Path::new(&data), &[]).1, "leader", "ok").is_empty() {}
    tour.fails(&["restore", &tour.at("first.backup"), "--replace", "--data-dir", &data]);
    drop(service);
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listening.local_addr().unwrap().to_string();
    for command in ["dev", "demo"] {
        tour.pipes(&[command, "--data-dir", &tour.at(command), "--listen", &taken], 1);
        tour.tried.remove(command);
    }
    let three = tour.at("three");
    for wrong in
        [&["--listen", "nowhere"][..], &["--tls-cert", "cert.pem"], &["--config", "absent.toml"]]
    {
        tour.fails(&[&["server", "--log", "error", "--data-dir", &three], wrong].concat());
    }
    std::fs::write(Path::new(&three).join("fleetmend.toml"), "listne = \"127.0.0.1:7600\"\n")
        .unwrap();
    tour.fails(&["server", "--log", "error", "--data-dir", &three]);
}

/// The output of a command that runs until stopped, at its first and second start.
fn begins_twice(args: &[&str]) -> String {
    const LAST: &str = "Press Ctrl-C to stop. The next start keeps all data.";
    let mut tour = Tour::new();
    let data = tour.at("data");
    let args = [args, &["--listen", "127.0.0.1:0", "--data-dir", &data]].concat();
    for _ in 0..2 {
        let mut command = tour.command(&args);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let mut output = typed(command, WIDTH, "", ends_after(LAST, Signal::SIGINT));
        // What follows depends on timing.
        let (banner, _) = output.out.split_once(LAST).unwrap();
        let lines = banner.lines().filter(|line| !line.starts_with("Not running as root:"));
        output.out = lines.chain([LAST]).map(|line| format!("{line}\n")).collect();
        tour.writes("on a terminal", &args, &output, 0);
    }
    tour.diary()
}

#[test]
fn dev_banner_matches_snapshot() {
    stay_at_home();
    if installed_here().is_none() {
        let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some();
        assert!(!required, "this machine has no dpkg");
        println!("skipped: this machine has no dpkg");
        return;
    }
    insta::assert_snapshot!("dev", begins_twice(&["dev"]));
}

#[test]
fn demo_banner_matches_snapshot() {
    insta::assert_snapshot!("demo", begins_twice(&["demo", "--servers", "10", "--speed", "200"]));
}

/// The commands that need an installation, with their other arguments.
const NEED: [&[&str]; 17] = [
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
    let mut tour = Tour::new();
    let needing = |tour: &mut Tour, data: &str, file: &str| {
        for args in NEED {
            let args = args.iter().map(|arg| if *arg == "FILE" { file } else { arg });
            tour.pipes(&args.chain(["--data-dir", data]).collect::<Vec<_>>(), 1);
        }
    };
    let (absent, file) = (tour.at("absent"), tour.at("file"));
    needing(&mut tour, &absent, &file);
    assert!(!Path::new(&absent).exists(), "the directory must not be created");
    insta::assert_snapshot!("missing_data_dir", tour.diary());
    let newer = tour.at("newer");
    first_key(Path::new(&newer));
    later_release(&newer).await;
    needing(&mut tour, &newer, &file);
    insta::assert_snapshot!("newer_database", tour.diary());
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
        let output = said(fleetmend(&[&words[..], &["--hepl"]].concat()).output().unwrap());
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
        let output = self::said(fleetmend(&wrong).output().unwrap());
        assert_eq!(output.code, 2, "{wrong:?}: {}", output.err);
        assert!(output.err.contains(&format!("'{last}'")), "{wrong:?}: {}", output.err);
    }
    assert!(tried > 45, "{tried}");
}
