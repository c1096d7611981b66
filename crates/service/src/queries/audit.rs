//! The audit log for the API: listed with filters, exported, and verified.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

use serde_json::{Map, Value};
use store::audit;
use vocab::OrgId;
use wire::v1::{ActorKind, AuditEntry, AuditSubject, AuditVerification, EventActor};

use super::Scope;
use super::activity::{self, ActivityFilter, Entry};
use crate::audit_anchor::{Anchor, AnchorError};
use crate::auth::caller::{Caller, Credential};
use crate::clock::Stopwatch;
use crate::commands::setup;
use crate::{App, Result, ServiceError};

/// Maximum number of entries that one request verifies.
pub const VERIFY_MAX: u32 = 100_000;
/// The time after which a request verifies no more entries. Must be less than the limit for a
/// request, which is 30 s.
const VERIFY_SECONDS_MAX: f64 = 10.0;
/// Number of entries that are verified in one transaction.
const VERIFY_CHUNK: u32 = 1_000;
/// Number of entries that an export reads at a time.
const EXPORT_CHUNK: u32 = 500;

/// A part of the audit log.
#[derive(Debug, Default)]
pub struct AuditPart {
    /// Newest first.
    pub entries: Vec<AuditEntry>,
    /// Where the older entries begin: pass it as `before`. There may be older entries even if this
    /// part is empty: a query reads a limited number of entries.
    pub older: Option<i64>,
}

/// The newest entries before the one with this sequence number that match the filter.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    filter: &ActivityFilter,
    before: i64,
    limit: u32,
) -> Result<AuditPart> {
    require_all_environments(scope)?;
    let found = activity::list(app, scope, filter, before, limit).await?;
    let ids: BTreeSet<String> = found
        .entries
        .iter()
        .flat_map(|entry| [entry.actor.clone(), entry.subject.clone()])
        .collect();
    let names = store::names::find(&mut *app.db.read().await?, scope.org, &ids).await?;
    let to_wire = |entry: Entry| AuditEntry {
        sequence: number(entry.seq),
        at: entry.at,
        actor: EventActor {
            kind: ActorKind::of(&entry.actor),
            name: names.get(&entry.actor).cloned(),
            id: entry.actor,
        },
        action: entry.action,
        subject: AuditSubject { name: names.get(&entry.subject).cloned(), id: entry.subject },
        details: details(&entry.detail),
    };
    Ok(AuditPart { entries: found.entries.into_iter().map(to_wire).collect(), older: found.older })
}

/// The details of an entry. Every entry is written with an object, or with nothing.
fn details(text: &str) -> Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => fields,
        Ok(Value::Null) => Map::new(),
        Ok(value) => Map::from_iter([("value".to_owned(), value)]),
        // Changed directly in the database: show the stored text.
        Err(_) => Map::from_iter([("value".to_owned(), text.into())]),
    }
}

/// The log covers the whole organization.
fn require_all_environments(scope: &Scope) -> Result<()> {
    match scope.environments {
        None => Ok(()),
        Some(_) => Err(ServiceError::Forbidden(
            "This API key is limited to certain environments, and the audit log covers all of them."
                .into(),
        )),
    }
}

fn number(seq: i64) -> u64 {
    u64::try_from(seq).unwrap_or(0)
}

/// Reads all entries that match a filter, in parts, newest first.
pub struct AuditExport {
    app: App,
    scope: Scope,
    /// Checked before each part, so that a revoked key receives no more.
    credential: Credential,
    filter: ActivityFilter,
    before: Option<i64>,
}

impl AuditExport {
    pub fn new(
        app: &App,
        caller: &Caller,
        credential: Credential,
        filter: ActivityFilter,
    ) -> Result<AuditExport> {
        let scope = caller.scope();
        require_all_environments(&scope)?;
        Ok(AuditExport { app: app.clone(), scope, credential, filter, before: Some(i64::MAX) })
    }

    /// The next entries. `None` after the last one. A part may be empty.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Vec<AuditEntry>>> {
        let Some(before) = self.before else { return Ok(None) };
        if !self.credential.is_valid(&self.app).await? {
            return Err(ServiceError::Forbidden("The credential is no longer valid.".into()));
        }
        let part = list(&self.app, &self.scope, &self.filter, before, EXPORT_CHUNK).await?;
        self.before = part.older;
        Ok(Some(part.entries))
    }
}

/// What the anchor of this replica says about the end of a log.
enum LogEnd {
    /// The latest entry that the anchor knows is there.
    Intact,
    /// The entry with this number existed, and is missing.
    Missing(i64),
    /// This replica keeps no anchor, or not yet.
    Unknown,
    Forged(AnchorError),
    Unreadable(AnchorError),
}

