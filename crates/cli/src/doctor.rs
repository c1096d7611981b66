//! `fleetmend doctor`: checks the whole installation and suggests a fix for each problem.
//!
//! The settings of the service are found in `configuration`, which uses the flags of the running
//! service from `process`. The checks are in the other
//! submodules: files and keys in `data_dir`, the listen address and certificate in `certificate`,
//! everything in the database in `database`, the mail server in `email`. Doctor never changes anything.

mod certificate;
pub(crate) mod configuration;
mod data_dir;
mod database;
mod email;
mod process;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use service::clock::Clock;

use crate::installation::Installation;
use crate::operator::table::pluralize;
use configuration::ServiceArgs;
use process::ServiceProcess;

/// Check the whole installation: files, keys, database, audit log, disk space, clock, certificate,
/// feeds, agents, backups and the mail server.
///
/// Doctor changes nothing. Each note and each problem includes a fix. The exit code is 1 if
/// there is a problem.
///
/// Doctor checks the settings that the service runs with: the flags of the running service, the
/// environment file of the packaged systemd unit, and `fleetmend.toml`. If the service is not
/// running, or doctor cannot see its process, pass the same flags to doctor. The line `settings` says
/// where each setting comes from.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend doctor --data-dir /var/lib/fleetmend
  fleetmend doctor --data-dir D --listen 0.0.0.0:7600 --tls-cert cert.pem --tls-key key.pem
  fleetmend doctor --data-dir D --json | jq '.findings[] | select(.state == \"problem\")'")]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) installation: Installation,
    #[command(flatten)]
    service: ServiceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Ok,
    /// Worth knowing, but nothing is wrong.
    Note,
    Problem,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) state: State,
    pub(crate) detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

/// The results so far, and the time they are measured against.
pub(crate) struct Findings {
    pub(crate) now: Timestamp,
    all: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, check: &'static str, state: State, detail: String, remedy: Option<String>) {
        self.all.push(Finding { check, state, detail, remedy });
    }

    pub(crate) fn ok(&mut self, check: &'static str, detail: impl Into<String>) {
        self.add(check, State::Ok, detail.into(), None);
    }

    pub(crate) fn note(
        &mut self,
        check: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(check, State::Note, detail.into(), Some(remedy.into()));
    }

    pub(crate) fn problem(
        &mut self,
        check: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(check, State::Problem, detail.into(), Some(remedy.into()));
    }
}

/// Returned as the error when problems were found. The problems themselves are already printed.
#[derive(Debug)]
struct Problems(usize);

impl std::fmt::Display for Problems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.0 == 1 { "problem" } else { "problems" };
        write!(f, "{} {word}", self.0)
    }
}

impl std::error::Error for Problems {}

impl Doctor {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut findings = Findings { now: Clock::system().now(), all: Vec::new() };
        data_dir::check(&self.installation, &mut findings);
        let process = ServiceProcess::find(&self.installation.data_dir);
        let file = self.service.resolve(&self.installation, &process, &mut findings);
        let serving = certificate::check(&file, &mut findings);
        process.check(serving, &mut findings);
        database::check(&self.installation, &file, serving, &mut findings).await;
        email::check(&file, &mut findings).await;
        self.print_findings(&findings.all)
    }

    fn print_findings(&self, findings: &[Finding]) -> anyhow::Result<()> {
        let problems = findings.iter().filter(|found| found.state == State::Problem).count();
        match self.json {
            true => {
                let report = json!({"healthy": problems == 0, "findings": findings});
                crate::print_line(&report.to_string())?;
            }
            false => {
                findings.iter().try_for_each(|found| crate::print_line(&format_finding(found)))?;
            }
        }
        let notes = findings.iter().filter(|found| found.state == State::Note).count();
        match problems {
            0 if self.json => Ok(()),
            0 if notes == 0 => crate::print_line("No problems found."),
            0 => crate::print_line(&format!(
                "No problems found; {}.",
                pluralize(notes, "note", "notes")
            )),
            problems => Err(Problems(problems).into()),
        }
    }
}

fn format_finding(found: &Finding) -> String {
    let word = match found.state {
        State::Ok => "ok     ",
        State::Note => "note   ",
        State::Problem => "PROBLEM",
    };
    let mut text = format!("{word}  {}: {}", found.check, found.detail);
    if let Some(remedy) = &found.remedy {
        text += &format!("\n         -> {remedy}");
    }
    text
}
