//! Rotation of `root.key`: whether this process has the key files that the database expects,
//! sealing again with the new key, and what still depends on the old one.
//!
//! [`crate::secrets`] handles the files, and `rotate` only changes files. The next service that
//! starts records the new key in the database ([`open_database`]); from then on, a process without
//! it cannot write anything that has to be verified. In the background, everything in the database
//! that is sealed or encrypted and verifies with the old key is sealed or encrypted again with the
//! new one ([`reseal`]). The rest are credentials that others hold: agents get new
//! ones automatically, but API keys and enrollment tokens have to be replaced
//! ([`old_key_dependents`]).

use async_recursion::async_recursion as boxed;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use store::audit::ResealStatus;
use store::root_keys::{self, Dependents, RootKeyRecord};
use store::{Conn, Db, StoreError, audit, organizations, seals, users, webhooks};
use vocab::{KeyId, OrgId, ServerId, TokenId, UserId, WebhookId};

use crate::App;
use crate::audit::Action;
use crate::auth::two_factor;
use crate::record;
use crate::secrets::Secrets;

/// The actor in audit entries: commands on the data directory run without an API key.
const ACTOR: &str = "command";
/// The number of rows that are sealed in one transaction.
const CHUNK: u32 = 500;
/// The maximum number of names in [`OldKeyDependents`].
const NAMES_MAX: u32 = 10;
/// The delay before a retry after a write conflict. Ten times as long if the database is not
/// available.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// How the key files relate to the key recorded in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyMatch {
    /// No key is recorded yet.
    Unrecorded,
    /// The recorded key and the key files are the same.
    Same,
    /// The files were rotated, and the service has not been started since.
    Rotated,
    /// The old key was retired, but its file still exists.
    Retired,
}

/// Why the key files cannot be used with the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyMismatch {
    /// The key files are from before a rotation.
    #[error("root.key was rotated: restart this replica with the new key files")]
    Rotated,
    /// The rotation is not finished, and the old key is missing.
    #[error(
        "root.key is being rotated and root.old.key, whose id is {id}, is missing: copy it from \
         another replica, or restore it from a backup"
    )]
    OldMissing { id: String },
    /// The key files belong to another database.
    #[error(
        "root.key is not the key of this database: its id is {found}, and {expected} is expected; \
         restore the key from a backup, or name the right database and data directory"
    )]
    Foreign {
        /// The id of the key in the file.
        found: String,
        /// The id that is recorded in the database.
        expected: String,
    },
}

/// Compares the key files with the recorded key.
pub fn compare_keys(
    record: Option<&RootKeyRecord>,
    secrets: &Secrets,
) -> Result<KeyMatch, KeyMismatch> {
    let Some(recorded) = record else { return Ok(KeyMatch::Unrecorded) };
    let (current, old) = (secrets.root_key_id(), secrets.old_root_key_id());
    match (recorded.id.as_str(), recorded.old_id.as_deref()) {
        (id, None) if id == current && old.is_none() => Ok(KeyMatch::Same),
        (id, None) if id == current => Ok(KeyMatch::Retired),
        (id, Some(wanted)) if id == current && old == Some(wanted) => Ok(KeyMatch::Same),
        (id, Some(wanted)) if id == current => {
            Err(KeyMismatch::OldMissing { id: wanted.to_owned() })
        }
        (id, None) if old == Some(id) => Ok(KeyMatch::Rotated),
        (_, Some(wanted)) if wanted == current => Err(KeyMismatch::Rotated),
        (id, _) => Err(KeyMismatch::Foreign { found: current.to_owned(), expected: id.to_owned() }),
    }
}

/// Why a database cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    KeyMismatch(#[from] KeyMismatch),
}

/// Opens the database for the service, and records its root key if it is new.
pub async fn open_database(
    secrets: Secrets,
    now: Timestamp,
    open: impl AsyncFn(&Secrets) -> store::Result<Db>,
) -> Result<(Db, Secrets), OpenError> {
    let db = open(&secrets).await?;
    let admitted = check_and_record(&db, &secrets, now).await;
    if !matches!(admitted, Ok(KeyMatch::Same | KeyMatch::Unrecorded | KeyMatch::Rotated)) {
        db.close().await;
    }
    match admitted? {
        KeyMatch::Retired => {
            tracing::warn!("root.old.key was retired and is not used: delete it");
            let secrets = secrets.without_old_root();
            Ok((open(&secrets).await?, secrets))
        }
        KeyMatch::Unrecorded | KeyMatch::Same | KeyMatch::Rotated => Ok((db, secrets)),
    }
}

