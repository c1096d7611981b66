//! `GET /metrics` for Prometheus.
//!
//! Paths are labeled with the route, never with the requested path: otherwise every id would create
//! a time series.

use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use httpkit::problem::retry_soon;
use httpkit::{ApiError, SharedBody};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use service::clock::Stopwatch;
use service::health::ProcessHealth;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::{Api, feeds};

/// Upper bounds of the duration histogram, in seconds.
const BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0];

/// The metrics recorder of the process, created on first use. A second service in the same process
/// shares it.
pub fn recorder() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let recorder = builder
            .set_buckets(&BUCKETS)
            .expect("the buckets are not empty and increase")
            .build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed; it receives the metrics");
        }
        describe();
        handle
    })
}

fn describe() {
    metrics::describe_counter!("fleetmend_http_requests_total", "Completed HTTP requests.");
    metrics::describe_counter!(
        "fleetmend_task_panics_total",
        "Background tasks that panicked and were restarted."
    );
    metrics::describe_histogram!(
        "fleetmend_http_request_duration_seconds",
        metrics::Unit::Seconds,
        "Time from the start of a request to the start of its response."
    );
    metrics::describe_gauge!("fleetmend_http_connections", "Open connections.");
}

/// Counts a response.
pub fn count_response(method: &Method, path: String, status: u16, seconds: f64) {
    let method = method_label(method);
    metrics::counter!("fleetmend_http_requests_total",
        "method" => method, "path" => path.clone(), "status" => status.to_string())
    .increment(1);
    metrics::histogram!("fleetmend_http_request_duration_seconds",
        "method" => method, "path" => path)
    .record(seconds);
}

/// A client may send any method name; unknown names must not create time series.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

/// Counts a connection while it is open.
pub struct OpenConnection;

impl OpenConnection {
    pub fn begin() -> OpenConnection {
        metrics::gauge!("fleetmend_http_connections").increment(1.0);
        OpenConnection
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        metrics::gauge!("fleetmend_http_connections").decrement(1.0);
    }
}

/// Metrics of this service instance, even if other services run in the same process.
fn instance_metrics(health: &ProcessHealth) -> String {
    let gauge = |name, help, value: bool| {
        let value = u8::from(value);
        format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n")
    };
    let writes = health.write_fault().is_none();
    let clock = health.clock_skew().is_none();
    gauge("fleetmend_leader", "Whether this replica is the leader.", health.leads())
        + &gauge("fleetmend_database_writable", "Whether the last write succeeded.", writes)
        + &gauge(
            "fleetmend_clock_ok",
            "Whether this replica's clock agrees with the database's.",
            clock,
        )
}

/// The metrics
///
/// In the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "Service", operation_id = "metrics",
    responses((status = 200, description = "The metrics.", content_type = "text/plain", body = String)))]
pub async fn metrics(State(app): State<Api>) -> Result<impl IntoResponse, ApiError> {
    let text = app.metrics_page().text(&app).await?;
    let headers = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((Extension(SharedBody), headers, text))
}

/// How long a rendering is reused, in seconds.
const FRESH_SECONDS: f64 = 1.0;
/// Maximum number of renderings in memory: the latest, and those that slow clients have not read
/// yet.
const RENDERINGS_MAX: usize = 32;

/// The latest rendering, shared by all requests within a second. Any client may request it without
/// reading the response.
pub(crate) struct MetricsPage {
    latest: Mutex<Option<(Stopwatch, Bytes)>>,
    renderings: Arc<Semaphore>,
}

impl Default for MetricsPage {
    fn default() -> MetricsPage {
        MetricsPage {
            latest: Mutex::default(),
            renderings: Arc::new(Semaphore::new(RENDERINGS_MAX)),
        }
    }
}

impl MetricsPage {
    async fn text(&self, app: &Api) -> Result<Bytes, ApiError> {
        let mut latest = self.latest.lock().await;
        match &*latest {
            Some((age, text)) if age.seconds() < FRESH_SECONDS => return Ok(text.clone()),
            _ => *latest = None,
        }
        let slot = self.renderings.clone().try_acquire_owned().map_err(|_| {
            retry_soon(
                "Too many clients have requested the metrics without reading them. Try again soon.",
            )
        })?;
        let text = Bytes::from_owner(Rendering { text: render(app).await, slot });
        *latest = Some((Stopwatch::start(), text.clone()));
        Ok(text)
    }
}

/// A rendering that occupies a slot until the last client has read it.
struct Rendering {
    text: String,
    #[expect(dead_code, reason = "freed on drop")]
    slot: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Rendering {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

async fn render(app: &Api) -> String {
    let mut text = recorder().render();
    text += &instance_metrics(app.condition());
    // The metrics must stay available even if the database does not respond.
    match feeds::metrics(app).await {
        Ok(more) => text += &more,
        Err(error) => tracing::warn!(%error, "failed to read the feeds; their metrics are omitted"),
    }
    text
}
