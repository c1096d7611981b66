//! Sign-in with an identity from an identity provider: finds or creates the user, and signs them
//! in.
//!
//! A linked user is found by the provider's subject. A user who is not linked yet is found by the
//! email address that the provider has verified.

use async_recursion::async_recursion as boxed;
use serde_json::json;
use store::Tx;
use store::identities::{self, LinkedIdentity};
use store::users::{self, User};
use vocab::{Role, UserId};

use crate::App;
use crate::audit::Action;
use crate::auth::oidc::{Config, OidcIdentity, RoleGrant};
use crate::auth::sessions::{Client, create_session};
use crate::auth::two_factor;
use crate::auth::users::{
    SignInMethod, SignInOutcome, actor, details as of_user, normalize_name, record_sign_in,
};
use crate::clock::random_u128;
use crate::{Actor, EventKind, Result, audit};

/// Why an authenticated identity is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SsoRefusal {
    /// The provider has not verified the email address.
    NotVerified,
    NotInvited,
    Removed,
    /// The email address belongs to a user who is linked to another identity of the provider.
    LinkedToAnother,
    /// No role is mapped to the claims, and there is no default role.
    NoRole,
}

/// Signs in the user with this identity, and creates the user if the configuration allows it.
#[boxed]
pub async fn sign_in(
    app: &App,
    config: &Config,
    person: &OidcIdentity,
    client: &Client,
) -> Result<std::result::Result<SignInOutcome, SsoRefusal>> {
    let mut tx = app.db.begin().await?;
    let linked = identities::find(&mut tx, &person.issuer, &person.subject).await?;
    let mut was_here = linked.is_some();
    let mut known = match &linked {
        Some(identity) => users::by_id(&mut tx, identity.user_id).await?,
        None => None,
    };
    // The provider belongs to one organization. A link to a user of another organization was
    // created under a different configuration, or when names were shared by all organizations.
    if let Some(foreign) = known.take_if(|user| user.org_id != config.org) {
        identities::unlink(&mut tx, foreign.id).await?;
        was_here = false;
    }
    let user = match known {
        Some(user) => user,
        None => match link_or_create(app, config, &mut tx, person, was_here).await? {
            Ok(user) => user,
            Err(refusal) => return Ok(Err(refusal)),
        },
    };
    let user = match config.grant_for(&person.values, false) {
        RoleGrant::Denied => return Ok(Err(SsoRefusal::NoRole)),
        RoleGrant::Role(role) if role != user.role => change_role(app, &mut tx, user, role).await?,
        RoleGrant::Role(_) | RoleGrant::Unchanged => user,
    };
    let signed = if user.totp_secret.is_some() {
        let ticket = two_factor::ticket(app, &user, SignInMethod::Oidc);
        SignInOutcome::NeedsCode { ticket }
    } else {
        record_sign_in(app, &mut tx, &user, SignInMethod::Oidc);
        let token = create_session(app, &mut tx, &user, client).await?;
        SignInOutcome::SignedIn(Box::new(user), token)
    };
    tx.commit().await?;
    Ok(Ok(signed))
}

/// Links an identity that is not linked yet, or whose user was removed, to an invited or new user.
async fn link_or_create(
    app: &App,
    config: &Config,
    tx: &mut Tx,
    person: &OidcIdentity,
    was_here: bool,
) -> Result<std::result::Result<User, SsoRefusal>> {
    let Some(email) = &person.email else { return Ok(Err(SsoRefusal::NotVerified)) };
    let name = normalize_name(email);
    let user = match users::by_name(tx, config.org, &name).await? {
        Some(user) => user,
        // A removed user does not come back automatically, even if new users may.
        None if was_here || users::was_removed(tx, config.org, &name).await? => {
            return Ok(Err(SsoRefusal::Removed));
        }
        None => match config.grant_for(&person.values, true) {
            RoleGrant::Role(role) => create(app, config, tx, name, role).await?,
            RoleGrant::Denied if config.roles.is_some() => return Ok(Err(SsoRefusal::NoRole)),
            RoleGrant::Denied | RoleGrant::Unchanged => return Ok(Err(SsoRefusal::NotInvited)),
        },
    };
    let identity = LinkedIdentity {
        issuer: person.issuer.clone(),
        subject: person.subject.clone(),
        user_id: user.id,
        created_at: app.clock.now(),
    };
    match identities::link(tx, &identity).await {
        Err(store::StoreError::AlreadyExists { .. }) => {
            return Ok(Err(SsoRefusal::LinkedToAnother));
        }
        linked => linked?,
    }
    let mut detail = of_user(&user);
    detail["issuer"] = json!(person.issuer);
    detail["subject"] = json!(person.subject);
    audit::record(app, tx, &actor(&user), Action::UserLink, user.id, detail);
    Ok(Ok(user))
}

async fn create(app: &App, config: &Config, tx: &mut Tx, name: String, role: Role) -> Result<User> {
    let now = app.clock.now();
    let by = Actor { org: config.org, id: "oidc".into(), role: Role::Admin };
    let user = User {
        id: UserId::new(now, random_u128()),
        org_id: config.org,
        name,
        role,
        password: None,
        link_hash: None,
        link_expires_at: None,
        totp_secret: None,
        totp_step: 0,
        created_at: now,
        created_by: by.id.clone(),
        removed_at: None,
        generation: 1,
    };
    users::create(tx, &user).await?;
    audit::record(app, tx, &by, Action::UserCreate, user.id, of_user(&user));
    audit::emit(app, tx, &by, EventKind::UserCreated, user.id, json!({"user_id": user.id}));
    Ok(user)
}

async fn change_role(app: &App, tx: &mut Tx, user: User, role: Role) -> Result<User> {
    let by = Actor { org: user.org_id, id: "oidc".into(), role: Role::Admin };
    let before = user.role;
    let after = User { role, ..user };
    users::save(tx, &after).await?;
    let detail = json!({"name": after.name, "role": role, "before": before});
    audit::record(app, tx, &by, Action::UserRole, after.id, detail);
    audit::emit(app, tx, &by, EventKind::UserChanged, after.id, json!({"user_id": after.id}));
    Ok(User { generation: after.generation + 1, ..after })
}
