//! Follows a batch: one progress bar, a line for each server being patched, and each failure as
//! soon as it is known.
//!
//! Progress goes to standard error; the result goes to standard output at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use vocab::TaskId;
use wire::v1::{Batch, BatchState, Progress, Task, TaskState};

use super::api::{Body, Query, Refusal};
use super::screen::{Screen, Tone, shortened, span};
use super::{Session, batch_view, print, word};
use crate::output;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How many polls in a row may fail, about two minutes, before giving up: services restart.
const DEAF_LOOKS_MAX: u32 = 240;
const BAR: usize = 24;

/// Follows a batch until it ends and prints the result. Fails unless the batch succeeded.
pub(super) async fn to_the_end(session: &Session, id: &str) -> anyhow::Result<()> {
    let mut live = Live::new();
    let body = tokio::select! {
        body = followed(session, id, &mut live) => body?,
        _ = tokio::signal::ctrl_c() => {
            live.clear()?;
            bail!("stopped watching; the batch continues: `fleetmend batches watch {id}` watches it again")
        }
    };
    let batch: Batch = body.read()?;
    match session.json {
        true => print(&format!("{}\n", body.text))?,
        false => print(&batch_view::drawn(&batch, &session.screen))?,
    }
    match batch.state {
        BatchState::Succeeded => Ok(()),
        BatchState::Halted => bail!(
            "the batch halted: `fleetmend batches resume {id}` continues it, `fleetmend batches cancel {id}` cancels it"
        ),
        state => bail!("the batch ended with state {}", word(state)),
    }
}

