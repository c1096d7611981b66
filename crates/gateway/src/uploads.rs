//! Uploads of package sets and log chunks, which are too large for a sync.

use std::io::{BufRead, BufReader, Read as _};

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use store::package_sets::{PackedSet, SetKind};
use store::task_logs::AppendResult;
use store::{package_set_requests, rollout_tasks};
use vocab::{Digest, Installed, ListingError, Pending, TaskId, listing};

use crate::Gateway;
use crate::Refusal;
use crate::credentials::{UnreadRequest, VerifiedRequest, verify_request};
use crate::ingest::{IngestPart, LogChunk, PackageSetCounts, WriteResult, write};
use crate::limits::BodyKind;

/// Maximum number of bytes of one log chunk.
const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of bytes of a task's log.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The compression ratio from which a compressed package set is stored as received.
const MIN_COMPRESSION_RATIO: usize = 3;
/// The compression level for package sets that were received uncompressed.
const COMPRESSION_LEVEL: i32 = 3;
/// The largest zstd window: 2^23 bytes, 8 MiB. Agents compress with 2 MiB.
const WINDOW_LOG_MAX: u32 = 23;
/// Maximum number of bytes of one line. A kernel update that names 5,000 advisories and 5,000 CVEs
/// has about half as many. Parsing a line takes up to nine times its size.
const LINE_BYTES_MAX: usize = 512 * 1024;
/// Maximum number of pending updates of one server. Each of their packages is a row that the whole
/// fleet shares.
const UPDATES_MAX: usize = 20_000;
/// Maximum number of advisories and CVEs of a package set, so that it can be read into memory
/// later.
const REFERENCES_MAX: usize = 100_000;
/// How long an upload is accepted after it was requested.
const REQUEST_VALID_FOR: SignedDuration = SignedDuration::from_mins(15);
const TRUNCATION_NOTICE: &[u8] = b"\n[log truncated here: size limit reached]\n";

/// `PUT /agent/v1/listings/{kind}/{digest}`.
///
/// Cheap checks come first: the body is read only if this server was asked for this package set,
/// and it is never decompressed in memory as a whole.
pub(super) async fn put_package_set(
    State(app): State<Gateway>,
    Path((kind, digest)): Path<(String, String)>,
    request: Request<Body>,
) -> Result<StatusCode, Refusal> {
    let unread = UnreadRequest::new(&app, request)?;
    let kind = match kind.as_str() {
        "packages" => SetKind::Packages,
        "updates" => SetKind::Updates,
        other => return Err(not_found(format!("unknown kind of package set: `{other}`"))),
    };
    let digest: Digest = digest.parse().map_err(|error| not_found(format!("{error}")))?;
    let compressed = is_compressed(unread.headers())?;
    let session = app.registry().session(&app, &unread.who).await?;
    let _one_at_a_time = session.upload.try_acquire().map_err(|_| {
        let detail = "another upload of this agent is in progress";
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "upload_in_progress", detail).retry_after(1)
    })?;
    let since = app.clock.now().saturating_sub(REQUEST_VALID_FOR).unwrap_or(Timestamp::MIN);
    let mut reader = app.db.read().await?;
    if !package_set_requests::is_requested(&mut reader, session.server, kind, digest, since).await?
    {
        let detail = "this package set was not requested; sync first";
        return Err(Refusal::new(StatusCode::CONFLICT, "listing_not_wanted", detail));
    }
    drop(reader);
    let limits = &app.registry().limits;
    limits.upload(session.server)?;
    let VerifiedRequest { body, reserved, slot: _slot, .. } =
        unread.verify(&app, BodyKind::Upload, listing::BYTES_MAX).await?;
    limits.upload_body(session.server, body.len())?;
    let decoder = limits.decoder().await?;
    let unpacked =
        tokio::task::spawn_blocking(move || check_and_compress(kind, digest, &body, compressed));
    let (counted, packed) = unpacked.await.map_err(|_| Refusal::unavailable())??;
    drop(decoder);
    let now = app.clock.now();
    write(&app, IngestPart::PackageSet { org: session.org, kind, packed, now }, reserved).await?;
    // The sync that uses it follows.
    app.registry().cache_counts(session.org, kind, counted);
    app.registry().upload_requests.complete((session.org, kind, digest));
    Ok(StatusCode::NO_CONTENT)
}

