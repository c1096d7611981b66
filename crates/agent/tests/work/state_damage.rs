//! Damaged files in the state directory: the agent continues, or names the file and the fix, and
//! never executes an order twice.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agent::shell::state::{Enrollment, StateDir};
use agent_client::{HostKey, Identity, Pin, SyncCounter, TrustedKeys};
use vocab::{FailureCode, ServerId, Stage};
use wire::agent::{Order, OrderResult, Outcome, Work};

use crate::fake_host::{FakeHost, install, now, order};

/// A type of damage.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Truncated,
    Empty,
    Garbage,
    WrongType,
    Directory,
}

const ALL: [Damage; 5] =
    [Damage::Truncated, Damage::Empty, Damage::Garbage, Damage::WrongType, Damage::Directory];

impl Damage {
    fn inflict(self, path: &Path) {
        let bytes = fs::read(path).unwrap_or_default();
        match self {
            Damage::Truncated => fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
            Damage::Empty => fs::write(path, b"").unwrap(),
            Damage::Garbage => fs::write(path, b"\x00\xff{\"\xfe").unwrap(),
            Damage::WrongType => fs::write(path, b"[[[]], 7]").unwrap(),
            Damage::Directory => {
                let _ = fs::remove_file(path);
                fs::create_dir_all(path.join("full")).unwrap();
            }
        }
    }
}

