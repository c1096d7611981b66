//! A service, an API client, and hosts with an agent, all cleaned up on drop.
//!
//! A system of the lab is visible only to the thread that created it and to what that thread starts
//! later. So nothing here starts a thread: the client blocks, and agents are child processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Dir, Running, first_key};

/// Far longer than usual: something hangs.
const POLLS_MAX: u32 = 2_400;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running service and a client for it.
pub(crate) struct Fleet {
    pub(crate) dir: Dir,
    pub(crate) service: Running,
    pub(crate) key: String,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Fleet {
    /// Starts a service without TLS.
    pub(crate) fn new() -> Fleet {
        Fleet::with(&[], reqwest::Client::builder())
    }

    /// Starts a service with additional flags and a matching client.
    pub(crate) fn with(more: &[&str], client: reqwest::ClientBuilder) -> Fleet {
        Fleet::create(client, |dir| Running::start(&dir.data(), more))
    }

    /// Starts a service with changes to its command.
    pub(crate) fn start_with(change: impl FnOnce(&mut Command)) -> Fleet {
        Fleet::create(reqwest::Client::builder(), |dir| {
            Running::with("127.0.0.1:0", &dir.data(), &[], change)
        })
    }

    fn create(client: reqwest::ClientBuilder, start: impl FnOnce(&Dir) -> Running) -> Fleet {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = Dir::new();
        let key = first_key(&dir.data());
        let service = start(&dir);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let http = client.no_proxy().build().unwrap();
        Fleet { dir, service, key, http, runtime }
    }

    /// Sends a request. Returns the status and the body; an empty body is null.
    pub(crate) fn request(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, text) = self.request_text(method, path, body);
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        (status, body)
    }

