//! Two-factor authentication with TOTP codes. The secrets are encrypted with a key that is not in
//! the database.

use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::json;
use store::users::{self, User};
use vocab::UserId;

use crate::App;
use crate::auth::totp;
use crate::auth::users::{
    SignInMethod, SignInOutcome, Token, actor, create_session, details, invalid, record_sign_in,
};
use crate::clock::random_bytes;
use crate::secrets::{RootKeyAge, Secrets};
use crate::{Result, audit};

const SECRET_BYTES: usize = 20;
const SECRET_PURPOSE: &str = "fleetmend authenticator v1";
const TICKET_PURPOSE: &str = "fleetmend second step v2";
const TICKET_TAG_BYTES: usize = 20;
/// How long a user may take to enter the code.
const TICKET_TTL: SignedDuration = SignedDuration::from_mins(5);

/// A new secret, encoded for typing.
pub fn new_secret() -> String {
    totp::base32(&random_bytes::<SECRET_BYTES>())
}

/// Enables two-factor authentication if the code proves that the authenticator has the secret.
#[boxed]
pub async fn turn_on(app: &App, user: &User, secret: &str, code: &str) -> Result<()> {
    let bytes = totp::from_base32(secret);
    let step = totp::matching_step(&bytes, code, app.clock.now(), 0)
        .filter(|_| bytes.len() == SECRET_BYTES);
    let Some(step) = step else { return Err(wrong_code()) };
    let sealed = Some(encrypt_secret(app, user, &bytes));
    save(app, User { totp_secret: sealed, totp_step: step, ..user.clone() }, "user.totp_on").await
}

/// Disables two-factor authentication if the code is valid.
#[boxed]
pub async fn turn_off(app: &App, user: &User, code: &str) -> Result<()> {
    let secret = user.totp_secret.as_deref().and_then(|sealed| decrypt_secret(app, user, sealed));
    let step = secret
        .and_then(|secret| totp::matching_step(&secret, code, app.clock.now(), user.totp_step));
    let Some(step) = step else { return Err(wrong_code()) };
    save(app, User { totp_secret: None, totp_step: step, ..user.clone() }, "user.totp_off").await
}

fn wrong_code() -> crate::ServiceError {
    invalid("/code", "wrong_code", "incorrect or expired code".into())
}

async fn save(app: &App, after: User, action: &str) -> Result<()> {
    let mut tx = app.db.begin().await?;
    users::save(&mut tx, &after).await?;
    audit::record(app, &mut tx, &actor(&after), action, after.id, details(&after));
    audit::emit(app, &mut tx, &actor(&after), "user.changed", json!({"user_id": after.id}));
    Ok(tx.commit().await?)
}

/// A ticket for a user who completed the first step, and with which method. With it, a code is
/// accepted for five minutes.
pub(super) fn ticket(app: &App, user: &User, method: SignInMethod) -> Token {
    let until = (app.clock.now() + TICKET_TTL).as_second();
    let tag = with_tag_parts(user, until, method, |parts| app.secrets.tag(TICKET_PURPOSE, parts));
    format!("{until}.{}.{}", user.id, totp::base32(&tag[..TICKET_TAG_BYTES]))
}

/// A user who completed the first step of the sign-in, as proven by a ticket.
pub struct PendingSignIn {
    user: User,
    method: SignInMethod,
    ticket: Token,
}

impl PendingSignIn {
    /// Reads a ticket. `None` if it was not issued by this installation, has expired, or its user
    /// has changed since.
    #[boxed]
    pub async fn read(app: &App, ticket: &str) -> Result<Option<PendingSignIn>> {
        let mut parts = ticket.splitn(3, '.');
        let (Some(until), Some(owner), Some(shown)) = (parts.next(), parts.next(), parts.next())
        else {
            return Ok(None);
        };
        let (Ok(until), Ok(owner)) = (until.parse::<i64>(), owner.parse::<UserId>()) else {
            return Ok(None);
        };
        let found = users::by_id(&mut *app.db.read().await?, owner).await?;
        let Some(user) = found.filter(|_| until > app.clock.now().as_second()) else {
            return Ok(None);
        };
        let shown = totp::from_base32(shown);
        let is = |candidate: &SignInMethod| {
            with_tag_parts(&user, until, *candidate, |parts| {
                app.secrets.verifies(TICKET_PURPOSE, parts, TICKET_TAG_BYTES, &shown)
            })
        };
        let method = [SignInMethod::Password, SignInMethod::Oidc].into_iter().find(is);
        Ok(method.map(|method| PendingSignIn { user, method, ticket: ticket.to_owned() }))
    }

