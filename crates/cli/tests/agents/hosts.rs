//! A service on the loopback interface, an API client, and agents as they run on hosts.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lab::apt::Server;
use serde_json::{Value, json};

/// Number of polls before giving up: about two minutes.
const POLLS_MAX: u32 = 6_000;

/// A service with its own data directory, and a client with its first API key.
pub(crate) struct Service {
    pub(crate) child: Child,
    dir: PathBuf,
    http: reqwest::Client,
    key: String,
    pub(crate) url: String,
}

impl Service {
    pub(crate) fn start() -> Service {
        Service::start_with(&[])
    }

    /// Starts a service with additional flags.
    pub(crate) fn start_with(flags: &[&str]) -> Service {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleetmend_agents_{}_{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let data = dir.join("data").to_string_lossy().into_owned();
        std::fs::create_dir_all(&dir).unwrap();
        let created = fleetmend(&["init", "--data-dir", &data, "--org", "Acme", "--json"]);
        let created = { created }.output().unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        let created: Value = serde_json::from_slice(&created.stdout).unwrap();
        let (child, url) = serve(&data, "127.0.0.1:0", flags);
        let _ = rustls::crypto::ring::default_provider().install_default();
        // An idle connection may be closed just when it is used again.
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
        let key = created["api_key"].as_str().unwrap().to_owned();
        Service { child, dir, http, key, url }
    }

    /// Stops the service, and starts it again on the same address.
    pub(crate) fn restart(mut self, flags: &[&str]) -> Service {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let listen = self.url.strip_prefix("http://").unwrap().to_owned();
        let data = self.dir.join("data").to_string_lossy().into_owned();
        let (child, url) = serve(&data, &listen, flags);
        assert_eq!(url, self.url);
        self.child = child;
        self
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        let response = request.json(&body).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.text().await.unwrap());
        response.json().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.key);
        request.send().await.unwrap().json().await.unwrap()
    }

    /// Creates an enrollment token.
    pub(crate) async fn token(&self) -> String {
        let made = self.post("/v1/enrollment-tokens", json!({})).await;
        made["token"].as_str().unwrap().to_owned()
    }

    /// Polls until `enough` returns true, calling `meanwhile` before each poll. Returns the last
    /// response.
    pub(crate) async fn until(
        &self,
        path: &str,
        mut meanwhile: impl FnMut(),
        enough: impl Fn(&Value) -> bool,
    ) -> Value {
        for _ in 0..POLLS_MAX {
            meanwhile();
            let seen = self.get(path).await;
            if enough(&seen) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the expected state was never reached: {}", self.get(path).await);
    }

    /// The IDs of the servers, once there are `count` that have reported updates.
    pub(crate) async fn servers(&self, count: usize, meanwhile: impl FnMut()) -> Vec<String> {
        let known = |seen: &Value| {
            let servers = seen["data"].as_array().unwrap();
            let scanned = |row: &&Value| row["summary"]["updates"].as_u64() > Some(0);
            servers.iter().filter(scanned).count() == count
        };
        let seen = self.until("/v1/servers?limit=500", meanwhile, known).await;
        let servers = seen["data"].as_array().unwrap();
        servers.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Starts a service and returns its address.
fn serve(data: &str, listen: &str, flags: &[&str]) -> (Child, String) {
    let mut child = fleetmend(&["server", "--data-dir", data, "--listen", listen])
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("fleetmend is listening on ").unwrap().to_owned();
    (child, url)
}

fn fleetmend(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetmend"));
    // Tests fetch nothing from publishers.
    command.args(args).env_clear().env("FLEETMEND_FEEDS", "manual").stdin(Stdio::null());
    command
}

/// A system under a directory with its own agent, which ends on drop.
pub(crate) struct Host {
    pub(crate) server: Server,
    pub(crate) child: Child,
}

impl Host {
    /// Enrolls the host and starts its agent.
    pub(crate) fn join(service: &Service, token: &str, server: Server) -> Host {
        let command = |word: &str| {
            let mut command = Command::new(agent());
            command.arg(word).arg("--root").arg(server.root.dir()).env_clear().envs(environment());
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let joined = command("enroll").args(["--server", &service.url, "--token", token]).status();
        assert!(joined.unwrap().success(), "the host cannot enroll");
        let child = command("run").spawn().unwrap();
        Host { server, child }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The environment variables of the agent's systemd unit.
fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    const UNIT: &str = include_str!("../../../../packaging/systemd/fleetmend-agent.service");
    let settings = UNIT.lines().filter_map(|line| line.strip_prefix("Environment="));
    settings.flat_map(str::split_whitespace).filter_map(|setting| setting.split_once('='))
}

/// The agent's binary: next to the service's, unless `FLEETMEND_TEST_AGENT` names another.
pub(crate) fn agent() -> PathBuf {
    if let Some(other) = std::env::var_os("FLEETMEND_TEST_AGENT") {
        return PathBuf::from(other);
    }
    workspace_program("fleetmend-agent", "agent")
}

/// A binary of another package of this workspace, which cargo built next to the service's.
pub(crate) fn workspace_program(name: &str, package: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_fleetmend")).with_file_name(name);
    assert!(
        program.is_file(),
        "{} is missing: run `cargo build -p {package}`, or the tests of the whole workspace",
        program.display()
    );
    program
}
