//! Why no schedule covers a server.

use super::{Fleet, Server};

/// Why no run of a schedule changes a server. The first that applies, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GapReason {
    /// It is in quarantine and gets no orders.
    Quarantined,
    /// No schedule selects it.
    NoSchedule,
    /// Only disabled schedules select it.
    Disabled,
    /// Only schedules that simulate select it.
    DryRun,
    /// The limits of the host reject every change.
    HostLimits,
    /// The schedules that select it do not run in this period.
    NoRun,
    /// It is frozen at every run.
    Frozen,
    /// It is expected to be offline at every run.
    Offline,
    /// Every run waits for an approval before it is its turn.
    Approval,
    /// The window of every run closes before it is its turn.
    WindowCloses,
    /// Every run is skipped because the previous one has not ended.
    Overlap,
    /// Another batch works on it at every run, or the runs have not reached it.
    Waiting,
}

/// What kept a server from starting, over all runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Obstacles {
    pub(super) frozen: bool,
    pub(super) offline: bool,
    pub(super) approval: bool,
    pub(super) no_turn: bool,
    pub(super) overlap: bool,
}

/// How schedules select a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Selected {
    by_any: bool,
    by_enabled: bool,
    /// By an enabled schedule that installs.
    by_installing: bool,
}

/// Says for each server which schedules select it. `members` are the servers of each schedule.
pub(super) fn selections(fleet: &Fleet, members: &[Vec<u32>]) -> Vec<Selected> {
    let mut selected = vec![Selected::default(); fleet.servers.len()];
    for (schedule, members) in fleet.schedules.iter().zip(members) {
        for server in members {
            let one = &mut selected[*server as usize];
            one.by_any = true;
            one.by_enabled |= schedule.enabled;
            one.by_installing |= schedule.enabled && !schedule.order.dry_run;
        }
    }
    selected
}

/// Why no schedule covers a server; `None` if one does. `started`: a run that installs started on
/// it. `due`: such a run selected it.
pub(super) fn gap(
    server: &Server,
    selected: Selected,
    started: bool,
    due: bool,
    obstacles: Obstacles,
) -> Option<GapReason> {
    let reason = if server.quarantined {
        GapReason::Quarantined
    } else if !selected.by_any {
        GapReason::NoSchedule
    } else if !selected.by_enabled {
        GapReason::Disabled
    } else if !selected.by_installing {
        GapReason::DryRun
    } else if server.refuses_changes {
        GapReason::HostLimits
    } else if started {
        return None;
    } else if !due {
        GapReason::NoRun
    } else if obstacles.frozen {
        GapReason::Frozen
    } else if obstacles.offline {
        GapReason::Offline
    } else if obstacles.approval {
        GapReason::Approval
    } else if obstacles.no_turn {
        GapReason::WindowCloses
    } else if obstacles.overlap {
        GapReason::Overlap
    } else {
        GapReason::Waiting
    };
    Some(reason)
}
