//! Limits the memory for request bodies, over all requests together.
//!
//! A body is charged before its first byte is read, because its sender decides how long it takes. A
//! request never waits for memory: if none is left, it is rejected with 503 and can be repeated.
//! Small bodies have a separate limit, so that large ones cannot block ordinary requests. Bodies
//! from unauthenticated clients have a separate limit, too. `gateway` has its own limits for
//! agents.

use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{ApiError, retry_soon};

const KIB: usize = 1024;
/// The largest small body.
const SMALL_BYTES_MAX: usize = 16 * KIB;
/// Memory for all small bodies.
const SMALL_KIB: usize = 16 * 1024;
/// Memory for all larger bodies.
const LARGE_KIB: usize = 64 * 1024;
/// Memory for all bodies from unauthenticated clients.
const UNAUTHENTICATED_KIB: usize = 8 * 1024;

#[derive(Debug, Clone)]
pub struct BodyBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    unauthenticated: Arc<Semaphore>,
}

impl Default for BodyBudget {
    fn default() -> BodyBudget {
        let pool = |kib| Arc::new(Semaphore::new(kib));
        BodyBudget {
            small: pool(SMALL_KIB),
            large: pool(LARGE_KIB),
            unauthenticated: pool(UNAUTHENTICATED_KIB),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodySender {
    /// A client that has presented a valid credential.
    Authenticated,
    Unauthenticated,
}

#[derive(Debug)]
pub(crate) struct ReservedMemory(
    #[expect(dead_code, reason = "freed on drop")] OwnedSemaphorePermit,
);

impl BodyBudget {
    /// The budget of requests that carry none.
    pub(crate) fn process() -> &'static BodyBudget {
        static PROCESS: LazyLock<BodyBudget> = LazyLock::new(BodyBudget::default);
        &PROCESS
    }

    /// Reserves memory for a body of up to `bytes`.
    pub(crate) fn reserve(
        &self,
        sender: BodySender,
        bytes: usize,
    ) -> Result<Option<ReservedMemory>, ApiError> {
        if bytes == 0 {
            return Ok(None);
        }
        let pool = match sender {
            BodySender::Unauthenticated => &self.unauthenticated,
            BodySender::Authenticated if bytes <= SMALL_BYTES_MAX => &self.small,
            BodySender::Authenticated => &self.large,
        };
        let kib = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
        let permit = pool.clone().try_acquire_many_owned(kib).map_err(|_| busy())?;
        Ok(Some(ReservedMemory(permit)))
    }
}

fn busy() -> ApiError {
    retry_soon("The service is reading too many requests. Nothing was changed; try again soon.")
}

/// Bytes that keep their memory reserved until the last clone or slice of them is dropped.
pub(crate) fn charged(bytes: Bytes, reserved: Option<ReservedMemory>) -> Bytes {
    struct ChargedBytes(Bytes, #[expect(dead_code, reason = "freed on drop")] ReservedMemory);
    impl AsRef<[u8]> for ChargedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    match reserved {
        // The body is empty after all: `from_owner` with no bytes would keep the reservation for
        // nothing.
        Some(_) if bytes.is_empty() => bytes,
        Some(reserved) => Bytes::from_owner(ChargedBytes(bytes, reserved)),
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(budget: &BodyBudget, sender: BodySender, bytes: usize) -> Vec<Option<ReservedMemory>> {
        std::iter::from_fn(|| budget.reserve(sender, bytes).ok()).take(100_000).collect()
    }

    #[test]
    fn each_kind_of_body_has_its_own_limit() {
        let budget = BodyBudget::default();
        let large = fill(&budget, BodySender::Authenticated, 1 << 20);
        assert_eq!(large.len(), 64);
        assert!(budget.reserve(BodySender::Authenticated, SMALL_BYTES_MAX + 1).is_err());
        let anyone = fill(&budget, BodySender::Unauthenticated, 4 * KIB);
        assert_eq!(anyone.len(), 2_048);
        let small = fill(&budget, BodySender::Authenticated, SMALL_BYTES_MAX);
        assert_eq!(small.len(), 1_024);
        assert!(budget.reserve(BodySender::Authenticated, 0).is_ok(), "no body needs no memory");
        drop(large);
        assert!(budget.reserve(BodySender::Authenticated, 1 << 20).is_ok());
        assert!(budget.reserve(BodySender::Authenticated, 1).is_err());
    }

    #[test]
    fn bytes_stay_charged_until_the_last_slice_is_dropped() {
        let budget = BodyBudget::default();
        let reserved = budget.reserve(BodySender::Authenticated, 1 << 20).unwrap();
        let bytes = charged(Bytes::from(vec![0; 1 << 20]), reserved);
        let slice = bytes.slice(5..6);
        drop(bytes);
        assert_eq!(budget.large.available_permits(), LARGE_KIB - 1024);
        drop(slice);
        assert_eq!(budget.large.available_permits(), LARGE_KIB);
    }
}
