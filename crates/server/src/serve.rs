//! The accept loop: plain TCP or TLS, HTTP/1.1, and a graceful shutdown.
//!
//! It replaces axum's loop for two reasons: it supports TLS, and a connection that only supports
//! HTTP/1.1 uses 7 kB less memory than one that detects the version. Agents keep their connections
//! open all day.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::metrics::OpenConnection;
use axum::Router;
use httpkit::Peer;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::Layer as _;

use crate::app::App;
use crate::lingering_close::{DiscardSlots, LingeringClose, UnreadBody};
use crate::stall::StallGuard;

/// How long requests in progress may take during the shutdown.
const DRAIN_MAX: Duration = Duration::from_secs(30);
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const HEADERS_MAX: Duration = Duration::from_secs(20);
/// The largest request head. A larger one is answered with 431. hyper's own limit is 400 kB, which
/// unauthenticated clients could make this process hold per connection.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// How long a connection may accept no byte of a pending write.
const STALL_MAX: Duration = Duration::from_secs(30);
/// The pause after a failed accept, for example when no file descriptors are left.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Serves until `stop` returns. Then accepts no more connections and waits at most 30 s for
/// requests in progress.
pub async fn serve(
    app: App,
    router: Router,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    stop: impl Future<Output = ()>,
) {
    let tls = tls.map(TlsAcceptor::from);
    let ending = watch::Sender::new(false);
    let slots = DiscardSlots::new();
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            // Remove finished connections, so that they do not accumulate.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let ending = ending.subscribe();
                let (router, tls, slots) = (router.clone(), tls.clone(), slots.clone());
                connections.spawn(connection(router, tls, stream, peer, slots, ending));
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
    drop(listener);
    tracing::info!(connections = connections.len(), "shutting down: no new connections");
    app.start_drain();
    ending.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "some requests did not finish in time");
        connections.shutdown().await;
    }
}

async fn connection(
    router: Router,
    tls: Option<TlsAcceptor>,
    stream: TcpStream,
    peer: SocketAddr,
    slots: DiscardSlots,
    ending: watch::Receiver<bool>,
) {
    let _open = OpenConnection::begin();
    // A response is one write; waiting to fill a packet only delays it.
    let _ = stream.set_nodelay(true);
    let unread = UnreadBody::default();
    let stream = LingeringClose::new(stream, unread.clone(), slots);
    let stream = StallGuard::new(stream, STALL_MAX);
    match tls {
        None => serve_http(router, stream, (peer, unread), ending).await,
        Some(tls) => match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve_http(router, stream, (peer, unread), ending).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
        },
    }
}

async fn serve_http(
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (peer, unread): (SocketAddr, UnreadBody),
    mut ending: watch::Receiver<bool>,
) {
    let service = axum::Extension(Peer(peer)).layer(axum::Extension(unread).layer(router));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    tokio::pin!(connection);
    let shutdown = async { drop(ending.wait_for(|ending| *ending).await) };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "connection failed");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    /// How long the connection lasts for a client that requests a megabyte and reads `bytes` of it
    /// every 20 s.
    async fn connection_lifetime(bytes: usize) -> Duration {
        let (mut client, ours) = tokio::io::duplex(4 * 1024);
        let router = Router::new().route("/", get(async || vec![b'x'; 1 << 20]));
        let ending = watch::Sender::new(false);
        let peer = SocketAddr::from(([127, 0, 0, 1], 4_000));
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let started = Instant::now();
        let client = tokio::spawn(async move {
            let mut buffer = vec![0; bytes];
            loop {
                tokio::time::sleep(Duration::from_secs(20)).await;
                match client.read(&mut buffer).await {
                    Ok(0) | Err(_) if bytes > 0 => return,
                    _ => {}
                }
            }
        });
        let (stream, unread) = (StallGuard::new(ours, STALL_MAX), UnreadBody::default());
        serve_http(router, stream, (peer, unread), ending.subscribe()).await;
        client.abort();
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn connection_ends_when_its_response_is_not_read() {
        assert_eq!(connection_lifetime(0).await.as_secs(), 30);
        let slow = connection_lifetime(4 * 1024).await;
        assert!(slow > 100 * STALL_MAX, "a slow reader gets its whole response, not {slow:?}");
    }
}