/// Verifies up to `limit` entries after the one with the number `after`, in short transactions and
/// for a limited time, and compares the end of the log with the anchor of this replica.
#[boxed]
pub async fn verify(app: &App, scope: &Scope, after: i64, limit: u32) -> Result<AuditVerification> {
    require_all_environments(scope)?;
    let end = check_end(app, scope.org).await?;
    let (latest, _) = audit::head(&mut *app.db.read().await?, scope.org).await?;
    if after > latest {
        let detail = format!(
            "The latest entry has the sequence number {latest}. If an earlier verification reached number {after}, entries were deleted since."
        );
        return Err(ServiceError::conflict("unknown_sequence", detail));
    }
    let seal = setup::seal(&app.secrets);
    let watch = Stopwatch::start();
    let mut verified_to = after;
    let mut left = limit;
    let (first_invalid, complete) = loop {
        let mut reader = app.db.snapshot().await?;
        let chunk = left.min(VERIFY_CHUNK);
        let part = audit::verify_part(&mut reader, scope.org, &seal, verified_to, chunk).await?;
        verified_to = part.verified_to;
        left -= chunk;
        let is_over = left == 0 || watch.seconds() > VERIFY_SECONDS_MAX;
        if part.first_broken.is_some() || part.is_end || is_over {
            break (part.first_broken, part.is_end);
        }
    };
    // The log may end exactly where the limit was reached.
    let complete = complete || (first_invalid.is_none() && verified_to >= latest);
    let is_end_valid = !matches!(end, LogEnd::Missing(_) | LogEnd::Forged(_));
    Ok(AuditVerification {
        valid: first_invalid.is_none() && is_end_valid,
        complete,
        entries: number(verified_to - after),
        verified_to: number(verified_to),
        latest: number(latest.max(verified_to)),
        first_invalid: first_invalid.map(number),
        truncated: match end {
            LogEnd::Intact => Some(false),
            LogEnd::Missing(_) => Some(true),
            LogEnd::Unknown | LogEnd::Forged(_) | LogEnd::Unreadable(_) => None,
        },
        detail: describe(after, verified_to, first_invalid, complete, &end),
    })
}

/// Compares the log with the anchor. The anchor is loaded before the snapshot is taken: entries that
/// are logged in between are in the snapshot, but not in the anchor.
async fn check_end(app: &App, org: OrgId) -> Result<LogEnd> {
    let Some(data_dir) = &app.settings.data_dir else { return Ok(LogEnd::Unknown) };
    let anchor = match Anchor::load(&app.secrets, data_dir) {
        Ok(Some(anchor)) if anchor.covers(org) => anchor,
        Ok(_) => return Ok(LogEnd::Unknown),
        Err(error @ AnchorError::Forged { .. }) => return Ok(LogEnd::Forged(error)),
        Err(error @ AnchorError::File { .. }) => return Ok(LogEnd::Unreadable(error)),
    };
    let mut reader = app.db.snapshot().await?;
    Ok(match anchor.missing_entry(&mut reader, org).await? {
        Some(seq) => LogEnd::Missing(seq),
        None => LogEnd::Intact,
    })
}

fn describe(
    after: i64,
    verified_to: i64,
    first_invalid: Option<i64>,
    complete: bool,
    end: &LogEnd,
) -> String {
    let chain = match (first_invalid, complete) {
        (Some(seq), _) => {
            format!("Entry {seq} was changed or removed, or was written with a different root.key.")
        }
        (None, true) if verified_to <= after => format!("There are no entries after {after}."),
        (None, true) if after == 0 => format!("All {verified_to} entries are intact."),
        (None, true) => format!("Entries {} to {verified_to} are intact.", after + 1),
        (None, false) => format!(
            "Entries {} to {verified_to} are intact. Continue after entry {verified_to}.",
            after + 1
        ),
    };
    let end = match end {
        LogEnd::Intact => return chain,
        LogEnd::Missing(seq) => format!(
            "Entry {seq} existed earlier and is missing: the end of the log was deleted, or the database was replaced by an older copy."
        ),
        LogEnd::Unknown => "This replica keeps no record of the latest entry, so it cannot tell whether entries are missing at the end.".to_owned(),
        LogEnd::Forged(error) => format!("Whether entries are missing at the end is unknown: {error}."),
        LogEnd::Unreadable(error) => {
            format!("Whether entries are missing at the end is unknown: {error}.")
        }
    };
    format!("{chain} {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_always_an_object() {
        assert_eq!(Value::Object(details(r#"{"a":1}"#)).to_string(), r#"{"a":1}"#);
        assert_eq!(details("null").len(), 0);
        assert_eq!(Value::Object(details("[1]")).to_string(), r#"{"value":[1]}"#);
        assert_eq!(Value::Object(details("{")).to_string(), r#"{"value":"{"}"#);
    }
}
