//! Runs the real service with simulated agents on a free loopback port, in a temporary directory.
//!
//! Like PostgreSQL in `postgres`, both exit together with this program. They do not inherit the
//! caller's `FLEETMEND_*` variables, because a database named there is not ours.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{Process, Processes, TERMINATE_GROUP, TaskError, WaitResult};
use crate::workspace::{Workspace, directory_entries};

pub(crate) const SERVERS: u32 = 30;
/// The environment of all servers.
pub(crate) const ENVIRONMENT: &str = "staging";

const PREFIX: &str = "service-";
/// A feed with one advisory: its start, the entry for each package (all versions are affected), and
/// its end.
const FEED: [&str; 3] = [
    r#"{"id":"CONTRACT-1","modified":"2026-11-13T00:00:00Z","aliases":["CVE-2026-1234"],"affected":["#,
    r#"{"package":{"ecosystem":"Debian:12","name":"NAME"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"}]}]}"#,
    "]}\n",
];
/// Packages that are installed on every server with that system.
const AFFECTED_PACKAGES: [&str; 6] = ["bash", "coreutils", "curl", "openssl", "systemd", "tar"];
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A running service, and agents that have started to enroll.
#[must_use = "the caller must call stop()"]
pub(crate) struct Service {
    directory: PathBuf,
    address: String,
    key: String,
    processes: Vec<(&'static str, Process)>,
}

impl Service {
    /// Starts the service from programs that are already built.
    pub(crate) fn start(
        workspace: &Workspace,
        processes: &mut Processes,
    ) -> Result<Service, TaskError> {
        let base = workspace.target().join("contract");
        remove_abandoned(&base);
        let directory = base.join(format!("{PREFIX}{}", std::process::id()));
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(|error| {
            TaskError::Failed(format!("cannot create {}: {error}", directory.display()))
        })?;
        let (address, key) = (String::new(), String::new());
        let mut service = Service { directory, address, key, processes: Vec::new() };
        match service.launch(&workspace.target().join("debug"), processes) {
            Ok(()) => Ok(service),
            Err(halt) => {
                service.stop(processes);
                Err(halt)
            }
        }
    }

    fn launch(&mut self, programs: &Path, processes: &mut Processes) -> Result<(), TaskError> {
        let data = self.directory.join("data");
        let mut init = command_without_settings(&programs.join("fleetmend"));
        init.args(["init", "--json", "--org", "Contract", "--data-dir"]).arg(&data);
        let mut output = String::new();
        let status = processes
            .run_with_lines(&mut init, TERMINATE_GROUP, &mut |line| output.push_str(line))?;
        self.key = json_string_field(&output, "api_key").filter(|_| status.success()).ok_or_else(
            || TaskError::Failed(format!("`fleetmend init` failed ({status}): {output}")),
        )?;

        self.import_feed(&programs.join("fleetmend"), &data, processes)?;

        let mut server = command_with_death_signal(&programs.join("fleetmend"));
        server
            .args(["server", "--listen", "127.0.0.1:0", "--log", "warn", "--data-dir"])
            .arg(&data);
        // The check uses its own feed and nothing of a publisher: built-in feeds come from a mirror,
        // and others through a proxy, that do not exist on this machine.
        server.args(["--feeds", "manual", "--feed-mirror", "http://127.0.0.1:1/"]);
        for name in ["HTTP_PROXY", "HTTPS_PROXY"] {
            server.env(name, "http://127.0.0.1:1");
        }
        // Webhooks send to an address of this host at which nobody listens.
        server.arg("--webhook-allow-local");
        // So does email.
        server.args([
            "--smtp",
            "smtp://127.0.0.1:1?tls=none",
            "--smtp-from",
            "fleetmend@example.com",
        ]);
        server.args(["--public-url", "https://fleet.example.com"]);
        // Schemathesis is one client that sends requests as fast as it can. Rate limits have their
        // own tests.
        server.args(["--requests-per-second", "100000", "--requests-burst", "1000000"]);
        self.spawn("fleetmend", server, processes)?;
        self.address = self.wait_for_address(processes)?;

        let token = self.send_request(
            "POST",
            "/v1/enrollment-tokens",
            &format!("{{\"environment\":\"{ENVIRONMENT}\"}}"),
        )?;
        let token = json_string_field(&token, "token").ok_or_else(|| {
            TaskError::Failed(format!("the response contains no enrollment token: {token}"))
        })?;
        let mut swarm = command_with_death_signal(&programs.join("swarm"));
        swarm.args(["--url", &self.url(), "--servers", &SERVERS.to_string(), "--speed", "200"]);
        swarm.args(["--fail", "0%", "--offline", "0%", "--crash", "0%"]);
        swarm.env("FLEETMEND_ENROLLMENT_TOKEN", token);
        self.spawn("swarm", swarm, processes)
    }

