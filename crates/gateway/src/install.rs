//! `/install.sh` and the programs of the agent, for servers that are not enrolled yet. Everything
//! here is public: it contains no secret, and the digests in the script verify the programs.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use service::agent_install;
use service::agent_releases::Architecture;

use crate::{Gateway, Refusal};

/// `GET /install.sh`.
pub(super) async fn script(
    State(app): State<Gateway>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let url = agent_install::public_url(&app, text("host"), text("x-forwarded-proto"))
        .ok_or_else(|| Refusal::bad_request("the header Host is missing or not a host name"))?;
    let kind = [
        (header::CONTENT_TYPE, "text/x-shellscript; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((kind, agent_install::script(&app, &url)).into_response())
}

/// `GET /agent/v1/releases/{architecture}`: the program.
pub(super) async fn program(
    State(app): State<Gateway>,
    Path(architecture): Path<String>,
) -> Result<Response, Refusal> {
    let missing = || {
        let detail = "this service carries no agent for this architecture";
        Refusal::new(StatusCode::NOT_FOUND, "not_found", detail)
    };
    let architecture: Architecture = architecture.parse().map_err(|()| missing())?;
    let agents = app.settings.agents.clone();
    let program = tokio::task::spawn_blocking(move || agents.program(architecture)).await;
    let program = program.ok().flatten().ok_or_else(missing)?;
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from(Bytes::from_owner(Program(program)))).into_response())
}

/// The shared copy of a program, which lives until the last download ends.
struct Program(Arc<Vec<u8>>);

impl AsRef<[u8]> for Program {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
