//! The whole service from start to end: what `fleetmend server` runs, and what a test may run beside itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::app::App;
use crate::{background, router, serve};

/// How often what was gathered in memory is written down.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(5);

/// Serves until `stop` returns, then ends cleanly: nothing that was answered is lost.
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
    let housekeeping = tokio::spawn(keep_house(app.clone()));
    // Agents' requests are held open for as long as there is nothing to say: they are answered first.
    let stop = async {
        stop.await;
        app.gateway().drain();
    };
    serve(app.clone(), router, listener, tls, stop).await;
    housekeeping.abort();
    patches.abort();
    findings.abort();
    background.stop().await;
    note_uses(&app).await;
    app.db.close().await;
    tracing::info!("ended");
}

/// Lets clients repeat requests that a crash cut off, at once. With PostgreSQL other replicas may be at
/// work; there a claim names its process, and whoever repeats the request finds that it is gone.
pub async fn end_abandoned_requests(app: &App) {
    if let Err(error) = service::idempotency::end_abandoned(app).await {
        tracing::warn!(%error, "requests that a crash cut off stay locked for half a minute");
    }
}

async fn keep_house(app: App) {
    let mut every = tokio::time::interval(HOUSEKEEPING_EVERY);
    loop {
        every.tick().await;
        api::metrics::handle().run_upkeep();
        note_uses(&app).await;
    }
}

async fn note_uses(app: &App) {
    if let Err(error) = app.keys().note_uses(&app.db).await {
        tracing::warn!(%error, "when keys were last used could not be written down");
    }
}
