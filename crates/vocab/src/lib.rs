//! Value types shared by the API, the agent, the command line and the store. Each one parses,
//! displays and compares; none has any other behavior.
//!
//! A value exists only if it is valid: every [`ServerId`] is a well-formed one. Parse errors are
//! read by people, so they say exactly what is wrong.

mod compliance;
mod cron;
mod digest;
mod explain;
mod finding;
pub mod id;
mod keyword;
mod label;
mod line;
pub mod listing;
mod nearest;
mod order_record;
mod os;
mod package;
mod portion;
#[cfg(feature = "openapi")]
mod schema;
mod selector;
mod task;
pub mod terminal;
mod text;
mod tone;
mod wave;
mod zone;

pub use compliance::{ComplianceState, UnknownCompliance};
pub use cron::{
    Cron, CronError, CronField, CronPattern, FieldProblem, Nth, PatternDays, Weekday, Weekdays,
};
pub use digest::{Digest, DigestError};
pub use explain::{PatchState, ReasonCode};
pub use finding::{Assessment, Exposure, FixState, UnassessedReason};
pub use id::{
    BatchId, DeliveryId, EventId, FeedId, FreezeId, IdError, KeyId, NotificationRuleId, OrgId,
    PolicyId, RunId, ScheduleId, ServerId, SessionId, SuppressionId, TaskId, TokenId, UserId,
    ViewId, WebhookId,
};
pub use keyword::{
    BlockedBy, PackageManager, RebootPolicy, Role, Severity, SkipReason, Status, UpdateType,
    WordError,
};
pub use label::{Environment, Hostname, LabelError, Tag};
pub use line::Line;
pub use listing::{Installed, ListingError, Pending};
pub use nearest::nearest;
pub use order_record::{InquiryReply, OrderRecord, WithdrawalReply};
pub use os::{Os, OsError, OsFilter, OsFilterError};
pub use package::{PackageName, PackageNameError, PackagePattern, PackagePatternError};
pub use portion::{Percent, Portion, PortionError};
pub use selector::{Criteria, Selector, SelectorError};
pub use task::{FailureCode, HealthMode, HealthProblemKind, HealthState, Stage};
pub use tone::Tone;
pub use wave::{Wave, WaveError};
pub use zone::{Zone, ZoneError};
