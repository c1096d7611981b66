//! Closes connections so that clients see an early error response.
//!
//! Many clients send the whole body before they read the response. If the service rejects a request
//! without reading its body and closes the connection, the operating system resets it, and such a
//! client sees the reset instead of the response. This stream therefore ends its own side first,
//! and then reads and discards what the client still sends: a bounded number of bytes, for a bounded
//! time, on a bounded number of connections.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Maximum number of bytes to discard on one connection.
const BYTES_MAX: usize = 256 << 20;
const TIME_MAX: Duration = Duration::from_secs(10);
/// Number of connections that discard at the same time; further ones are closed immediately.
const CONNECTIONS_MAX: usize = 64;
const BUFFER_BYTES: usize = 16 * 1024;

/// Whether the last request on a connection was rejected and its body may not have been read.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadBody(Arc<AtomicBool>);

impl UnreadBody {
    pub(crate) fn set(&self, unread: bool) {
        self.0.store(unread, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Limits how many connections discard bytes at the same time. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct DiscardSlots(Arc<Semaphore>);

impl DiscardSlots {
    pub(crate) fn new() -> DiscardSlots {
        DiscardSlots(Arc::new(Semaphore::new(CONNECTIONS_MAX)))
    }
}

/// A stream whose shutdown discards what the peer still sends, if [`UnreadBody`] is set.
pub(crate) struct LingeringClose<S> {
    stream: S,
    unread: UnreadBody,
    slots: DiscardSlots,
    state: State,
}

enum State {
    Open,
    Discarding(Discard),
    Closed,
}

struct Discard {
    buffer: Box<[u8]>,
    left: usize,
    deadline: Pin<Box<Sleep>>,
    _slot: OwnedSemaphorePermit,
}

impl Discard {
    /// Ready when the peer has sent everything, or at a limit.
    fn poll(&mut self, stream: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut self.buffer);
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer));
            let bytes = buffer.filled().len();
            match self.left.checked_sub(bytes) {
                Some(left) if read.is_ok() && bytes > 0 => self.left = left,
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<S> LingeringClose<S> {
    pub(crate) fn new(stream: S, unread: UnreadBody, slots: DiscardSlots) -> LingeringClose<S> {
        LingeringClose { stream, unread, slots, state: State::Open }
    }

    fn start_discard(&self) -> State {
        let slot = self.unread.get().then(|| self.slots.0.clone().try_acquire_owned().ok());
        match slot.flatten() {
            Some(slot) => State::Discarding(Discard {
                buffer: vec![0; BUFFER_BYTES].into(),
                left: BYTES_MAX,
                deadline: Box::pin(tokio::time::sleep(TIME_MAX)),
                _slot: slot,
            }),
            None => State::Closed,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringClose<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringClose<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Open => {
                    ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
                    this.state = this.start_discard();
                }
                State::Discarding(discard) => {
                    ready!(discard.poll(&mut this.stream, cx));
                    this.state = State::Closed;
                }
                State::Closed => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    fn rejected(slots: &DiscardSlots) -> (LingeringClose<DuplexStream>, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let unread = UnreadBody::default();
        unread.set(true);
        (LingeringClose::new(ours, unread, slots.clone()), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_sends_slowly_is_closed_after_the_time_limit() {
        let (mut ours, mut theirs) = rejected(&DiscardSlots::new());
        let slow = tokio::spawn(async move {
            // The service has ended its side: the response is complete.
            assert_eq!(theirs.read(&mut [0; 10]).await.unwrap(), 0);
            while theirs.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let started = Instant::now();
        ours.shutdown().await.unwrap();
        assert_eq!(started.elapsed(), TIME_MAX);
        drop(ours);
        slow.await.unwrap();
    }

    #[tokio::test]
    async fn endless_body_is_closed_after_the_byte_limit() {
        let (mut ours, mut theirs) = rejected(&DiscardSlots::new());
        let endless = tokio::spawn(async move {
            let (part, mut sent) = (vec![b'x'; 64 * 1024], 0);
            while theirs.write_all(&part).await.is_ok() {
                sent += part.len();
            }
            sent
        });
        ours.shutdown().await.unwrap();
        drop(ours);
        let sent = endless.await.unwrap();
        assert!((BYTES_MAX..BYTES_MAX + (1 << 20)).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_beyond_the_limit_are_closed_immediately() {
        let slots = DiscardSlots::new();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let (mut ours, theirs) = rejected(&slots);
            held.push((tokio::spawn(async move { ours.shutdown().await }), theirs));
        }
        while slots.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let started = Instant::now();
        let (mut ours, _theirs) = rejected(&slots);
        ours.shutdown().await.unwrap();
        assert_eq!(started.elapsed(), Duration::ZERO);
        for (discarding, _theirs) in held {
            discarding.await.unwrap().unwrap();
        }
        assert_eq!(slots.0.available_permits(), CONNECTIONS_MAX);
    }
}
