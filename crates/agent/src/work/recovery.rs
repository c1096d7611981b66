//! Recovers an order whose journal is damaged or missing.
//!
//! What the order asked for is unknown, so nothing new is started. A running command is awaited,
//! the packages are compared with the inventory from before the order, and the order ends as
//! failed, with the actual changes.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use vocab::listing::Installed;
use vocab::{FailureCode, Stage};

use super::failure::Failure;
use super::files;
use super::job;
use super::journal::{ActionResult, Journal, Task};
use super::outcome;
use super::outcome::Ending;
use super::step::{Action, Facts, Step};

/// Whether the order's directory shows no sign that the order was ever accepted: the agent died
/// while it wrote the journal.
pub(super) fn is_untouched(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else { return false };
    entries.flatten().all(|entry| entry.file_name() == "journal.json.new")
}

/// The journal with which the order is brought to its end. `journal`: one with only the order's id.
pub(super) fn recovered_journal(
    mut journal: Journal,
    dir: &Path,
    problem: &str,
    now: Timestamp,
) -> Journal {
    let installed = job::has_started(&job_dir(dir, Action::Install));
    let before = files::read_json::<Vec<Installed>>(&dir.join("before.json"));
    let compared = matches!(before, Ok(Some(_)));
    let rest = match compared {
        true => "the listed packages are those that changed since it started",
        false => "what it changed is unknown",
    };
    let message = format!("cannot read the journal of this order ({problem}); {rest}");
    let failure = Failure::new(FailureCode::OrderLost, message);
    journal.task = Task::Lost { failure: failure.clone(), compare: compared };
    journal.started_at = Some(now);
    journal.stage = if installed { Stage::Installing } else { Stage::Preflight };
    journal.known.failure = Some(failure.clone());
    if job::has_started(&job_dir(dir, Action::PreInstall)) {
        journal.known.acts.insert(Action::PreInstall, ActionResult::Well);
    }
    if installed {
        journal.doing = Some(Step::Run(Action::Install));
    }
    if dir.join("acknowledged").exists() {
        // The service already has its result.
        let ending = Ending::Failed(failure);
        journal.result = Some(outcome::build_result(&journal, &Facts::unknown(), ending, now));
    }
    journal
}

/// The directory of an action that runs at most once.
fn job_dir(dir: &Path, act: Action) -> std::path::PathBuf {
    dir.join(format!("{}.0", act.name()))
}
