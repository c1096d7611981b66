//! Limits on the memory and work that agents can cause in this process.
//!
//! Rate limits apply per server, after the identity tag was checked, so the maps here contain only
//! enrolled servers. Memory is limited over all agents together: a request body is charged as it
//! arrives, until its content is committed. Enrollments, which anyone can send, have a separate
//! limit. The number of concurrent requests per server is limited too.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt as _;
use governor::clock::{Clock as _, DefaultClock};
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{NotUntil, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use vocab::ServerId;

use crate::Refusal;

type Buckets = RateLimiter<ServerId, DefaultKeyedStateStore<ServerId>, DefaultClock>;

const KIB: usize = 1024;
/// Memory for the bodies of all agents' requests that are not committed yet.
const BODIES_KIB_MAX: usize = 64 * 1024;
/// Memory for all enrollment requests that are being read.
const ENROLL_BODIES_KIB_MAX: usize = 4 * 1024;
/// How long a body may take to arrive: 1 MiB at 300 kbit/s, and a package set at 1 Mbit/s.
const BODY_SECONDS_MAX: Duration = Duration::from_secs(30);
const UPLOAD_SECONDS_MAX: Duration = Duration::from_secs(140);
/// Concurrent requests per agent, including held ones. A genuine agent has one or two, and so does
/// a clone of it.
const CONCURRENT_REQUESTS_MAX: u32 = 8;
/// Package sets decoded at the same time. Each uses up to the zstd window and one line.
const DECODERS: usize = 2;
/// The retry delay when the memory for bodies is used up.
const BUSY_SECONDS: u64 = 5;

/// Requests per agent: the burst, and the time until one more request is allowed.
const REQUESTS: (u32, Duration) = (300, Duration::from_millis(50));
/// A large body counts as one more request per this many bytes.
const REQUEST_BYTES: usize = 64 * KIB;
/// Package set uploads per agent. A scan uploads at most two. Each upload changes the server's
/// package set, and with it counts over the whole fleet.
const UPLOADS: (u32, Duration) = (30, Duration::from_secs(30));
/// KiB of package sets per agent: 64 MiB at once, and 64 MiB per day.
const UPLOAD_KIB: (u32, Duration) = (64 * 1024, Duration::from_millis(1_318));

pub(super) struct AgentLimits {
    requests: Buckets,
    uploads: Buckets,
    upload_kib: Buckets,
    bodies: Arc<Semaphore>,
    enroll_bodies: Arc<Semaphore>,
    decoders: Semaphore,
    /// Number of requests in progress, for each server that has any.
    in_progress: Arc<Mutex<BTreeMap<ServerId, u32>>>,
}

/// A slot for one of the concurrent requests of a server, until dropped.
pub(super) struct RequestSlot {
    server: ServerId,
    under_way: Arc<Mutex<BTreeMap<ServerId, u32>>>,
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = under_way.get_mut(&self.server) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.server);
            }
        }
    }
}

/// The kind of a body. It determines the memory limit and the time limit.
#[derive(Debug, Clone, Copy)]
pub(super) enum BodyKind {
    Enrollment,
    Request,
    Upload,
}

/// The memory reserved for a request body, until dropped.
#[derive(Debug, Default)]
pub(super) struct ReservedMemory(
    #[expect(dead_code, reason = "freed on drop")] Option<OwnedSemaphorePermit>,
);

fn buckets((burst, period): (u32, Duration)) -> Buckets {
    let quota = Quota::with_period(period).unwrap_or(Quota::per_second(NonZeroU32::MIN));
    RateLimiter::dashmap(quota.allow_burst(at_least_one(burst)))
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

fn too_many(early: &NotUntil<governor::clock::QuantaInstant>) -> Refusal {
    let seconds = early.wait_time_from(DefaultClock::default().now()).as_secs() + 1;
    let detail = "this agent has sent too many requests";
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).retry_after(seconds)
}

