//! `GET /metrics`: what Prometheus reads.
//!
//! A path stands here as the router has it, never as it was asked for: otherwise every id would make a series.

use std::sync::OnceLock;

use axum::extract::State;
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::app::App;
use crate::http::feeds;
use service::condition::Condition;

/// Upper bounds of the histogram of durations, in seconds.
const BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0];

/// The process's metrics. Made on first use; a second service in one process shares them.
pub fn handle() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let recorder = builder
            .set_buckets(&BUCKETS)
            .expect("there are buckets, and they rise")
            .build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("metrics go to a recorder that was there before");
        }
        describe();
        handle
    })
}

fn describe() {
    metrics::describe_counter!("fleetmend_http_requests_total", "Requests answered.");
    metrics::describe_counter!(
        "fleetmend_task_panics_total",
        "Background tasks that panicked and were started again."
    );
    metrics::describe_histogram!(
        "fleetmend_http_request_duration_seconds",
        metrics::Unit::Seconds,
        "How long a request took until its answer began."
    );
    metrics::describe_gauge!("fleetmend_http_connections", "Connections that are open.");
}

/// Notes an answer.
pub(crate) fn count(method: &Method, path: String, status: u16, seconds: f64) {
    let method = known(method);
    metrics::counter!("fleetmend_http_requests_total",
        "method" => method, "path" => path.clone(), "status" => status.to_string())
    .increment(1);
    metrics::histogram!("fleetmend_http_request_duration_seconds",
        "method" => method, "path" => path)
    .record(seconds);
}

/// A method may be any word; whoever makes words up must not make series.
fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

/// Counts a connection for as long as it lives.
pub(crate) struct OpenConnection;

impl OpenConnection {
    pub(crate) fn new() -> OpenConnection {
        metrics::gauge!("fleetmend_http_connections").increment(1.0);
        OpenConnection
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        metrics::gauge!("fleetmend_http_connections").decrement(1.0);
    }
}

/// What this process knows of itself, whatever other services run in it.
fn own(condition: &Condition) -> String {
    let gauge = |name, help, value: bool| {
        let value = u8::from(value);
        format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n")
    };
    let writes = condition.write_fault().is_none();
    let clock = condition.clock_skew().is_none();
    gauge("fleetmend_leader", "Whether this replica leads.", condition.leads())
        + &gauge("fleetmend_database_writable", "Whether the last write worked.", writes)
        + &gauge("fleetmend_clock_ok", "Whether this clock agrees with the database's.", clock)
}

/// The metrics
///
/// In the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "Service", operation_id = "metrics",
    responses((status = 200, description = "The metrics.", content_type = "text/plain", body = String)))]
pub(crate) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    let mut text = handle().render();
    text += &own(app.condition());
    // Whoever asks how the service is must be told even if its database does not answer.
    match feeds::metrics(&app).await {
        Ok(more) => text += &more,
        Err(error) => tracing::warn!(%error, "what is known of feeds is left out of the metrics"),
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