    fn request_text(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, String) {
        let url = format!("{}{path}", self.service.address);
        let mut request = self.http.request(method, url).bearer_auth(&self.key);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.runtime.block_on(async {
            let answer = request.send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        })
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.request(Method::GET, path, None);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Reads a text response.
    #[track_caller]
    pub(crate) fn text(&self, path: &str) -> String {
        let (status, text) = self.request_text(Method::GET, path, None);
        assert_eq!(status, 200, "{path}: {text}");
        text
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.request(Method::POST, path, Some(body));
        assert!((200..300).contains(&status), "{path} {body}: {status} {answer}");
        answer
    }

    /// Polls until `enough` returns true, and returns the response.
    #[track_caller]
    pub(crate) fn until(&self, path: &str, mut enough: impl FnMut(&Value) -> bool) -> Value {
        for _ in 0..POLLS_MAX {
            let seen = self.get(path);
            if enough(&seen) {
                return seen;
            }
            self.pause();
        }
        panic!("the expected state was never reached: {}", self.get(path));
    }

    /// Polls until a condition outside the service is true.
    #[track_caller]
    pub(crate) fn until_true(&self, what: &str, mut so: impl FnMut() -> bool) {
        for _ in 0..POLLS_MAX {
            if so() {
                return;
            }
            self.pause();
        }
        panic!("timed out waiting for: {what}");
    }

    /// Waits for a point in time, for tests about timing.
    pub(crate) fn until_instant(&self, instant: tokio::time::Instant) {
        self.runtime.block_on(async { tokio::time::sleep_until(instant).await });
    }

    fn pause(&self) {
        self.runtime.block_on(async { tokio::time::sleep(POLL_INTERVAL).await });
    }

    /// Creates an enrollment token.
    pub(crate) fn token(&self) -> String {
        let made = self.post("/v1/enrollment-tokens", &json!({}));
        made["token"].as_str().unwrap().to_owned()
    }

    /// Orders a patch for one server and waits for its end. Returns the task.
    #[track_caller]
    pub(crate) fn patch(&self, server: &str, order: &Value) -> Value {
        let (task, _) = self.patch_and_follow(server, order, |_| ());
        task
    }

    /// Like [`Fleet::patch`], but also returns every state seen on the way. Calls `look` with
    /// each.
    #[track_caller]
    pub(crate) fn patch_and_follow(
        &self,
        server: &str,
        order: &Value,
        mut look: impl FnMut(&str),
    ) -> (Value, Vec<String>) {
        let batch = self.post(&format!("/v1/servers/{server}/patch"), order);
        let mut states: Vec<String> = Vec::new();
        let seen = self.until(&batch_path(&batch), |seen| {
            let state = seen["results"][0]["state"].as_str().unwrap();
            if states.last().is_none_or(|last| last != state) {
                states.push(state.to_owned());
            }
            look(state);
            !seen["finished_at"].is_null()
        });
        (seen["results"][0].clone(), states)
    }

    #[track_caller]
    pub(crate) fn server(&self, id: &str) -> Value {
        self.get(&format!("/v1/servers/{id}"))
    }

    /// Waits until a server's packages were scanned.
    #[track_caller]
    pub(crate) fn wait_for_scan(&self, id: &str) -> Value {
        self.until(&format!("/v1/servers/{id}"), |seen| {
            !seen["last_scan_at"].is_null() && seen["summary"]["packages"] != 0
        })
    }
}

/// The path of a batch.
pub(crate) fn batch_path(batch: &Value) -> String {
    format!("/v1/batches/{}", batch["id"].as_str().unwrap())
}

/// The package changes of a task, in lines such as `hello 1.0 > 1.1`.
pub(crate) fn package_changes(task: &Value) -> Vec<String> {
    let line = |change: &Value| {
        let version = |side: &str| change[side].as_str().unwrap_or("-").to_owned();
        format!("{} {} > {}", change["name"].as_str().unwrap(), version("from"), version("to"))
    };
    task["result"]["packages"].as_array().unwrap().iter().map(line).collect()
}

/// One package of a server in one line: `hello 1.0 > 1.1 security`, `curl 8.5`.
pub(crate) fn package(server: &Value, name: &str) -> String {
    let packages = server["packages"].as_array().unwrap();
    let found = packages.iter().find(|package| package["name"] == name);
    let package = found.unwrap_or_else(|| panic!("{name} is not listed"));
    let mut line = format!("{name} {}", package["version"].as_str().unwrap());
    if let Some(to) = package["available_version"].as_str() {
        line.push_str(&format!(" > {to}"));
    }
    for word in ["security", "held"] {
        if package[word] == true {
            line.push_str(&format!(" {word}"));
        }
    }
    if let Some(why) = package["blocked_by"].as_str() {
        line.push_str(&format!(" ({why})"));
    }
    line
}

/// The agent's binary, next to `fleetmend`.
pub(crate) fn agent_program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_fleetmend")).with_file_name("fleetmend-agent");
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build -p agent`, or the tests of the whole workspace",
        program.display()
    );
    program
}

/// A system with an agent, whose process ends on drop.
pub(crate) struct Host {
    pub(crate) id: String,
    pub(crate) root: PathBuf,
    /// The certificate authorities that the host trusts, if not those of this machine.
    pub(crate) trust_store: Option<PathBuf>,
    /// Additional environment variables for the agent.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    log: PathBuf,
    process: Option<Child>,
}

impl Host {
    /// Enrolls the system under a directory, without starting the agent.
    #[track_caller]
    pub(crate) fn enrolled(fleet: &Fleet, root: &Path) -> Host {
        let mut host = Host::not_enrolled(fleet, root);
        host.enroll(fleet);
        host
    }

    /// Enrolls it and starts the agent.
    #[track_caller]
    pub(crate) fn joined(fleet: &Fleet, root: &Path) -> Host {
        let mut host = Host::enrolled(fleet, root);
        host.start();
        host
    }

    /// A system that is not enrolled.
    pub(crate) fn not_enrolled(fleet: &Fleet, root: &Path) -> Host {
        let name = format!("agent-{}.log", root.to_string_lossy().replace('/', "_"));
        let log = fleet.dir.0.join(name);
        Host {
            id: String::new(),
            root: root.to_owned(),
            trust_store: None,
            environment: Vec::new(),
            log,
            process: None,
        }
    }

    /// A command of the agent for this system.
    pub(crate) fn agent(&self, args: &[&str]) -> Command {
        let mut command = Command::new(agent_program());
        command.args(args).arg("--root").arg(&self.root).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        if let Some(file) = &self.trust_store {
            command.env("SSL_CERT_FILE", file);
        }
        command.envs(self.environment.iter().cloned());
        command
    }

    /// Runs a command of the agent to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.agent(args).output().unwrap()
    }

    /// Enrolls the host and stores its ID.
    #[track_caller]
    pub(crate) fn enroll(&mut self, fleet: &Fleet) {
        self.enroll_at(fleet, &fleet.service.address);
    }

    /// Enrolls the host through this address of the service.
    #[track_caller]
    pub(crate) fn enroll_at(&mut self, fleet: &Fleet, address: &str) {
        let token = fleet.token();
        let output = self.run(&["enroll", "--server", address, "--token", &token]);
        let words = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{words}");
        let id = words.split_whitespace().find(|word| word.starts_with("srv_"));
        id.unwrap().trim_end_matches(';').clone_into(&mut self.id);
    }

    pub(crate) fn start(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let mut command = self.agent(&["run"]);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(command.spawn().unwrap());
    }

    /// Sends SIGTERM to the agent and waits for it. Returns whether it exited successfully.
    pub(crate) fn stop(&mut self) -> bool {
        kill(Pid::from_raw(self.pid()), Signal::SIGTERM).unwrap();
        self.process.take().unwrap().wait().unwrap().success()
    }

    /// The agent's process ID.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.process.as_ref().unwrap().id()).unwrap()
    }

    /// Kills the agent.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Waits for the agent to end on its own. Returns whether it exited successfully.
    pub(crate) fn wait_for_end(&mut self, fleet: &Fleet) -> bool {
        let mut process = self.process.take().unwrap();
        let mut status = None;
        fleet.until_true("the agent ends on its own", || {
            status = process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().success()
    }

    /// The agent's log.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Host {
    #[expect(clippy::print_stdout, reason = "the agent's log explains a failed test")]
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            println!("the agent's log:\n{}", self.log_text());
        }
    }
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
