//! Sessions: how a browser stays signed in, and how users see and end theirs.
//!
//! The database contains only the hash of a session's token.

use std::net::IpAddr;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use jiff::SignedDuration;
use serde_json::json;
use store::sessions;
pub use store::sessions::Session;
use store::users::User;
use vocab::SessionId;

use crate::App;
use crate::audit::Action;
use crate::auth::opaque_token;
use crate::auth::users::{Token, actor};
use crate::clock::random_u128;
use crate::{Result, ServiceError, audit};

const RANDOM_BYTES: usize = 32;
const SESSION_PURPOSE: &str = "fleetmend session v1";
/// How long a session is valid.
pub const SESSION_TTL: SignedDuration = SignedDuration::from_hours(24);
/// A later use is recorded after this time. More often would be a write for every page.
const TOUCH_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// A page does not wait longer than this to record its use.
const TOUCH_MAX: Duration = Duration::from_millis(500);
/// The part of a user agent that is kept.
const USER_AGENT_CHARS_MAX: usize = 256;
/// Maximum number of sessions in a list.
pub const LIST_MAX: u32 = 100;

/// What the service knows about the client that signs in.
#[derive(Debug, Clone, Default)]
pub struct Client {
    address: String,
    user_agent: String,
}

impl Client {
    /// Keeps the first characters of the user agent, without control characters: the client chose
    /// the text.
    pub fn new(address: Option<IpAddr>, user_agent: &str) -> Client {
        let user_agent = user_agent.chars().filter(|letter| !letter.is_control());
        Client {
            address: address.map(|address| address.to_canonical().to_string()).unwrap_or_default(),
            user_agent: user_agent.take(USER_AGENT_CHARS_MAX).collect(),
        }
    }
}

pub(super) async fn create_session(
    app: &App,
    tx: &mut store::Tx,
    user: &User,
    client: &Client,
) -> Result<Token> {
    let now = app.clock.now();
    let (token, hash) = opaque_token::mint::<RANDOM_BYTES>(&app.secrets, SESSION_PURPOSE);
    sessions::purge(tx, now).await?;
    let session = Session {
        hash,
        id: SessionId::new(now, random_u128()),
        user_id: user.id,
        created_at: now,
        expires_at: now + SESSION_TTL,
        used_at: now,
        address: client.address.clone(),
        user_agent: client.user_agent.clone(),
    };
    sessions::create(tx, &session).await?;
    Ok(token)
}

fn token_hash(app: &App, token: &str) -> Option<Vec<u8>> {
    opaque_token::recognize::<RANDOM_BYTES>(&app.secrets, SESSION_PURPOSE, token)
}

/// The session with this token and its user, if it is still valid.
#[boxed]
pub async fn find(app: &App, token: &str) -> Result<Option<(Session, User)>> {
    let Some(hash) = token_hash(app, token) else { return Ok(None) };
    let now = app.clock.now();
    let found = sessions::find(&mut *app.db.read().await?, &hash, now).await?;
    if let Some((session, _)) = &found
        && now.duration_since(session.used_at) >= TOUCH_AFTER
    {
        touch(app, session.id).await;
    }
    Ok(found)
}

/// Records that a session is used now. A page is shown even if this fails: the database may be
/// full, or busy with a long transaction.
async fn touch(app: &App, id: SessionId) {
    let write = async {
        let mut tx = app.db.begin().await?;
        sessions::touch(&mut tx, id, app.clock.now()).await?;
        tx.commit().await
    };
    match tokio::time::timeout(TOUCH_MAX, write).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "could not record the use of a session"),
        Err(_) => tracing::debug!("recording the use of a session took too long"),
    }
}

/// The newest [`LIST_MAX`] sessions of a user, newest first.
#[boxed]
pub async fn list(app: &App, user: &User) -> Result<Vec<Session>> {
    let now = app.clock.now();
    Ok(sessions::list(&mut *app.db.read().await?, user.id, now, LIST_MAX).await?)
}

/// Ends the session with this token. Ending a session that is already over is not an error.
#[boxed]
pub async fn sign_out(app: &App, token: &str) -> Result<()> {
    let Some(hash) = token_hash(app, token) else { return Ok(()) };
    let mut tx = app.db.begin().await?;
    let Some((_, user)) = sessions::find(&mut tx, &hash, app.clock.now()).await? else {
        return Ok(());
    };
    sessions::end(&mut tx, &hash).await?;
    let detail = json!({"name": user.name});
    audit::record(app, &mut tx, &actor(&user), Action::UserSignOut, user.id, detail);
    Ok(tx.commit().await?)
}

/// Ends one of the user's own sessions.
#[boxed]
pub async fn end(app: &App, user: &User, id: SessionId) -> Result<()> {
    let mut tx = app.db.begin().await?;
    if !sessions::end_by_id(&mut tx, user.id, id).await? {
        return Err(ServiceError::NotFound { kind: "session", id: id.to_string() });
    }
    let detail = json!({"name": user.name, "session": id});
    audit::record(app, &mut tx, &actor(user), Action::UserSessionEnd, user.id, detail);
    Ok(tx.commit().await?)
}

/// Ends all sessions of the user except `kept`.
#[boxed]
pub async fn end_others(app: &App, user: &User, kept: SessionId) -> Result<()> {
    let mut tx = app.db.begin().await?;
    let ended = sessions::end_others(&mut tx, user.id, kept).await?;
    let detail = json!({"name": user.name, "sessions_ended": ended});
    audit::record(app, &mut tx, &actor(user), Action::UserSessionsEnd, user.id, detail);
    Ok(tx.commit().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_agent_is_shortened_and_has_no_control_characters() {
        let client = Client::new(None, &format!("a\u{1b}[31mb\n{}", "é".repeat(1_000)));
        assert!(client.user_agent.starts_with("a[31mbé"));
        assert_eq!(client.user_agent.chars().count(), USER_AGENT_CHARS_MAX);
    }

    #[test]
    fn address_of_an_ipv4_client_is_shown_as_ipv4() {
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(Client::new(Some(mapped), "").address, "192.0.2.1");
        assert_eq!(Client::new(None, "").address, "");
    }
}
