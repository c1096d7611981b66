//! Users of the dashboard: invited by a one-time link, and authenticated by a password.
//! [`crate::auth::sessions`] remembers them.
//!
//! The database contains only the hashes of links and passwords.

use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::users::{self, User};
use store::{identities, notifications, organizations, recovery_codes, saved_views, sessions};
use vocab::{OrgId, Role, SessionId, UserId};

use crate::App;
use crate::audit::Action;
use crate::auth::passwords;
use crate::auth::passwords::PasswordCheck;
use crate::auth::sessions::{Client, create_session};
use crate::auth::{opaque_token, two_factor};
use crate::clock::random_u128;
use crate::{Actor, EventKind, FieldError, Result, ServiceError, audit};

const RANDOM_BYTES: usize = 32;
const LINK_PURPOSE: &str = "fleetmend sign-in link v1";
/// How long a one-time link is valid.
pub const LINK_TTL: SignedDuration = SignedDuration::from_hours(24);
const NAME_CHARS_MAX: usize = 200;
const PASSWORD_CHARS_MIN: usize = 12;
/// A limit, because a longer password only makes hashing more expensive.
const PASSWORD_CHARS_MAX: usize = 200;

/// The text of a link or a session: shown once and not stored.
pub type Token = String;

/// Normalizes a username: case and surrounding whitespace do not matter.
pub fn normalize_name(name: &str) -> String {
    name.trim().to_lowercase()
}

/// Whether this is a valid username. A sign-in with any other name is rejected without a database
/// query. Each name has only one spelling, so that all failed sign-ins with it are counted
/// together.
pub fn is_valid_name(name: &str) -> bool {
    let chars = name.chars().take(NAME_CHARS_MAX + 1).count();
    (1..=NAME_CHARS_MAX).contains(&chars) && !name.chars().any(char::is_control)
}

/// Creates a user, and the link with which they set their password.
#[boxed]
pub async fn invite(app: &App, actor: &Actor, name: &str, role: Role) -> Result<(User, Token)> {
    let name = normalize_name(name);
    if !is_valid_name(&name) {
        let detail =
            format!("must have 1 to {NAME_CHARS_MAX} characters and no control characters");
        return Err(invalid("/name", "invalid_name", detail));
    }
    let now = app.clock.now();
    let (token, hash) = opaque_token::mint::<RANDOM_BYTES>(&app.secrets, LINK_PURPOSE);
    let user = User {
        id: UserId::new(now, random_u128()),
        org_id: actor.org,
        name,
        role,
        password: None,
        link_hash: Some(hash),
        link_expires_at: Some(now + LINK_TTL),
        totp_secret: None,
        totp_step: 0,
        created_at: now,
        created_by: actor.id.clone(),
        removed_at: None,
        generation: 1,
    };
    let mut tx = app.db.begin().await?;
    users::create(&mut tx, &user).await?;
    audit::record(app, &mut tx, actor, Action::UserCreate, user.id, details(&user));
    audit::emit(app, &mut tx, actor, EventKind::UserCreated, user.id, json!({"user_id": user.id}));
    tx.commit().await?;
    Ok((user, token))
}

/// Removes a user's password, second factor and linked identities, ends their sessions, and creates
/// a link with which they set a new password.
#[boxed]
pub async fn reset(app: &App, actor: &Actor, seen: &User) -> Result<Token> {
    let (token, hash) = opaque_token::mint::<RANDOM_BYTES>(&app.secrets, LINK_PURPOSE);
    let until = app.clock.now() + LINK_TTL;
    let after = User {
        password: None,
        link_hash: Some(hash),
        link_expires_at: Some(until),
        totp_secret: None,
        ..seen.clone()
    };
    let mut tx = app.db.begin().await?;
    users::save(&mut tx, &after).await?;
    identities::unlink(&mut tx, seen.id).await?;
    recovery_codes::replace(&mut tx, seen.id, &[]).await?;
    sessions::end_all(&mut tx, seen.id).await?;
    audit::record(app, &mut tx, actor, Action::UserReset, seen.id, details(seen));
    audit::emit(app, &mut tx, actor, EventKind::UserReset, seen.id, json!({"user_id": seen.id}));
    tx.commit().await?;
    Ok(token)
}

