//! Authentication codes for rows that make hosts act: batches, their tasks and pins, schedules, runs and
//! refreshes.
//!
//! The key is derived from `root.key` and is not in the database, so a row that was inserted or
//! changed by other means than this service does not verify. A code is computed over the values as
//! they are stored, written with the row, and checked by the caller before anything is done on
//! behalf of the row. Putting back an earlier version of a row, with its code, is not detected.
//!
//! Options are sealed as the JSON that is stored. A selector is sealed as this release serializes
//! it: if a later release serializes an unchanged selector differently, it must reseal schedules.

use crate::Db;
use crate::audit::Seal;
use crate::db::on;
use crate::error::{Cause, Result};
use crate::refreshes::Refresh;
use crate::rollout_pins::PinSet;
use crate::rollout_tasks::{TaskResult, TaskRow};
use crate::rollouts::{Rollout, phase_name};
use crate::row::{Column, put, row, to_json};
use crate::runs::Run;
use crate::schedules::Schedule;
use crate::sql::{Text, in_chunks};
use crate::tx::Tx;
use async_recursion::async_recursion as boxed;
use domain::rollout::{HealthProgress, RolloutHead, WaveProgress};
use jiff::Timestamp;
use vocab::{BatchId, RunId, ScheduleId, ServerId, TaskId};

/// A row that carries an authentication code.
pub trait Sealed {
    /// Whether the code matches the values.
    fn is_authentic(&self, seal: &Seal) -> bool;
}

impl Db {
    /// Whether this installation wrote the row, and nothing changed it since.
    pub fn is_authentic(&self, row: &impl Sealed) -> bool {
        row.is_authentic(self.seal())
    }
}

/// The values that a code covers, each prefixed with its length.
#[derive(Default)]
struct CodeInput(Vec<u8>);

impl CodeInput {
    fn text(mut self, part: impl ToString) -> Self {
        let part = part.to_string();
        self.0.extend((part.len() as u64).to_be_bytes());
        self.0.extend(part.as_bytes());
        self
    }

    fn optional(self, part: Option<impl ToString>) -> Self {
        match part {
            Some(part) => self.text("some").text(part),
            None => self.text("none"),
        }
    }

    /// In microseconds, as columns store it.
    fn time(self, at: Timestamp) -> Self {
        self.text(at.as_microsecond())
    }

    fn optional_time(self, at: Option<Timestamp>) -> Self {
        self.optional(at.map(Timestamp::as_microsecond))
    }
}

/// The stored code of a row. `None` in a row that an earlier release wrote or that is not stored
/// yet. It follows from the other values, so it is ignored when rows are compared.
#[derive(Debug, Clone, Default)]
pub struct SealCode(Option<Vec<u8>>);

impl PartialEq for SealCode {
    fn eq(&self, _: &SealCode) -> bool {
        true
    }
}

impl Column for SealCode {
    type Raw = Option<Vec<u8>>;
    fn to_raw(&self) -> Self::Raw {
        self.0.clone()
    }
    fn from_raw(raw: Self::Raw) -> std::result::Result<Self, Cause> {
        Ok(Self(raw))
    }
}

impl SealCode {
    /// Whether `code` computes this value with the current key or with the one that is being
    /// rotated out.
    fn matches(&self, seal: &Seal, code: impl Fn(&Seal) -> [u8; 32]) -> bool {
        let seals = [Some(seal), seal.old()].into_iter().flatten();
        // Not constant-time: an attacker who measures the time would still need the key to compute
        // another guess.
        { seals }.any(|seal| self.0.as_deref().is_some_and(|found| found == code(seal)))
    }

    /// The old and the new code, if `code` computed the old one with the key that is being rotated
    /// out.
    fn renew(&self, seal: &Seal, code: impl Fn(&Seal) -> [u8; 32]) -> Option<[Vec<u8>; 2]> {
        let found = self.0.as_deref()?;
        (found == code(seal.old()?)).then(|| [found.to_vec(), code(seal).to_vec()])
    }
}

/// The authentication code of what a batch does, and for which organization. Never changes.
pub(crate) fn rollout(seal: &Seal, row: &Rollout) -> [u8; 32] {
    let parts = CodeInput::default()
        .text(row.id)
        .text(row.org_id)
        .text(&row.options)
        .text(&row.origin)
        .text(&row.started_by)
        .optional(row.run_id)
        .time(row.created_at);
    seal.row_code("rollouts", &parts.0)
}

