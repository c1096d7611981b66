//! Limits the memory for large responses, over all connections together.
//!
//! A response stays in memory until its client has read it, so clients that do not read could
//! exhaust the memory. Each response of a known size from 64 KiB on is charged until its last byte
//! was passed to the operating system. Streams are not charged, because each holds only its next
//! part. Documents that all clients share ([`httpkit::SharedBody`]) are not charged either.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use axum::response::IntoResponse as _;
use httpkit::SharedBody;
use httpkit::problem::retry_soon;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const KIB: u64 = 1024;
const LARGE_BYTES_MIN: u64 = 64 * KIB;
const RESPONSES_KIB_MAX: u32 = 256 * 1024;

#[derive(Debug, Clone)]
pub struct ResponseBudget {
    memory: Arc<Semaphore>,
    kib_max: u32,
}

impl Default for ResponseBudget {
    fn default() -> ResponseBudget {
        ResponseBudget::with_kib(RESPONSES_KIB_MAX)
    }
}

impl ResponseBudget {
    pub fn with_kib(kib_max: u32) -> ResponseBudget {
        ResponseBudget { memory: Arc::new(Semaphore::new(kib_max as usize)), kib_max }
    }

    /// The memory that is not in use.
    pub fn free_kib(&self) -> usize {
        self.memory.available_permits()
    }

    /// Charges the response if it is large, or replaces it with a 503 if no memory is left.
    pub(crate) fn charge(&self, response: Response<Body>) -> Response<Body> {
        let large = response.body().size_hint().exact().filter(|bytes| *bytes >= LARGE_BYTES_MIN);
        let Some(bytes) = large else { return response };
        if response.extensions().get::<SharedBody>().is_some() {
            return response;
        }
        // A response that is larger than the budget takes all of it.
        let kib = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX).min(self.kib_max);
        match self.memory.clone().try_acquire_many_owned(kib) {
            Ok(permit) => {
                response.map(|body| Body::new(ChargedBody { body, permit: Arc::new(permit) }))
            }
            Err(_) => retry_soon(
                "Too many large responses are waiting to be read by their clients. Try again soon.",
            )
            .into_response(),
        }
    }
}

/// A body that is charged.
struct ChargedBody {
    body: Body,
    permit: Arc<OwnedSemaphorePermit>,
}

/// Part of a body. hyper drops a body as soon as it has its last part, possibly long before that is
/// written. So the parts are charged, too.
struct ChargedPart {
    bytes: Bytes,
    #[expect(dead_code, reason = "freed on drop")]
    permit: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for ChargedPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for ChargedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let permit = self.permit.clone();
        Pin::new(&mut self.body).poll_frame(cx).map_ok(|frame| {
            frame.map_data(|bytes| Bytes::from_owner(ChargedPart { bytes, permit }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    fn answer(bytes: usize) -> Response<Body> {
        Response::new(Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn large_responses_are_charged_until_fully_written() {
        let budget = ResponseBudget::with_kib(256);
        let held: Vec<_> = (0..4).map(|_| budget.charge(answer(64 << 10))).collect();
        assert!(held.iter().all(|answer| answer.status() == 200));
        assert_eq!(budget.free_kib(), 0);
        let refused = budget.charge(answer(64 << 10));
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (503, &"2".parse().unwrap())
        );
        assert_eq!(budget.charge(answer(1_000)).status(), 200, "small responses are not charged");
        let mut parts = Vec::new();
        for answer in held {
            assert_eq!(answer.body().size_hint().exact(), Some(64 << 10));
            parts.push(to_bytes(answer.into_body(), 1 << 20).await.unwrap().slice(7..9));
        }
        assert_eq!(budget.free_kib(), 0, "a slice of a part keeps all of it charged");
        parts.pop();
        assert_eq!(budget.free_kib(), 64);
        drop(parts);
        assert_eq!(
            budget.charge(answer(10 << 20)).status(),
            200,
            "a response larger than the budget"
        );
        assert_eq!(budget.free_kib(), 256);
    }

    #[test]
    fn streams_and_shared_documents_are_not_charged() {
        let budget = ResponseBudget::with_kib(0);
        let parts = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![0; 100_000])]);
        assert_eq!(budget.charge(Response::new(Body::from_stream(parts))).status(), 200);
        let mut shared = answer(100_000);
        shared.extensions_mut().insert(SharedBody);
        assert_eq!(budget.charge(shared).status(), 200);
    }
}
