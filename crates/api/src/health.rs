//! `GET /healthz` and `GET /readyz`: health checks for process managers and load balancers.

use axum::Json;
use axum::extract::State;
use httpkit::problem::{ApiError, Code, disk_full, retry_soon, unavailable};
use serde_json::{Value, json};
use service::health::WriteFault;

use crate::Api;

/// Liveness
///
/// The process is running. Does not check the database, so that an unavailable database does not
/// cause restarts of a healthy process.
#[utoipa::path(get, path = "/healthz", tag = "Service", operation_id = "healthz",
    responses((status = 200, description = "The process is running.", body = Object, example = json!({"status": "ok"}))))]
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Readiness
///
/// The database responds, the last write succeeded, the clock agrees with the database's,
/// `root.key` is the one that the other replicas use, the audit log is complete, and the service is
/// not shutting down.
#[utoipa::path(get, path = "/readyz", tag = "Service", operation_id = "readyz",
    responses((status = 200, description = "The service accepts requests.", body = Object, example = json!({"status": "ok"}))))]
pub(crate) async fn readyz(State(app): State<Api>) -> Result<Json<Value>, ApiError> {
    if app.is_draining() {
        return Err(ApiError::new(Code::Unavailable, "The service is shutting down."));
    }
    app.db.ping().await.map_err(|_| unavailable())?;
    match app.condition().write_fault() {
        None => {}
        Some(WriteFault::DiskFull) => return Err(disk_full()),
        Some(WriteFault::Failed) => {
            return Err(retry_soon(
                "The database responds, but the last write failed; see the log.",
            ));
        }
    }
    if let Some(skew) = app.condition().clock_skew() {
        return Err(retry_soon(&format!(
            "This machine's clock differs from the database's by {} s. Set it with NTP.",
            skew.abs().as_secs()
        )));
    }
    if app.condition().root_key_rotated() {
        return Err(retry_soon(
            "root.key was rotated: restart this replica with the new key files.",
        ));
    }
    let mut body =
        json!({"status": "ok", "database": app.db.engine(), "leader": app.condition().leads()});
    // The service stays ready: removing replicas would not restore the missing entries.
    if app.condition().audit_truncated() {
        body["audit_log"] = json!("entries are missing; see the log and `fleetmend doctor`");
    }
    // Without the paths, because anyone can read this.
    if app.condition().certificate_rejected() {
        body["certificate"] = json!(
            "the changed certificate files cannot be used; see the log and `fleetmend doctor`"
        );
    }
    Ok(Json(body))
}
