//! Test helpers: a temporary directory, the binary, and a running service, all cleaned up on drop.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

static NEXT: AtomicU32 = AtomicU32::new(0);
static WHOLE_MACHINE: Mutex<()> = Mutex::const_new(());

/// The tests in `whole_machine` run one after the other, for the reason that is given there.
pub(crate) async fn whole_machine() -> MutexGuard<'static, ()> {
    WHOLE_MACHINE.lock().await
}

/// A temporary directory, removed on drop.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Dir {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleetmend_cli_{}_{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.0.join("data")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn fleetmend(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetmend"));
    // Do not inherit the environment of the test process. Tests fetch nothing from publishers.
    command.args(args).env_clear().env("FLEETMEND_FEEDS", "manual").stdin(Stdio::null());
    command
}

pub(crate) fn init(data: &Path, org: &str) -> Output {
    init_with(data, org, &[])
}

fn init_with(data: &Path, org: &str, more: &[&str]) -> Output {
    let data = data.to_str().unwrap();
    let args = ["init", "--data-dir", data, "--org", org, "--json"];
    fleetmend(&[&args[..], more].concat()).output().unwrap()
}

pub(crate) fn first_key(data: &Path) -> String {
    first_key_with(data, &[])
}

pub(crate) fn first_key_with(data: &Path, more: &[&str]) -> String {
    let made = init_with(data, "Acme", more);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(made["organization"]["name"], "Acme");
    made["api_key"].as_str().unwrap().to_owned()
}

/// A running service, killed on drop.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Running {
    pub(crate) fn start(data: &Path, more: &[&str]) -> Running {
        Running::at("127.0.0.1:0", data, more)
    }

    /// Starts a service at a given address, so that it can replace an earlier one.
    pub(crate) fn at(listen: &str, data: &Path, more: &[&str]) -> Running {
        Running::with(listen, data, more, |_| ())
    }

    /// Starts a service with changes to the command, such as its environment.
    pub(crate) fn with(
        listen: &str,
        data: &Path,
        more: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Running {
        let mut args = vec!["server", "--data-dir", data.to_str().unwrap(), "--listen", listen];
        args.extend(more);
        let mut command = fleetmend(&args);
        change(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("fleetmend is listening on ").unwrap().to_owned();
        Running { child, address }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address.strip_prefix("http://").unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    pub(crate) fn ended_well(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