fn is_compressed(headers: &HeaderMap) -> Result<bool, Refusal> {
    match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(false),
        Some(b"zstd") => Ok(true),
        Some(_) => Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_encoding",
            "a package set must be sent uncompressed or with `Content-Encoding: zstd`",
        )),
    }
}

/// Checks a package set and prepares it for storage.
fn check_and_compress(
    kind: SetKind,
    digest: Digest,
    body: &[u8],
    compressed: bool,
) -> Result<(PackageSetCounts, PackedSet), Refusal> {
    let listing = match compressed {
        true => ListingSummary::read(kind, BufReader::new(decoder(body)?))?,
        false => ListingSummary::read(kind, body)?,
    };
    if listing.digest != digest {
        let detail = "the digest of the content does not match the path";
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "digest_mismatch", detail));
    }
    // Compression costs more than everything else here. A package set that arrived compressed well
    // enough is stored unchanged.
    let kept = compressed && (body.len() * MIN_COMPRESSION_RATIO) as u64 <= listing.bytes;
    let packed = match (kept, compressed) {
        (true, _) => Ok(body.to_vec()),
        (false, true) => zstd::encode_all(decoder(body)?, COMPRESSION_LEVEL),
        (false, false) => zstd::encode_all(body, COMPRESSION_LEVEL),
    };
    let packed = packed.map_err(not_zstd)?;
    let packed = PackedSet::from_stream(digest, listing.entries, listing.bytes, packed);
    Ok((listing.counts(), packed))
}

/// Decompresses as a stream. A frame that needs a larger window is rejected before its memory is
/// allocated.
fn decoder(body: &[u8]) -> Result<zstd::Decoder<'_, &[u8]>, Refusal> {
    let mut decoder = zstd::Decoder::with_buffer(body).map_err(not_zstd)?;
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(not_zstd)?;
    Ok(decoder)
}

fn not_zstd(_: std::io::Error) -> Refusal {
    Refusal::bad_request("the body is not zstd, or needs a window of more than 8 MiB")
}

/// The counts of a package set.
pub(super) fn count_entries(
    kind: SetKind,
    digest: Digest,
    bytes: &[u8],
) -> Result<PackageSetCounts, Refusal> {
    ListingSummary::read(kind, bytes).map(|listing| PackageSetCounts { digest, ..listing.counts() })
}

/// The result of reading a package set line by line.
struct ListingSummary {
    digest: Digest,
    bytes: u64,
    entries: u32,
    security: u32,
}

impl ListingSummary {
    /// Reads a package set of any length with the memory of one line.
    fn read(kind: SetKind, mut from: impl BufRead) -> Result<ListingSummary, Refusal> {
        let mut hasher = blake3::Hasher::new();
        let (mut bytes, mut entries, mut security, mut references) = (0_usize, 0, 0, 0);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut limited = (&mut from).take(LINE_BYTES_MAX as u64 + 1);
            if limited.read_until(b'\n', &mut line).map_err(not_zstd)? == 0 {
                break;
            }
            bytes += line.len();
            if bytes > listing::BYTES_MAX {
                let detail = format!("the package set is larger than {} bytes", listing::BYTES_MAX);
                return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail));
            }
            entries += 1;
            if line.len() > LINE_BYTES_MAX {
                let detail = format!("line {entries} is longer than {LINE_BYTES_MAX} bytes");
                return Err(malformed(detail));
            }
            if entries as usize > listing::LINES_MAX {
                return Err(malformed(ListingError::Lines.to_string()));
            }
            if kind == SetKind::Updates && entries as usize > UPDATES_MAX {
                return Err(malformed(format!("more than {UPDATES_MAX} pending updates")));
            }
            hasher.update(&line);
            let wrong = |error: ListingError| malformed(at_line(error, entries).to_string());
            match kind {
                SetKind::Packages => drop(listing::decode::<Installed>(&line).map_err(wrong)?),
                SetKind::Updates => {
                    for update in listing::decode::<Pending>(&line).map_err(wrong)? {
                        security += u32::from(update.security);
                        references += update.advisories.len() + update.cves.len();
                    }
                }
            }
            if references > REFERENCES_MAX {
                let detail =
                    format!("the package set names more than {REFERENCES_MAX} advisories and CVEs");
                return Err(malformed(detail));
            }
        }
        let digest = Digest::from_bytes(*hasher.finalize().as_bytes());
        Ok(ListingSummary { digest, bytes: bytes as u64, entries, security })
    }

    fn counts(&self) -> PackageSetCounts {
        PackageSetCounts { digest: self.digest, entries: self.entries, security: self.security }
    }
}

