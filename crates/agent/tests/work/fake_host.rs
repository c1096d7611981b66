//! A fake package manager that is a directory: one file per package with its version, and the
//! available updates next to it.
//!
//! It is real enough to be killed: it installs packages with a separate process.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::backend::{Backend, BackendError, Change, Choice, Diagnosis, LockHolder, Transaction};
use agent::command::Command;
use agent::host::Host;
use agent::root::Root;
use agent::work::{AgentReplacement, Report, Worker, WorkerConfig};
use jiff::Timestamp;
use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, FailureCode, Line, PackageManager, TaskId};
use wire::agent::{Install, Order, OrderResult, Work};

/// A host with a fake package manager, and a state directory.
pub(crate) struct FakeHost {
    pub(crate) dir: PathBuf,
    notifications: Arc<Mutex<Receiver<()>>>,
    notifier: std::sync::mpsc::Sender<()>,
}

impl FakeHost {
    pub(crate) fn new(
        name: &str,
        installed: &[(&str, &str)],
        offered: &[(&str, &str)],
    ) -> FakeHost {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("toy-{name}"));
        let _ = fs::remove_dir_all(&dir);
        for part in ["db", "offer", "held", "state", "hooks/pre-install.d", "hooks/post-install.d"]
        {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        for (part, list) in [("db", installed), ("offer", offered)] {
            for (package, version) in list {
                fs::write(dir.join(part).join(package), version).unwrap();
            }
        }
        let (ring, receiver) = channel();
        FakeHost { dir, notifications: Arc::new(Mutex::new(receiver)), notifier: ring }
    }

