//! Commands on organizations: count what an organization contains, rename it, and remove it.

use async_recursion::async_recursion as boxed;
use domain::rollout::{Change, Rollout};
use jiff::Timestamp;
use serde_json::json;
use store::organizations::{self, Organization};
use store::server_list::{self, Filter};
use store::{
    Conn, Page, Topic, Tx, api_keys, enrollment_tokens, presence_transitions, schedules, servers,
    sync_sessions,
};
use vocab::{BatchId, OrgId};

use crate::App;
use crate::audit::Action;
use crate::commands::batches;
use crate::{Actor, FieldError, Result, ServiceError, audit, record};

/// The actor in audit entries: commands on the data directory run without an API key.
const ACTOR: &str = "command";

/// The number of objects that an organization contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrganizationContents {
    /// Their agents learn of the removal at their next contact.
    pub servers: usize,
    pub schedules: usize,
    /// Batches that have not ended.
    pub open_batches: usize,
    /// API keys that are not revoked.
    pub keys: usize,
    /// Enrollment tokens that are not revoked.
    pub tokens: usize,
}

#[boxed]
pub async fn contents(conn: &mut Conn, org: OrgId) -> Result<OrganizationContents> {
    let open = store::rollouts::open_counts(conn, org).await?;
    Ok(OrganizationContents {
        servers: server_list::ids(conn, org, &Filter::default()).await?.len(),
        schedules: schedules::list(conn, org).await?.len(),
        open_batches: usize::try_from(open.values().sum::<u64>()).unwrap_or(usize::MAX),
        keys: active_keys(conn, org).await?.len(),
        tokens: active_tokens(conn, org).await?.len(),
    })
}

const ALL: Page = Page { limit: u32::MAX, offset: 0 };

async fn active_keys(conn: &mut Conn, org: OrgId) -> Result<Vec<api_keys::ApiKey>> {
    let all = api_keys::list(conn, org, ALL).await?.items;
    Ok(all.into_iter().filter(|key| key.revoked_at.is_none()).collect())
}

async fn active_tokens(
    conn: &mut Conn,
    org: OrgId,
) -> Result<Vec<enrollment_tokens::EnrollmentToken>> {
    let all = enrollment_tokens::list(conn, org, ALL).await?.items;
    Ok(all.into_iter().filter(|token| token.revoked_at.is_none()).collect())
}

/// Maximum number of characters in the name of an organization.
pub const NAME_CHARS_MAX: usize = 100;

/// Renames the organization of the actor, unless it changed since `seen` was read.
#[boxed]
pub async fn rename(app: &App, actor: &Actor, seen: &Organization, name: &str) -> Result<()> {
    let chars = name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX || name.chars().any(char::is_control) {
        let detail = format!("must be a line of 1 to {NAME_CHARS_MAX} characters");
        let error = FieldError::new("/name", "invalid_name", detail);
        return Err(ServiceError::Invalid(vec![error]));
    }
    if name == seen.name {
        return Ok(());
    }
    let mut tx = app.db.begin().await?;
    organizations::rename(&mut tx, seen, name).await?;
    let detail = json!({"name": name, "before": seen.name});
    audit::record(app, &mut tx, actor, Action::OrganizationRename, seen.id, detail);
    Ok(tx.commit().await?)
}

/// Removes an organization: its keys and enrollment tokens are revoked, its schedules disabled, its
/// batches canceled, and every agent is notified at its next contact. Its audit log and its history
/// stay in the database.
#[boxed]
pub async fn remove(app: &App, seen: &Organization) -> Result<OrganizationContents> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let had = contents(&mut tx, seen.id).await?;
    for key in active_keys(&mut tx, seen.id).await? {
        api_keys::revoke(&mut tx, &key, now).await?;
    }
    for token in active_tokens(&mut tx, seen.id).await? {
        enrollment_tokens::revoke(&mut tx, seen.id, token.id, now).await?;
    }
    for schedule in schedules::list(&mut tx, seen.id).await? {
        let stopped = schedules::Schedule { enabled: false, next_run_at: None, ..schedule };
        schedules::save(&mut tx, &stopped).await?;
    }
    cancel_open_batches(&mut tx, seen.id, now).await?;
    for id in server_list::ids(&mut tx, seen.id, &Filter::default()).await? {
        batches::cancel_tasks_of_removed_server(&mut tx, seen.id, id, now).await?;
        let server = servers::get(&mut tx, seen.id, id).await?;
        servers::remove(&mut tx, &server, now).await?;
        sync_sessions::delete(&mut tx, id).await?;
        presence_transitions::record_online(&mut tx, &[id]).await?;
    }
    organizations::remove(&mut tx, seen, now).await?;
    let detail = json!({"name": seen.name, "servers": had.servers});
    record(&mut tx, seen.id, now, ACTOR, Action::OrganizationRemove, seen.id, &detail);
    for topic in [Topic::Credentials, Topic::Servers, Topic::Rollouts, Topic::Schedules] {
        tx.notify(topic);
    }
    tx.commit().await?;
    Ok(had)
}

async fn cancel_open_batches(tx: &mut Tx, org: OrgId, now: Timestamp) -> Result<()> {
    for (id, _) in store::rollouts::list_open(tx).await? {
        let id: BatchId = id;
        let seen = store::rollouts::load(tx, id).await?;
        let mut rollout = Rollout::restore(seen.head.clone(), []);
        if seen.org_id == org && rollout.apply_change(Change::Cancel, now).is_ok() {
            store::rollouts::save_head(tx, &seen, rollout.head(), None).await?;
            let detail = json!({"batch_id": id, "state": "canceling"});
            record(tx, org, now, ACTOR, Action::BatchCancel, id, &detail);
        }
    }
    Ok(())
}
