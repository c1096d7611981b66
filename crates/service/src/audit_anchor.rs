//! Detects that the end of the audit log was truncated.
//!
//! The log is a chain of keyed hashes, so a changed entry is detected, but a chain without its last
//! entries is still a valid chain. The number and the hash of the last entry of each organization
//! are therefore kept in a file in the data directory, with an authentication code. An entry that
//! is in the file but not in the database was removed. If there are several replicas, each keeps
//! its own file.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{Conn, audit};
use vocab::OrgId;

use crate::App;
use crate::audit::Action;
use crate::secrets::{RootKeyAge, Secrets};
use crate::{EventKind, emit, record};

/// The name of the file in the data directory.
pub const FILE: &str = "audit.anchor";
/// The interval at which the file is updated. The removal of newer entries is not detected.
const INTERVAL: Duration = Duration::from_secs(1);
const PURPOSE: &str = "fleetmend audit anchor v1";
const CODE_BYTES: usize = 32;

/// The last entry of an organization's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastEntry {
    seq: i64,
    hash: Vec<u8>,
    /// A digest of the entry's content. The hash changes when `root.key` is rotated, this digest
    /// does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<vocab::Digest>,
}

impl LastEntry {
    fn matches(&self, entry: &audit::Entry) -> bool {
        entry.seq == self.seq
            && (entry.hash == self.hash || self.content == Some(content_digest(entry)))
    }
}

fn content_digest(entry: &audit::Entry) -> vocab::Digest {
    let (org, seq, at) = (entry.org_id.to_string(), entry.seq.to_string(), entry.at.to_string());
    let parts = [&org, &seq, &at, &entry.actor, &entry.action, &entry.subject, &entry.detail];
    vocab::Digest::compute(&serde_json::to_vec(&parts).expect("text is JSON"))
}

/// The last known entries, by organization.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Anchor(BTreeMap<OrgId, LastEntry>);

#[derive(Serialize, Deserialize)]
struct StoredAnchor {
    entries: BTreeMap<OrgId, LastEntry>,
    code: Vec<u8>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AnchorError {
    #[error("cannot read or write {}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The authentication code does not verify.
    #[error("{} was changed, or root.key is not the one it was written with", path.display())]
    Forged { path: PathBuf },
}

impl Anchor {
    /// The anchor in `data_dir`; `None` if there is no file yet.
    pub fn load(secrets: &Secrets, data_dir: &Path) -> Result<Option<Anchor>, AnchorError> {
        Ok(Anchor::load_with_age(secrets, data_dir)?.map(|(anchor, _)| anchor))
    }

    /// Like `load`, with the age of the root key that the file was written with.
    fn load_with_age(
        secrets: &Secrets,
        data_dir: &Path,
    ) -> Result<Option<(Anchor, RootKeyAge)>, AnchorError> {
        let path = data_dir.join(FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|source| AnchorError::File { path: path.clone(), source })?,
        };
        let stored: StoredAnchor = serde_json::from_slice(&text)
            .map_err(|_| AnchorError::Forged { path: path.clone() })?;
        let anchor = Anchor(stored.entries);
        match secrets.tag_age(PURPOSE, &[&anchor.to_bytes()], CODE_BYTES, &stored.code) {
            Some(age) => Ok(Some((anchor, age))),
            None => Err(AnchorError::Forged { path }),
        }
    }

    fn save(&self, secrets: &Secrets, data_dir: &Path) -> Result<(), AnchorError> {
        let path = data_dir.join(FILE);
        let code = secrets.tag(PURPOSE, &[&self.to_bytes()]).to_vec();
        let stored = StoredAnchor { entries: self.0.clone(), code };
        let text = serde_json::to_vec(&stored).expect("an anchor serializes to JSON");
        let write = || -> io::Result<()> {
            let new = data_dir.join(format!("{FILE}.new"));
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|source| AnchorError::File { path: path.clone(), source })
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).expect("an anchor serializes to JSON")
    }

    /// The organizations whose logs lack the last known entry, with its number.
    #[boxed]
    pub async fn truncated_logs(&self, conn: &mut Conn) -> store::Result<BTreeMap<OrgId, i64>> {
        let mut missing = BTreeMap::new();
        for org in self.0.keys() {
            if let Some(seq) = self.missing_entry(conn, *org).await? {
                missing.insert(*org, seq);
            }
        }
        Ok(missing)
    }

    /// Whether it has an entry of this organization's log.
    pub fn covers(&self, org: OrgId) -> bool {
        self.0.contains_key(&org)
    }

    /// The number of the last known entry of an organization's log, if the log lacks it.
    #[boxed]
    pub async fn missing_entry(&self, conn: &mut Conn, org: OrgId) -> store::Result<Option<i64>> {
        let Some(last) = self.0.get(&org).filter(|last| last.seq > 0) else { return Ok(None) };
        let found = audit::after(conn, org, last.seq - 1, 1).await?;
        let heads = audit::head(conn, org).await;
        let reaches = heads.is_ok_and(|(seq, _)| seq >= last.seq);
        let matches = found.first().is_some_and(|entry| last.matches(entry));
        Ok((!(matches && reaches)).then_some(last.seq))
    }
}

