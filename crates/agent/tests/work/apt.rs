//! Orders on real Debian systems with real apt, and an agent that is killed while it executes them.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use agent::backend::Backend;
use agent::backend::apt::Apt;
use agent::host::Host;
use agent::root::Root;
use agent::work::{AgentReplacement, Report, ScanReport, Worker, WorkerConfig};
use lab::apt::{Deb, Pocket, Repo, Server};
use vocab::{FailureCode, Stage};
use wire::agent::{Order, OrderResult, Outcome, Work};

use crate::fake_host::{install, now, order};

/// A worker for the Debian system in a directory, and the receiver of its notifications.
pub(crate) fn worker(root: &std::path::Path) -> (Worker, Receiver<()>) {
    worker_with(root, Arc::new(Apt::new(Root::under(root))))
}

/// A worker for the system in a directory, with this package manager.
pub(crate) fn worker_with(
    root: &std::path::Path,
    backend: Arc<dyn Backend>,
) -> (Worker, Receiver<()>) {
    let (ring, bell) = channel();
    let notifier = std::sync::Mutex::new(ring);
    let state_dir = root.join("var/lib/fleetmend");
    fs::create_dir_all(&state_dir).unwrap();
    let root = Root::under(root);
    // The tests of `health` run inside of a machine.
    let program = match root.is_running_system() {
        true => "/usr/bin/fleetmend-agent",
        false => env!("CARGO_BIN_EXE_fleetmend-agent"),
    };
    let worker = Worker::start(WorkerConfig {
        state_dir,
        backend,
        host: Arc::new(Host::new(root.clone())),
        limits: root.path("/etc/fleetmend/limits.toml"),
        hooks: root.path("/etc/fleetmend/hooks"),
        health_hooks: root.path("/etc/fleetmend/health.d"),
        root,
        program: program.into(),
        replace: AgentReplacement {
            allowed: Err("this is a test".into()),
            program: env!("CARGO_BIN_EXE_fleetmend-agent").into(),
            timeout_seconds: 1,
        },
        notify: Box::new(move || {
            let _ = notifier.lock().unwrap().send(());
        }),
        clock: Box::new(now),
    });
    (worker.unwrap(), bell)
}

fn wait_until<T>(
    (worker, bell): &(Worker, Receiver<()>),
    mut sight: impl FnMut(&Report) -> Option<T>,
) -> T {
    loop {
        if let Some(seen) = sight(&worker.report()) {
            return seen;
        }
        bell.recv_timeout(Duration::from_secs(120))
            .expect("the worker notifies when its report changes");
    }
}

pub(crate) fn wait_for_result(worker: &(Worker, Receiver<()>), id: vocab::TaskId) -> OrderResult {
    wait_until(worker, |report| report.results.iter().find(|result| result.order_id == id).cloned())
}

fn wait_for_first_result(worker: &(Worker, Receiver<()>)) -> OrderResult {
    wait_until(worker, |report| report.results.first().cloned())
}

pub(crate) fn execute(server: &Server, work: Work) -> OrderResult {
    let worker = worker(server.root.dir());
    worker.0.accept(order(1, work));
    wait_for_first_result(&worker)
}

pub(crate) fn format_moves(result: &OrderResult) -> Vec<String> {
    let text = |version: &Option<vocab::Line>| {
        version.as_ref().map_or("-".to_owned(), ToString::to_string)
    };
    let line =
        |m: &wire::agent::PackageMove| format!("{} {} > {}", m.name, text(&m.from), text(&m.to));
    result.packages.iter().map(line).collect()
}

