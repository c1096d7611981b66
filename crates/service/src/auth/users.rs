//! Users of the dashboard: invited by a one-time link, authenticated by a password, and remembered
//! by a session.
//!
//! The database contains only the hashes of links and sessions.

use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::sessions::{self, Session};
use store::users::{self, User};
use store::{identities, organizations};
use vocab::{OrgId, Role, UserId};

use crate::App;
use crate::auth::passwords;
use crate::auth::passwords::Fits;
use crate::auth::{opaque_token, two_factor};
use crate::clock::dice;
use crate::{Actor, FieldError, Result, ServiceError, audit};

const RANDOM_BYTES: usize = 32;
const LINK_PURPOSE: &str = "fleetmend sign-in link v1";
const SESSION_PURPOSE: &str = "fleetmend session v1";
/// How long a one-time link is valid.
pub const LINK_LIVES: SignedDuration = SignedDuration::from_hours(24);
/// How long a session is valid.
pub const SESSION_LIVES: SignedDuration = SignedDuration::from_hours(24);
const NAME_CHARS_MAX: usize = 200;
const PASSWORD_CHARS_MIN: usize = 12;
/// A limit, because a longer password only makes hashing more expensive.
const PASSWORD_CHARS_MAX: usize = 200;

/// The text of a link or a session: shown once and not stored.
pub type Token = String;

/// Normalizes a user name: case and surrounding whitespace do not matter.
pub fn plain_name(name: &str) -> String {
    name.trim().to_lowercase()
}

/// Whether this is a valid user name. A sign-in with any other name is refused without a database
/// query. Each name has only one spelling, so that all failed sign-ins with it are counted
/// together.
pub fn may_be_a_name(name: &str) -> bool {
    let chars = name.chars().take(NAME_CHARS_MAX + 1).count();
    (1..=NAME_CHARS_MAX).contains(&chars) && !name.chars().any(char::is_control)
}

/// Creates a user, and the link with which they set their password.
#[boxed]
pub async fn invite(app: &App, actor: &Actor, name: &str, role: Role) -> Result<(User, Token)> {
    let name = plain_name(name);
    if !may_be_a_name(&name) {
        let detail =
            format!("must have 1 to {NAME_CHARS_MAX} characters and no control characters");
        return Err(invalid("/name", "invalid_name", detail));
    }
    let now = app.clock.now();
    let (token, hash) = opaque_token::mint::<RANDOM_BYTES>(&app.secrets, LINK_PURPOSE);
    let user = User {
        id: UserId::new(now, dice()),
        org_id: actor.org,
        name,
        role,
        password: None,
        link_hash: Some(hash),
        link_expires_at: Some(now + LINK_LIVES),
        totp_secret: None,
        totp_step: 0,
        created_at: now,
        created_by: actor.who.clone(),
        removed_at: None,
        generation: 1,
    };
    let mut tx = app.db.begin().await?;
    users::create(&mut tx, &user).await?;
    audit::record(app, &mut tx, actor, "user.create", user.id, told(&user));
    audit::emit(app, &mut tx, actor, "user.created", json!({"user_id": user.id}));
    tx.commit().await?;
    Ok((user, token))
}

/// Removes a user's password, second factor and linked identities, ends their sessions, and creates
/// a link with which they set a new password.
#[boxed]
pub async fn reset(app: &App, actor: &Actor, seen: &User) -> Result<Token> {
    let (token, hash) = opaque_token::mint::<RANDOM_BYTES>(&app.secrets, LINK_PURPOSE);
    let until = app.clock.now() + LINK_LIVES;
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
    sessions::end_all(&mut tx, seen.id).await?;
    audit::record(app, &mut tx, actor, "user.reset", seen.id, told(seen));
    audit::emit(app, &mut tx, actor, "user.reset", json!({"user_id": seen.id}));
    tx.commit().await?;
    Ok(token)
}

/// Removes a user, and ends all their sessions.
#[boxed]
pub async fn remove(app: &App, actor: &Actor, seen: &User) -> Result<()> {
    if actor.who == seen.id.to_string() {
        let detail = "you cannot remove yourself; ask another administrator";
        return Err(ServiceError::conflict("conflict", detail));
    }
    let removed_at = Some(app.clock.now());
    let after = User { removed_at, password: None, link_hash: None, ..seen.clone() };
    let mut tx = app.db.begin().await?;
    users::save(&mut tx, &after).await?;
    sessions::end_all(&mut tx, seen.id).await?;
    audit::record(app, &mut tx, actor, "user.remove", seen.id, told(seen));
    audit::emit(app, &mut tx, actor, "user.removed", json!({"user_id": seen.id}));
    Ok(tx.commit().await?)
}

pub(super) fn told(user: &User) -> serde_json::Value {
    json!({"name": user.name, "role": user.role})
}

