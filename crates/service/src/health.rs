//! What this process knows about its own health, for `/readyz` and `/metrics`.
//!
//! The leader task of the engine reports here: it writes to the database every two seconds, so its
//! last attempt shows whether writes work, and no probe has to write.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::SignedDuration;
use store::StoreError;

/// The health of this process.
#[derive(Debug, Default)]
pub struct ProcessHealth(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    write_fault: Option<WriteFault>,
    clock_skew: Option<SignedDuration>,
    leads: bool,
    audit_truncated: bool,
    root_key_rotated: bool,
    certificate_rejected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// The disk of the database is full.
    DiskFull,
    /// Any other error; the log has the cause.
    Failed,
}

impl ProcessHealth {
    /// Why the last write failed, if it did.
    pub fn write_fault(&self) -> Option<WriteFault> {
        self.state().write_fault
    }

    /// How far this host's clock is ahead of the database's, if the difference is too large to
    /// lead.
    pub fn clock_skew(&self) -> Option<SignedDuration> {
        self.state().clock_skew
    }

    /// Whether this process is the leader.
    pub fn leads(&self) -> bool {
        self.state().leads
    }

    /// Records a successful write.
    pub fn note_write(&self) {
        self.state().write_fault = None;
    }

    /// Records a failed write.
    pub fn note_write_error(&self, error: &StoreError) {
        self.state().write_fault = Some(match error {
            StoreError::DiskFull(_) => WriteFault::DiskFull,
            _ => WriteFault::Failed,
        });
    }

    /// Returns whether this is a change: the clock was right before, or is right again.
    pub fn note_clock_skew(&self, skew: Option<SignedDuration>) -> bool {
        let mut state = self.state();
        let changed = state.clock_skew.is_some() != skew.is_some();
        state.clock_skew = skew;
        changed
    }

    /// Whether entries are missing at the end of an audit log.
    pub fn audit_truncated(&self) -> bool {
        self.state().audit_truncated
    }

    pub fn note_audit_truncated(&self, cut: bool) {
        self.state().audit_truncated = cut;
        metrics::gauge!("fleetmend_audit_log_intact").set(if cut { 0.0 } else { 1.0 });
    }

    /// Whether the certificate files changed and cannot be used, so that the previous certificate is
    /// still in use.
    pub fn certificate_rejected(&self) -> bool {
        self.state().certificate_rejected
    }

    pub fn note_certificate_rejected(&self, rejected: bool) {
        self.state().certificate_rejected = rejected;
        metrics::gauge!("fleetmend_certificate_current").set(if rejected { 0.0 } else { 1.0 });
    }

    /// Whether other replicas use a root key that this process does not have.
    pub fn root_key_rotated(&self) -> bool {
        self.state().root_key_rotated
    }

    /// Returns whether this is a change.
    pub fn note_root_key_rotated(&self, rotated: bool) -> bool {
        std::mem::replace(&mut self.state().root_key_rotated, rotated) != rotated
    }

    pub fn note_leads(&self, leads: bool) {
        self.state().leads = leads;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
