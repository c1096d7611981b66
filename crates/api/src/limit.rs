//! Rate limits: a token bucket per API key, and one per address that sends invalid credentials.
//!
//! An address with a valid key is never slowed down by invalid credentials from the same address:
//! the bucket of an address is used only when a credential was rejected.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use axum::http::header::{HeaderName, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue};
use governor::clock::{Clock as _, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};
use httpkit::problem::{ApiError, Code};
use httpkit::throttle::{Throttle, source_bytes};
use service::app::Settings;
use vocab::KeyId;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The number of keys at which recovered buckets are dropped. Only keys that exist in the database
/// get a bucket.
const KEYS_MAX: usize = 10_000;
/// Invalid credentials per address: the burst, and the time in which one attempt recovers.
const BAD: (u32, Duration) = (60, Duration::from_millis(500));

type Buckets<K, M> = RateLimiter<K, DefaultKeyedStateStore<K>, DefaultClock, M>;

pub(crate) struct Limits {
    keys: Buckets<KeyId, StateInformationMiddleware>,
    strangers: Throttle,
    per_second: u32,
    burst: u32,
}

/// What remains in a bucket, for the `RateLimit` headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    requests: u32,
    burst: u32,
    per_second: u32,
}

impl Limits {
    pub(crate) fn new(settings: &Settings) -> Limits {
        let per_second = settings.requests_per_second.max(1);
        let burst = settings.requests_burst.max(1);
        let quota = Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst));
        Limits {
            keys: RateLimiter::dashmap(quota).with_middleware(),
            strangers: Throttle::new(BAD.0, BAD.1),
            per_second,
            burst,
        }
    }

    /// Takes one request from the bucket of this key.
    pub(crate) fn take(&self, key: KeyId) -> Result<Left, ApiError> {
        let Limits { per_second, burst, .. } = *self;
        if self.keys.len() > KEYS_MAX {
            self.keys.retain_recent();
        }
        match self.keys.check_key(&key) {
            Ok(state) => Ok(Left { requests: state.remaining_burst_capacity(), burst, per_second }),
            Err(early) => {
                let wait = early.wait_time_from(self.keys.clock().now());
                let left = Left { requests: 0, burst, per_second };
                Err(left.tell_in(too_many("This API key has sent too many requests.", wait)))
            }
        }
    }

    /// Counts an invalid credential; fails if the address has sent too many.
    pub(crate) fn bad_credential(&self, from: IpAddr) -> Result<(), ApiError> {
        self.strangers
            .take(&[&source_bytes(from)])
            .map_err(|wait| too_many("Too many invalid credentials from this address.", wait))
    }
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

fn too_many(why: &str, wait: Duration) -> ApiError {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let seconds = seconds.max(1);
    ApiError::new(Code::RateLimited, format!("{why} Try again in {seconds} s."))
        .with_header(RETRY_AFTER, seconds.to_string())
}

impl Left {
    fn fields(self) -> [(HeaderName, String); 2] {
        let Left { requests, burst, per_second } = self;
        // The time in which an empty bucket fills, and the time until this one is full again.
        let window = burst.div_ceil(per_second);
        let full_in = (burst - requests.min(burst)).div_ceil(per_second);
        [
            (RATELIMIT_POLICY, format!("\"key\";q={burst};w={window}")),
            (RATELIMIT, format!("\"key\";r={requests};t={full_in}")),
        ]
    }

    fn tell_in(self, error: ApiError) -> ApiError {
        self.fields().into_iter().fold(error, |error, (name, value)| error.with_header(name, value))
    }

    /// Adds the `RateLimit` headers.
    pub(crate) fn tell(self, headers: &mut HeaderMap) {
        for (name, value) in self.fields() {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
}