/// Removes a user, and ends all their sessions.
#[boxed]
pub async fn remove(app: &App, actor: &Actor, seen: &User) -> Result<()> {
    if actor.id == seen.id.to_string() {
        let detail = "you cannot remove yourself; ask another administrator";
        return Err(ServiceError::conflict("conflict", detail));
    }
    let removed_at = Some(app.clock.now());
    let after = User { removed_at, password: None, link_hash: None, ..seen.clone() };
    let mut tx = app.db.begin().await?;
    users::save(&mut tx, &after).await?;
    recovery_codes::replace(&mut tx, seen.id, &[]).await?;
    saved_views::delete_personal(&mut tx, seen.id).await?;
    notifications::delete_all(&mut tx, seen.id).await?;
    sessions::end_all(&mut tx, seen.id).await?;
    audit::record(app, &mut tx, actor, Action::UserRemove, seen.id, details(seen));
    audit::emit(app, &mut tx, actor, EventKind::UserRemoved, seen.id, json!({"user_id": seen.id}));
    Ok(tx.commit().await?)
}

pub(super) fn details(user: &User) -> serde_json::Value {
    json!({"name": user.name, "role": user.role})
}

/// Returns the user of a one-time link, if the link is still valid.
#[boxed]
pub async fn user_of_link(app: &App, link: &str) -> Result<Option<User>> {
    let Some(hash) = opaque_token::recognize::<RANDOM_BYTES>(&app.secrets, LINK_PURPOSE, link)
    else {
        return Ok(None);
    };
    let found = users::by_link(&mut *app.db.read().await?, &hash).await?;
    let now = app.clock.now();
    Ok(found.filter(|user| user.link_expires_at.is_some_and(|end| end > now)))
}

/// Sets the password of the user with this link, and signs them in. The link becomes invalid.
#[boxed]
pub async fn accept_invitation(
    app: &App,
    link: &str,
    password: &str,
    client: &Client,
) -> Result<Option<(User, Token)>> {
    let Some(user) = user_of_link(app, link).await? else { return Ok(None) };
    check_length(password)?;
    let password = Some(passwords::hash(password).await?);
    let after = User { password, link_hash: None, link_expires_at: None, ..user };
    let mut tx = app.db.begin().await?;
    match users::save(&mut tx, &after).await {
        // A concurrent request has already used the link.
        Err(store::StoreError::Stale) => return Ok(None),
        saved => saved?,
    }
    let actor = actor(&after);
    audit::record(app, &mut tx, &actor, Action::UserPassword, after.id, details(&after));
    let token = create_session(app, &mut tx, &after, client).await?;
    tx.commit().await?;
    Ok(Some((after, token)))
}

fn check_length(password: &str) -> Result<()> {
    let chars = password.chars().count();
    if (PASSWORD_CHARS_MIN..=PASSWORD_CHARS_MAX).contains(&chars) {
        return Ok(());
    }
    let detail = format!("must have {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters");
    Err(invalid("/password", "invalid_password", detail))
}

/// The result of a password change that the rules for passwords allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordChange {
    Changed,
    /// The current password is wrong.
    WrongPassword,
    /// Too many other passwords are being checked.
    Busy,
}

/// Changes the password of a user who knows the current one, and ends all their sessions except
/// `kept`. The caller limits the number of attempts.
#[boxed]
pub async fn change_password(
    app: &App,
    user: &User,
    kept: SessionId,
    current: &str,
    new: &str,
) -> Result<PasswordChange> {
    check_length(new)?;
    if current.chars().count() > PASSWORD_CHARS_MAX {
        return Ok(PasswordChange::WrongPassword);
    }
    match passwords::check(current, user.password.as_deref(), true).await? {
        PasswordCheck::Match => {}
        PasswordCheck::Mismatch => return Ok(PasswordChange::WrongPassword),
        PasswordCheck::Busy => return Ok(PasswordChange::Busy),
    }
    let password = Some(passwords::hash(new).await?);
    // A link that is still open would allow setting another password.
    let after = User { password, link_hash: None, link_expires_at: None, ..user.clone() };
    let mut tx = app.db.begin().await?;
    users::save(&mut tx, &after).await?;
    let ended = sessions::end_others(&mut tx, user.id, kept).await?;
    let mut detail = details(user);
    detail["sessions_ended"] = json!(ended);
    audit::record(app, &mut tx, &actor(user), Action::UserPasswordChange, user.id, detail);
    audit::emit(
        app,
        &mut tx,
        &actor(user),
        EventKind::UserChanged,
        user.id,
        json!({"user_id": user.id}),
    );
    tx.commit().await?;
    Ok(PasswordChange::Changed)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignInMethod {
    Password,
    Oidc,
}

impl SignInMethod {
    /// The text form in the audit log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            SignInMethod::Password => "password",
            SignInMethod::Oidc => "oidc",
        }
    }
}

