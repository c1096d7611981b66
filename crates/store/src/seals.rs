//! Authentication codes for rows that make hosts act: batches, their tasks, schedules, runs and
//! refreshes.
//!
//! The key is derived from `root.key` and is not in the database, so a row that was inserted or
//! changed by other means than this service does not verify. A code is computed over the values as
//! they are stored, written with the row, and checked by the caller before anything is done on
//! behalf of the row. Putting back an earlier version of a row, with its code, is not detected.
//!
//! Options are sealed as the JSON that is stored. A selector is sealed as this release prints it: if
//! a later release prints an unchanged selector differently, it must seal schedules again.

use crate::Db;
use crate::audit::Seal;
use crate::db::on;
use crate::error::{Cause, Result};
use crate::refreshes::Refresh;
use crate::rollout_targets::{TargetResult, TargetRow};
use crate::rollouts::{Rollout, phase_word};
use crate::row::{Column, put, row, to_json};
use crate::runs::Run;
use crate::schedules::Schedule;
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;
use domain::rollout::Head;
use jiff::Timestamp;
use vocab::{BatchId, ServerId, TaskId};

/// The schema since which rows carry a code.
pub const SINCE: i64 = 25;

/// A row that carries an authentication code.
pub trait Sealed {
    /// Whether the code is the one of these values.
    fn is_authentic(&self, seal: &Seal) -> bool;
}

impl Db {
    /// Whether this installation wrote the row as it is.
    pub fn is_authentic(&self, row: &impl Sealed) -> bool {
        row.is_authentic(self.seal())
    }
}

/// The values of one code, each framed by its length.
#[derive(Default)]
struct Parts(Vec<u8>);

impl Parts {
    fn text(mut self, part: impl ToString) -> Self {
        let part = part.to_string();
        self.0.extend((part.len() as u64).to_be_bytes());
        self.0.extend(part.as_bytes());
        self
    }

    fn maybe(self, part: Option<impl ToString>) -> Self {
        match part {
            Some(part) => self.text("some").text(part),
            None => self.text("none"),
        }
    }

    /// To the microsecond, as columns hold it.
    fn time(self, at: Timestamp) -> Self {
        self.text(at.as_microsecond())
    }

    fn maybe_time(self, at: Option<Timestamp>) -> Self {
        self.maybe(at.map(Timestamp::as_microsecond))
    }
}

/// The code of a row, as it is stored; none in a row that an earlier release wrote, or that is not
/// stored yet. It follows from the other values, so rows that differ in nothing else are equal.
#[derive(Debug, Clone, Default)]
pub struct Code(Option<Vec<u8>>);

impl PartialEq for Code {
    fn eq(&self, _: &Code) -> bool {
        true
    }
}

impl Column for Code {
    type Raw = Option<Vec<u8>>;
    fn to_raw(&self) -> Self::Raw {
        self.0.clone()
    }
    fn from_raw(raw: Self::Raw) -> std::result::Result<Self, Cause> {
        Ok(Self(raw))
    }
}

impl Code {
    fn fits(&self, expected: &[u8; 32]) -> bool {
        // Whoever could measure how long this takes would still need the key for another guess.
        self.0.as_ref().is_some_and(|found| found.as_slice() == expected)
    }
}

/// What a batch does, and for whom. Never changes.
pub(crate) fn rollout(seal: &Seal, row: &Rollout) -> [u8; 32] {
    let parts = Parts::default()
        .text(row.id)
        .text(row.org_id)
        .text(&row.options)
        .text(&row.origin)
        .text(&row.started_by)
        .maybe(row.run_id)
        .time(row.created_at);
    seal.row("rollouts", &parts.0)
}

/// How far a batch is: without it, one that was canceled or paused could be set going again. The
/// pace is a copy of the one in the options, and whoever reads the batch compares the two.
pub(crate) fn head(
    seal: &Seal,
    id: BatchId,
    head: &Head,
    ended_at: Option<Timestamp>,
    generation: i64,
) -> [u8; 32] {
    let parts = Parts::default()
        .text(id)
        .text(phase_word(head.phase))
        .time(head.starts_at)
        .time(head.start_by)
        .maybe_time(ended_at)
        .text(generation);
    seal.row("rollouts.head", &parts.0)
}

