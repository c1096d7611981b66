//! Refuses work that this installation did not create.
//!
//! Batches, tasks, schedules, runs and refreshes carry an authentication code under a key that is
//! not in the database ([`store::seals`]). Rows that do not verify are never acted on. A batch with
//! such a row is canceled as a whole, and an alarm is raised: an audit entry, an event, a log line
//! and the metric `fleetmend_tampered_rows_total`.

use async_recursion::async_recursion as boxed;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use domain::rollout::{Change, End, Phase, Rollout};
use jiff::Timestamp;
use serde_json::json;
use store::refreshes::{self, Refresh, State};
use store::runs::Run;
use store::schedules::Schedule;
use store::seals::{self, Adopted};
use store::{Db, StoreError, Topic, Tx, organizations, rollouts};
use vocab::BatchId;

use crate::App;
use crate::{PatchOptions, ServiceError, TRIES, emit, record};

/// Who raises alarms.
const BY: &str = "engine";

/// The audit entry that says that rows of an earlier release were sealed.
const ADOPTED: &str = "installation.seal";

/// The file in the data directory that says so too. Whoever can write to the database cannot remove
/// it and have forged rows sealed.
pub const MARKER: &str = "rows.sealed";

/// Whether this installation created the batch with these options and brought it to this phase.
pub fn is_authentic(db: &Db, row: &rollouts::Rollout) -> bool {
    let same_pace = |options: PatchOptions| options.pace == row.head.pace;
    db.is_authentic(row) && PatchOptions::from_json(&row.options).is_ok_and(same_pace)
}

/// Why a person cannot go on with something that was changed in the database.
pub fn refusal(what: &str) -> ServiceError {
    let detail = format!(
        "this {what} was changed in the database by something other than Fleetmend and is not \
         carried out; create it again"
    );
    ServiceError::conflict("conflict", detail)
}

fn count(kind: &'static str) {
    metrics::counter!("fleetmend_tampered_rows_total", "kind" => kind).increment(1);
}

/// Cancels a batch of which a row does not verify, and raises the alarm, once.
#[boxed]
pub async fn stop_batch(app: &App, id: BatchId, reason: &str) -> store::Result<()> {
    for _ in 0..TRIES {
        let now = app.clock.now();
        let mut tx = app.db.begin().await?;
        let seen = match rollouts::load(&mut tx, id).await {
            Err(StoreError::NotFound { .. }) => return Ok(()),
            seen => seen?,
        };
        let (head, ended_at) = match seen.head.phase {
            // Nothing starts any more.
            Phase::Canceling => return Ok(()),
            // An end is final: whoever reopened it took away the time of its end.
            Phase::Ended(_) if seen.ended_at.is_some() => return Ok(()),
            Phase::Ended(_) => (seen.head.clone(), Some(now)),
            _ => {
                let mut rollout = Rollout::restore(seen.head.clone(), []);
                if rollout.change(Change::Cancel, now).is_err() {
                    return Ok(());
                }
                (rollout.head().clone(), None)
            }
        };
        match rollouts::save_head(&mut tx, &seen, &head, ended_at).await {
            Err(StoreError::Stale | StoreError::Busy(_)) => continue,
            saved => saved?,
        };
        let told = json!({"batch_id": id, "reason": reason,
            "state": rollouts::phase_word(head.phase)});
        record(&mut tx, seen.org_id, now, BY, "batch.tampered", id, &told);
        emit(&mut tx, seen.org_id, "batch.tampered", now, told);
        tx.commit().await?;
        tracing::error!(batch = %id, reason, "the batch was changed in the database and is canceled");
        count("batch");
        return Ok(());
    }
    Err(StoreError::Stale)
}

