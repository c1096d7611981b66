//! People who sign in: invited by a one-time link, recognized by a password, remembered by a session.
//!
//! Neither links nor sessions are in the database, only their hashes.

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
/// How long a one-time link serves.
pub const LINK_LIVES: SignedDuration = SignedDuration::from_hours(24);
/// How long someone stays signed in.
pub const SESSION_LIVES: SignedDuration = SignedDuration::from_hours(24);
const NAME_CHARS_MAX: usize = 200;
const PASSWORD_CHARS_MIN: usize = 12;
/// More would only make work for the hash.
const PASSWORD_CHARS_MAX: usize = 200;

/// A link or a session as its owner holds it: told once, kept nowhere.
pub type Token = String;

/// A name as it is kept: people do not care how they wrote it.
pub fn plain_name(name: &str) -> String {
    name.trim().to_lowercase()
}

/// Whether anyone could be called so. Who signs in with something else is refused before the
/// database is asked, and a name has one spelling only, so that each guess at it is counted.
pub fn may_be_a_name(name: &str) -> bool {
    let chars = name.chars().take(NAME_CHARS_MAX + 1).count();
    (1..=NAME_CHARS_MAX).contains(&chars) && !name.chars().any(char::is_control)
}

/// Makes a person, and the link with which they set their password.
#[boxed]
pub async fn invite(app: &App, actor: &Actor, name: &str, role: Role) -> Result<(User, Token)> {
    let name = plain_name(name);
    if !may_be_a_name(&name) {
        let detail = format!("it has 1 to {NAME_CHARS_MAX} characters on one line");
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

/// Takes a person's password and their second factor away, forgets who they are elsewhere, ends their sessions, and makes a link with
/// which they set another password.
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

/// Lets a person go: they are signed out everywhere at once.
#[boxed]
pub async fn remove(app: &App, actor: &Actor, seen: &User) -> Result<()> {
    if actor.who == seen.id.to_string() {
        let detail = "nobody removes themselves; let another administrator do it";
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

/// Whose link this is, while it serves.
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

/// Sets the password of whoever has this link, and signs them in. The link is used up.
#[boxed]
pub async fn accept(app: &App, link: &str, password: &str) -> Result<Option<(User, Token)>> {
    let Some(user) = invited(app, link).await? else { return Ok(None) };
    let chars = password.chars().count();
    if !(PASSWORD_CHARS_MIN..=PASSWORD_CHARS_MAX).contains(&chars) {
        let detail = format!("it has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters");
        return Err(invalid("/password", "invalid_password", detail));
    }
    let password = Some(passwords::hash(password).await?);
    let after = User { password, link_hash: None, link_expires_at: None, ..user };
    let mut tx = app.db.begin().await?;
    match users::save(&mut tx, &after).await {
        // Somebody else was faster with the same link: it is used up.
        Err(store::StoreError::Stale) => return Ok(None),
        saved => saved?,
    }
    let actor = actor(&after);
    audit::record(app, &mut tx, &actor, "user.password", after.id, told(&after));
    let token = session(app, &mut tx, &after).await?;
    tx.commit().await?;
    Ok(Some((after, token)))
}

/// How one signs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Password,
    Oidc,
}

impl Way {
    /// As the audit log has it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Way::Password => "password",
            Way::Oidc => "oidc",
        }
    }
}

/// Writes down that a person signed in, and in which way.
pub(super) fn record_sign_in(app: &App, tx: &mut store::Tx, user: &User, way: Way) {
    let mut detail = told(user);
    detail["by"] = json!(way.word());
    audit::record(app, tx, &actor(user), "user.sign_in", user.id, detail);
}

/// What came of a try to sign in.
#[derive(Debug)]
pub enum SignIn {
    /// Welcome.
    In(Box<User>, Token),
    /// The first step is taken; with this ticket, and a code of their authenticator, they come in.
    NeedsCode {
        /// What shows that they took the first step.
        ticket: Token,
    },
    /// It does not fit.
    No,
    /// Too many others are signing in.
    Busy,
}

/// The organization that someone signs in to: the one of this name, or if none was given the oldest. A
/// name is never looked for in several organizations: an administrator who creates a user of the same name in
/// another one could then keep the owner out, and the time to check would tell how many there are.
#[boxed]
pub async fn organization(app: &App, name: &str) -> Result<Option<OrgId>> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    let (exact, plain) = (name.trim(), plain_name(name));
    // Two organizations may differ in upper and lower case only.
    let found = match plain.is_empty() {
        true => all.iter().min_by_key(|one| (one.created_at, one.id)),
        false => all
            .iter()
            .find(|one| one.name == exact)
            .or_else(|| all.iter().find(|one| plain_name(&one.name) == plain)),
    };
    Ok(found.map(|one| one.id))
}

/// Signs a person in, if that is their password and they have no second factor. An organization that
/// does not exist is answered like a wrong password, and as slowly. `is_known`: this browser signed in
/// to this account before; it does not wait behind strangers.
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
    // What was read may have changed while the password was looked at.
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

/// Who is signed in with this session.
#[boxed]
pub async fn signed_in(app: &App, session: &str) -> Result<Option<User>> {
    let found = opaque_token::recognize::<RANDOM_BYTES>(&app.secrets, SESSION_PURPOSE, session);
    let Some(hash) = found else { return Ok(None) };
    Ok(sessions::user(&mut *app.db.read().await?, &hash, app.clock.now()).await?)
}

/// Ends a session. One that is over already is no error.
#[boxed]
pub async fn sign_out(app: &App, session: &str) -> Result<()> {
    let found = opaque_token::recognize::<RANDOM_BYTES>(&app.secrets, SESSION_PURPOSE, session);
    let Some(hash) = found else { return Ok(()) };
    let mut tx = app.db.begin().await?;
    sessions::end(&mut tx, &hash).await?;
    Ok(tx.commit().await?)
}

/// As which actor a person acts.
pub fn actor(user: &User) -> Actor {
    Actor { org: user.org_id, who: user.id.to_string(), role: user.role }
}

/// Whoever has a shell on the machine and may read the data directory.
pub fn local(org: OrgId) -> Actor {
    Actor { org, who: "local".into(), role: Role::Admin }
}

pub(super) fn invalid(pointer: &str, code: &'static str, detail: String) -> ServiceError {
    ServiceError::Invalid(vec![FieldError::new(pointer, code, detail)])
}

/// Whether a link has been used or has run out, for a list of people.
pub fn awaits(user: &User, now: Timestamp) -> bool {
    user.password.is_none() && user.link_expires_at.is_some_and(|end| end > now)
}
