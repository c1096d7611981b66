//! `fleetmend-agent status`: shows the host's identity and whether the service is reachable.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use vocab::ServerId;

use super::clock::{now, pause};
use super::enroll::require_enrollment;
use super::state::{ContactStatus, StateDir};
use super::{resolve_root, resolve_state_dir};

/// Show the identity of this host and the state of its connection to the service
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  fleetmend-agent status --json")]
pub struct Status {
    /// State directory [default: /var/lib/fleetmend-agent of the managed system]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Managed system, to find its state directory
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Wait until the agent runs and the service responds to it, at most this long; fail otherwise
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=3600))]
    wait: Option<u64>,
}

/// How often `--wait` checks.
const WAIT_INTERVAL: Duration = Duration::from_millis(200);
/// An idle agent syncs at least this often while the service responds.
const RECENT: SignedDuration = SignedDuration::from_mins(2);

#[derive(Serialize)]
struct StatusReport<'a> {
    server_id: ServerId,
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<&'a std::path::Path>,
    enrolled_at: Timestamp,
    running: bool,
    removed_at: Option<Timestamp>,
    agent_version: &'static str,
    #[serde(flatten)]
    contact: &'a ContactStatus,
}

impl Status {
    /// Returns the text to print.
    pub fn run(self) -> anyhow::Result<String> {
        let root = resolve_root(self.root.as_deref())?;
        let dir = resolve_state_dir(self.state_dir, &root);
        anyhow::ensure!(
            dir.is_dir(),
            "this host is not enrolled ({} does not exist): run `fleetmend-agent enroll --server URL \
             --token TOKEN` first",
            dir.display()
        );
        let state = StateDir::open(&dir)?;
        let enrolled = require_enrollment(&state)?;
        if let Some(seconds) = self.wait {
            wait_until_connected(&state, Duration::from_secs(seconds))?;
        }
        let contact = state.contact();
        let report = StatusReport {
            server_id: enrolled.server_id,
            server: &enrolled.url,
            root: enrolled.root.as_deref(),
            enrolled_at: enrolled.enrolled_at,
            running: state.is_locked(),
            removed_at: state.removed_at()?,
            agent_version: crate::version(),
            contact: &contact,
        };
        if self.json {
            return Ok(serde_json::to_string_pretty(&report)?);
        }
        Ok(format_text(&report, now()))
    }
}

/// Waits until the agent runs and the service has responded to it recently.
fn wait_until_connected(state: &StateDir, time: Duration) -> anyhow::Result<()> {
    let checks = time.as_millis() / WAIT_INTERVAL.as_millis();
    for check in 0..=checks {
        let contact = state.contact();
        let recent = contact.last_sync_at.is_some_and(|at| now().duration_since(at) < RECENT);
        if state.is_locked() && contact.trouble.is_none() && recent {
            return Ok(());
        }
        if check == checks {
            match (state.is_locked(), contact.trouble) {
                (false, _) => bail!("the agent does not run"),
                (true, Some(trouble)) => bail!("the service does not respond: {trouble}"),
                (true, None) => bail!("the service has not responded yet"),
            }
        }
        pause(WAIT_INTERVAL);
    }
    Ok(())
}

fn format_text(shown: &StatusReport<'_>, now: Timestamp) -> String {
    let ago = |at: Timestamp| format!("{} ({at:.0})", ago(at, now));
    let mut lines = vec![
        ("server", shown.server.to_owned()),
        ("id", shown.server_id.to_string()),
        ("enrolled", ago(shown.enrolled_at)),
    ];
    if let Some(root) = shown.root {
        lines.push(("manages", root.display().to_string()));
    }
    let agent = match (shown.removed_at, shown.running) {
        (Some(at), _) => format!("removed from its service {}; inactive", ago(at)),
        (None, true) => format!("running, {}", shown.contact.activity),
        (None, false) => "not running: `systemctl start fleetmend-agent`".to_owned(),
    };
    lines.push(("agent", agent));
    lines.push(("version", shown.agent_version.to_owned()));
    let contact = shown.contact;
    lines.push(("last contact", contact.last_sync_at.map_or("never".to_owned(), ago)));
    if let (Some(trouble), Some(since)) = (&contact.trouble, contact.trouble_since) {
        lines.push(("error", format!("{trouble}, since {}", ago(since))));
    }
    let scan = contact.last_scan_at.map_or("never".to_owned(), |at| {
        let count = |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
        format!(
            "{}: {} packages, {} updates",
            ago(at),
            count(contact.packages),
            count(contact.updates)
        )
    });
    lines.push(("last scan", scan));
    lines.iter().map(|(name, text)| format!("{name:<13} {text}")).collect::<Vec<_>>().join("\n")
}

/// A rough, human-readable age.
fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs();
    match seconds {
        ..0 => "in the future".to_owned(),
        0..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_text_shows_whether_the_server_is_reachable() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let contact = ContactStatus {
            last_sync_at: Some(at("2026-11-15T04:59:48Z")),
            last_scan_at: Some(at("2026-11-15T03:00:00Z")),
            packages: Some(612),
            updates: Some(14),
            activity: "idle".to_owned(),
            ..ContactStatus::default()
        };
        let report = StatusReport {
            server_id: "srv_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap(),
            server: "https://fleet.example:7600",
            root: None,
            enrolled_at: at("2026-11-01T00:00:00Z"),
            running: true,
            removed_at: None,
            agent_version: "0.1.0",
            contact: &contact,
        };
        let now = at("2026-11-15T05:00:00Z");
        assert_eq!(
            format_text(&report, now),
            "server        https://fleet.example:7600\n\
             id            srv_01jcqk3m8ye0fr5cq0k6s8v2xw\n\
             enrolled      14 days ago (2026-11-01T00:00:00Z)\n\
             agent         running, idle\n\
             version       0.1.0\n\
             last contact  12 s ago (2026-11-15T04:59:48Z)\n\
             last scan     2 h ago (2026-11-15T03:00:00Z): 612 packages, 14 updates"
        );
        let contact = ContactStatus {
            trouble: Some("no response from the service: connection refused".into()),
            trouble_since: Some(at("2026-11-15T04:30:00Z")),
            ..contact.clone()
        };
        let text = format_text(&StatusReport { running: false, contact: &contact, ..report }, now);
        assert!(text.contains("agent         not running: `systemctl start fleetmend-agent`"));
        assert!(text.contains(
            "error         no response from the service: connection refused, since 30 min ago"
        ));
    }
}