/// An installation that has started and cannot end before the gate is opened, without an agent.
fn interrupted_installation(name: &str) -> (FakeHost, Order) {
    let host = FakeHost::new(name, &[("bash", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("gate"), "").unwrap();
    let order = order(1, Work::Install(install(&[])));
    let worker = host.worker();
    worker.accept(order.clone());
    host.wait_until(&worker, |report| {
        report.progress.iter().any(|order| order.stage == Some(Stage::Installing)).then_some(())
    });
    while host.read_text("installing").is_empty() {
        std::thread::yield_now();
    }
    drop(worker);
    (host, order)
}

/// Starts the agent again, and lets the installation end.
fn restart_and_finish(host: &FakeHost, order: &Order) -> OrderResult {
    let worker = host.worker();
    fs::remove_file(host.dir.join("gate")).unwrap();
    worker.accept(order.clone());
    host.wait_for_result(&worker, order.id)
}

fn installations(host: &FakeHost) -> usize {
    host.read_text("ran").lines().filter(|line| *line == "install").count()
}

fn format_moves(result: &OrderResult) -> Vec<String> {
    let text = |version: &Option<vocab::Line>| version.as_ref().map(ToString::to_string);
    result
        .packages
        .iter()
        .map(|m| format!("{} {:?}", m.name, (text(&m.from), text(&m.to))))
        .collect()
}

const BASH: &str = "bash (Some(\"1\"), Some(\"2\"))";

/// The files of an order in the middle of its installation, and the rest of the state directory,
/// except for ended jobs.
fn state_files_during_installation() -> Vec<PathBuf> {
    let (toy, _) = interrupted_installation("damage-files");
    let state = toy.dir.join("state");
    let (mut files, mut open) = (Vec::new(), vec![state.clone()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false => files.push(path.strip_prefix(&state).unwrap().to_owned()),
            }
        }
    }
    fs::remove_file(toy.dir.join("gate")).unwrap();
    files.retain(|file| {
        let text = file.to_string_lossy();
        !text.contains("refresh.0") && !text.contains("download.0")
    });
    files.sort();
    files
}

#[test]
fn damage_to_any_file_during_install_gives_one_correct_result() {
    let files = state_files_during_installation();
    let has = |name: &str| files.iter().any(|file| file.ends_with(name));
    assert!(has("journal.json") && has("before.json") && has("install.0/started"), "{files:?}");
    let cases: Vec<(usize, &PathBuf, Damage)> = files
        .iter()
        .flat_map(|file| ALL.map(|damage| (file, damage)))
        .enumerate()
        .map(|(number, (file, damage))| (number, file, damage))
        .collect();
    std::thread::scope(|scope| {
        for part in cases.chunks(cases.len().div_ceil(6)) {
            scope.spawn(move || {
                for (number, file, damage) in part {
                    let what = format!("{damage:?} {}", file.display());
                    let (toy, order) = interrupted_installation(&format!("damage-{number}"));
                    damage.inflict(&toy.dir.join("state").join(file));
                    let result = restart_and_finish(&toy, &order);
                    assert_eq!(installations(&toy), 1, "{what}");
                    assert_eq!(toy.read_text("db/bash"), "2", "{what}");
                    if file.ends_with("before.json") {
                        assert_eq!(result.outcome, Outcome::Failed, "{what}: {result:?}");
                    } else {
                        assert_eq!(format_moves(&result), [BASH], "{what}: {result:?}");
                    }
                }
            });
        }
    });
}

#[test]
fn truncated_journal_is_reported_with_the_changed_packages() {
    let (toy, order) = interrupted_installation("damage-journal");
    let journal = toy.dir.join(format!("state/orders/{}/journal.json", order.id));
    Damage::Truncated.inflict(&journal);
    let result = restart_and_finish(&toy, &order);
    assert_eq!(result.outcome, Outcome::Failed);
    assert_eq!(result.failure_code, Some(FailureCode::OrderLost));
    assert_eq!((format_moves(&result), result.exit), (vec![BASH.to_owned()], Some(0)));
    let message = result.message.unwrap().to_string();
    assert!(
        message.contains("the listed packages are those that changed since it started"),
        "{message}"
    );
    assert!(journal.with_extension("json.damaged").exists());
}

/// A directory without a journal counts as a new order only if nothing else is in it.
#[test]
fn started_order_without_journal_does_not_run_again() {
    let (toy, order) = interrupted_installation("damage-missing");
    fs::remove_file(toy.dir.join(format!("state/orders/{}/journal.json", order.id))).unwrap();
    let result = restart_and_finish(&toy, &order);
    assert_eq!(result.failure_code, Some(FailureCode::OrderLost));
    assert_eq!((format_moves(&result), installations(&toy)), (vec![BASH.to_owned()], 1));
}

#[test]
fn post_install_hooks_run_if_the_journal_is_lost() {
    let host = FakeHost::new("damage-hooks", &[("bash", "1")], &[("bash", "2")]);
    let dir = host.dir.display();
    for (hook, file) in [("pre-install.d/10", "drained"), ("post-install.d/10", "back")] {
        host.script(&format!("hooks/{hook}"), &format!("echo x >> {dir}/{file}"));
    }
    fs::write(host.dir.join("gate"), "").unwrap();
    let order = order(1, Work::Install(install(&[])));
    let worker = host.worker();
    worker.accept(order.clone());
    while host.read_text("installing").is_empty() {
        std::thread::yield_now();
    }
    drop(worker);
    Damage::Garbage.inflict(&host.dir.join(format!("state/orders/{}/journal.json", order.id)));
    let result = restart_and_finish(&host, &order);
    assert_eq!(format_moves(&result), [BASH], "{result:?}");
    assert_eq!(
        (host.read_text("drained"), host.read_text("back")),
        ("x".to_owned(), "x".to_owned())
    );
}

#[test]
fn agent_starts_with_files_in_place_of_directories() {
    let host = FakeHost::new("damage-directories", &[("bash", "1")], &[("bash", "2")]);
    let order = order(1, Work::Install(install(&[])));
    host.execute(&order);
    let path = |name: &str| host.dir.join("state").join(name);
    for name in [format!("orders/{}", order.id), "scan".to_owned(), "orders".to_owned()] {
        fs::remove_dir_all(path(&name)).unwrap();
        fs::write(path(&name), "x").unwrap();
        let worker = host.worker();
        if name.ends_with(&order.id.to_string()) {
            let result = host.wait_for_result(&worker, order.id);
            assert_eq!(result.failure_code, Some(FailureCode::OrderLost));
            worker.accept(order.clone());
        }
        let scan = crate::fake_host::order(2, Work::Scan);
        worker.accept(scan.clone());
        assert_eq!(host.wait_for_result(&worker, scan.id).outcome, Outcome::Succeeded, "{name}");
        worker.acknowledge(&[scan.id]);
        drop(worker);
        let _ = fs::remove_dir_all(path(&format!("orders/{}", scan.id)));
    }
    assert_eq!(installations(&host), 1);
}

/// A host that is enrolled with a server that does not respond.
struct OfflineHost {
    dir: PathBuf,
}

impl OfflineHost {
    fn new(name: &str) -> OfflineHost {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lonely-{name}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("root/var/lib/dpkg")).unwrap();
        let status =
            "Package: bash\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n";
        fs::write(dir.join("root/var/lib/dpkg/status"), status).unwrap();
        let lonely = OfflineHost { dir };
        let identity = Identity {
            server_id: ServerId::new(now(), 1),
            tag: "tag".to_owned().into(),
            orders_keys: TrustedKeys::new(vec![[7; 32]]).unwrap(),
            key: HostKey::generate(),
            signs_answers: true.into(),
        };
        let root = lonely.dir.join("root");
        let url = "http://127.0.0.1:9";
        let enrollment = Enrollment::new(&identity, url, Pin::Plain, Some(&root), now());
        lonely.state().save_enrollment(&enrollment, SyncCounter::new(7, 7)).unwrap();
        lonely
    }

    fn state(&self) -> StateDir {
        StateDir::open(&self.dir.join("state")).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join("state").join(name)
    }

    /// Starts the agent. Returns whether it got as far as connecting, and its log up to then.
    fn start_agent(&self) -> (bool, String) {
        let mut agent = Command::new(env!("CARGO_BIN_EXE_fleetmend-agent"))
            .args(["run", "--state-dir"])
            .arg(self.dir.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut log, mut started) = (String::new(), false);
        for line in BufReader::new(agent.stderr.take().unwrap()).lines() {
            let line = line.unwrap();
            started |= line.contains(", connecting to");
            log.push_str(&line);
            log.push('\n');
            if started {
                break;
            }
        }
        let _ = agent.kill();
        agent.wait().unwrap();
        assert!(!log.contains("panicked"), "{log}");
        (started, log)
    }
}

