//! What becomes of an order whose journal is damaged or missing.
//!
//! What was asked for is not known any more, so nothing is begun. What was begun is waited for, the packages are
//! compared with the inventory from before the order, and the order ends as failed, with what really changed.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use vocab::listing::Installed;
use vocab::{FailureCode, Stage};

use super::failure::Failure;
use super::files;
use super::job;
use super::journal::{Ended, Journal, Task};
use super::outcome;
use super::outcome::Ending;
use super::step::{Act, Facts, Step};

/// Whether nothing in an order's directory shows that the order was ever taken: it was being written when the agent
/// died.
pub(super) fn is_untouched(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else { return false };
    entries.flatten().all(|entry| entry.file_name() == "journal.json.new")
}

/// The journal with which an order goes on to its end. `journal`: one that knows the order's id and nothing else.
pub(super) fn recovered(
    mut journal: Journal,
    dir: &Path,
    problem: &str,
    now: Timestamp,
) -> Journal {
    let installed = job::has_begun(&job_dir(dir, Act::Install));
    let before = files::read_json::<Vec<Installed>>(&dir.join("before.json"));
    let compared = matches!(before, Ok(Some(_)));
    let rest = match compared {
        true => "its packages are those that changed since it began",
        false => "what it changed is not known",
    };
    let message = format!("the journal of this order cannot be read ({problem}): {rest}");
    let failure = Failure::new(FailureCode::OrderLost, message);
    journal.task = Task::Lost { failure: failure.clone(), compare: compared };
    journal.started_at = Some(now);
    journal.stage = if installed { Stage::Installing } else { Stage::Preflight };
    journal.known.failure = Some(failure.clone());
    if job::has_begun(&job_dir(dir, Act::PreInstall)) {
        journal.known.acts.insert(Act::PreInstall, Ended::Well);
    }
    if installed {
        journal.doing = Some(Step::Run(Act::Install));
    }
    if dir.join("acknowledged").exists() {
        // The server has its result.
        let ending = Ending::Failed(failure);
        journal.result = Some(outcome::result(&journal, &Facts::of_nothing(), ending, now));
    }
    journal
}

/// The directory of something that runs at most once.
fn job_dir(dir: &Path, act: Act) -> std::path::PathBuf {
    dir.join(format!("{}.0", act.name()))
}