/// The results of two scans in a row, each with the value of `after`. Their orders have this number
/// and the next.
pub(crate) fn two_scans<T>(
    server: &Server,
    number: u128,
    mut after: impl FnMut() -> T,
) -> [(ScanReport, T); 2] {
    let worker = worker(server.root.dir());
    let mut scan = |number| {
        worker.0.accept(order(number, Work::Scan));
        let ended = |report: &Report| {
            let ended = report.results.iter().any(|r| r.order_id == order(number, Work::Scan).id);
            report.scan.clone().filter(|_| ended)
        };
        // The time of the scan differs.
        let scan = ScanReport { at: jiff::Timestamp::UNIX_EPOCH, ..wait_until(&worker, ended) };
        (scan, after())
    };
    [scan(number), scan(number + 1)]
}

fn repo() -> Option<Repo> {
    Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs()),
        (Pocket::Stable, Deb::new("other", "1.0")),
        (Pocket::Updates, Deb::new("other", "1.1").counts_runs()),
        (Pocket::Stable, Deb::new("broken", "1.0")),
        (Pocket::Updates, Deb::new("broken", "1.1").fails_always()),
        (Pocket::Stable, Deb::new("pushy", "1.0")),
        (Pocket::Updates, Deb::new("pushy", "1.1").conflicts("other")),
        (Pocket::Stable, Deb::new("edited", "1.0").conffile("/etc/edited.conf", "a\n")),
        (Pocket::Updates, Deb::new("edited", "1.1").conffile("/etc/edited.conf", "b\n")),
    ])
}

/// A repository on the host's own disk, without a Release file: apt only has a link to its index,
/// an absolute path of the managed system, and the index changes without apt.
#[test]
fn update_published_in_a_file_repository_is_found_after_a_scan() {
    let Some(repo) = Repo::with(&[(Pocket::Stable, Deb::new("hello", "1.0"))]) else { return };
    let Some(server) = Server::with_installed(&repo, &["hello"]) else { return };
    let publish = || {
        let index = format!("dists/stable/main/binary-{}/Packages", lab::apt::native_arch());
        fs::copy(repo.dir().join(index), repo.dir().join("Packages")).unwrap();
    };
    publish();
    server.root.write("/etc/apt/sources.list", "deb [trusted=yes] file:/repo ./\n");
    server.root.run_successfully("sh", &["-c", "rm -r /var/lib/apt/lists/*"]);
    server.update();
    let lists = fs::read_dir(server.root.path("/var/lib/apt/lists")).unwrap().flatten();
    assert!(lists.into_iter().any(|file| file.file_type().unwrap().is_symlink()));
    two_scans(&server, 1, || ());
    for (number, version) in [(3, "1.1"), (4, "1.2")] {
        repo.add(&[(Pocket::Stable, Deb::new("hello", version))]);
        publish();
        let worker = worker(server.root.dir());
        let order = order(number, Work::Install(install(&["hello"])));
        worker.0.accept(order.clone());
        let result = wait_for_result(&worker, order.id);
        assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
        assert_eq!(server.version("hello").unwrap(), version);
    }
}

#[test]
fn security_order_installs_only_security_updates() {
    let Some(repo) = repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other"]) else { return };
    let wish = wire::agent::Install { security_only: true, ..install(&[]) };
    let result = execute(&server, Work::Install(wish));
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(format_moves(&result), ["hello 1.0 > 1.1"]);
    assert_eq!(server.version("other").unwrap(), "1.0");
    assert_eq!(server.runs("hello"), ["1.1"]);
}

#[test]
fn plan_lists_changes_and_changes_nothing() {
    let Some(repo) = repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other"]) else { return };
    let before = server.packages();
    let result = execute(&server, Work::Plan(install(&[])));
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(format_moves(&result), ["hello 1.0 > 1.1", "other 1.0 > 1.1"]);
    assert_eq!(server.packages(), before);
}