fn malformed(detail: String) -> Refusal {
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "malformed_listing", detail)
}

/// The error with the line number in the whole package set.
fn at_line(error: ListingError, number: u32) -> ListingError {
    let number = number as usize;
    match error {
        ListingError::Line { source, .. } => ListingError::Line { line: number, source },
        ListingError::Missing { field, .. } => ListingError::Missing { line: number, field },
        ListingError::TooLong { field, .. } => ListingError::TooLong { line: number, field },
        ListingError::Control { field, .. } => ListingError::Control { line: number, field },
        ListingError::References { .. } => ListingError::References { line: number },
        whole => whole,
    }
}

/// The position of a log chunk.
#[derive(Deserialize)]
pub(super) struct LogOffset {
    #[serde(default)]
    offset: u64,
}

/// `POST /agent/v1/orders/{task_id}/log?offset=N`.
pub(super) async fn append_log(
    State(app): State<Gateway>,
    Path(task): Path<String>,
    offset: Result<Query<LogOffset>, axum::extract::rejection::QueryRejection>,
    request: Request<Body>,
) -> Result<StatusCode, Refusal> {
    let VerifiedRequest { who, body, reserved, slot: _slot, .. } =
        verify_request(&app, request, CHUNK_BYTES_MAX).await?;
    let Query(LogOffset { offset }) =
        offset.map_err(|error| Refusal::bad_request(error.body_text()))?;
    let task: TaskId = task.parse().map_err(|_| not_found(format!("no task `{task}`")))?;
    let session = app.registry().session(&app, &who).await?;
    let mut reader = app.db.read().await?;
    let found = rollout_tasks::get(&mut reader, session.org, task).await?;
    drop(reader);
    if found.server_id != session.server {
        return Err(not_found(format!("no task `{task}`")));
    }
    let Some(body) = truncate_chunk(offset, body) else { return Ok(StatusCode::NO_CONTENT) };
    let part = IngestPart::Log(LogChunk { task, offset, body, now: app.clock.now() });
    match write(&app, part, reserved).await? {
        WriteResult::Log(AppendResult::Gap(end)) => {
            let detail = format!("the log is {end} bytes long; continue at that offset");
            Err(Refusal::new(StatusCode::CONFLICT, "log_gap", detail))
        }
        WriteResult::Log(AppendResult::Stored(_))
        | WriteResult::Server(_)
        | WriteResult::Superseded
        | WriteResult::Listing => Ok(StatusCode::NO_CONTENT),
    }
}

/// As much of a chunk as the log has room for, followed by a truncation notice if it was cut.
fn truncate_chunk(offset: u64, body: axum::body::Bytes) -> Option<axum::body::Bytes> {
    let room = LOG_BYTES_MAX.checked_sub(offset).filter(|room| *room > 0)?;
    let capacity = usize::try_from(room).unwrap_or(usize::MAX);
    if body.len() <= capacity {
        return Some(body);
    }
    Some([&body[..capacity], TRUNCATION_NOTICE].concat().into())
}

fn not_found(detail: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "not_found", detail)
}

/// Parses bytes as a package set of either kind, compressed or not. For fuzzing.
#[cfg(feature = "fuzzing")]
pub fn fuzz(bytes: &[u8]) {
    for kind in [SetKind::Packages, SetKind::Updates] {
        let _ = check_and_compress(kind, Digest::compute(bytes), bytes, false);
        let _ = check_and_compress(kind, Digest::compute(bytes), bytes, true);
    }
}