    pub fn owner(&self) -> UserId {
        self.user.id
    }
}

/// Calls `make` with the parts that a ticket's tag covers.
fn with_tag_parts<T>(
    user: &User,
    until: i64,
    method: SignInMethod,
    make: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    let id = user.id.to_string();
    // The generation makes a ticket invalid once its user was reset or has signed in.
    let (seen, until) = (user.generation.to_be_bytes(), until.to_be_bytes());
    make(&[id.as_bytes(), &seen, &until, method.as_str().as_bytes()])
}

/// Signs in a user who completed the first step and has the current code. Returns `NeedsCode` if
/// only the code was wrong.
#[boxed]
pub async fn sign_in(app: &App, first: PendingSignIn, code: &str) -> Result<SignInOutcome> {
    let PendingSignIn { user, method, ticket } = first;
    let now: Timestamp = app.clock.now();
    let secret = user.totp_secret.as_deref().and_then(|sealed| decrypt_secret(app, &user, sealed));
    let Some(secret) = secret else { return Ok(SignInOutcome::Rejected) };
    let Some(step) = totp::matching_step(&secret, code, now, user.totp_step) else {
        return Ok(SignInOutcome::NeedsCode { ticket });
    };
    let after = User { totp_step: step, ..user };
    let mut tx = app.db.begin().await?;
    match users::save(&mut tx, &after).await {
        // The same code was sent twice at the same time: it can be used only once.
        Err(store::StoreError::Stale) => return Ok(SignInOutcome::Rejected),
        saved => saved?,
    }
    record_sign_in(app, &mut tx, &after, method);
    let token = create_session(app, &mut tx, &after).await?;
    tx.commit().await?;
    Ok(SignInOutcome::SignedIn(Box::new(after), token))
}

fn encrypt_secret(app: &App, user: &User, secret: &[u8]) -> Vec<u8> {
    encrypt(&app.secrets, user.id, secret)
}

fn decrypt_secret(app: &App, user: &User, sealed: &[u8]) -> Option<Vec<u8>> {
    app.secrets.root_key_ages().find_map(|age| decrypt(&app.secrets, age, user.id, sealed))
}

/// Encrypts a secret again that was encrypted with the old root key. `None` if it was not: it needs
/// no change, or cannot be decrypted.
pub(super) fn reencrypt(secrets: &Secrets, user: UserId, sealed: &[u8]) -> Option<Vec<u8>> {
    if secrets.old_root_key_id().is_none()
        || decrypt(secrets, RootKeyAge::Current, user, sealed).is_some()
    {
        return None;
    }
    Some(encrypt(secrets, user, &decrypt(secrets, RootKeyAge::Old, user, sealed)?))
}

fn encryption_key(secrets: &Secrets, age: RootKeyAge, user: UserId) -> LessSafeKey {
    let secret = secrets.tag_of(age, SECRET_PURPOSE, &[user.to_string().as_bytes()]);
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &secret).expect("AES-256 keys have 32 bytes"))
}

fn encrypt(secrets: &Secrets, user: UserId, secret: &[u8]) -> Vec<u8> {
    let nonce = random_bytes::<NONCE_LEN>();
    let mut sealed = secret.to_vec();
    let closed = encryption_key(secrets, RootKeyAge::Current, user).seal_in_place_append_tag(
        Nonce::assume_unique_for_key(nonce),
        Aad::empty(),
        &mut sealed,
    );
    closed.expect("the secret is far shorter than the limit of AES-GCM");
    [&nonce[..], &sealed].concat()
}

fn decrypt(secrets: &Secrets, age: RootKeyAge, user: UserId, sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
    let mut rest = rest.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    Some(
        encryption_key(secrets, age, user)
            .open_in_place(nonce, Aad::empty(), &mut rest)
            .ok()?
            .to_vec(),
    )
}