#[test]
fn held_packages_and_removals_are_skipped() {
    let Some(repo) = repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other", "pushy"]) else { return };
    server.hold("hello");
    let before = server.packages();
    let held = execute(&server, Work::Install(install(&["hello"])));
    assert_eq!(held.outcome, Outcome::Skipped, "{held:?}");
    assert!(held.message.unwrap().as_str().contains("held"), "{:?}", held.notes);
    assert_eq!(server.packages(), before);
    let worker = worker(server.root.dir());
    worker.0.acknowledge(&[order(1, Work::Scan).id]);
    worker.0.accept(order(2, Work::Install(install(&["pushy"]))));
    let pushy = wait_for_first_result(&worker);
    assert_eq!(pushy.outcome, Outcome::Skipped, "{pushy:?}");
    assert!(pushy.message.unwrap().as_str().contains("kept back"), "{:?}", pushy.notes);
    assert_eq!(server.packages(), before);
}

#[test]
fn edited_file_is_kept_and_failed_script_reported() {
    let Some(repo) = repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["edited", "broken"]) else { return };
    server.root.write("/etc/edited.conf", "mine\n");
    let result = execute(&server, Work::Install(install(&[])));
    assert_eq!(result.failure_code, Some(FailureCode::InstallFailed), "{result:?}");
    assert_eq!(format_moves(&result), ["broken 1.0 > 1.1", "edited 1.0 > 1.1"]);
    assert_eq!(server.root.read("/etc/edited.conf"), "mine\n");
    assert_eq!(result.set_aside, ["/etc/edited.conf.dpkg-dist".into()]);
    assert!(
        result.notes.iter().any(|note| note.as_str().contains("still incomplete")),
        "{result:?}"
    );
}

/// An agent in its own process, to be killed.
struct AgentProcess {
    process: Child,
    output_lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

const ROOT: &str = "FLEETMEND_TEST_AGENT_ROOT";

impl AgentProcess {
    fn start(server: &Server, order: &Order) -> AgentProcess {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "apt::agent_process_for_kill_tests", "--nocapture"])
            .env(ROOT, server.root.dir())
            .env("FLEETMEND_TEST_AGENT_ORDER", serde_json::to_string(order).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        AgentProcess { process, output_lines: output }
    }

    /// Lets it run until it reaches this stage, or a later one, and kills it.
    fn kill_at(mut self, stage: Stage) {
        let is = |line: &str| line.rsplit_once("is ")?.1.parse::<Stage>().ok();
        let reached =
            self.output_lines.any(|line| is(&line.unwrap()).is_some_and(|seen| seen >= stage));
        assert!(reached, "it never reaches {stage}");
        self.kill();
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
#[ignore = "a helper process that other tests start and kill"]
fn agent_process_for_kill_tests() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    let order = std::env::var("FLEETMEND_TEST_AGENT_ORDER").unwrap();
    let agent = worker(root.as_ref());
    agent.0.accept(serde_json::from_str(&order).unwrap());
    let mut last = None;
    wait_until(&agent, |report| {
        let stage = report.progress.first().and_then(|progress| progress.stage);
        if stage != last {
            println!("is {}", stage.map_or("done", Stage::as_str));
            last = stage;
        }
        report.results.first().cloned()
    });
}

/// The package's script signals that it runs, and waits for a message: two named pipes.
fn make_pipes(server: &Server) {
    for pipe in ["started", "go"] {
        server.root.run_successfully("mkfifo", &[&format!("/run/{pipe}")]);
    }
}

/// It times out, in case its test has ended.
const WAITING_SCRIPT: &str = "if [ -p /run/started ]; then
    timeout 60 sh -c 'echo runs > /run/started; read word < /run/go'
fi";

fn waiting_script_repo() -> Option<Repo> {
    Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs().script(WAITING_SCRIPT)),
    ])
}

fn wait_for_script(server: &Server) {
    assert_eq!(fs::read_to_string(server.root.path("/run/started")).unwrap(), "runs\n");
}

fn release_script(server: &Server) {
    let pipe = fs::OpenOptions::new().write(true).open(server.root.path("/run/go"));
    pipe.unwrap().write_all(b"go\n").unwrap();
}