/// Checks the logs and updates the file. Returns the organizations whose logs were truncated; their
/// entries in the file stay unchanged.
#[boxed]
pub async fn check(app: &App, data_dir: &Path) -> Result<BTreeMap<OrgId, i64>, CheckError> {
    let (stored, age) = Anchor::load_with_age(&app.secrets, data_dir)?.unzip();
    let known = stored.clone().unwrap_or_default();
    let mut reader = app.db.snapshot().await?;
    let missing = known.truncated_logs(&mut reader).await?;
    let mut next = known.clone();
    for organization in store::organizations::list(&mut reader).await? {
        if missing.contains_key(&organization.id) {
            continue;
        }
        let (seq, hash) = audit::head(&mut reader, organization.id).await?;
        let last = audit::after(&mut reader, organization.id, seq - 1, 1).await?;
        let content = last.first().filter(|entry| entry.seq == seq).map(content_digest);
        next.0.insert(organization.id, LastEntry { seq, hash, content });
    }
    drop(reader);
    if stored.as_ref() != Some(&next) || age == Some(RootKeyAge::Old) {
        next.save(&app.secrets, data_dir)?;
    }
    Ok(missing)
}

/// Why the logs could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(transparent)]
    Anchor(#[from] AnchorError),
}

/// Updates the file and raises an alarm, once per organization, until it is aborted.
#[boxed]
pub async fn run(app: App, data_dir: PathBuf) {
    let mut alarmed = BTreeSet::new();
    let mut every = tokio::time::interval(INTERVAL);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        check_and_alarm(&app, &data_dir, &mut alarmed).await;
    }
}

/// Checks the logs once. Raises an alarm for organizations that are not in `alarmed` yet.
#[boxed]
pub async fn check_and_alarm(app: &App, data_dir: &Path, alarmed: &mut BTreeSet<OrgId>) {
    match check(app, data_dir).await {
        Ok(missing) => {
            app.condition().note_audit_truncated(!missing.is_empty());
            for (org, seq) in missing {
                if alarmed.insert(org) {
                    raise_alarm(app, org, seq).await;
                }
            }
        }
        Err(error) => {
            // A full disk or an unavailable database says nothing about the logs, so the last
            // result stays.
            if matches!(error, CheckError::Anchor(AnchorError::Forged { .. })) {
                app.condition().note_audit_truncated(true);
            }
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "the end of the audit log cannot be checked");
        }
    }
}

async fn raise_alarm(app: &App, org: OrgId, seq: i64) {
    tracing::error!(%org, seq, "entries were removed from the end of the audit log");
    let now = app.clock.now();
    let detail = json!({"organization_id": org, "missing": seq});
    let raised = async {
        let mut tx = app.db.begin().await?;
        record(&mut tx, org, now, "engine", Action::AuditCut, org, &detail);
        emit(&mut tx, org, now, "engine", EventKind::AuditCut, org, detail.clone());
        tx.commit().await
    };
    let raised: store::Result<()> = raised.await;
    if let Err(error) = raised {
        tracing::error!(%org, error = &error as &dyn std::error::Error, "could not record `audit.cut`");
    }
}

/// Deletes the anchor after a backup was restored, because the restored log is shorter.
pub fn reset(data_dir: &Path) -> Result<(), AnchorError> {
    let path = data_dir.join(FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| AnchorError::File { path, source }),
    }
}
