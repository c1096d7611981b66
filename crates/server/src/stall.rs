//! Closes connections whose peer does not read: a write without progress for too long fails.
//!
//! The timer runs only while a write is pending. A connection with nothing to write, such as a held
//! sync or a log stream, is never closed by it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes fail if its peer accepts no byte for `timeout`.
pub(crate) struct StallGuard<S> {
    stream: S,
    timeout: Duration,
    /// Set only while a write is pending, so that an idle connection has no timer.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    pub(crate) fn new(stream: S, timeout: Duration) -> StallGuard<S> {
        StallGuard { stream, timeout, timer: None }
    }

    /// Only the progress of a write stops the timer. A TCP stream has nothing to flush, so a
    /// successful flush means nothing.
    fn check(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer accepts no data")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.check(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn unread_write_fails_after_the_timeout() {
        let (ours, theirs) = tokio::io::duplex(1_000);
        let mut ours = StallGuard::new(ours, TIMEOUT);
        let started = Instant::now();
        let error = ours.write_all(&[0; 5_000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 30);
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_is_not_disconnected() {
        let (ours, mut theirs) = tokio::io::duplex(1_000);
        let mut ours = StallGuard::new(ours, TIMEOUT);
        let slow = tokio::spawn(async move {
            let mut taken = 0;
            while taken < 4_000 {
                sleep(Duration::from_secs(29)).await;
                taken += theirs.read(&mut [0; 100]).await.unwrap();
            }
            theirs
        });
        let started = Instant::now();
        ours.write_all(&[0; 5_000]).await.unwrap();
        assert!(started.elapsed() > 30 * TIMEOUT);
        drop(slow.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_nothing_to_write_stays_open() {
        let (ours, mut theirs) = tokio::io::duplex(1_000);
        let mut ours = StallGuard::new(ours, TIMEOUT);
        ours.write_all(b"event").await.unwrap();
        assert!(timeout(100 * TIMEOUT, ours.read_u8()).await.is_err(), "nothing is sent");
        theirs.write_u8(7).await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), 7);
        ours.write_all(b"event").await.unwrap();
        let mut heard = [0; 10];
        theirs.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"eventevent");
    }
}