fn take(buckets: &Buckets, server: ServerId, count: u32) -> Result<(), Refusal> {
    match buckets.check_key_n(&server, at_least_one(count)) {
        Ok(taken) => taken.map_err(|early| too_many(&early)),
        // More than the whole burst: waiting does not help.
        Err(_) => {
            let detail = "this request exceeds the limits for an agent";
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail))
        }
    }
}

impl AgentLimits {
    pub(super) fn new() -> AgentLimits {
        AgentLimits {
            requests: buckets(REQUESTS),
            uploads: buckets(UPLOADS),
            upload_kib: buckets(UPLOAD_KIB),
            bodies: Arc::new(Semaphore::new(BODIES_KIB_MAX)),
            enroll_bodies: Arc::new(Semaphore::new(ENROLL_BODIES_KIB_MAX)),
            in_progress: Arc::default(),
            decoders: Semaphore::new(DECODERS),
        }
    }

    /// Counts a request of this server.
    pub(super) fn request(&self, server: ServerId) -> Result<(), Refusal> {
        take(&self.requests, server, 1)
    }

    /// Takes a slot for a concurrent request of this server.
    pub(super) fn slot(&self, server: ServerId) -> Result<RequestSlot, Refusal> {
        let mut under_way = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.entry(server).or_default();
        if *count >= CONCURRENT_REQUESTS_MAX {
            let detail =
                format!("this agent already has {CONCURRENT_REQUESTS_MAX} requests in progress");
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail)
                .retry_after(BUSY_SECONDS));
        }
        *count += 1;
        Ok(RequestSlot { server, under_way: self.in_progress.clone() })
    }

    /// Counts the part of a request body that exceeds a small one.
    pub(super) fn request_body(&self, server: ServerId, bytes: usize) -> Result<(), Refusal> {
        match u32::try_from(bytes / REQUEST_BYTES).unwrap_or(u32::MAX) {
            0 => Ok(()),
            more => take(&self.requests, server, more),
        }
    }

    /// Counts an upload of this server before its body is read.
    pub(super) fn upload(&self, server: ServerId) -> Result<(), Refusal> {
        take(&self.uploads, server, 1)
    }

    /// Counts the bytes of an upload.
    pub(super) fn upload_body(&self, server: ServerId, bytes: usize) -> Result<(), Refusal> {
        take(&self.upload_kib, server, u32::try_from(bytes / KIB).unwrap_or(u32::MAX))
    }

    /// Waits until a package set may be decoded.
    pub(super) async fn decoder(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.decoders.acquire().await.map_err(|_| Refusal::unavailable())
    }

    /// Reads a body of at most `bytes_max` bytes. Each part is charged when it arrives, so a slow
    /// sender holds only what it has sent. Never waits for memory: two requests that wait for each
    /// other would wait forever.
    pub(super) async fn read(
        &self,
        kind: BodyKind,
        headers: &HeaderMap,
        body: Body,
        bytes_max: usize,
    ) -> Result<(Bytes, ReservedMemory), Refusal> {
        let (memory, patience) = match kind {
            BodyKind::Enrollment => (&self.enroll_bodies, BODY_SECONDS_MAX),
            BodyKind::Request => (&self.bodies, BODY_SECONDS_MAX),
            BodyKind::Upload => (&self.bodies, UPLOAD_SECONDS_MAX),
        };
        let read = read(memory, headers, body, bytes_max);
        tokio::time::timeout(patience, read).await.unwrap_or_else(|_| {
            let detail = "the body took too long to arrive";
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail))
        })
    }
}

