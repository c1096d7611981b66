//! Two-factor authentication with TOTP codes. The secrets are encrypted with a key that is not in
//! the database.
//!
//! A user who lost the authenticator uses one of ten recovery codes instead. Each works once. A
//! code has 80 random bits, so its hash reveals nothing and needs no key.

use async_recursion::async_recursion as boxed;
use jiff::SignedDuration;
use serde_json::json;
use store::users::{self, User};
use store::{Tx, recovery_codes};
use vocab::UserId;

use crate::App;
use crate::audit::Action;
use crate::auth::sessions::{Client, create_session};
use crate::auth::totp;
use crate::auth::users::{
    SignInMethod, SignInOutcome, Token, actor, details, invalid, record_sign_in,
};
use crate::clock::random_bytes;
use crate::secrets::Secrets;
use crate::{EventKind, Result, ServiceError, audit};

const SECRET_BYTES: usize = 20;
const SECRET_PURPOSE: &str = "fleetmend authenticator v1";
const TICKET_PURPOSE: &str = "fleetmend second step v2";
const TICKET_TAG_BYTES: usize = 20;
const RECOVERY_CODES: usize = 10;
const RECOVERY_BYTES: usize = 10;
const RECOVERY_PURPOSE: &str = "fleetmend recovery code v1";
/// How long a user may take to enter the code.
const TICKET_TTL: SignedDuration = SignedDuration::from_mins(5);

/// A new secret, encoded for typing.
pub fn new_secret() -> String {
    totp::base32(&random_bytes::<SECRET_BYTES>())
}

/// Enables two-factor authentication if the code proves that the authenticator has the secret.
/// Returns the recovery codes, which are shown once.
#[boxed]
pub async fn turn_on(app: &App, user: &User, secret: &str, code: &str) -> Result<Vec<String>> {
    if user.totp_secret.is_some() {
        let detail = "two-factor authentication is already on";
        return Err(ServiceError::conflict("conflict", detail));
    }
    let bytes = totp::from_base32(secret);
    let step = totp::matching_step(&bytes, code, app.clock.now(), 0)
        .filter(|_| bytes.len() == SECRET_BYTES);
    let Some(step) = step else { return Err(wrong_code()) };
    let sealed = Some(encrypt_secret(app, user, &bytes));
    let after = User { totp_secret: sealed, totp_step: step, ..user.clone() };
    let mut tx = app.db.begin().await?;
    let codes = replace_codes(&mut tx, user).await?;
    save(app, tx, after, Action::UserTotpOn).await?;
    Ok(codes)
}

/// Disables two-factor authentication if the code of the authenticator or the recovery code is
/// valid. The remaining recovery codes are deleted.
#[boxed]
pub async fn turn_off(app: &App, user: &User, code: &str) -> Result<()> {
    let mut tx = app.db.begin().await?;
    let Some(proof) = verify(app, &mut tx, user, code).await? else { return Err(wrong_code()) };
    recovery_codes::replace(&mut tx, user.id, &[]).await?;
    let after = User { totp_secret: None, totp_step: proof.step(user), ..user.clone() };
    save(app, tx, after, Action::UserTotpOff).await
}

/// Replaces the recovery codes of a user who has the current code of the authenticator.
#[boxed]
pub async fn renew_recovery_codes(app: &App, user: &User, code: &str) -> Result<Vec<String>> {
    let Some(step) = current_step(app, user, code) else { return Err(wrong_code()) };
    let mut tx = app.db.begin().await?;
    let codes = replace_codes(&mut tx, user).await?;
    save(app, tx, User { totp_step: step, ..user.clone() }, Action::UserRecoveryCodes).await?;
    Ok(codes)
}

/// The number of recovery codes that a user has left.
#[boxed]
pub async fn recovery_codes_left(app: &App, user: &User) -> Result<u64> {
    Ok(recovery_codes::count(&mut *app.db.read().await?, user.id).await?)
}

async fn replace_codes(tx: &mut Tx, user: &User) -> Result<Vec<String>> {
    let codes: Vec<[u8; RECOVERY_BYTES]> = (0..RECOVERY_CODES).map(|_| random_bytes()).collect();
    let hashes: Vec<Vec<u8>> = codes.iter().map(|code| recovery_hash(user.id, code)).collect();
    recovery_codes::replace(tx, user.id, &hashes).await?;
    Ok(codes.iter().map(recovery_text).collect())
}

fn recovery_hash(user: UserId, code: &[u8; RECOVERY_BYTES]) -> Vec<u8> {
    let text = [RECOVERY_PURPOSE.as_bytes(), user.to_string().as_bytes(), code].concat();
    blake3::hash(&text).as_bytes().to_vec()
}

/// A recovery code in groups of four characters, for typing.
fn recovery_text(code: &[u8; RECOVERY_BYTES]) -> String {
    let letters = totp::base32(code).to_lowercase();
    let groups: Vec<&str> =
        (0..letters.len()).step_by(4).map(|at| &letters[at..letters.len().min(at + 4)]).collect();
    groups.join("-")
}

/// The recovery code that a user typed; `None` if the text is no recovery code. Case, spaces and
/// hyphens do not matter.
fn parse_recovery(typed: &str) -> Option<[u8; RECOVERY_BYTES]> {
    let is_separator = |letter: &char| letter.is_whitespace() || *letter == '-';
    let letters: String = typed.chars().filter(|letter| !is_separator(letter)).take(64).collect();
    let letters = letters.to_uppercase();
    let code: [u8; RECOVERY_BYTES] = totp::from_base32(&letters).try_into().ok()?;
    // Decoding ignores characters that do not belong into a code.
    (totp::base32(&code) == letters).then_some(code)
}