/// Records a sign-in and its method in the audit log.
pub(super) fn record_sign_in(app: &App, tx: &mut store::Tx, user: &User, method: SignInMethod) {
    let mut detail = details(user);
    detail["by"] = json!(method.as_str());
    audit::record(app, tx, &actor(user), Action::UserSignIn, user.id, detail);
}

/// The result of a sign-in.
#[derive(Debug)]
pub enum SignInOutcome {
    /// Signed in, with the token of the new session.
    SignedIn(Box<User>, Token),
    /// The first step is complete. The ticket and a code of the authenticator complete the sign-in.
    NeedsCode {
        /// Proves that the first step is complete.
        ticket: Token,
    },
    /// The credentials are wrong.
    Rejected,
    /// Too many other sign-ins are in progress.
    Busy,
}

/// The organization that a user signs in to: the one with this name, or the oldest if no name is
/// given. A user is never searched for in several organizations: an administrator who creates a
/// user of the same name in another organization could then lock the owner out, and the time of the
/// check would reveal how many there are.
#[boxed]
pub async fn find_organization(app: &App, name: &str) -> Result<Option<OrgId>> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    let (exact, plain) = (name.trim(), normalize_name(name));
    // The names of two organizations may differ in case only.
    let found = match plain.is_empty() {
        true => all.iter().min_by_key(|one| (one.created_at, one.id)),
        false => all
            .iter()
            .find(|one| one.name == exact)
            .or_else(|| all.iter().find(|one| normalize_name(&one.name) == plain)),
    };
    Ok(found.map(|one| one.id))
}

/// Signs a user in if the password is correct; a user with a second factor gets a ticket. An
/// organization that does not exist is answered like a wrong password, and equally slowly.
/// `is_known`: this browser has signed in to this account before, and does not wait behind unknown
/// browsers.
#[boxed]
pub async fn sign_in(
    app: &App,
    org: Option<OrgId>,
    name: &str,
    password: &str,
    is_known: bool,
    client: &Client,
) -> Result<SignInOutcome> {
    let name = normalize_name(name).replace('\0', "");
    let found = match org {
        Some(org) => users::by_name(&mut *app.db.read().await?, org, &name).await?,
        None => None,
    };
    let hash = found.as_ref().and_then(|user| user.password.as_deref());
    if password.chars().count() > PASSWORD_CHARS_MAX {
        return Ok(SignInOutcome::Rejected);
    }
    let user = match (passwords::check(password, hash, is_known).await?, found) {
        (PasswordCheck::Match, Some(user)) => user,
        (PasswordCheck::Busy, _) => return Ok(SignInOutcome::Busy),
        (PasswordCheck::Match | PasswordCheck::Mismatch, _) => return Ok(SignInOutcome::Rejected),
    };
    if user.totp_secret.is_some() {
        let ticket = two_factor::ticket(app, &user, SignInMethod::Password);
        return Ok(SignInOutcome::NeedsCode { ticket });
    }
    let mut tx = app.db.begin().await?;
    // The user may have changed while the password was checked.
    if users::get(&mut tx, user.org_id, user.id).await?.generation != user.generation {
        return Ok(SignInOutcome::Rejected);
    }
    record_sign_in(app, &mut tx, &user, SignInMethod::Password);
    let token = create_session(app, &mut tx, &user, client).await?;
    tx.commit().await?;
    Ok(SignInOutcome::SignedIn(Box::new(user), token))
}

/// The user as the actor of a command.
pub fn actor(user: &User) -> Actor {
    Actor { org: user.org_id, id: user.id.to_string(), role: user.role }
}

/// The actor for a person with shell access to the host who may read the data directory.
pub fn local_actor(org: OrgId) -> Actor {
    Actor { org, id: "local".into(), role: Role::Admin }
}

pub(super) fn invalid(pointer: &str, code: &'static str, detail: String) -> ServiceError {
    ServiceError::Invalid(vec![FieldError::new(pointer, code, detail)])
}

/// Whether the user has been invited, has not set a password yet, and the link is still valid.
pub fn has_open_invitation(user: &User, now: Timestamp) -> bool {
    user.password.is_none() && user.link_expires_at.is_some_and(|end| end > now)
}
