//! The whole service from start to shutdown: `fleetmend server` runs it, and tests can run it
//! in-process.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::app::App;
use crate::{background, router, serve};

/// How often data that is collected in memory is written.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(5);

/// Serves until `stop` returns, then shuts down cleanly: no acknowledged write is lost.
pub async fn run(
    app: App,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    stop: impl Future<Output = ()>,
) {
    end_abandoned_requests(&app).await;
    let router = router(&app);
    let background = background::spawn(&app);
    let patches = service::projections::patches::spawn(app.service().clone());
    let findings = service::projections::findings::spawn(app.service().clone());
    let compliance = service::projections::compliance::spawn(app.service().clone());
    let housekeeping = tokio::spawn(run_housekeeping(app.clone()));
    // Answer the held agent requests first; otherwise they stay open until there is something to
    // send.
    let stop = async {
        stop.await;
        app.gateway().drain();
    };
    serve(app.clone(), router, listener, tls, stop).await;
    housekeeping.abort();
    patches.abort();
    findings.abort();
    compliance.abort();
    background.stop().await;
    write_key_uses(&app).await;
    app.db.close().await;
    tracing::info!("ended");
}

/// Releases requests that a crash interrupted, so that clients can repeat them immediately. With
/// PostgreSQL, other replicas may be running; there a claim names its process, and a repeated
/// request detects that the process is gone.
pub async fn end_abandoned_requests(app: &App) {
    if let Err(error) = service::idempotency::release_abandoned(app).await {
        tracing::warn!(%error, "failed to release interrupted requests; they stay locked for 30 s");
    }
}

async fn run_housekeeping(app: App) {
    let mut every = tokio::time::interval(HOUSEKEEPING_EVERY);
    loop {
        every.tick().await;
        api::metrics::recorder().run_upkeep();
        write_key_uses(&app).await;
    }
}

async fn write_key_uses(app: &App) {
    if let Err(error) = app.api_keys().flush_uses(&app.db).await {
        tracing::warn!(%error, "failed to store the last-used times of API keys");
    }
}