/// What a user proved the second factor with.
enum Proof {
    /// A code of the authenticator, of this time step.
    Authenticator(i64),
    /// A recovery code, which was deleted.
    RecoveryCode,
}

impl Proof {
    /// The time step of the last code that was used.
    fn step(&self, user: &User) -> i64 {
        match self {
            Proof::Authenticator(step) => *step,
            Proof::RecoveryCode => user.totp_step,
        }
    }
}

/// Checks a code of the authenticator or a recovery code, which is deleted.
async fn verify(app: &App, tx: &mut Tx, user: &User, typed: &str) -> Result<Option<Proof>> {
    if let Some(step) = current_step(app, user, typed) {
        return Ok(Some(Proof::Authenticator(step)));
    }
    let Some(code) = parse_recovery(typed).filter(|_| user.totp_secret.is_some()) else {
        return Ok(None);
    };
    let taken = recovery_codes::take(tx, user.id, &recovery_hash(user.id, &code)).await?;
    if !taken {
        return Ok(None);
    }
    let mut detail = details(user);
    detail["left"] = json!(recovery_codes::count(tx, user.id).await?);
    audit::record(app, tx, &actor(user), Action::UserRecoveryCode, user.id, detail);
    Ok(Some(Proof::RecoveryCode))
}

/// The time step of the authenticator's code, if it is valid now.
fn current_step(app: &App, user: &User, code: &str) -> Option<i64> {
    let secret = decrypt_secret(app, user, user.totp_secret.as_deref()?)?;
    totp::matching_step(&secret, code, app.clock.now(), user.totp_step)
}

fn wrong_code() -> ServiceError {
    invalid("/code", "wrong_code", "incorrect or expired code".into())
}

async fn save(app: &App, mut tx: Tx, after: User, action: Action) -> Result<()> {
    users::save(&mut tx, &after).await?;
    audit::record(app, &mut tx, &actor(&after), action, after.id, details(&after));
    audit::emit(
        app,
        &mut tx,
        &actor(&after),
        EventKind::UserChanged,
        after.id,
        json!({"user_id": after.id}),
    );
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

/// Signs in a user who completed the first step and has the current code or a recovery code.
/// Returns `NeedsCode` if only the code was wrong.
#[boxed]
pub async fn sign_in(
    app: &App,
    first: PendingSignIn,
    code: &str,
    client: &Client,
) -> Result<SignInOutcome> {
    let PendingSignIn { user, method, ticket } = first;
    let sealed = user.totp_secret.as_deref();
    if sealed.and_then(|sealed| decrypt_secret(app, &user, sealed)).is_none() {
        return Ok(SignInOutcome::Rejected);
    }
    let mut tx = app.db.begin().await?;
    let Some(proof) = verify(app, &mut tx, &user, code).await? else {
        return Ok(SignInOutcome::NeedsCode { ticket });
    };
    let after = User { totp_step: proof.step(&user), ..user };
    match users::save(&mut tx, &after).await {
        // The same code was sent twice at the same time: it can be used only once.
        Err(store::StoreError::Stale) => return Ok(SignInOutcome::Rejected),
        saved => saved?,
    }
    record_sign_in(app, &mut tx, &after, method);
    let token = create_session(app, &mut tx, &after, client).await?;
    tx.commit().await?;
    Ok(SignInOutcome::SignedIn(Box::new(after), token))
}

fn encrypt_secret(app: &App, user: &User, secret: &[u8]) -> Vec<u8> {
    app.secrets.encrypt(SECRET_PURPOSE, &user.id.to_string(), secret)
}

fn decrypt_secret(app: &App, user: &User, sealed: &[u8]) -> Option<Vec<u8>> {
    app.secrets.decrypt(SECRET_PURPOSE, &user.id.to_string(), sealed)
}

/// Encrypts a secret again that was encrypted with the old root key. `None` if it was not: it needs
/// no change, or cannot be decrypted.
pub(super) fn reencrypt(secrets: &Secrets, user: UserId, sealed: &[u8]) -> Option<Vec<u8>> {
    secrets.reencrypt(SECRET_PURPOSE, &user.to_string(), sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_code_is_read_as_people_type_it() {
        let code = [7, 1, 2, 3, 4, 5, 6, 7, 8, 255];
        let text = recovery_text(&code);
        assert_eq!(text, "a4aq-eaye-auda-och7");
        for typed in [&text, " A4AQ EAYE auda och7 ", "a4aqeayeaudaoch7"] {
            assert_eq!(parse_recovery(typed), Some(code), "{typed}");
        }
        for bad in
            ["", "123456", "a4aq-eaye-auda-och", "a4aq-eaye-auda-och77", "a4aq!eaye-auda-och7"]
        {
            assert_eq!(parse_recovery(bad), None, "{bad}");
        }
    }

    #[test]
    fn same_recovery_code_of_two_users_has_two_hashes() {
        let [ann, bob] = [1, 2].map(|n| UserId::new(jiff::Timestamp::UNIX_EPOCH, n));
        assert_ne!(
            recovery_hash(ann, &[0; RECOVERY_BYTES]),
            recovery_hash(bob, &[0; RECOVERY_BYTES])
        );
    }
}