/// Opens the database for a command. If the key was rotated and the service has not been started
/// since, the command uses the old key, as the running service does.
pub async fn open_command(
    secrets: Secrets,
    open: impl AsyncFn(&Secrets) -> store::Result<Db>,
) -> Result<(Db, Secrets), OpenError> {
    let db = open(&secrets).await?;
    let fitting = match recorded(&db).await {
        Ok(recorded) => compare_keys(recorded.as_ref(), &secrets).map_err(OpenError::from),
        Err(error) => Err(error.into()),
    };
    if matches!(fitting, Ok(KeyMatch::Unrecorded | KeyMatch::Same)) {
        return Ok((db, secrets));
    }
    db.close().await;
    let secrets = select_recorded(fitting?, secrets);
    Ok((open(&secrets).await?, secrets))
}

/// Selects the keys that the database expects.
pub fn select_recorded(key_match: KeyMatch, secrets: Secrets) -> Secrets {
    match key_match {
        KeyMatch::Unrecorded | KeyMatch::Same => secrets,
        KeyMatch::Rotated => secrets.before_root_rotation(),
        KeyMatch::Retired => secrets.without_old_root(),
    }
}

/// The recorded key; `None` in an empty database.
#[boxed]
pub async fn recorded(db: &Db) -> store::Result<Option<RootKeyRecord>> {
    match db.schema_version().await? {
        0 => Ok(None),
        _ => root_keys::get(&mut *db.read().await?).await,
    }
}

/// Checks the key files against the database, and records the key if it is new.
#[boxed]
pub async fn check_and_record(
    db: &Db,
    secrets: &Secrets,
    now: Timestamp,
) -> Result<KeyMatch, OpenError> {
    let seen = root_keys::get(&mut *db.read().await?).await?;
    let found = compare_keys(seen.as_ref(), secrets)?;
    if matches!(found, KeyMatch::Same | KeyMatch::Retired) {
        return Ok(found);
    }
    let mut tx = db.begin().await?;
    // Replicas that start at the same time wait for each other.
    root_keys::lock(&mut tx).await?;
    let seen = root_keys::get(&mut tx).await?;
    let found = compare_keys(seen.as_ref(), secrets)?;
    let current = secrets.root_key_id();
    match (found, secrets.old_root_key_id()) {
        (KeyMatch::Unrecorded, None) => root_keys::record_first(&mut tx, current, now).await?,
        (KeyMatch::Unrecorded | KeyMatch::Rotated, Some(old)) => {
            root_keys::record_rotation(&mut tx, current, old, now).await?;
            tracing::info!(old, new = current, "root.key was rotated: the new key is in use");
        }
        _ => {}
    }
    tx.commit().await?;
    Ok(found)
}

/// Whether the database expects the root key of this process.
#[boxed]
pub async fn uses_recorded_key(app: &App, conn: &mut Conn) -> store::Result<bool> {
    let recorded = root_keys::get(conn).await?;
    Ok(recorded.is_none_or(|recorded| recorded.id == app.secrets.root_key_id()))
}

/// The audit logs that could not be sealed again, with the first entry that does not verify.
pub type BrokenLogs = Vec<(OrgId, i64)>;

/// Seals and encrypts again, with the new key, everything in the database that verifies with the
/// old one, in small transactions. After a restart it continues where it stopped.
#[boxed]
pub async fn reseal(app: &App) -> store::Result<BrokenLogs> {
    let mut place = Some(seals::ResealCursor::START);
    while let Some(from) = place {
        place = match run_with_retry(app, ResealStep::Rows(from)).await? {
            ResealOutcome::Rows(next) => next,
            _ => None,
        };
    }
    let mut after = None;
    loop {
        let seen = users::totp_secrets_after(&mut *app.db.read().await?, after, CHUNK).await?;
        let Some((last, _)) = seen.last() else { break };
        after = Some(*last);
        run_with_retry(app, ResealStep::Users(seen)).await?;
    }
    let hooks = webhooks::secrets(&mut *app.db.read().await?).await?;
    run_with_retry(app, ResealStep::Webhooks(hooks)).await?;
    let mut broken = BrokenLogs::new();
    let logs = audit::orgs_to_reseal(&mut *app.db.read().await?).await?;
    for org in logs {
        loop {
            match run_with_retry(app, ResealStep::Log(org)).await? {
                ResealOutcome::Log(ResealStatus::Partial) => {}
                ResealOutcome::Log(ResealStatus::Broken(seq)) => {
                    tracing::error!(%org, seq, "the audit log was modified at this entry and is not sealed again");
                    broken.push((org, seq));
                    break;
                }
                _ => break,
            }
        }
    }
    if broken.is_empty() {
        run_with_retry(app, ResealStep::End).await?;
    }
    Ok(broken)
}