/// The user of a link that is still valid.
#[boxed]
pub async fn invited(app: &App, link: &str) -> Result<Option<User>> {
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
pub async fn accept(app: &App, link: &str, password: &str) -> Result<Option<(User, Token)>> {
    let Some(user) = invited(app, link).await? else { return Ok(None) };
    let chars = password.chars().count();
    if !(PASSWORD_CHARS_MIN..=PASSWORD_CHARS_MAX).contains(&chars) {
        let detail = format!("must have {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters");
        return Err(invalid("/password", "invalid_password", detail));
    }
    let password = Some(passwords::hash(password).await?);
    let after = User { password, link_hash: None, link_expires_at: None, ..user };
    let mut tx = app.db.begin().await?;
    match users::save(&mut tx, &after).await {
        // A concurrent request has already used the link.
        Err(store::StoreError::Stale) => return Ok(None),
        saved => saved?,
    }
    let actor = actor(&after);
    audit::record(app, &mut tx, &actor, "user.password", after.id, told(&after));
    let token = session(app, &mut tx, &after).await?;
    tx.commit().await?;
    Ok(Some((after, token)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Password,
    Oidc,
}

impl Way {
    /// The text form in the audit log.
    pub(super) fn word(self) -> &'static str {
        match self {
            Way::Password => "password",
            Way::Oidc => "oidc",
        }
    }
}

/// Records a sign-in and its method in the audit log.
pub(super) fn record_sign_in(app: &App, tx: &mut store::Tx, user: &User, way: Way) {
    let mut detail = told(user);
    detail["by"] = json!(way.word());
    audit::record(app, tx, &actor(user), "user.sign_in", user.id, detail);
}

/// The result of a sign-in.
#[derive(Debug)]
pub enum SignIn {
    /// Signed in, with the token of the new session.
    In(Box<User>, Token),
    /// The first step is complete. The ticket and a code of the authenticator complete the sign-in.
    NeedsCode {
        /// Proves that the first step is complete.
        ticket: Token,
    },
    /// The credentials are wrong.
    No,
    /// Too many other sign-ins are in progress.
    Busy,
}

/// The organization that a user signs in to: the one with this name, or the oldest if no name is
/// given. A user is never searched for in several organizations: an administrator who creates a
/// user of the same name in another organization could then keep the owner out, and the time of the
/// check would reveal how many there are.
#[boxed]
pub async fn organization(app: &App, name: &str) -> Result<Option<OrgId>> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    let (exact, plain) = (name.trim(), plain_name(name));
    // The names of two organizations may differ in case only.
    let found = match plain.is_empty() {
        true => all.iter().min_by_key(|one| (one.created_at, one.id)),
        false => all
            .iter()
            .find(|one| one.name == exact)
            .or_else(|| all.iter().find(|one| plain_name(&one.name) == plain)),
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
) -> Result<SignIn> {
    let name = plain_name(name).replace('\0', "");
    let found = match org {
        Some(org) => users::by_name(&mut *app.db.read().await?, org, &name).await?,
        None => None,
    };
    let hash = found.as_ref().and_then(|user| user.password.as_deref());
    if password.chars().count() > PASSWORD_CHARS_MAX {
        return Ok(SignIn::No);
    }
    let user = match (passwords::fits(password, hash, is_known).await?, found) {
        (Fits::Yes, Some(user)) => user,
        (Fits::Busy, _) => return Ok(SignIn::Busy),
        (Fits::Yes | Fits::No, _) => return Ok(SignIn::No),
    };
    if user.totp_secret.is_some() {
        let ticket = two_factor::ticket(app, &user, Way::Password);
        return Ok(SignIn::NeedsCode { ticket });
    }
    let mut tx = app.db.begin().await?;
    // The user may have changed while the password was checked.
    if users::get(&mut tx, user.org_id, user.id).await?.generation != user.generation {
        return Ok(SignIn::No);
    }
    record_sign_in(app, &mut tx, &user, Way::Password);
    let token = session(app, &mut tx, &user).await?;
    tx.commit().await?;
    Ok(SignIn::In(Box::new(user), token))
}

pub(super) async fn session(app: &App, tx: &mut store::Tx, user: &User) -> Result<Token> {
    let now = app.clock.now();
    let (token, hash) = opaque_token::mint::<RANDOM_BYTES>(&app.secrets, SESSION_PURPOSE);
    sessions::purge(tx, now).await?;
    let expires_at = now + SESSION_LIVES;
    let session = Session { hash, user_id: user.id, created_at: now, expires_at };
    sessions::create(tx, &session).await?;
    Ok(token)
}

/// The user of a session that is still valid.
#[boxed]
pub async fn signed_in(app: &App, session: &str) -> Result<Option<User>> {
    let found = opaque_token::recognize::<RANDOM_BYTES>(&app.secrets, SESSION_PURPOSE, session);
    let Some(hash) = found else { return Ok(None) };
    Ok(sessions::user(&mut *app.db.read().await?, &hash, app.clock.now()).await?)
}

/// Ends a session. Ending a session that is already over is not an error.
#[boxed]
pub async fn sign_out(app: &App, session: &str) -> Result<()> {
    let found = opaque_token::recognize::<RANDOM_BYTES>(&app.secrets, SESSION_PURPOSE, session);
    let Some(hash) = found else { return Ok(()) };
    let mut tx = app.db.begin().await?;
    sessions::end(&mut tx, &hash).await?;
    Ok(tx.commit().await?)
}

/// The user as the actor of a command.
pub fn actor(user: &User) -> Actor {
    Actor { org: user.org_id, who: user.id.to_string(), role: user.role }
}

/// The actor for a person with shell access to the host who may read the data directory.
pub fn local(org: OrgId) -> Actor {
    Actor { org, who: "local".into(), role: Role::Admin }
}

pub(super) fn invalid(pointer: &str, code: &'static str, detail: String) -> ServiceError {
    ServiceError::Invalid(vec![FieldError::new(pointer, code, detail)])
}

/// Whether the user has been invited, has not set a password yet, and the link is still valid.
pub fn awaits(user: &User, now: Timestamp) -> bool {
    user.password.is_none() && user.link_expires_at.is_some_and(|end| end > now)
}