/// The authentication code of a batch's progress. Without it, a canceled or paused batch could be
/// started again. The pace is a copy of the one in the options; readers of the batch compare the
/// two.
pub(crate) fn head(
    seal: &Seal,
    id: BatchId,
    head: &RolloutHead,
    ended_at: Option<Timestamp>,
    generation: i64,
) -> [u8; 32] {
    let mut parts = CodeInput::default()
        .text(id)
        .text(phase_name(head.phase))
        .time(head.starts_at)
        .time(head.start_by)
        .optional_time(ended_at)
        .text(generation);
    // A wave that was not approved must not start.
    if head.waves != WaveProgress::default() {
        parts = parts.text(head.waves.current).optional_time(head.waves.ended_at);
        for approval in &head.waves.approvals {
            parts = parts.text(approval.wave).time(approval.at).text(&approval.by);
        }
    }
    // Nor one after a wave whose health nobody accepted.
    if head.health != HealthProgress::default() {
        let health = &head.health;
        parts = parts.optional_time(health.exceeded_at).text(health.unknown_waived);
        for forgiven in &health.forgiven {
            parts = parts.text(forgiven);
        }
    }
    seal.row_code("rollouts.head", &parts.0)
}

/// The authentication code of the task that a batch has for a server.
pub(crate) fn task(
    seal: &Seal,
    batch: BatchId,
    task: TaskId,
    server: ServerId,
    position: u32,
) -> [u8; 32] {
    let parts = CodeInput::default().text(batch).text(task).text(server).text(position);
    seal.row_code("rollout_tasks", &parts.0)
}

/// The authentication code of the versions that a batch installs on servers with one system.
pub(crate) fn pins(seal: &Seal, row: &PinSet) -> [u8; 32] {
    let parts = CodeInput::default()
        .text(row.rollout_id)
        .text(&row.system)
        .text(to_json(&row.versions))
        .time(row.created_at);
    seal.row_code("rollout_pins", &parts.0)
}

/// The authentication code of what a schedule does, where and when. `next_run_at` changes with
/// every run and is not covered.
pub(crate) fn schedule(seal: &Seal, row: &Schedule) -> [u8; 32] {
    let parts = CodeInput::default()
        .text(row.id)
        .text(row.org_id)
        .text(&row.name)
        .text(row.enabled)
        .text(&row.cron)
        .text(&row.timezone)
        .text(to_json(&row.targets))
        .text(&row.options)
        .time(row.created_at);
    seal.row_code("schedules", &parts.0)
}

/// The authentication code of what a run does and where.
pub(crate) fn run(seal: &Seal, row: &Run) -> [u8; 32] {
    let parts = CodeInput::default()
        .text(row.id)
        .text(row.org_id)
        .text(row.schedule_id)
        .text(row.trigger_kind)
        .optional_time(row.scheduled_for)
        .time(row.started_at)
        .text(to_json(&row.targets))
        .text(&row.options);
    seal.row_code("runs", &parts.0)
}

/// The authentication code of a request to an agent.
pub(crate) fn refresh(seal: &Seal, row: &Refresh) -> [u8; 32] {
    let parts = CodeInput::default()
        .text(row.id)
        .text(row.org_id)
        .text(row.server_id)
        .text(&row.requested_by)
        .time(row.requested_at)
        .time(row.deadline)
        .text(row.upgrade.as_deref().unwrap_or_default());
    seal.row_code("refreshes", &parts.0)
}

/// [`head`] for a stored batch.
fn rollout_head(seal: &Seal, row: &Rollout) -> [u8; 32] {
    head(seal, row.id, &row.head, row.ended_at, row.generation)
}

impl Sealed for Rollout {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.matches(seal, |seal| rollout(seal, self))
            && self.head_seal.matches(seal, |seal| rollout_head(seal, self))
    }
}

impl Sealed for TaskRow {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.matches(seal, |seal| {
            task(seal, self.rollout_id, self.task_id, self.server_id, self.position)
        })
    }
}

impl Sealed for TaskResult {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.matches(seal, |seal| {
            task(seal, self.rollout_id, self.task_id, self.server_id, self.position)
        })
    }
}

impl Sealed for PinSet {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.matches(seal, |seal| pins(seal, self))
    }
}

