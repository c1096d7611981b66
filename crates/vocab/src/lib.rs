//! The words that a user of Fleetmend may say. Each parses, prints and compares; none does anything.
//!
//! A word that cannot be spelled rightly cannot be made: whoever holds a [`ServerId`] holds
//! a well-formed one. A refusal says exactly what is wrong, because a person reads it.

pub mod id;
mod text;

pub use id::{
    BatchId, EventId, IdError, KeyId, OrgId, RunId, ScheduleId, ServerId, TaskId, TokenId, UserId,
    WebhookId,
};
