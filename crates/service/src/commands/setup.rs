//! Initial setup of an installation: the audit log's seal, the first organization and its first
//! key.

use async_recursion::async_recursion as boxed;
use serde_json::json;
use store::api_keys::{self, ApiKey};
use store::audit::Seal;
use store::organizations::{self, Organization};
use vocab::{KeyId, OrgId, Role};

use crate::App;
use crate::audit::Action;
use crate::auth::api_keys as keys;
use crate::clock::random_u128;
use crate::secrets::{RootKeyAge, Secrets};
use crate::{Actor, Result, audit};

/// The seal of the audit log and of the rows that make hosts act. Its keys are derived from
/// `root.key`: an attacker with write access to the database can break the chain, but can neither
/// forge entries nor create work.
///
/// While `root.key` is being rotated, it seals with the new key and accepts both.
pub fn seal(secrets: &Secrets) -> Seal {
    let seal = seal_for(secrets, RootKeyAge::Current).with_key_id(secrets.root_key_id());
    match secrets.old_root_key_id() {
        Some(_) => seal.with_old(seal_for(secrets, RootKeyAge::Old)),
        None => seal,
    }
}

fn seal_for(secrets: &Secrets, age: RootKeyAge) -> Seal {
    let key = secrets.tag_of(age, "fleetmend audit seal v1", &[]);
    let row_key = secrets.tag_of(age, "fleetmend row seal v1", &[]);
    let seal = Seal::new(move |previous, seq, entry| {
        let mut hasher = blake3::Hasher::new_keyed(&key);
        let (org, at) = (entry.org_id.to_string(), entry.at.to_string());
        let parts: [&[u8]; 8] = [
            previous,
            &seq.to_be_bytes(),
            org.as_bytes(),
            at.as_bytes(),
            entry.actor.as_bytes(),
            entry.action.as_bytes(),
            entry.subject.as_bytes(),
            entry.detail.as_bytes(),
        ];
        for part in parts {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.finalize().as_bytes().to_vec()
    });
    seal.with_rows(move |purpose, values| {
        let mut hasher = blake3::Hasher::new_keyed(&row_key);
        for part in [purpose.as_bytes(), values] {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    })
}

/// Creates an organization and its first admin key. The returned key text is not stored anywhere.
#[boxed]
pub async fn create_organization(app: &App, name: &str) -> Result<(Organization, String)> {
    let now = app.clock.now();
    let secret = keys::mint(&app.secrets);
    let mut tx = app.db.begin().await?;
    let organization =
        organizations::create(&mut tx, OrgId::new(now, random_u128()), name, now).await?;
    let key = ApiKey {
        id: KeyId::new(now, random_u128()),
        org_id: organization.id,
        name: "first admin key".into(),
        hash: secret.hash,
        role: Role::Admin,
        environments: None,
        created_at: now,
        created_by: "init".into(),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
        generation: 1,
    };
    api_keys::create(&mut tx, &key).await?;
    let actor = Actor { org: organization.id, id: "init".into(), role: Role::Admin };
    let detail = json!({"name": name, "api_key_id": key.id});
    audit::record(app, &mut tx, &actor, Action::OrganizationCreate, organization.id, detail);
    tx.commit().await?;
    Ok((organization, secret.text))
}
