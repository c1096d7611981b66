//! The accept loop: plain or TLS, HTTP/1.1, and an end that cuts nobody off.
//!
//! Our own loop rather than axum's, because it can speak TLS, and because a connection that only knows HTTP/1.1 takes 7 kB less than
//! one that waits to see which version it will be: an agent keeps its connection open all day.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::Layer as _;

use crate::app::App;
use crate::http::auth::Peer;
use crate::http::metrics::OpenConnection;

/// How long requests that are under way may take to end.
const DRAIN_MAX: Duration = Duration::from_secs(30);
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const HEADERS_MAX: Duration = Duration::from_secs(20);
/// After an accept that failed, for example for want of file descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Serves until `stop` returns, then ends: accepts no more, finishes what is under way, at most 30 s.
pub async fn serve(
    app: App,
    router: Router,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    stop: impl Future<Output = ()>,
) {
    let tls = tls.map(TlsAcceptor::from);
    let ending = watch::Sender::new(false);
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            // So that those that ended do not pile up.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let ending = ending.subscribe();
                connections.spawn(connection(router.clone(), tls.clone(), stream, peer, ending));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
    drop(listener);
    tracing::info!(connections = connections.len(), "ending: no new connections");
    app.start_drain();
    ending.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "some requests did not end in time");
        connections.shutdown().await;
    }
}

async fn connection(
    router: Router,
    tls: Option<TlsAcceptor>,
    stream: TcpStream,
    peer: SocketAddr,
    ending: watch::Receiver<bool>,
) {
    let _open = OpenConnection::new();
    // An answer is one write; waiting to fill a packet only delays it.
    let _ = stream.set_nodelay(true);
    match tls {
        None => talk(router, stream, peer, ending).await,
        Some(tls) => match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
            Ok(Ok(stream)) => talk(router, stream, peer, ending).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "no TLS handshake"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
        },
    }
}

async fn talk(
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    mut ending: watch::Receiver<bool>,
) {
    let service = axum::Extension(Peer(peer)).layer(router);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    tokio::pin!(connection);
    let told = async { drop(ending.wait_for(|ending| *ending).await) };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection broke off");
    }
}
