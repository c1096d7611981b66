//! Follows a batch: one progress bar, a line for each server being patched, and each failure as
//! soon as it is known.
//!
//! Progress goes to standard error; the result goes to standard output at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use vocab::TaskId;
use wire::v1::{Batch, BatchState, Progress, Task, TaskState};

use super::api::{ApiError, ApiResponse, Query};
use super::table::{Screen, Tone, format_duration, truncate};
use super::{Session, api_name, batch_view, print};
use crate::output;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How many polls in a row may fail, about two minutes, before giving up: services restart.
const FAILED_POLLS_MAX: u32 = 240;
const BAR_WIDTH: usize = 24;

/// Follows a batch until it ends and prints the result. Fails unless the batch succeeded.
pub(super) async fn watch_batch(session: &Session, id: &str) -> anyhow::Result<()> {
    let mut live = LiveView::new();
    let body = tokio::select! {
        body = poll_until_finished(session, id, &mut live) => body?,
        _ = tokio::signal::ctrl_c() => {
            live.clear()?;
            bail!("stopped watching; the batch continues: `fleetmend batches watch {id}` watches it again")
        }
    };
    let batch: Batch = body.read()?;
    match session.json {
        true => print(&format!("{}\n", body.text))?,
        false => print(&batch_view::format_batch(&batch, &session.screen))?,
    }
    match batch.state {
        BatchState::Succeeded => Ok(()),
        BatchState::Halted => bail!(
            "the batch halted: `fleetmend batches resume {id}` continues it, `fleetmend batches cancel {id}` cancels it"
        ),
        BatchState::AwaitingApproval => {
            bail!("the next wave of the batch needs an approval by someone other than its creator")
        }
        state => bail!("the batch ended in state {}", api_name(state)),
    }
}