    /// Imports one vulnerability in packages that some servers have: the CVE of the document's
    /// examples.
    fn import_feed(
        &self,
        program: &Path,
        data: &Path,
        processes: &mut Processes,
    ) -> Result<(), TaskError> {
        let feed = self.directory.join("feed.jsonl");
        let [head, package, end] = FEED;
        let packages = AFFECTED_PACKAGES.map(|name| package.replace("NAME", name)).join(",");
        std::fs::write(&feed, format!("{head}{packages}{end}")).map_err(|error| {
            TaskError::Failed(format!("cannot write {}: {error}", feed.display()))
        })?;
        let mut import = command_without_settings(program);
        import.args(["feeds", "import"]).arg(&feed).arg("--data-dir").arg(data);
        let mut output = String::new();
        let status = processes
            .run_with_lines(&mut import, TERMINATE_GROUP, &mut |line| output.push_str(line))?;
        match status.success() {
            true => Ok(()),
            false => Err(TaskError::Failed(format!(
                "`fleetmend feeds import` failed ({status}): {output}"
            ))),
        }
    }

    fn spawn(
        &mut self,
        name: &'static str,
        mut command: Command,
        processes: &mut Processes,
    ) -> Result<(), TaskError> {
        let log = File::create(self.log(name))
            .and_then(|log| log.try_clone().map(|second| (log, second)))
            .map_err(|error| {
                TaskError::Failed(format!("cannot write the log of {name}: {error}"))
            })?;
        command.stdin(Stdio::null()).stdout(log.0).stderr(log.1);
        self.processes.push((name, processes.start(&mut command)?));
        Ok(())
    }

    /// The service prints its address as soon as it accepts connections.
    fn wait_for_address(&self, processes: &mut Processes) -> Result<String, TaskError> {
        const PAUSE: Duration = Duration::from_millis(50);
        const PAUSES_MAX: u32 = 1200;
        for _ in 0..PAUSES_MAX {
            let output = std::fs::read_to_string(self.log("fleetmend")).unwrap_or_default();
            let address = output
                .lines()
                .find_map(|line| line.strip_prefix("fleetmend is listening on http://"));
            if let Some(address) = address {
                return Ok(address.to_owned());
            }
            match self.processes.first().map(|(_, process)| processes.wait(*process, PAUSE)) {
                Some(WaitResult::TimedOut) => {}
                Some(WaitResult::Interrupted) => return Err(TaskError::Interrupted),
                Some(WaitResult::Ended) | None => break,
            }
        }
        Err(TaskError::Failed(format!("the service did not start{}", self.log_tail("fleetmend"))))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The API key of the first administrator.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the body of a GET response.
    pub(crate) fn get(&self, path: &str) -> Result<String, TaskError> {
        self.send_request("GET", path, "")
    }

    /// Sends one request on its own connection, as minimal HTTP.
    fn send_request(&self, method: &str, path: &str, body: &str) -> Result<String, TaskError> {
        let failed = |error: std::io::Error| {
            TaskError::Failed(format!("{method} {path} got no response: {error}"))
        };
        let mut stream = TcpStream::connect(&self.address).map_err(failed)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).map_err(failed)?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            self.key,
            body.len()
        );
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut response = String::new();
        stream.read_to_string(&mut response).map_err(failed)?;
        match response.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 2") => Ok(body.to_owned()),
            _ => Err(TaskError::Failed(format!("{method} {path} returned {response}"))),
        }
    }

    /// An error message if the service or the swarm has exited unexpectedly.
    pub(crate) fn unexpected_exit(&self, processes: &mut Processes) -> Option<String> {
        self.processes.iter().find_map(|(name, process)| {
            let status = processes.exit_status(*process)?;
            Some(format!("{name} exited unexpectedly ({status}){}", self.log_tail(name)))
        })
    }

    /// Stops both and removes the directory.
    pub(crate) fn stop(self, processes: &mut Processes) {
        for (_, process) in self.processes.iter().rev() {
            processes.stop(*process, TERMINATE_GROUP);
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    fn log_tail(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("; last lines of its log:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}

/// A command that does not inherit the `FLEETMEND_*` variables.
fn command_without_settings(program: &Path) -> Command {
    without_settings(Command::new(program))
}

/// The same, but the kernel terminates the program when this process exits for any reason.
fn command_with_death_signal(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    without_settings(command)
}

fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"FLEETMEND_") {
            command.env_remove(name);
        }
    }
    command
}

/// Removes directories of runs that were killed with SIGKILL.
fn remove_abandoned(base: &Path) {
    for path in directory_entries(base) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(owner) = name.strip_prefix(PREFIX) else { continue };
        if !Path::new("/proc").join(owner).exists() {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// The value of a JSON field that occurs once and contains no escaped characters.
fn json_string_field(json: &str, field: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{field}\":\""))?;
    rest.split_once('"').map(|(text, _)| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_field_is_found_by_its_whole_name() {
        let json = r#"{"api_key_id":"key_1","api_key":"fmk_2"}"#;
        assert_eq!(json_string_field(json, "api_key").as_deref(), Some("fmk_2"));
        assert_eq!(json_string_field(json, "token"), None);
    }

    #[test]
    fn only_directories_of_dead_processes_are_removed() {
        let base = std::env::temp_dir().join(format!("xtask-service-{}", std::process::id()));
        let alive = base.join(format!("{PREFIX}{}", std::process::id()));
        // Larger than the largest process id of a Linux kernel.
        for path in [&alive, &base.join(format!("{PREFIX}4999999"))] {
            std::fs::create_dir_all(path).unwrap();
        }
        remove_abandoned(&base);
        assert_eq!(directory_entries(&base), [alive]);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
