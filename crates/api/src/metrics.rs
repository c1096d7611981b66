//! `GET /metrics` for Prometheus.
//!
//! Paths are labeled with the route, never with the requested path: otherwise every id would create
//! a time series.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use httpkit::problem::retry_soon;
use httpkit::{ApiError, Peer, SharedBody};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use service::clock::Stopwatch;
use service::health::ProcessHealth;
use service::queries;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use vocab::OrgId;

use crate::{Api, auth, feeds};

/// Upper bounds of the duration histogram, in seconds.
const BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0];

/// Upper bounds of the duration of tasks, in seconds.
const TASK_BUCKETS: [f64; 9] = [10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0];

/// The metrics recorder of the process, created on first use. A second service in the same process
/// shares it.
pub fn recorder() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let recorder = builder
            .set_buckets(&BUCKETS)
            .and_then(|builder| {
                let tasks = Matcher::Full("fleetmend_task_duration_seconds".to_owned());
                builder.set_buckets_for_metric(tasks, &TASK_BUCKETS)
            })
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
    metrics::describe_counter!("fleetmend_tasks_finished_total", "Finished tasks, by outcome.");
    metrics::describe_histogram!(
        "fleetmend_task_duration_seconds",
        metrics::Unit::Seconds,
        "Time that agents worked on their tasks."
    );
    metrics::describe_gauge!(
        "fleetmend_agent_sessions",
        "Agents that this replica has heard from and not forgotten."
    );
    metrics::describe_histogram!(
        "fleetmend_sync_duration_seconds",
        metrics::Unit::Seconds,
        "Time to process the report of an agent, without the time that its sync is held open."
    );
    metrics::describe_gauge!(
        "fleetmend_ingest_queue",
        "Reports of agents that wait to be written."
    );
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

/// Get the metrics
///
/// In the text format of Prometheus. Without an API key, the response contains the metrics of this
/// process and of the feeds. With the key of an organization that is not limited to environments,
/// it also contains the metrics of the organization's fleet.
#[utoipa::path(get, path = "/metrics", tag = "Service", operation_id = "metrics",
    responses((status = 200, description = "The metrics.", content_type = "text/plain", body = String)))]
pub async fn metrics(
    State(app): State<Api>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let text = app.metrics_page().text(&app).await?;
    if !headers.contains_key(AUTHORIZATION) {
        return Ok((Extension(SharedBody), kind, text).into_response());
    }
    let peer = peer.map(|Extension(peer)| peer);
    let (caller, _, _) = auth::authenticate(&app, &headers, peer).await?;
    let fleet = match caller.environments {
        Some(_) => String::new(),
        None => fleet_metrics(&app, caller.org).await?,
    };
    let mut body = String::from_utf8_lossy(&text).into_owned();
    body += &fleet;
    Ok((kind, body).into_response())
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

/// The metrics of an organization's fleet.
async fn fleet_metrics(app: &Api, org: OrgId) -> service::Result<String> {
    let watch = Stopwatch::start();
    let fleet = queries::metrics::fleet(app, org).await?;
    let seconds = watch.seconds();
    let mut page = Gauges::default();
    page.add(
        "fleetmend_servers",
        "Servers.",
        &[
            (&[("status", "online")], count(fleet.online)),
            (&[("status", "offline")], count(fleet.offline)),
        ],
    );
    for (name, servers) in fleet.assessments {
        page.add(
            "fleetmend_servers_by_assessment",
            "Servers by whether their CVEs are known.",
            &[(&[("assessment", name)], count(servers))],
        );
    }
    let single = [
        ("fleetmend_servers_stale", "Servers whose last scan is too old.", fleet.stale),
        ("fleetmend_servers_quarantined", "Servers in quarantine.", fleet.quarantined),
        ("fleetmend_servers_reboot_required", "Servers that need a reboot.", fleet.reboot_required),
        (
            "fleetmend_agents_outdated",
            "Servers whose agent is older than the one that the service carries.",
            fleet.agents_outdated,
        ),
        (
            "fleetmend_cves_exploited_open",
            "Open CVEs that are known to be exploited.",
            fleet.exploited,
        ),
    ];
    for (name, help, value) in single {
        page.add(name, help, &[(&[], count(value))]);
    }
    page.add(
        "fleetmend_updates_pending",
        "Pending updates over all servers.",
        &[
            (&[("type", "security")], count(fleet.security_updates)),
            (&[("type", "other")], count(fleet.other_updates)),
        ],
    );
    for (severity, cves) in &fleet.cves {
        page.add(
            "fleetmend_cves_open",
            "CVEs that some server has, without suppressed ones.",
            &[(&[("severity", severity.as_str())], count(*cves))],
        );
    }
    for (state, batches) in &fleet.batches {
        page.add(
            "fleetmend_batches",
            "Unfinished batches.",
            &[(&[("state", state)], count(*batches))],
        );
    }
    page.add(
        "fleetmend_tasks",
        "Tasks of unfinished batches.",
        &[
            (&[("state", "waiting")], count(fleet.tasks_waiting)),
            (&[("state", "running")], count(fleet.tasks_running)),
        ],
    );
    page.add(
        "fleetmend_database_fleet_query_seconds",
        "Time that the database took to count the fleet for this response.",
        &[(&[], seconds)],
    );
    Ok(page.text)
}

fn count(value: u64) -> f64 {
    value as f64
}

/// Writes gauges in the text format. They are computed for each request, so they are not kept in the
/// metrics registry.
#[derive(Default)]
struct Gauges {
    text: String,
    last: &'static str,
}

/// The labels and the value of a sample.
type Sample<'a> = (&'a [(&'a str, &'a str)], f64);

impl Gauges {
    /// Adds samples. The name and the help text are written once for consecutive calls.
    fn add(&mut self, name: &'static str, help: &str, samples: &[Sample<'_>]) {
        if self.last != name {
            self.last = name;
            let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} gauge");
        }
        for (labels, value) in samples {
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }
}

async fn render(app: &Api) -> String {
    let mut text = recorder().render();
    text += &instance_metrics(app.condition());
    let mut page = Gauges::default();
    let version: Sample<'_> = (&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    page.add("fleetmend_build_info", "The version of the service.", &[version]);
    let (idle, used) = app.db.connections();
    page.add(
        "fleetmend_database_connections",
        "Open database connections of this replica.",
        &[(&[("state", "idle")], count(idle as u64)), (&[("state", "used")], count(used as u64))],
    );
    text += &page.text;
    // The metrics must stay available even if the database does not respond.
    match feeds::metrics(app).await {
        Ok(more) => text += &more,
        Err(error) => tracing::warn!(%error, "failed to read the feeds; their metrics are omitted"),
    }
    text
}