impl Sealed for Schedule {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.matches(seal, |seal| schedule(seal, self))
    }
}

impl Sealed for Run {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.matches(seal, |seal| run(seal, self))
    }
}

impl Sealed for Refresh {
    fn is_authentic(&self, seal: &Seal) -> bool {
        self.seal.matches(seal, |seal| refresh(seal, self))
    }
}

row! {
    struct SealedTask in "rollout_tasks" by "task_id" {
        rollout_id: BatchId,
        task_id: TaskId,
        server_id: ServerId,
        position: u32,
        seal: SealCode,
    }
}

/// The progress of [`reseal`]: the table, and the last row in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResealCursor {
    /// Batches after this one.
    Batches(Option<BatchId>),
    /// Tasks after the one of this batch and server.
    Tasks(Option<(BatchId, ServerId)>),
    /// Pinned versions after those of this batch and system.
    Pins(Option<(BatchId, String)>),
    /// Schedules after this one.
    Schedules(Option<ScheduleId>),
    /// Runs after this one.
    Runs(Option<RunId>),
    /// Refreshes after this one.
    Refreshes(Option<TaskId>),
}

impl ResealCursor {
    pub const START: ResealCursor = ResealCursor::Batches(None);
}

/// Checks up to `limit` rows after the cursor, and reseals with the current key those that are
/// sealed with the key that is being rotated out. Rows that do not verify stay unchanged. Returns
/// the next cursor, or `None` at the end.
#[boxed]
pub async fn reseal(tx: &mut Tx, from: ResealCursor, limit: u32) -> Result<Option<ResealCursor>> {
    let seal = tx.seal().clone();
    Ok(Some(match from {
        ResealCursor::Batches(after) => match reseal_batches(tx, &seal, after, limit).await? {
            None => ResealCursor::Tasks(None),
            after => ResealCursor::Batches(after),
        },
        ResealCursor::Tasks(after) => match reseal_tasks(tx, &seal, after, limit).await? {
            None => ResealCursor::Pins(None),
            after => ResealCursor::Tasks(after),
        },
        ResealCursor::Pins(after) => match reseal_pins(tx, &seal, after, limit).await? {
            None => ResealCursor::Schedules(None),
            after => ResealCursor::Pins(after),
        },
        ResealCursor::Schedules(after) => match reseal_schedules(tx, &seal, after, limit).await? {
            None => ResealCursor::Runs(None),
            after => ResealCursor::Schedules(after),
        },
        ResealCursor::Runs(after) => match reseal_runs(tx, &seal, after, limit).await? {
            None => ResealCursor::Refreshes(None),
            after => ResealCursor::Runs(after),
        },
        ResealCursor::Refreshes(after) => match reseal_refreshes(tx, &seal, after, limit).await? {
            None => return Ok(None),
            after => ResealCursor::Refreshes(after),
        },
    }))
}

/// Writes the new codes of rows that have an `id`, unless the code changed since it was read.
macro_rules! reseal_by_id {
    ($($name:ident: $row:ty, $id:ty, $old:ident, $code:ident, $from:literal, $update:literal;)*) => {$(
        async fn $name(
            tx: &mut Tx,
            seal: &Seal,
            after: Option<$id>,
            limit: u32,
        ) -> Result<Option<$id>> {
            let rows: Vec<$row> = on!(tx, |c| {
                let mut text = Text::new("select ");
                text.add(<$row>::COLUMNS).add($from);
                if let Some(after) = &after {
                    text.add(" where id > ").bind(put(after));
                }
                text.add(" order by id limit ").bind(i64::from(limit));
                text.build_as::<$row>().fetch_all(c).await
            })?;
            let renew = |row: &$row| Some((row.id, row.$old.renew(seal, |seal| $code(seal, row))?));
            let renewed: Vec<_> = rows.iter().filter_map(renew).collect();
            let _: Vec<()> = on!(tx, |c| {
                in_chunks(c, &renewed, |chunk| {
                    let mut text = Text::new("with v (row_id, before, code) as (");
                    text.rows(chunk, |cell, (id, [before, code])| {
                        cell.bind(put(id)).bind(before.clone()).bind(code.clone());
                    });
                    text.add($update);
                    text
                })
                .await
            })?;
            Ok(rows.last().map(|row| row.id))
        }
    )*};
}