/// The work of one transaction.
enum ResealStep {
    Rows(seals::ResealCursor),
    Users(Vec<(UserId, Vec<u8>)>),
    Webhooks(Vec<(WebhookId, Vec<u8>, Option<Vec<u8>>)>),
    Log(OrgId),
    End,
}

enum ResealOutcome {
    Rows(Option<seals::ResealCursor>),
    Log(ResealStatus),
    All,
}

/// Runs a step, and retries it while another writer blocks it.
async fn run_with_retry(app: &App, step: ResealStep) -> store::Result<ResealOutcome> {
    loop {
        match run_step(app, &step).await {
            Err(StoreError::Busy(_)) => tokio::time::sleep(RETRY_DELAY).await,
            done => return done,
        }
    }
}

async fn run_step(app: &App, step: &ResealStep) -> store::Result<ResealOutcome> {
    let mut tx = app.db.begin().await?;
    let done = match step {
        ResealStep::Rows(from) => {
            ResealOutcome::Rows(seals::reseal(&mut tx, from.clone(), CHUNK).await?)
        }
        ResealStep::Users(seen) => {
            for (user, sealed) in seen {
                if let Some(renewed) = two_factor::reencrypt(&app.secrets, *user, sealed) {
                    users::replace_totp_secret(&mut tx, *user, sealed, &renewed).await?;
                }
            }
            ResealOutcome::All
        }
        ResealStep::Webhooks(seen) => {
            for (id, sealed, old) in seen {
                let renew = |sealed: &[u8]| crate::webhooks::reencrypt(&app.secrets, *id, sealed);
                let (renewed, renewed_old) = (renew(sealed), old.as_deref().and_then(renew));
                if renewed.is_some() || renewed_old.is_some() {
                    let secret = renewed.as_deref().unwrap_or(sealed);
                    let old = renewed_old.as_deref().or(old.as_deref());
                    webhooks::replace_secrets(&mut tx, *id, sealed, secret, old).await?;
                }
            }
            ResealOutcome::All
        }
        ResealStep::Log(org) => ResealOutcome::Log(audit::reseal(&mut tx, *org, CHUNK).await?),
        ResealStep::End => {
            let (id, now) = (app.secrets.root_key_id(), app.clock.now());
            root_keys::set_resealed(&mut tx, id, now).await?;
            ResealOutcome::All
        }
    };
    tx.commit().await?;
    Ok(done)
}

/// Runs [`reseal`] in the background until it is complete.
#[boxed]
pub async fn reseal_in_background(app: App, data_dir: PathBuf) {
    if app.secrets.old_root_key_id().is_none() {
        return;
    }
    loop {
        // The audit anchor must record the content of the last entries before their hashes change.
        let anchored = crate::audit_anchor::check(&app, &data_dir).await;
        if let Err(error) = anchored {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "the audit log is not sealed with the new root key yet");
        } else {
            match reseal(&app).await {
                Ok(broken) if broken.is_empty() => {
                    return tracing::info!("everything is sealed with the new root key");
                }
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%error, "sealing with the new root key failed and will be retried");
                }
            }
        }
        tokio::time::sleep(RETRY_DELAY * 10).await;
    }
}

/// What would be refused if the old root key were retired now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldKeyDependents {
    /// Valid API keys that were created with another root key.
    pub api_keys: Dependents<KeyId>,
    /// Valid enrollment tokens that were created with another root key.
    pub enrollment_tokens: Dependents<TokenId>,
    /// Agents that have not presented an identity that was created with the new root key.
    pub agents: Dependents<ServerId>,
}

impl OldKeyDependents {
    pub fn is_empty(&self) -> bool {
        self.api_keys.count + self.enrollment_tokens.count + self.agents.count == 0
    }
}

/// Finds the credentials that were not created with the root key with this id.
#[boxed]
pub async fn old_key_dependents(
    conn: &mut Conn,
    key_id: &str,
    now: Timestamp,
) -> store::Result<OldKeyDependents> {
    Ok(OldKeyDependents {
        api_keys: root_keys::api_keys(conn, key_id, now, NAMES_MAX).await?,
        enrollment_tokens: root_keys::enrollment_tokens(conn, key_id, now, NAMES_MAX).await?,
        agents: root_keys::servers(conn, key_id, now, NAMES_MAX).await?,
    })
}

/// Records that the old key is retired. Its file must be deleted afterwards.
#[boxed]
pub async fn retire(app: &App, old: &str, detail: &Value) -> store::Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    for organization in organizations::list(&mut tx).await? {
        record(&mut tx, organization.id, now, ACTOR, Action::SecretsRetire, old, detail);
    }
    root_keys::retire(&mut tx).await?;
    tx.commit().await
}
