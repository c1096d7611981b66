//! What a batch does, in a sentence; its progress; its failures by cause.

use std::collections::BTreeMap;

use wire::v1::{Batch, BatchState, BatchWaveState, Progress, Task};

use crate::pages::{number, plural};

/// One sentence about what is happening, and why it waits or stopped.
pub fn headline(batch: &Batch) -> String {
    let done = &batch.progress;
    let servers = |count: u32| format!("{} {}", number(count), plural(count, "server", "servers"));
    let failures = done.failed + done.timed_out;
    let patched = done.succeeded + done.no_change;
    let left = done.pending + done.waiting;
    let failed = match failures {
        0 => String::new(),
        count => format!(", {} failed", number(count)),
    };
    match batch.state {
        BatchState::Scheduled => format!("Not started. {} to patch.", servers(done.total)),
        BatchState::Running => {
            format!(
                "{} in progress, {} of {} done{failed}.",
                servers(in_progress(done)),
                number(patched),
                number(done.total)
            )
        }
        BatchState::AwaitingApproval => {
            let wave =
                batch.waves.iter().find(|wave| wave.state == BatchWaveState::AwaitingApproval);
            let number = wave.map_or(1, |wave| wave.number);
            format!(
                "Wave {} needs an approval; {} {}.",
                number,
                servers(left),
                plural(left, "waits", "wait")
            )
        }
        BatchState::Paused if batch.halt_reason.is_some() => {
            let why = batch.halt_reason.as_deref().unwrap_or_default();
            format!(
                "Paused: {why}. {} {} until it is resumed.",
                servers(left),
                plural(left, "waits", "wait")
            )
        }
        BatchState::Paused => {
            format!(
                "Paused. Servers in progress finish; {} {} until it is resumed.",
                servers(left),
                plural(left, "waits", "wait")
            )
        }
        BatchState::Halted => {
            let why = batch.halt_reason.as_deref().unwrap_or("the failure limit was reached");
            let waiting = format!("{} {} not touched", servers(left), plural(left, "is", "are"));
            format!("Halted: {why}. {waiting} until it is resumed or canceled.")
        }
        BatchState::Canceling => {
            format!("Canceling. {} in progress finish.", servers(in_progress(done)))
        }
        BatchState::Succeeded => match done.no_change {
            0 => format!("Done: {} patched.", servers(done.succeeded)),
            none => format!(
                "Done: {} patched, {} had nothing to install.",
                servers(done.succeeded),
                number(none)
            ),
        },
        BatchState::CompletedWithErrors => {
            format!("Ended with failures: {} done{failed}.", servers(patched))
        }
        BatchState::Failed => format!("Failed on all {}.", servers(failures)),
        BatchState::Canceled => format!("Canceled: {} done{failed}.", servers(patched)),
        BatchState::Expired => {
            format!("The window closed: {} done{failed}.", servers(patched))
        }
    }
}

fn in_progress(progress: &Progress) -> u32 {
    progress.dispatched
        + progress.preflight
        + progress.downloading
        + progress.installing
        + progress.restarting_services
        + progress.rebooting
        + progress.verifying
}

/// The parts of the progress bar: class, label and number of servers.
pub fn progress_parts(progress: &Progress) -> Vec<(&'static str, &'static str, u32)> {
    let parts = [
        ("succeeded", "succeeded", progress.succeeded),
        ("no_change", "no change", progress.no_change),
        ("failed", "failed", progress.failed + progress.timed_out),
        ("low", "skipped or canceled", progress.skipped + progress.canceled),
        ("running", "in progress", in_progress(progress)),
        ("track", "waiting", progress.pending + progress.waiting),
    ];
    parts.into_iter().filter(|(_, _, count)| *count > 0).collect()
}

/// The failed tasks with the same cause.
#[derive(Debug)]
pub struct FailureGroup<'a> {
    /// The failure code, or the state if there is none.
    pub code: String,
    pub remedy: &'static str,
    pub tasks: Vec<&'a Task>,
}

/// The failed tasks by cause, the most frequent first.
pub fn failure_groups(failed: &[Task]) -> Vec<FailureGroup<'_>> {
    let mut groups: BTreeMap<String, FailureGroup<'_>> = BTreeMap::new();
    for task in failed {
        let code = task.result.as_ref().and_then(|result| result.failure_code);
        let name = code.map_or_else(|| "timed_out".to_owned(), |code| code.to_string());
        let remedy = code.map_or("", |code| code.remedy());
        let group = groups.entry(name.clone());
        let group = group.or_insert_with(|| FailureGroup { code: name, remedy, tasks: Vec::new() });
        group.tasks.push(task);
    }
    let mut groups: Vec<FailureGroup<'_>> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.tasks.len()));
    groups
}