reseal_by_id! {
    reseal_batch_rows: Rollout, BatchId, seal, rollout, " from rollouts",
        ") update rollouts set seal = v.code from v where id = v.row_id and seal = v.before";
    reseal_batch_heads: Rollout, BatchId, head_seal, rollout_head, " from rollouts",
        ") update rollouts set head_seal = v.code from v where id = v.row_id and head_seal = v.before";
    reseal_schedules: Schedule, ScheduleId, seal, schedule, " from schedules",
        ") update schedules set seal = v.code from v where id = v.row_id and seal = v.before";
    reseal_runs: Run, RunId, seal, run, " from runs",
        ") update runs set seal = v.code from v where id = v.row_id and seal = v.before";
    reseal_refreshes: Refresh, TaskId, seal, refresh, " from refreshes",
        ") update refreshes set seal = v.code from v where id = v.row_id and seal = v.before";
}

async fn reseal_batches(
    tx: &mut Tx,
    seal: &Seal,
    after: Option<BatchId>,
    limit: u32,
) -> Result<Option<BatchId>> {
    reseal_batch_heads(tx, seal, after, limit).await?;
    reseal_batch_rows(tx, seal, after, limit).await
}

async fn reseal_pins(
    tx: &mut Tx,
    seal: &Seal,
    after: Option<(BatchId, String)>,
    limit: u32,
) -> Result<Option<(BatchId, String)>> {
    let rows: Vec<PinSet> = on!(tx, |c| {
        let mut text = Text::new("select ");
        text.add(PinSet::COLUMNS).add(" from rollout_pins");
        if let Some((batch, system)) = &after {
            text.add(" where (rollout_id, system) > (").bind(put(batch));
            text.add(", ").bind(system.clone()).add(")");
        }
        text.add(" order by rollout_id, system limit ").bind(i64::from(limit));
        text.build_as::<PinSet>().fetch_all(c).await
    })?;
    let renew = |row: &PinSet| {
        let codes = row.seal.renew(seal, |seal| pins(seal, row))?;
        Some((row.rollout_id, row.system.clone(), codes))
    };
    let renewed: Vec<_> = rows.iter().filter_map(renew).collect();
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, &renewed, |chunk| {
            let mut text = Text::new("with v (batch, of_system, before, code) as (");
            text.rows(chunk, |cell, (batch, system, [before, code])| {
                cell.bind(put(batch)).bind(system.clone()).bind(before.clone()).bind(code.clone());
            });
            text.add(
                ") update rollout_pins set seal = v.code from v
                    where rollout_id = v.batch and system = v.of_system and seal = v.before",
            );
            text
        })
        .await
    })?;
    Ok(rows.into_iter().next_back().map(|row| (row.rollout_id, row.system)))
}

async fn reseal_tasks(
    tx: &mut Tx,
    seal: &Seal,
    after: Option<(BatchId, ServerId)>,
    limit: u32,
) -> Result<Option<(BatchId, ServerId)>> {
    let rows: Vec<SealedTask> = on!(tx, |c| {
        let mut text = Text::new("select ");
        text.add(SealedTask::COLUMNS).add(" from rollout_tasks");
        if let Some((batch, server)) = &after {
            text.add(" where (rollout_id, server_id) > (").bind(put(batch));
            text.add(", ").bind(put(server)).add(")");
        }
        text.add(" order by rollout_id, server_id limit ").bind(i64::from(limit));
        text.build_as::<SealedTask>().fetch_all(c).await
    })?;
    let renew = |row: &SealedTask| {
        let code =
            |seal: &Seal| task(seal, row.rollout_id, row.task_id, row.server_id, row.position);
        Some((row.rollout_id, row.server_id, row.seal.renew(seal, code)?))
    };
    let renewed: Vec<_> = rows.iter().filter_map(renew).collect();
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, &renewed, |chunk| {
            let mut text = Text::new("with v (batch, server, before, code) as (");
            text.rows(chunk, |cell, (batch, server, [before, code])| {
                cell.bind(put(batch)).bind(put(server)).bind(before.clone()).bind(code.clone());
            });
            text.add(
                ") update rollout_tasks set seal = v.code from v
                    where rollout_id = v.batch and server_id = v.server and seal = v.before",
            );
            text
        })
        .await
    })?;
    Ok(rows.last().map(|row| (row.rollout_id, row.server_id)))
}