/// Polls until the batch ends, or is halted with no server being patched.
async fn followed(session: &Session, id: &str, live: &mut Live) -> anyhow::Result<Body> {
    let mut deaf = 0;
    loop {
        match look(session, id).await {
            Ok((body, batch, tasks)) => {
                deaf = 0;
                live.show(&batch, &tasks)?;
                let at_rest = batch.state == BatchState::Halted && in_work(&batch.progress) == 0;
                if batch.finished_at.is_some() || at_rest {
                    live.clear()?;
                    return Ok(body);
                }
            }
            Err(error) if passes(&error) && deaf < DEAF_LOOKS_MAX => {
                deaf += 1;
                live.trouble(&error)?;
            }
            Err(error) => {
                live.clear()?;
                return Err(error);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(session: &Session, id: &str) -> anyhow::Result<(Body, Batch, Vec<Task>)> {
    let body = session.api.get(&["batches", id]).await?;
    let mut batch: Batch = body.read()?;
    let shown = batch.results.take().unwrap_or_default();
    let tasks = match shown.len() < batch.progress.total as usize {
        false => shown,
        true => {
            let query = || Query::default().with("state", Some(WORTH_A_LINE));
            session.all(&["batches", id, "tasks"], query).await?
        }
    };
    Ok((body, batch, tasks))
}

/// Task states to read of a batch that is too large to show completely.
const WORTH_A_LINE: &str = "dispatched,preflight,downloading,installing,restarting_services,rebooting,verifying,\
                            failed,timed_out";

/// Whether the error may be temporary.
fn passes(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Refusal>() {
        Some(Refusal::Unreachable { .. }) => true,
        Some(Refusal::Problem(problem)) => problem.status == 429 || problem.status >= 500,
        Some(Refusal::Stranger { status, .. }) => *status >= 500,
        Some(Refusal::Redirect { .. } | Refusal::TooLarge { .. }) | None => false,
    }
}

fn in_work(progress: &Progress) -> u32 {
    let Progress { dispatched, preflight, downloading, installing, .. } = progress;
    let Progress { restarting_services, rebooting, verifying, .. } = progress;
    dispatched + preflight + downloading + installing + restarting_services + rebooting + verifying
}

fn is_in_work(state: TaskState) -> bool {
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
struct Live {
    /// Number of lines on the terminal that the next frame replaces.
    drawn: usize,
    seen: BTreeMap<TaskId, TaskState>,
    troubled: bool,
}

impl Live {
    fn new() -> Live {
        Live { drawn: 0, seen: BTreeMap::new(), troubled: false }
    }

    fn show(&mut self, batch: &Batch, tasks: &[Task]) -> anyhow::Result<()> {
        let screen = Screen::stderr();
        self.troubled = false;
        let mut news = Vec::new();
        for task in tasks {
            if self.seen.insert(task.id, task.state) == Some(task.state) {
                continue;
            }
            let failed = matches!(task.state, TaskState::Failed | TaskState::TimedOut);
            if failed {
                news.push(screen.paint(&failure(task), Tone::Bad));
            } else if screen.width.is_none() && !matches!(task.state, TaskState::Pending) {
                news.push(format!("{}: {}", task.hostname, word(task.state)));
            }
        }
        let frame = match screen.width {
            Some(width) => frame(batch, tasks, width, screen),
            None => Vec::new(),
        };
        self.draw(&news, &frame)
    }

    /// Prints a connection error once.
    fn trouble(&mut self, error: &anyhow::Error) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.troubled, true) {
            return Ok(());
        }
        self.draw(&[format!("{error}; retrying")], &[])
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        self.draw(&[], &[])
    }

    fn draw(&mut self, news: &[String], frame: &[String]) -> anyhow::Result<()> {
        let mut text = String::new();
        if self.drawn > 0 {
            text += &output::control(&format!("{}A", self.drawn));
            text += &output::control("1G");
            text += &output::control("J");
        }
        for line in news.iter().chain(frame) {
            text += line;
            text.push('\n');
        }
        self.drawn = frame.len();
        Ok(output::err(&text)?)
    }
}

fn failure(task: &Task) -> String {
    let mut line = format!("{}: {}", task.hostname, word(task.state));
    if let Some(result) = &task.result {
        let code = result.failure_code.map(word);
        let message = result.message.as_ref().map(ToString::to_string);
        for part in [code, message].into_iter().flatten() {
            line += &format!(": {part}");
        }
    }
    line
}

/// The progress bar and one line for each server being patched, as many as fit.
fn frame(batch: &Batch, tasks: &[Task], width: usize, screen: Screen) -> Vec<String> {
    let progress = &batch.progress;
    let filled = BAR * usize::from(progress.percent.min(100)) / 100;
    let ended = progress.total - in_work(progress) - progress.pending - progress.waiting;
    let bad = progress.failed + progress.timed_out;
    let mut head = format!(
        "{} [{}{}] {:>3}%  {ended} of {}",
        batch_view::state(batch),
        "#".repeat(filled),
        ".".repeat(BAR - filled),
        progress.percent,
        progress.total
    );
    for (number, what) in [(bad, "failed"), (progress.waiting, "waiting")] {
        if number > 0 {
            head += &format!(", {number} {what}");
        }
    }
    let room = width.saturating_sub(1);
    let mut lines = vec![shortened(&head, room)];
    let working: Vec<&Task> = tasks.iter().filter(|task| is_in_work(task.state)).collect();
    let most = screen.height.saturating_sub(6).clamp(1, 30);
    for task in working.iter().take(most) {
        let since = task.started_at.map(|at| screen.now.duration_since(at).as_secs().max(0));
        let since = since.map(|seconds| span(seconds.unsigned_abs())).unwrap_or_default();
        let line = format!("  {}  {}  {since}", task.hostname, word(task.state));
        lines.push(shortened(&line, room));
    }
    if working.len() > most {
        lines.push(format!("  … and {} more in progress", working.len() - most));
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

    fn seen(tasks: &[Value]) -> (Batch, Vec<Task>) {
        let batch = json!({"id": "bat_01jcqk3m8ye0fr5cq0k6s8v2xw", "state": "running", "halt_reason": null,
            "origin": "api", "started_by": null, "schedule_id": null, "run_id": null,
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
            Screen { width: Some(80), height: 24, colour: false, now: NOW.parse().unwrap() };
        let (batch, tasks) = seen(&[
            task(1, "installing", Value::Null),
            task(2, "downloading", Value::Null),
            task(3, "waiting", Value::Null),
        ]);
        assert_eq!(
            frame(&batch, &tasks, 80, screen),
            [
                "running [########................]  37%  3 of 8, 1 failed, 3 waiting",
                "  web-1  installing  30 s",
                "  web-2  downloading  30 s",
            ]
        );
        for line in frame(&batch, &tasks, 30, screen) {
            assert!(line.chars().count() < 30, "{line}");
        }
        let low = Screen { height: 7, ..screen };
        assert_eq!(frame(&batch, &tasks, 80, low)[2], "  … and 1 more in progress");
    }

    #[test]
    fn failure_line_has_code_and_message() {
        let result = json!({"packages": [], "reboot": {"needed": false, "done": false, "seconds": null},
            "duration": 3, "exit": 100, "failure_code": "disk_full", "message": "/var has 12 MB left",
            "set_aside": [], "restarted": [], "notes": [], "log": "/v1/x"});
        let (_, tasks) = seen(&[task(1, "failed", result), task(2, "timed_out", Value::Null)]);
        assert_eq!(failure(&tasks[0]), "web-1: failed: disk_full: /var has 12 MB left");
        assert_eq!(failure(&tasks[1]), "web-2: timed_out");
    }
}