/// Polls until the batch ends, or is halted or needs an approval with no server being patched.
async fn poll_until_finished(
    session: &Session,
    id: &str,
    live: &mut LiveView,
) -> anyhow::Result<ApiResponse> {
    let mut failed_polls = 0;
    loop {
        match poll(session, id).await {
            Ok((body, batch, tasks)) => {
                failed_polls = 0;
                live.show(&batch, &tasks)?;
                let waits =
                    matches!(batch.state, BatchState::Halted | BatchState::AwaitingApproval);
                let at_rest = waits && active_count(&batch.progress) == 0;
                if batch.finished_at.is_some() || at_rest {
                    live.clear()?;
                    return Ok(body);
                }
            }
            Err(error) if is_temporary(&error) && failed_polls < FAILED_POLLS_MAX => {
                failed_polls += 1;
                live.show_error(&error)?;
            }
            Err(error) => {
                live.clear()?;
                return Err(error);
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn poll(session: &Session, id: &str) -> anyhow::Result<(ApiResponse, Batch, Vec<Task>)> {
    let body = session.api.get(&["batches", id]).await?;
    let mut batch: Batch = body.read()?;
    let shown = batch.results.take().unwrap_or_default();
    let tasks = match shown.len() < batch.progress.total as usize {
        false => shown,
        true => {
            let query = || Query::default().with("state", Some(SHOWN_STATES));
            session.read_all(&["batches", id, "tasks"], query).await?
        }
    };
    Ok((body, batch, tasks))
}

/// Task states to read of a batch that is too large to show completely.
const SHOWN_STATES: &str = "dispatched,preflight,downloading,installing,restarting_services,rebooting,verifying,\
                            failed,timed_out";

/// Whether the error may be temporary.
fn is_temporary(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ApiError>().is_some_and(ApiError::is_temporary)
}

fn active_count(progress: &Progress) -> u32 {
    let Progress { dispatched, preflight, downloading, installing, .. } = progress;
    let Progress { restarting_services, rebooting, verifying, .. } = progress;
    dispatched + preflight + downloading + installing + restarting_services + rebooting + verifying
}

fn is_active(state: TaskState) -> bool {
    use TaskState as S;
    matches!(
        state,
        S::Dispatched
            | S::Preflight
            | S::Downloading
            | S::Installing
            | S::RestartingServices
            | S::Rebooting
            | S::Verifying
    )
}

/// The part of the terminal that is redrawn at every poll.
struct LiveView {
    /// Number of lines on the terminal that the next frame replaces.
    drawn_lines: usize,
    seen: BTreeMap<TaskId, TaskState>,
    error_shown: bool,
}

impl LiveView {
    fn new() -> LiveView {
        LiveView { drawn_lines: 0, seen: BTreeMap::new(), error_shown: false }
    }

    fn show(&mut self, batch: &Batch, tasks: &[Task]) -> anyhow::Result<()> {
        let screen = Screen::stderr();
        self.error_shown = false;
        let mut messages = Vec::new();
        for task in tasks {
            if self.seen.insert(task.id, task.state) == Some(task.state) {
                continue;
            }
            let failed = matches!(task.state, TaskState::Failed | TaskState::TimedOut);
            if failed {
                messages.push(screen.paint(&failure_line(task), Tone::Bad));
            } else if screen.width.is_none() && !matches!(task.state, TaskState::Pending) {
                messages.push(format!("{}: {}", task.name(), api_name(task.state)));
            }
        }
        let frame = match screen.width {
            Some(width) => render_frame(batch, tasks, width, screen),
            None => Vec::new(),
        };
        self.draw(&messages, &frame)
    }

    /// Prints a connection error once.
    fn show_error(&mut self, error: &anyhow::Error) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.error_shown, true) {
            return Ok(());
        }
        self.draw(&[format!("{error}; retrying")], &[])
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        self.draw(&[], &[])
    }

    fn draw(&mut self, messages: &[String], frame: &[String]) -> anyhow::Result<()> {
        let mut text = String::new();
        if self.drawn_lines > 0 {
            text += &output::control(&format!("{}A", self.drawn_lines));
            text += &output::control("1G");
            text += &output::control("J");
        }
        for line in messages.iter().chain(frame) {
            text += line;
            text.push('\n');
        }
        self.drawn_lines = frame.len();
        Ok(output::err(&text)?)
    }
}

fn failure_line(task: &Task) -> String {
    let mut line = format!("{}: {}", task.name(), api_name(task.state));
    if let Some(result) = &task.result {
        let code = result.failure_code.map(api_name);
        let message = result.message.as_ref().map(ToString::to_string);
        for part in [code, message].into_iter().flatten() {
            line += &format!(": {part}");
        }
    }
    line
}

/// The progress bar and one line for each server being patched, as many as fit.
fn render_frame(batch: &Batch, tasks: &[Task], width: usize, screen: Screen) -> Vec<String> {
    let progress = &batch.progress;
    let filled = BAR_WIDTH * usize::from(progress.percent.min(100)) / 100;
    let ended = progress.total - active_count(progress) - progress.pending - progress.waiting;
    let bad = progress.failed + progress.timed_out;
    let mut head = format!(
        "{} [{}{}] {:>3}%  {ended} of {}",
        batch_view::state(batch),
        "#".repeat(filled),
        ".".repeat(BAR_WIDTH - filled),
        progress.percent,
        progress.total
    );
    for (number, what) in [(bad, "failed"), (progress.waiting, "waiting")] {
        if number > 0 {
            head += &format!(", {number} {what}");
        }
    }
    let columns = width.saturating_sub(1);
    let mut lines = vec![truncate(&head, columns)];
    let working: Vec<&Task> = tasks.iter().filter(|task| is_active(task.state)).collect();
    let max = screen.height.saturating_sub(6).clamp(1, 30);
    for task in working.iter().take(max) {
        let since = task.started_at.map(|at| screen.now.duration_since(at).as_secs().max(0));
        let since =
            since.map(|seconds| format_duration(seconds.unsigned_abs())).unwrap_or_default();
        let line = format!("  {}  {}  {since}", task.name(), api_name(task.state));
        lines.push(truncate(&line, columns));
    }
    if working.len() > max {
        lines.push(format!("  … and {} more in progress", working.len() - max));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-11-15T12:00:00Z";

    fn task(number: u32, state: &str, result: Value) -> Value {
        json!({"id": format!("tsk_01jcqk3m8ye0fr5cq0k6s8v2x{number}"),
            "server_id": format!("srv_01jcqk3m8ye0fr5cq0k6s8v2x{number}"),
            "hostname": format!("web-{number}"), "state": state, "waiting_for": null, "deadline_at": null,
            "started_at": "2026-11-15T11:59:30Z", "finished_at": null, "result": result})
    }

    fn batch_with_tasks(tasks: &[Value]) -> (Batch, Vec<Task>) {
        let batch = json!({"id": "bat_01jcqk3m8ye0fr5cq0k6s8v2xw", "state": "running", "halt_reason": null,
            "name": "openssl · web-1", "origin": "api", "started_by": null, "schedule_id": null, "run_id": null,
            "options": {"packages": [], "exclude": [], "security_only": true, "reboot": "never",
                "stagger_minutes": 0, "max_parallel": null, "canary": 0, "max_failures": null,
                "window_minutes": null, "dry_run": false},
            "progress": {"total": 8, "pending": 0, "waiting": 3, "dispatched": 0, "preflight": 0,
                "downloading": 1, "installing": 1, "restarting_services": 0, "rebooting": 0, "verifying": 0,
                "succeeded": 2, "no_change": 0, "failed": 1, "timed_out": 0, "skipped": 0, "canceled": 0,
                "percent": 37},
            "created_at": NOW, "started_at": NOW, "finished_at": null});
        let read = |task: &Value| serde_json::from_value(task.clone()).unwrap();
        (serde_json::from_value(batch).unwrap(), tasks.iter().map(read).collect())
    }

    #[test]
    fn frame_has_a_bar_and_a_line_per_active_server() {
        let screen =
            Screen { width: Some(80), height: 24, color: false, now: NOW.parse().unwrap() };
        let (batch, tasks) = batch_with_tasks(&[
            task(1, "installing", Value::Null),
            task(2, "downloading", Value::Null),
            task(3, "waiting", Value::Null),
        ]);
        assert_eq!(
            render_frame(&batch, &tasks, 80, screen),
            [
                "running [########................]  37%  3 of 8, 1 failed, 3 waiting",
                "  web-1  installing  30 s",
                "  web-2  downloading  30 s",
            ]
        );
        for line in render_frame(&batch, &tasks, 30, screen) {
            assert!(line.chars().count() < 30, "{line}");
        }
        let low = Screen { height: 7, ..screen };
        assert_eq!(render_frame(&batch, &tasks, 80, low)[2], "  … and 1 more in progress");
    }

    #[test]
    fn failure_line_has_code_and_message() {
        let result = json!({"packages": [], "reboot": {"needed": false, "done": false, "seconds": null},
            "duration": 3, "exit": 100, "failure_code": "disk_full", "message": "/var has 12 MB left",
            "set_aside": [], "restarted": [], "notes": [], "log": "/v1/x"});
        let (_, tasks) =
            batch_with_tasks(&[task(1, "failed", result), task(2, "timed_out", Value::Null)]);
        assert_eq!(failure_line(&tasks[0]), "web-1: failed: disk_full: /var has 12 MB left");
        assert_eq!(failure_line(&tasks[1]), "web-2: timed_out");
    }
}
