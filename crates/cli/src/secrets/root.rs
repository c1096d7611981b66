//! Rotation of `root.key`: listing what depends on the old key, rotating, and retiring.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use server::app::App;
use service::audit::Action;
use service::auth::orders_keys;
use service::auth::root_keys;
use service::auth::root_keys::{BrokenLogs, KeyMatch, OldKeyDependents};
use service::secrets::{ROOT_OLD, Secrets as Keys};
use store::root_keys::{Dependents, RootKeyRecord};

use super::{CommonArgs, RESTART_ADVICE};
use crate::operator::confirm;
use crate::operator::table::pluralize;

/// The root key and its predecessor in the key files, with the state of the rotation.
pub(super) struct RootKeyStatus {
    pub(super) id: String,
    pub(super) old: Option<String>,
    key_match: KeyMatch,
    record: Option<RootKeyRecord>,
    dependents: Option<OldKeyDependents>,
}

impl RootKeyStatus {
    pub(super) async fn read(app: &App, dir: &Path) -> anyhow::Result<RootKeyStatus> {
        let keys = Keys::load(dir)?;
        let recorded = root_keys::recorded(&app.db).await?;
        let fit = root_keys::compare_keys(recorded.as_ref(), &keys)?;
        let old = keys.old_root_key_id().map(str::to_owned);
        let dependence = match (fit, &old) {
            (KeyMatch::Same, Some(_)) => {
                Some(find_old_key_dependents(app, keys.root_key_id()).await?)
            }
            _ => None,
        };
        Ok(RootKeyStatus {
            id: keys.root_key_id().to_owned(),
            old,
            key_match: fit,
            record: recorded,
            dependents: dependence,
        })
    }

    fn is_resealed(&self) -> bool {
        self.record.as_ref().is_some_and(|recorded| recorded.resealed_at.is_some())
    }

    /// What depends on the old key, as JSON.
    pub(super) fn json(&self) -> Option<Value> {
        self.old.as_ref()?;
        let found = self.dependents.as_ref();
        Some(json!({"in_use": self.key_match == KeyMatch::Same, "resealed": self.is_resealed(),
            "since": self.record.as_ref().map(|recorded| recorded.since),
            "api_keys": found.map(|found| found.api_keys.count),
            "enrollment_tokens": found.map(|found| found.enrollment_tokens.count),
            "agents": found.map(|found| found.agents.count)}))
    }

    /// What depends on the old key, as text.
    pub(super) fn describe(&self) -> Option<String> {
        self.old.as_ref()?;
        Some(match (self.key_match, &self.dependents) {
            (KeyMatch::Retired, _) => format!("{ROOT_OLD} was retired: delete it."),
            (_, Some(found)) if found.is_empty() && self.is_resealed() => {
                format!("Nothing depends on {ROOT_OLD}.")
            }
            (_, Some(found)) if found.is_empty() => {
                format!(
                    "Database rows are still being resealed; nothing else depends on {ROOT_OLD}."
                )
            }
            (_, Some(found)) => {
                format!("{ROOT_OLD} is still needed by:\n{}", describe_dependents(found))
            }
            _ => {
                "No service has started with the new root.key yet: restart the service.".to_owned()
            }
        })
    }
}

async fn find_old_key_dependents(app: &App, key_id: &str) -> anyhow::Result<OldKeyDependents> {
    let mut reader = app.db.read().await?;
    Ok(root_keys::old_key_dependents(&mut reader, key_id, app.clock.now()).await?)
}

pub(super) async fn rotate(app: &App, common: &CommonArgs) -> anyhow::Result<()> {
    let dir = &common.installation.data_dir;
    let keys = Keys::load(dir)?;
    if let Some(old) = keys.old_root_key_id() {
        bail!(
            "root.key is already being rotated, from {old} to {}: `fleetmend secrets list` shows the \
             progress, and `fleetmend secrets retire root` completes it",
            keys.root_key_id()
        );
    }
    // The recorded key ID tells the next start which key was rotated.
    root_keys::check_and_record(&app.db, &app.secrets, app.clock.now()).await?;
    let old = keys.root_key_id();
    let detail = json!({"key": "root", "old": old});
    orders_keys::record_rotation(app, Action::SecretsRotate, old, &detail).await?;
    let keys = Keys::rotate_root(dir).context("the key was not rotated")?;
    let new = keys.root_key_id();
    if common.json {
        return crate::print_line(&json!({"key": "root", "old": old, "new": new}).to_string());
    }
    crate::print_line(&format!(
        "root.key is now the new key {new}. The old key {old} is in {} and stays valid.\n{RESTART_ADVICE} It \
         then uses the new key, and agents get new credentials at their next contact.\nReplace the API \
         keys and enrollment tokens that are in use, and take a backup. Once `fleetmend secrets list` \
         shows that nothing depends on the old key, run\n\n  fleetmend secrets retire root --data-dir {}",
        dir.join(ROOT_OLD).display(),
        dir.display(),
    ))
}