/// That a batch has a task for this server.
pub(crate) fn target(
    seal: &Seal,
    batch: BatchId,
    task: TaskId,
    server: ServerId,
    position: u32,
) -> [u8; 32] {
    let parts = Parts::default().text(batch).text(task).text(server).text(position);
    seal.row("rollout_targets", &parts.0)
}

/// What a schedule does, where and when. `next_run_at` moves with every run and is not part of it.
pub(crate) fn schedule(seal: &Seal, row: &Schedule) -> [u8; 32] {
    let parts = Parts::default()
        .text(row.id)
        .text(row.org_id)
        .text(&row.name)
        .text(row.enabled)
        .text(&row.cron)
        .text(&row.timezone)
        .text(to_json(&row.targets))
        .text(&row.options)
        .time(row.created_at);
    seal.row("schedules", &parts.0)
}

/// What a run does and where.
pub(crate) fn run(seal: &Seal, row: &Run) -> [u8; 32] {
    let parts = Parts::default()
        .text(row.id)
        .text(row.org_id)
        .text(row.schedule_id)
        .text(row.trigger_kind)
        .maybe_time(row.scheduled_for)
        .time(row.started_at)
        .text(to_json(&row.targets))
        .text(&row.options);
    seal.row("runs", &parts.0)
}

/// That a server is to be scanned.
pub(crate) fn refresh(seal: &Seal, row: &Refresh) -> [u8; 32] {
    let parts = Parts::default()
        .text(row.id)
        .text(row.org_id)
        .text(row.server_id)
        .text(&row.requested_by)
        .time(row.requested_at)
        .time(row.deadline);
    seal.row("refreshes", &parts.0)
}

impl Sealed for Rollout {
    fn is_authentic(&self, seal: &Seal) -> bool {
        let head = head(seal, self.id, &self.head, self.ended_at, self.generation);
        self.seal.fits(&rollout(seal, self)) && self.head_seal.fits(&head)
    }
}

impl Sealed for TargetRow {
    fn is_authentic(&self, seal: &Seal) -> bool {
        let expected = target(seal, self.rollout_id, self.task_id, self.server_id, self.position);
        self.seal.fits(&expected)
    }
}

impl Sealed for TargetResult {
    fn is_authentic(&self, seal: &Seal) -> bool {
        let expected = target(seal, self.rollout_id, self.task_id, self.server_id, self.position);
        self.seal.fits(&expected)
    }
}

impl Sealed for Schedule {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.fits(&schedule(seal, self))
    }
}

impl Sealed for Run {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.fits(&run(seal, self))
    }
}

impl Sealed for Refresh {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.fits(&refresh(seal, self))
    }
}

/// How many rows were sealed that an earlier release wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Batches.
    pub batches: u64,
    /// Tasks of unfinished batches, and those that a retry would patch.
    pub tasks: u64,
    /// Schedules.
    pub schedules: u64,
    /// Unfinished runs.
    pub runs: u64,
    /// Unfinished refreshes.
    pub refreshes: u64,
}

row! {
    struct Unsealed in "rollout_targets" by "task_id" {
        rollout_id: BatchId,
        task_id: TaskId,
        server_id: ServerId,
        position: u32,
    }
}

/// Lets one process at a time in, until its transaction ends.
pub async fn lock(tx: &mut Tx) -> Result<()> {
    crate::migrate::lock(tx).await
}

/// Seals what an earlier release wrote and has no code. This trusts the rows as they are, so it is
/// done once, when an installation is upgraded or a backup from before is restored.
pub async fn adopt(tx: &mut Tx) -> Result<Adopted> {
    let seal = tx.seal().clone();
    Ok(Adopted {
        batches: adopt_batches(tx, &seal).await?,
        tasks: adopt_tasks(tx, &seal).await?,
        schedules: adopt_schedules(tx, &seal).await?,
        runs: adopt_runs(tx, &seal).await?,
        refreshes: adopt_refreshes(tx, &seal).await?,
    })
}