/// Raises the alarm for a schedule that does not verify. It is not run.
pub fn refuse_schedule(tx: &mut Tx, schedule: &Schedule, now: Timestamp) {
    let (id, org) = (schedule.id, schedule.org_id);
    let told = json!({"schedule_id": id, "name": schedule.name,
        "reason": "the schedule was changed in the database"});
    record(tx, org, now, BY, "schedule.tampered", id, &told);
    emit(tx, org, "schedule.tampered", now, told);
    tracing::error!(schedule = %id, "the schedule was changed in the database and is not run");
    count("schedule");
}

/// Ends a run that does not verify, and raises the alarm.
#[boxed]
pub async fn refuse_run(tx: &mut Tx, run: &Run, now: Timestamp) -> store::Result<()> {
    store::runs::finish(tx, run, End::Canceled, now).await?;
    let told = json!({"run_id": run.id, "schedule_id": run.schedule_id,
        "reason": "the run was changed in the database"});
    record(tx, run.org_id, now, BY, "run.tampered", run.id, &told);
    emit(tx, run.org_id, "run.tampered", now, told);
    tracing::error!(run = %run.id, "the run was changed in the database and is canceled");
    count("run");
    Ok(())
}

/// Ends a refresh that does not verify, and raises the alarm.
#[boxed]
pub async fn refuse_refresh(app: &App, refresh: &Refresh) -> store::Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let reason = "the refresh was changed in the database";
    let (id, server) = (refresh.id, refresh.server_id);
    if !refreshes::finish(&mut tx, id, server, State::Failed, Some(reason), now).await? {
        return Ok(());
    }
    let told = json!({"refresh_id": id, "server_id": server, "reason": reason});
    record(&mut tx, refresh.org_id, now, BY, "refresh.tampered", server, &told);
    emit(&mut tx, refresh.org_id, "refresh.tampered", now, told);
    tx.commit().await?;
    tracing::error!(refresh = %id, reason, "it is not sent to its server");
    count("refresh");
    Ok(())
}

/// Seals what an earlier release wrote, once in the life of an installation. `Some`: it was done now.
///
/// Rows as they are then are trusted. That it was done is kept in `data_dir` and in the audit log,
/// so nobody can have it done again by changing the database.
#[boxed]
pub async fn adopt_once(
    db: &Db,
    data_dir: &Path,
    now: Timestamp,
) -> Result<Option<Adopted>, AdoptError> {
    if data_dir.join(MARKER).exists() {
        return Ok(None);
    }
    let mut tx = db.begin().await?;
    // Replicas that start together take turns.
    seals::lock(&mut tx).await?;
    if seals::was_recorded(&mut tx, ADOPTED).await? {
        drop(tx);
        mark(data_dir)?;
        return Ok(None);
    }
    let adopted = adopt(&mut tx, now).await?;
    tx.commit().await?;
    mark(data_dir)?;
    Ok(Some(adopted))
}

/// Seals what an earlier release wrote, in a database that is just being restored.
#[boxed]
pub async fn adopt(tx: &mut Tx, now: Timestamp) -> store::Result<Adopted> {
    let adopted = seals::adopt(tx).await?;
    for organization in organizations::list(tx).await? {
        let told = json!({"batches": adopted.batches, "tasks": adopted.tasks,
            "schedules": adopted.schedules, "runs": adopted.runs, "refreshes": adopted.refreshes});
        record(tx, organization.id, now, BY, ADOPTED, organization.id, &told);
    }
    tx.ring(Topic::Rollouts);
    Ok(adopted)
}

/// Notes in the data directory that rows without a code are not to be sealed any more.
pub fn mark(data_dir: &Path) -> Result<(), AdoptError> {
    let path = data_dir.join(MARKER);
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(
            b"Batches and schedules of an earlier release were sealed. Do not delete this file: \
              see \"The database\" in docs/security.md.\n",
        )?;
        file.sync_all()?;
        fs::File::open(data_dir)?.sync_all()
    };
    match write() {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        done => done.map_err(|source| AdoptError::Marker { path, source }),
    }
}

/// Why rows could not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The database did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be noted in the data directory.
    #[error("cannot write {}", path.display())]
    Marker {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