async fn read(
    memory: &Arc<Semaphore>,
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<(Bytes, ReservedMemory), Refusal> {
    let too_large = || {
        let detail = format!("the body is larger than {bytes_max} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok());
    let announced = announced.and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    if announced > bytes_max {
        return Err(too_large());
    }
    let mut permit: Option<OwnedSemaphorePermit> = None;
    let mut bytes = Vec::with_capacity(announced);
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| Refusal::bad_request("the body is incomplete"))?;
        if bytes.len() + part.len() > bytes_max {
            return Err(too_large());
        }
        bytes.extend_from_slice(&part);
        let held = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if let Some(more) = (bytes.len() / KIB + 1).checked_sub(held).filter(|more| *more > 0) {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let more = memory.clone().try_acquire_many_owned(more).map_err(|_| busy())?;
            match &mut permit {
                Some(held) => held.merge(more),
                None => permit = Some(more),
            }
        }
    }
    Ok((bytes.into(), ReservedMemory(permit)))
}

fn busy() -> Refusal {
    let detail = "the service is reading too many agent requests; try again";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(BUSY_SECONDS)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn server(nth: u128) -> ServerId {
        ServerId::new(Timestamp::UNIX_EPOCH, nth)
    }

    #[test]
    fn rate_limit_applies_per_agent() {
        let limits = AgentLimits::new();
        let refused = (0..100_000).find_map(|_| limits.request(server(1)).err()).unwrap();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.retry_after.is_some());
        assert!(limits.request(server(2)).is_ok());
    }

    #[test]
    fn large_bodies_use_up_the_limit_sooner() {
        let limits = AgentLimits::new();
        let taken = (0..1_000).filter(|_| limits.request_body(server(1), 1 << 20).is_ok()).count();
        assert!((18..22).contains(&taken), "{taken}");
        let bytes = 16 << 20;
        let taken = (0..1_000).filter(|_| limits.upload_body(server(1), bytes).is_ok()).count();
        assert_eq!(taken, 4);
    }

    #[tokio::test]
    async fn bodies_in_memory_are_limited_and_released() {
        let limits = AgentLimits::new();
        let body = || Body::from(vec![0; 16 << 20]);
        let none = HeaderMap::new();
        let mut held = Vec::new();
        let refused = loop {
            match limits.read(BodyKind::Upload, &none, body(), 16 << 20).await {
                Ok(read) => held.push(read),
                Err(refused) => break refused,
            }
        };
        assert_eq!(held.len(), 3, "48 MiB are held, and there is no memory for more");
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.retry_after, Some(BUSY_SECONDS));
        // Enrollments have a separate limit and cannot use up that of agents.
        let small = Body::from(vec![0; 64 << 10]);
        assert!(limits.read(BodyKind::Enrollment, &none, small, 64 << 10).await.is_ok());
        held.pop();
        assert!(limits.read(BodyKind::Upload, &none, body(), 16 << 20).await.is_ok());
    }

    #[tokio::test]
    async fn incomplete_enrollments_use_no_memory_of_agents() {
        let limits = AgentLimits::new();
        let none = HeaderMap::new();
        let started = || {
            let part =
                futures_util::stream::once(async { Ok::<_, std::io::Error>(vec![0; 60 << 10]) });
            Body::from_stream(part.chain(futures_util::stream::pending()))
        };
        let stuck: Vec<_> = (0..1_000)
            .map(|_| Box::pin(limits.read(BodyKind::Enrollment, &none, started(), 64 << 10)))
            .collect();
        let stuck = futures_util::future::join_all(stuck);
        // All of them start, and none completes.
        let started = futures_util::future::select(Box::pin(stuck), Box::pin(async {})).await;
        assert!(matches!(&started, futures_util::future::Either::Right(_)));
        let body = Body::from(vec![0; 1 << 20]);
        assert!(limits.read(BodyKind::Request, &none, body, 1 << 20).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_body_times_out() {
        let limits = AgentLimits::new();
        let never = Body::from_stream(futures_util::stream::pending::<std::io::Result<Vec<u8>>>());
        let refused =
            limits.read(BodyKind::Request, &HeaderMap::new(), never, 1_000).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::REQUEST_TIMEOUT);
    }

    #[test]
    fn concurrent_requests_per_server_are_limited() {
        let limits = AgentLimits::new();
        let held: Vec<_> = (0..100).filter_map(|_| limits.slot(server(1)).ok()).collect();
        assert_eq!(held.len(), CONCURRENT_REQUESTS_MAX as usize);
        assert!(limits.slot(server(2)).is_ok());
        drop(held);
        assert!(limits.slot(server(1)).is_ok());
        assert!(limits.in_progress.lock().unwrap().is_empty());
    }
}