const SIGN_OUT_NOTICE: &str = "Users who signed in before the rotation must sign in again, and older one-time \
    links no longer work (`fleetmend users reset NAME` creates a new one).";

pub(super) async fn retire(
    app: &App,
    common: &CommonArgs,
    force: bool,
    yes: bool,
) -> anyhow::Result<()> {
    let dir = &common.installation.data_dir;
    let keys = Keys::load(dir)?;
    let Some(old) = keys.old_root_key_id().map(str::to_owned) else {
        bail!(
            "there is no old root key: create a new one with `fleetmend secrets rotate root` first"
        );
    };
    let new = keys.root_key_id();
    let recorded = root_keys::recorded(&app.db).await?;
    match root_keys::compare_keys(recorded.as_ref(), &keys)? {
        KeyMatch::Same => {}
        // Already retired, on another replica or by a command that was interrupted.
        KeyMatch::Retired => {
            Keys::retire_root(dir)?;
            return print_retired(
                common,
                &old,
                new,
                &json!({"key": "root", "old": old, "new": new}),
            );
        }
        KeyMatch::Unrecorded | KeyMatch::Rotated => {
            bail!("no service has started with the new root.key yet: restart the service first");
        }
    }
    let broken = root_keys::reseal(app).await.context("not everything was resealed")?;
    let found = find_old_key_dependents(app, new).await?;
    if !found.is_empty() || !broken.is_empty() {
        let why = format!("{}{}", describe_dependents(&found), broken_logs(&broken));
        ensure!(
            force,
            "the old root key is still needed by:\n{why}\nCreate new API keys (`fleetmend keys create`) and \
             enrollment tokens (`fleetmend tokens create`) and revoke the old ones; start and update these \
             agents, or remove the servers. `--force` retires the old key anyway: the API keys and \
             tokens then stop working, and the agents must be enrolled again"
        );
        let question = format!(
            "The old root key is still needed by:\n{why}\nThe API keys and tokens will stop working, and the \
             agents must be enrolled again. {SIGN_OUT_NOTICE} Retire the old key?"
        );
        confirm(&question, yes)?;
    }
    let detail = json!({"key": "root", "old": old, "new": new, "api_keys": found.api_keys.count,
        "enrollment_tokens": found.enrollment_tokens.count, "agents_without_it": found.agents.count});
    root_keys::retire(app, &old, &detail).await?;
    Keys::retire_root(dir)?;
    print_retired(common, &old, new, &detail)
}

fn print_retired(common: &CommonArgs, old: &str, new: &str, detail: &Value) -> anyhow::Result<()> {
    if common.json {
        return crate::print_line(&detail.to_string());
    }
    crate::print_line(&format!(
        "Deleted the old key {old}; {new} is now the only root key.\nDelete {ROOT_OLD} on every other \
         replica, if there are several, and restart the service: until then it accepts the old key.\n\
         {SIGN_OUT_NOTICE}\nTake a backup: earlier backups contain only the old key.",
    ))
}

/// One line per kind of credential.
fn describe_dependents(found: &OldKeyDependents) -> String {
    let OldKeyDependents { api_keys, enrollment_tokens, agents } = found;
    [
        describe_credentials(api_keys, "API key", "API keys"),
        describe_credentials(enrollment_tokens, "enrollment token", "enrollment tokens"),
        describe_credentials(agents, "agent", "agents"),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join("\n")
}

/// `  2 API keys: ci (key_…), backup (key_…)`.
fn describe_credentials<Id: std::fmt::Display>(
    found: &Dependents<Id>,
    one: &str,
    many: &str,
) -> Option<String> {
    if found.count == 0 {
        return None;
    }
    let total = usize::try_from(found.count).unwrap_or(usize::MAX);
    let names: Vec<_> = found.first.iter().map(|(name, id)| format!("{name} ({id})")).collect();
    let more = total.saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("  {}: {}{more}", pluralize(total, one, many), names.join(", ")))
}

fn broken_logs(broken: &BrokenLogs) -> String {
    let line = |(org, seq): &(vocab::OrgId, i64)| {
        format!(
            "\n  the audit log of {org}, which was tampered with at entry {seq} and cannot be resealed"
        )
    };
    broken.iter().map(line).collect()
}
