//! Lists of packages and pieces of logs: what is too large for a sync.

use std::io::Read as _;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use serde::Deserialize;
use store::listings::{Kind, Packed};
use store::rollout_targets;
use store::task_logs::Append;
use vocab::{Digest, Installed, Pending, TaskId, listing};

use super::Refusal;
use super::credentials::verified;
use super::news::{Counted, Log, Part, Written, write};
use crate::app::App;

/// The most bytes of one piece of a log.
const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// The most bytes of a task's log.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How many times smaller a list is that was packed well.
const PACKED_WELL: usize = 3;
const CUT: &[u8] = b"\n[the log was longer and is cut here]\n";

/// `PUT /agent/v1/listings/{kind}/{digest}`.
pub(super) async fn listing(
    State(app): State<App>,
    Path((kind, digest)): Path<(String, String)>,
    request: Request<Body>,
) -> Result<StatusCode, Refusal> {
    let (who, headers, body) = verified(&app, request, listing::BYTES_MAX).await?;
    let kind = match kind.as_str() {
        "packages" => Kind::Packages,
        "updates" => Kind::Updates,
        other => return Err(not_found(format!("no lists of `{other}`"))),
    };
    let digest: Digest = digest.parse().map_err(|error| not_found(format!("{error}")))?;
    let compressed = is_compressed(&headers)?;
    let link = app.door().link(&app, &who).await?;
    // A long list takes some milliseconds, in which nobody else should wait.
    let unpacked = tokio::task::spawn_blocking(move || {
        let bytes = if compressed { decompressed(&body)? } else { body.to_vec() };
        if Digest::of(&bytes) != digest {
            let detail = "the bytes have another digest than the path says";
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "digest_mismatch", detail));
        }
        let counted = count(kind, digest, &bytes)?;
        // Packing costs more than all the rest: what came packed, and well enough, is kept as it is.
        let packed = match compressed && body.len() * PACKED_WELL <= bytes.len() {
            true => Packed::of(counted.entries, &bytes, body.to_vec()),
            false => Packed::new(counted.entries, &bytes),
        };
        Ok((counted, packed))
    });
    let (counted, packed) = unpacked.await.map_err(|_| Refusal::unavailable())??;
    let now = app.clock.now();
    write(&app, Part::Listing { org: link.org, kind, packed, now }).await?;
    // The sync that takes it up is on its way.
    app.door().count(link.org, kind, counted);
    app.door().awaited.came((link.org, kind, digest));
    Ok(StatusCode::NO_CONTENT)
}

fn is_compressed(headers: &HeaderMap) -> Result<bool, Refusal> {
    match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(false),
        Some(b"zstd") => Ok(true),
        Some(_) => Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_encoding",
            "a list comes as it is or with `Content-Encoding: zstd`",
        )),
    }
}

/// However well it is packed, no more than a list may have.
fn decompressed(body: &[u8]) -> Result<Vec<u8>, Refusal> {
    let broken = |_| Refusal::bad_request("the body is not zstd");
    let mut bytes = Vec::new();
    zstd::Decoder::new(body)
        .map_err(broken)?
        .take(listing::BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(broken)?;
    if bytes.len() > listing::BYTES_MAX {
        let detail = format!("a list has at most {} bytes", listing::BYTES_MAX);
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail));
    }
    Ok(bytes)
}

/// A list in numbers.
pub(super) fn count(kind: Kind, digest: Digest, bytes: &[u8]) -> Result<Counted, Refusal> {
    let malformed = |error: vocab::ListingError| {
        let detail = error.to_string();
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "malformed_listing", detail)
    };
    let (entries, security) = match kind {
        Kind::Packages => (listing::decode::<Installed>(bytes).map_err(malformed)?.len(), 0),
        Kind::Updates => {
            let pending = listing::decode::<Pending>(bytes).map_err(malformed)?;
            (pending.len(), pending.iter().filter(|update| update.security).count())
        }
    };
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Counted { digest, entries: number(entries), security: number(security) })
}

/// Where a piece of a log begins.
#[derive(Deserialize)]
pub(super) struct Offset {
    #[serde(default)]
    offset: u64,
}

/// `POST /agent/v1/orders/{task_id}/log?offset=N`.
pub(super) async fn log(
    State(app): State<App>,
    Path(task): Path<String>,
    offset: Result<Query<Offset>, axum::extract::rejection::QueryRejection>,
    request: Request<Body>,
) -> Result<StatusCode, Refusal> {
    let (who, _, body) = verified(&app, request, CHUNK_BYTES_MAX).await?;
    let Query(Offset { offset }) =
        offset.map_err(|error| Refusal::bad_request(error.body_text()))?;
    let task: TaskId = task.parse().map_err(|_| not_found(format!("no task `{task}`")))?;
    let link = app.door().link(&app, &who).await?;
    let mut reader = app.db.read().await?;
    let found = rollout_targets::of_task(&mut reader, link.org, task).await?;
    drop(reader);
    if found.server_id != link.server {
        return Err(not_found(format!("no task `{task}`")));
    }
    let Some(body) = kept(offset, body) else { return Ok(StatusCode::NO_CONTENT) };
    match write(&app, Part::Log(Log { task, offset, body, now: app.clock.now() })).await? {
        Written::Log(Append::Gap(end)) => {
            let detail = format!("the log is {end} bytes long; send what comes after them first");
            Err(Refusal::new(StatusCode::CONFLICT, "log_gap", detail))
        }
        Written::Log(Append::Kept(_)) | Written::Server(_) | Written::Listing => {
            Ok(StatusCode::NO_CONTENT)
        }
    }
}

/// As much of a piece as the log has room for, with a line that says so where it was cut.
fn kept(offset: u64, body: axum::body::Bytes) -> Option<axum::body::Bytes> {
    let room = LOG_BYTES_MAX.checked_sub(offset).filter(|room| *room > 0)?;
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if body.len() <= room {
        return Some(body);
    }
    Some([&body[..room], CUT].concat().into())
}

fn not_found(detail: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "not_found", detail)
}
