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
use httpkit::throttle::{Throttle, counted_address_bytes};
use service::app::Settings;
use vocab::KeyId;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The number of keys at which full buckets are dropped. Only keys that exist in the database
/// get a bucket.
const KEYS_MAX: usize = 10_000;
/// Invalid credentials per address: the burst, and the time until one more attempt is allowed.
const INVALID_CREDENTIALS: (u32, Duration) = (60, Duration::from_millis(500));

type Buckets<K, M> = RateLimiter<K, DefaultKeyedStateStore<K>, DefaultClock, M>;

pub(crate) struct RateLimits {
    keys: Buckets<KeyId, StateInformationMiddleware>,
    addresses: Throttle,
    per_second: u32,
    burst: u32,
}

/// What remains in a bucket, for the `RateLimit` headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemainingRequests {
    requests: u32,
    burst: u32,
    per_second: u32,
}

impl RateLimits {
    pub(crate) fn new(settings: &Settings) -> RateLimits {
        let per_second = settings.requests_per_second.max(1);
        let burst = settings.requests_burst.max(1);
        let quota = Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst));
        RateLimits {
            keys: RateLimiter::dashmap(quota).with_middleware(),
            addresses: Throttle::new(INVALID_CREDENTIALS.0, INVALID_CREDENTIALS.1),
            per_second,
            burst,
        }
    }

    /// Takes one request from the bucket of this key.
    pub(crate) fn take(&self, key: KeyId) -> Result<RemainingRequests, ApiError> {
        let RateLimits { per_second, burst, .. } = *self;
        if self.keys.len() > KEYS_MAX {
            self.keys.retain_recent();
        }
        match self.keys.check_key(&key) {
            Ok(state) => Ok(RemainingRequests {
                requests: state.remaining_burst_capacity(),
                burst,
                per_second,
            }),
            Err(early) => {
                let wait = early.wait_time_from(self.keys.clock().now());
                let left = RemainingRequests { requests: 0, burst, per_second };
                Err(left.add_to_error(too_many("This API key has sent too many requests.", wait)))
            }
        }
    }

    /// Counts an invalid credential; fails if the address has sent too many.
    pub(crate) fn count_invalid_credential(&self, from: IpAddr) -> Result<(), ApiError> {
        self.addresses
            .take(&[&counted_address_bytes(from)])
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

impl RemainingRequests {
    fn header_fields(self) -> [(HeaderName, String); 2] {
        let RemainingRequests { requests, burst, per_second } = self;
        // The time in which an empty bucket fills, and the time until this one is full again.
        let window = burst.div_ceil(per_second);
        let full_in = (burst - requests.min(burst)).div_ceil(per_second);
        [
            (RATELIMIT_POLICY, format!("\"key\";q={burst};w={window}")),
            (RATELIMIT, format!("\"key\";r={requests};t={full_in}")),
        ]
    }

    fn add_to_error(self, error: ApiError) -> ApiError {
        self.header_fields()
            .into_iter()
            .fold(error, |error, (name, value)| error.with_header(name, value))
    }

    /// Adds the `RateLimit` headers.
    pub(crate) fn add_to_headers(self, headers: &mut HeaderMap) {
        for (name, value) in self.header_fields() {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
}