#[test]
fn agent_killed_during_a_script_still_reports_success() {
    let Some(repo) = waiting_script_repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello"]) else { return };
    make_pipes(&server);
    let agent = AgentProcess::start(&server, &order(1, Work::Install(install(&["hello"]))));
    wait_for_script(&server);
    agent.kill();
    // The next agent finds it still running, and waits.
    let next = worker(server.root.dir());
    assert!(next.0.report().results.is_empty());
    release_script(&server);
    let result = wait_for_first_result(&next);
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!((format_moves(&result), result.exit), (vec!["hello 1.0 > 1.1".to_owned()], Some(0)));
    assert_eq!(server.runs("hello"), ["1.1"]);
}

/// Without the supervisor, the exit code is unknown. The package manager is allowed to finish.
#[test]
fn package_manager_without_supervisor_is_awaited_and_verified() {
    let Some(repo) = waiting_script_repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello"]) else { return };
    make_pipes(&server);
    let order = order(1, Work::Install(install(&["hello"])));
    let agent = AgentProcess::start(&server, &order);
    wait_for_script(&server);
    let supervisor = supervisor(&server, &order);
    agent.kill();
    kill(supervisor);
    let next = worker(server.root.dir());
    release_script(&server);
    let result = wait_for_first_result(&next);
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!((format_moves(&result), result.exit), (vec!["hello 1.0 > 1.1".to_owned()], None));
    assert!(result.notes.iter().any(|note| note.as_str().contains("was killed")));
    assert_eq!(server.runs("hello"), ["1.1"]);
}

/// Kills apt, dpkg and the maintainer script while the script runs, as a power failure would.
#[test]
fn killed_installation_is_repaired_and_reported() {
    let Some(repo) = waiting_script_repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello"]) else { return };
    make_pipes(&server);
    let order = order(1, Work::Install(install(&["hello"])));
    let agent = AgentProcess::start(&server, &order);
    wait_for_script(&server);
    let supervisor = supervisor(&server, &order);
    let processes = descendants(supervisor);
    assert!(processes.len() >= 3, "apt, dpkg and the script: {processes:?}");
    agent.kill();
    kill(supervisor);
    processes.into_iter().for_each(kill);
    assert_eq!(server.version("hello").unwrap(), "1.1 (iF)");
    fs::remove_file(server.root.path("/run/started")).unwrap();
    let result = wait_for_first_result(&worker(server.root.dir()));
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(format_moves(&result), ["hello 1.0 > 1.1"]);
    let reported = |words: &str| result.notes.iter().any(|note| note.as_str().contains(words));
    assert!(reported("was killed") && reported("repaired after installing"), "{:?}", result.notes);
    assert_eq!(server.version("hello").unwrap(), "1.1");
}

fn supervisor(server: &Server, order: &Order) -> u32 {
    let started = format!("/var/lib/fleetmend/orders/{}/install.0/started", order.id);
    let process: serde_json::Value = serde_json::from_str(&server.root.read(&started)).unwrap();
    u32::try_from(process["pid"].as_u64().unwrap()).unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have ended in the meantime.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// The child processes of a process, and theirs.
fn descendants(process: u32) -> Vec<u32> {
    let children =
        fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let children = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

#[test]
fn agent_killed_early_resumes_and_installs_once() {
    let Some(repo) = repo() else { return };
    for stage in [Stage::Preflight, Stage::Downloading, Stage::Installing] {
        let Some(server) = Server::with_installed(&repo, &["hello"]) else { return };
        let order = order(1, Work::Install(install(&[])));
        AgentProcess::start(&server, &order).kill_at(stage);
        let next = worker(server.root.dir());
        next.0.accept(order);
        let result = wait_for_first_result(&next);
        assert_eq!(result.outcome, Outcome::Succeeded, "{stage}: {result:?}");
        assert_eq!(format_moves(&result), ["hello 1.0 > 1.1"]);
        assert_eq!(server.runs("hello"), ["1.1"], "{stage}");
    }
}
