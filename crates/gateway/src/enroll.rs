//! `POST /agent/v1/enroll`: a host enrolls with a token and with a key that it generated itself.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::finding::RunningCode;
use jiff::Timestamp;
use serde_json::json;
use store::enrollment_tokens::{self, EnrollmentToken, UseResult};
use store::servers::{self, Server};
use store::{StoreError, Topic};
use vocab::ServerId;
use wire::agent::{EnrollRequest, EnrollResponse};

use crate::Gateway;
use crate::Refusal;
use crate::credentials::Credential;
use crate::limits::BodyKind;
use service::audit::Action;
use service::auth::enrollment_tokens as tokens;
use service::clock::random_u128;
use service::{EventKind, emit, record};

const BODY_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of tags that a host may set itself, as for an enrollment token.
const TAGS_MAX: usize = 50;
/// The first counter of a new server.
const FIRST_COUNTER: i64 = 1;

pub(super) async fn enroll(
    State(app): State<Gateway>,
    request: Request<Body>,
) -> Result<(StatusCode, Json<EnrollResponse>), Refusal> {
    let (parts, body) = request.into_parts();
    // The body is charged until the enrollment is committed.
    let limits = &app.registry().limits;
    let (body, _reserved) =
        limits.read(BodyKind::Enrollment, &parts.headers, body, BODY_BYTES_MAX).await?;
    let request: EnrollRequest = serde_json::from_slice(&body)
        .map_err(|error| Refusal::bad_request(format!("invalid enrollment request: {error}")))?;
    let hash = tokens::recognize(&app.secrets, &request.token)
        .ok_or_else(|| refused("bad_token", "this token was not issued by this service"))?;
    let key: Option<[u8; 32]> =
        STANDARD.decode(&request.public_key).ok().and_then(|bytes| bytes.try_into().ok());
    let key = key.ok_or_else(|| {
        Refusal::bad_request("`public_key` must be an Ed25519 public key: 32 bytes in Base64")
    })?;
    let (who, counter) = enroll_new(&app, request, key, &hash).await?;
    let response = EnrollResponse {
        server_id: who.server,
        tag: STANDARD.encode(who.tag(&app.secrets)),
        // An agent of the previous version knows only this key, and cannot learn another one later.
        orders_key: app.secrets.orders_key().public_key(),
        orders_keys: app.secrets.announced_keys(),
        counter,
        sync_seconds: app.settings.sync_seconds,
        signs_answers: true,
    };
    Ok((StatusCode::CREATED, Json(response)))
}

fn refused(code: &'static str, detail: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, code, detail)
}

async fn enroll_new(
    app: &Gateway,
    asked: EnrollRequest,
    key: [u8; 32],
    hash: &[u8],
) -> Result<(Credential, u64), Refusal> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let token = match enrollment_tokens::take_use(&mut tx, hash, now).await? {
        UseResult::Taken(token) => token,
        UseResult::Unknown => return Err(refused("bad_token", "unknown token")),
        UseResult::Revoked => return Err(refused("token_revoked", "this token was revoked")),
        UseResult::Expired => return Err(refused("token_expired", "this token has expired")),
        // The host that used it last may be repeating its request.
        UseResult::UsedUp => {
            drop(tx);
            let full = refused("token_used_up", "this token has been used up");
            return enroll_again(app, key, hash, full).await;
        }
    };
    let server = new_server(&token, asked, key, now);
    match servers::enroll(&mut tx, &server).await {
        Err(StoreError::AlreadyExists { .. }) => {
            // Rolling back the transaction releases the use of the token.
            drop(tx);
            let taken = "this key was used before; generate a new one and enroll again";
            let taken = Refusal::new(StatusCode::CONFLICT, "key_already_used", taken);
            return enroll_again(app, key, hash, taken).await;
        }
        enrolled => enrolled?,
    }
    let detail = json!({"server_id": server.id, "hostname": server.hostname, "token_id": token.id});
    let by = token.id.to_string();
    record(&mut tx, server.org_id, now, &by, Action::ServerEnroll, server.id, &detail);
    emit(&mut tx, server.org_id, now, &by, EventKind::ServerEnrolled, server.id, detail);
    tx.notify(Topic::Servers);
    tx.notify(Topic::Presence);
    tx.commit().await?;
    Ok((Credential { server: server.id, key }, FIRST_COUNTER.unsigned_abs()))
}

/// Handles a repeated enrollment. An agent that did not get the response repeats the request with
/// the same key and gets the same response. Only the same host holds the private key.
async fn enroll_again(
    app: &Gateway,
    key: [u8; 32],
    hash: &[u8],
    otherwise: Refusal,
) -> Result<(Credential, u64), Refusal> {
    let mut reader = app.db.read().await?;
    let known = servers::by_public_key(&mut reader, &key).await?;
    let Some(known) = known.filter(|known| known.removed_at.is_none()) else {
        return Err(otherwise);
    };
    let org = enrollment_tokens::org_by_hash(&mut reader, hash).await?;
    if org != Some(known.org_id) {
        return Err(otherwise);
    }
    let counter = known.counter.unwrap_or(FIRST_COUNTER).unsigned_abs();
    Ok((Credential { server: known.id, key }, counter))
}

fn new_server(
    token: &EnrollmentToken,
    request: EnrollRequest,
    key: [u8; 32],
    now: Timestamp,
) -> Server {
    let facts = request.facts;
    let stored_facts = service::host_facts::to_stored(&facts);
    let runs =
        RunningCode::default().after_report(service::host_facts::runtime_state(&facts), None, None);
    let reboot_reasons = service::host_facts::reboot_reasons(&facts);
    let tags = request.tags.into_iter().take(TAGS_MAX).collect();
    Server {
        id: ServerId::new(now, random_u128()),
        org_id: token.org_id,
        hostname: facts.hostname,
        display_name: None,
        notes: String::new(),
        environment: token.environment.clone().or(request.environment),
        tags: if token.tags.is_empty() { tags } else { token.tags.clone() },
        os: facts.os,
        kernel: facts.kernel.to_string(),
        arch: facts.arch.to_string(),
        package_manager: Some(facts.package_manager),
        agent_version: facts.agent_version.to_string(),
        public_key: key.to_vec(),
        enrolled_at: now,
        last_scan_at: None,
        reboot_required: facts.reboot_required,
        reboot_reasons,
        activity: "idle".into(),
        package_set: None,
        update_set: None,
        packages: 0,
        updates: 0,
        security_updates: 0,
        facts: stored_facts,
        runs: service::host_facts::runs_to_text(&runs),
        quarantine: None,
        generation: 1,
        last_seen_at: now,
        counter: FIRST_COUNTER,
    }
}