async fn adopt_batches(tx: &mut Tx, seal: &Seal) -> Result<u64> {
    let rows: Vec<Rollout> = on!(tx, |c| {
        sqlx::query_as(join(&["select ", Rollout::COLUMNS, " from rollouts where seal is null"]))
            .fetch_all(c)
            .await
    })?;
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, &rows, |chunk| {
            let mut text = Text::new("with v (row_id, code, head_code) as (");
            text.rows(chunk, |cell, row| {
                cell.bind(put(&row.id)).bind(rollout(seal, row).to_vec());
                let head = head(seal, row.id, &row.head, row.ended_at, row.generation);
                cell.bind(head.to_vec());
            });
            text.add(
                ") update rollouts set seal = v.code, head_seal = v.head_code from v
                    where id = v.row_id and seal is null",
            );
            text
        })
        .await
    })?;
    Ok(rows.len() as u64)
}

async fn adopt_tasks(tx: &mut Tx, seal: &Seal) -> Result<u64> {
    let rows: Vec<Unsealed> = on!(tx, |c| {
        sqlx::query_as(join(&[
            "select ",
            Unsealed::COLUMNS,
            " from rollout_targets where seal is null
                and (state in ('failed', 'timed_out') or rollout_id in
                    (select id from rollouts where ended_at is null))",
        ]))
        .fetch_all(c)
        .await
    })?;
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, &rows, |chunk| {
            let mut text = Text::new("with v (batch, server, code) as (");
            text.rows(chunk, |cell, row| {
                let code = target(seal, row.rollout_id, row.task_id, row.server_id, row.position);
                cell.bind(put(&row.rollout_id)).bind(put(&row.server_id)).bind(code.to_vec());
            });
            text.add(
                ") update rollout_targets set seal = v.code from v
                    where rollout_id = v.batch and server_id = v.server and seal is null",
            );
            text
        })
        .await
    })?;
    Ok(rows.len() as u64)
}

/// Writes the codes of rows that have an `id`.
macro_rules! adopt_by_id {
    ($($name:ident: $row:ty, $code:ident, $which:literal, $update:literal;)*) => {$(
        async fn $name(tx: &mut Tx, seal: &Seal) -> Result<u64> {
            let rows: Vec<$row> = on!(tx, |c| {
                sqlx::query_as(join(&["select ", <$row>::COLUMNS, $which])).fetch_all(c).await
            })?;
            let _: Vec<()> = on!(tx, |c| {
                in_chunks(c, &rows, |chunk| {
                    let mut text = Text::new("with v (row_id, code) as (");
                    text.rows(chunk, |cell, row| {
                        cell.bind(put(&row.id)).bind($code(seal, row).to_vec());
                    });
                    text.add($update);
                    text
                })
                .await
            })?;
            Ok(rows.len() as u64)
        }
    )*};
}

adopt_by_id! {
    adopt_schedules: Schedule, schedule,
        " from schedules where seal is null",
        ") update schedules set seal = v.code from v where id = v.row_id and seal is null";
    adopt_runs: Run, run,
        " from runs where seal is null and finished_at is null",
        ") update runs set seal = v.code from v where id = v.row_id and seal is null";
    adopt_refreshes: Refresh, refresh,
        " from refreshes where seal is null and ended_at is null",
        ") update refreshes set seal = v.code from v where id = v.row_id and seal is null";
}

/// Whether an audit log has an entry of this action. Reads the whole log.
pub async fn was_recorded(conn: &mut crate::Conn, action: &str) -> Result<bool> {
    let found: Option<(String,)> = on!(conn, |c| {
        sqlx::query_as("select org_id from audit_entries where action = $1 limit 1")
            .bind(action)
            .fetch_optional(c)
            .await
    })?;
    Ok(found.is_some())
}