    /// The content of a file in the host's directory; empty if it does not exist.
    pub(crate) fn read_text(&self, path: &str) -> String {
        fs::read_to_string(self.dir.join(path)).unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn script(&self, path: &str, text: &str) {
        let path = self.dir.join(path);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn worker(&self) -> Worker {
        let root = Root::under(&self.dir);
        let notifier = Mutex::new(self.notifier.clone());
        Worker::start(WorkerConfig {
            state_dir: self.dir.join("state"),
            backend: Arc::new(FakeManager { dir: self.dir.clone() }),
            host: Arc::new(Host::new(root.clone())),
            root,
            limits: self.dir.join("limits.toml"),
            hooks: self.dir.join("hooks"),
            health_hooks: self.dir.join("health.d"),
            program: env!("CARGO_BIN_EXE_fleetmend-agent").into(),
            replace: AgentReplacement {
                allowed: Err("this is a test".into()),
                program: env!("CARGO_BIN_EXE_fleetmend-agent").into(),
                timeout_seconds: 1,
            },
            notify: Box::new(move || {
                let _ = notifier.lock().unwrap().send(());
            }),
            clock: Box::new(now),
        })
        .unwrap()
    }

    /// Waits for notifications until `sight` returns a value for the worker's report.
    pub(crate) fn wait_until<T>(
        &self,
        worker: &Worker,
        mut sight: impl FnMut(&Report) -> Option<T>,
    ) -> T {
        let notifications = self.notifications.lock().unwrap();
        loop {
            if let Some(seen) = sight(&worker.report()) {
                return seen;
            }
            notifications
                .recv_timeout(Duration::from_secs(60))
                .expect("the worker notifies when its report changes");
        }
    }

    pub(crate) fn wait_for_result(&self, worker: &Worker, id: TaskId) -> OrderResult {
        self.wait_until(worker, |report| {
            report.results.iter().find(|result| result.order_id == id).cloned()
        })
    }

    /// Executes one order, from its arrival to its result.
    pub(crate) fn execute(&self, order: &Order) -> OrderResult {
        let worker = self.worker();
        worker.accept(order.clone());
        self.wait_for_result(&worker, order.id)
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests run in real time")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

pub(crate) fn order(number: u128, work: Work) -> Order {
    let issued_at = now();
    Order {
        id: TaskId::new("2026-11-15T04:00:00Z".parse().unwrap(), number),
        server_id: vocab::ServerId::new(issued_at, 1),
        issued_at,
        expires_at: issued_at + Duration::from_secs(600),
        work,
    }
}

pub(crate) fn install(packages: &[&str]) -> Install {
    Install {
        packages: packages.iter().map(|name| name.parse().unwrap()).collect(),
        exclude: Vec::new(),
        security_only: false,
        security_packages: Vec::new(),
        reboot: vocab::RebootPolicy::Never,
        boot_id: Line::default(),
        health: false,
    }
}

struct FakeManager {
    dir: PathBuf,
}

impl FakeManager {
    fn list(&self, part: &str) -> Vec<(String, String)> {
        let mut list: Vec<_> = fs::read_dir(self.dir.join(part))
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let text = fs::read_to_string(entry.path()).unwrap().trim().to_owned();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect();
        list.sort();
        list
    }

    fn sh(&self, script: &str) -> Command {
        Command::new("sh").args(["-ec", script]).env("DIR", &self.dir.to_string_lossy())
    }
}

impl Backend for FakeManager {
    fn manager(&self) -> PackageManager {
        PackageManager::Apt
    }

    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let held = self.list("held");
        let package = |(name, version): (String, String)| {
            let mut package = Installed::new(&name, &version, "all");
            package.held = held.iter().any(|(other, _)| *other == name);
            package
        };
        Ok(self.list("db").into_iter().map(package).collect())
    }

    fn refresh(&self) -> Vec<Command> {
        vec![self.sh("echo refreshed; echo refresh >> $DIR/ran; test ! -e $DIR/no-network")]
    }

    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        let offers = self.list("offer");
        let pending = |package: &Installed| {
            let (_, to) = offers.iter().find(|(name, _)| *name == package.name)?;
            let held = package.held.then_some(BlockedBy::Held);
            let update = Pending::new(&package.name, "all", &package.version, to);
            (*to != package.version).then_some(Pending { blocked_by: held, ..update })
        };
        Ok(installed.iter().filter_map(pending).collect())
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        let change = |choice: &Choice| Change {
            name: choice.name.clone(),
            arch: choice.arch.clone(),
            from: Some(choice.from.clone()),
            to: Some(choice.to.clone()),
        };
        let mut changes: Vec<Change> = chosen.iter().map(change).collect();
        for (name, version) in self.list("db") {
            if self.dir.join("removes").join(&name).exists() {
                changes.push(Change { name, arch: "all".into(), from: Some(version), to: None });
            }
        }
        Ok(Transaction { changes, download_bytes: Some(1), disk_bytes: Some(1) })
    }

    fn download(&self, _: &[Choice]) -> Vec<Command> {
        vec![self.sh("echo download >> $DIR/ran")]
    }

    fn install(&self, chosen: &[Choice]) -> Vec<Command> {
        let one = |choice: &Choice| {
            self.sh("echo \"setting up $NAME\"; echo install >> $DIR/ran
                 echo $$ > $DIR/installing
                 while test -e $DIR/gate; do sleep 0.01; done
                 test ! -e $DIR/fails || { echo 'E: the script failed' >&2; exit 100; }
                 test -e $DIR/lies || echo \"$TO\" > $DIR/db/$NAME")
                .env("NAME", &choice.name)
                .env("TO", &choice.to)
        };
        chosen.iter().map(one).collect()
    }

    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        let holder = fs::read_to_string(self.dir.join("locked-by")).ok();
        Ok(holder.map(|name| LockHolder { pid: None, name: name.into() }))
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        Ok(fs::read_to_string(self.dir.join("damage")).ok().map(Line::from).into_iter().collect())
    }

    fn repair(&self) -> Vec<Command> {
        vec![self.sh("echo repair >> $DIR/ran; test -e $DIR/hopeless || rm -f $DIR/damage")]
    }

    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        Ok(Vec::new())
    }

    fn reboot_reasons(&self, _: &str) -> Result<Vec<Line>, BackendError> {
        Ok(Vec::new())
    }

    fn diagnose(&self, exit: Option<i32>, output: &str) -> Diagnosis {
        let last = output.lines().last().unwrap_or_default();
        Diagnosis {
            code: FailureCode::InstallFailed,
            message: format!("ended with {exit:?}: {last}").into(),
        }
    }
}