impl Drop for OfflineHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn agent_starts_with_any_damaged_state_file() {
    let lonely = OfflineHost::new("each");
    assert!(lonely.start_agent().0);
    let names = [
        "identity.json",
        "identity.json.previous",
        "turn.json",
        "turn.new",
        "contact.json",
        "contact.new",
        "joining.key",
        "removed",
        "reserve",
        "orders/reserve",
        "scan/report.json",
        "scan/answers.json",
    ];
    let server_id = lonely.state().enrollment().unwrap().unwrap().server_id;
    for name in names {
        for damage in ALL {
            damage.inflict(&lonely.path(name));
            let (started, log) = lonely.start_agent();
            assert!(started, "{damage:?} {name}: {log}");
            let enrolled = lonely.state().enrollment().unwrap().unwrap();
            assert_eq!(enrolled.server_id, server_id, "{damage:?} {name}");
        }
    }
}

/// A counter that is behind would look like that of a clone of this host.
#[test]
fn lost_sync_counter_restarts_ahead_of_earlier_ones() {
    let lonely = OfflineHost::new("turn");
    let first: jiff::Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
    for (hour, damage) in (1..).zip(ALL) {
        let at = first + jiff::SignedDuration::from_hours(hour);
        let before = lonely.state().sync_counter(at).unwrap();
        damage.inflict(&lonely.path("turn.json"));
        let after = lonely.state().sync_counter(at).unwrap();
        assert!(after.counter > before.counter, "{damage:?}");
        assert_eq!(lonely.state().sync_counter(at).unwrap(), after);
        lonely.state().set_sync_counter(SyncCounter::new(after.counter + 1, 1)).unwrap();
    }
}

#[test]
fn lost_identity_names_the_file_and_the_remedy() {
    let lonely = OfflineHost::new("identity");
    for damage in ALL {
        for name in ["identity.json", "identity.json.previous"] {
            damage.inflict(&lonely.path(name));
        }
        let (started, log) = lonely.start_agent();
        assert!(!started, "{damage:?}: {log}");
        let file = lonely.path("identity.json");
        assert!(log.contains(&*file.to_string_lossy()), "{damage:?}: {log}");
        assert!(log.contains("fleetmend-agent enroll --server URL --token TOKEN"), "{log}");
    }
    let lonely = OfflineHost::new("lock");
    Damage::Directory.inflict(&lonely.path("agent.lock"));
    let (started, log) = lonely.start_agent();
    assert!(
        !started && log.contains("agent.lock; if it is not a regular file, remove it"),
        "{log}"
    );
}
