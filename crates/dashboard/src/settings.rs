//! The pages of the settings: users, API keys, enrollment tokens and agents. Feeds are in
//! [`crate::feeds`].

use axum::extract::State;
use axum::http::HeaderMap;
use httpkit::problem::{ApiError, Code};
use httpkit::{Body, Id, NoQuery, Query, RequestUrl, page as paging};
use serde_json::{Map, json};
use service::agent_install;
use service::auth::users;
use service::queries::Page;
use service::queries::users::User;
use service::requests::Versions;
use service::{queries, requests};
use vocab::{KeyId, Role, TokenId, UserId};
use wire::v1::{CreateApiKey, CreateEnrollmentToken, UpgradeAgents};

use crate::cookies::base_url;
use crate::extract::Form;
use crate::pages::{Section, UserRow};
use crate::response::{PageResult, frame, page, redirect};
use crate::servers::refuse_if_none_requested;
use crate::{Dashboard, Viewer, pages};

/// Maximum number of rows in each table.
const ROWS_MAX: u32 = 200;

const FIRST: Page = Page { limit: ROWS_MAX, offset: 0 };

/// The users.
pub(crate) async fn people(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let found = queries::users::list(&app, &scope, FIRST).await?;
    let linked = queries::users::linked(&app, &scope).await?;
    let now = app.clock.now();
    let row = |user: User| UserRow {
        is_self: user.id == viewer.user.id,
        is_linked: linked.contains(&user.id),
        has_password: user.password.is_some(),
        has_pending_link: users::has_open_invitation(&user, now),
        id: user.id,
        name: user.name,
        role: user.role,
        created_at: user.created_at,
    };
    let users = found.items.into_iter().map(row).collect();
    page(&pages::Settings { frame: frame(&app, &viewer, Section::Settings, "People"), users })
}

pub(crate) async fn keys(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let found = queries::credentials::api_keys(&app, &viewer.caller().scope(), FIRST).await?;
    let keys = paging::list(&url, FIRST, found, |key| key).0;
    page(&pages::SettingsKeys { frame: frame(&app, &viewer, Section::Settings, "API keys"), keys })
}

pub(crate) async fn tokens(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let found = queries::credentials::enrollment_tokens(&app, &scope, FIRST).await?;
    let tokens = paging::list(&url, FIRST, found, |token| token).0;
    let frame = frame(&app, &viewer, Section::Settings, "Enrollment");
    page(&pages::SettingsTokens { frame, tokens })
}

pub(crate) async fn agents(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let agents = queries::agents::agents(&app, &viewer.caller().scope()).await?;
    let frame = frame(&app, &viewer, Section::Settings, "Agents");
    page(&pages::SettingsAgents { frame, agents })
}

/// Shows a secret once, with the link back to its list.
fn secret_page(
    app: &Dashboard,
    viewer: &Viewer,
    title: &str,
    lines: Vec<String>,
    secret: String,
    back: &'static str,
) -> PageResult {
    let frame = frame(app, viewer, Section::Settings, title);
    page(&pages::Secret { frame, lines, secret, back })
}

fn confirm_page(
    app: &Dashboard,
    viewer: &Viewer,
    title: String,
    line: &str,
    action: String,
    verb: &str,
) -> PageResult {
    // `/settings/keys/…` belongs to the list of keys; the list of users is the first page.
    let list = pages::choice::SETTINGS.iter().skip(1).find(|(path, _)| action.starts_with(path));
    let back = list.map_or("/settings", |(path, _)| path).to_owned();
    page(&pages::Confirm {
        frame: frame(app, viewer, Section::Settings, title),
        errors: Vec::new(),
        lines: vec![line.into()],
        previewed: None,
        action,
        verb: verb.into(),
        back,
        risky: true,
    })
}

/// Invites a user.
pub(crate) async fn invite(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    form: Form,
) -> PageResult {
    let role: Role =
        form.text("role").parse().map_err(|_| ApiError::new(Code::BadRequest, "Unknown role."))?;
    let (user, link) =
        users::invite(&app, &users::actor(&viewer.user), &form.text("name"), role).await?;
    let lines = vec![format!(
        "Send this link to {} over a trusted channel. It works once, within 24 hours, to set a password.",
        user.name
    )];
    secret_page(
        &app,
        &viewer,
        "Invited",
        lines,
        format!("{}/welcome/{link}", base_url(&app, &headers)),
        "/settings",
    )
}

async fn find_user(app: &Dashboard, viewer: &Viewer, id: UserId) -> Result<User, ApiError> {
    Ok(queries::users::get(app, &viewer.caller().scope(), id).await?)
}

/// Resets a user's password and creates a link to set a new one.
pub(crate) async fn reset(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<UserId>,
    headers: HeaderMap,
    form: Form,
) -> PageResult {
    let user = find_user(&app, &viewer, id).await?;
    if !form.is_confirmed() {
        let line = "They are signed out everywhere and their password stops working immediately. You get a link to set a new one. \
                    If they use an identity provider, their account is linked again at the next sign-in.";
        return confirm_page(
            &app,
            &viewer,
            format!("Reset {}?", user.name),
            line,
            format!("/settings/users/{id}/reset"),
            "Reset",
        );
    }
    let link = users::reset(&app, &users::actor(&viewer.user), &user).await?;
    let lines = vec![format!(
        "Send this link to {} over a trusted channel. It works once, within 24 hours.",
        user.name
    )];
    secret_page(
        &app,
        &viewer,
        "Reset",
        lines,
        format!("{}/welcome/{link}", base_url(&app, &headers)),
        "/settings",
    )
}

/// Removes a user.
pub(crate) async fn remove(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<UserId>,
    form: Form,
) -> PageResult {
    let user = find_user(&app, &viewer, id).await?;
    if !form.is_confirmed() {
        let line =
            "They are signed out everywhere immediately. Their entries stay in the audit log.";
        return confirm_page(
            &app,
            &viewer,
            format!("Remove {}?", user.name),
            line,
            format!("/settings/users/{id}/remove"),
            "Remove",
        );
    }
    users::remove(&app, &users::actor(&viewer.user), &user).await?;
    redirect("/settings")
}

/// Creates an API key.
pub(crate) async fn create_key(
    State(app): State<Dashboard>,
    viewer: Viewer,
    form: Form,
) -> PageResult {
    let body = json!({"name": form.text("name"), "role": form.text("role")});
    let body: Body<CreateApiKey> = Body::from_value(&body)?;
    let (key, text) = requests::api_keys::create(&app, &viewer.caller(), body.into_parts()).await?;
    let lines = vec![format!(
        "Created the key {} with the role {}. Copy it now: only a hash is stored.",
        key.name, key.role
    )];
    secret_page(&app, &viewer, "API key", lines, text, "/settings/keys")
}

/// Revokes an API key.
pub(crate) async fn revoke_key(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<KeyId>,
    form: Form,
) -> PageResult {
    if !form.is_confirmed() {
        let key = queries::credentials::find_api_key(&app, &viewer.caller().scope(), id).await?;
        let line = "It stops working immediately. This cannot be undone.";
        return confirm_page(
            &app,
            &viewer,
            format!("Revoke {}?", key.name),
            line,
            format!("/settings/keys/{id}/revoke"),
            "Revoke",
        );
    }
    requests::api_keys::revoke(&app, &viewer.caller(), id, &Versions::Any).await?;
    redirect("/settings/keys")
}

/// Creates an enrollment token and shows the command to run on each server.
pub(crate) async fn create_token(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    form: Form,
) -> PageResult {
    let mut body = Map::new();
    for name in ["name", "environment"] {
        if !form.text(name).is_empty() {
            body.insert(name.into(), json!(form.text(name)));
        }
    }
    let uses = form.text("max_uses");
    if !uses.is_empty() {
        body.insert(
            "max_uses".into(),
            uses.parse::<i64>().map_or_else(|_| json!(uses), |uses| json!(uses)),
        );
    }
    let body: Body<CreateEnrollmentToken> = Body::from_value(&body.into())?;
    let (_, text) =
        requests::enrollment_tokens::create(&app, &viewer.caller(), body.into_parts()).await?;
    let url = base_url(&app, &headers);
    let (line, command) = match agent_install::install_command(&app, &url, &text) {
        Some(command) => (
            "Run this on each server. It installs the agent, enrolls the server and starts the agent.",
            command,
        ),
        None => (
            "Install the agent on each server, then run this as root.",
            format!("fleetmend-agent enroll --server {url} --token {text}"),
        ),
    };
    let lines = vec![line.into()];
    secret_page(&app, &viewer, "Enrollment token", lines, command, "/settings/tokens")
}

/// Requests upgrades of all outdated agents.
pub(crate) async fn upgrade_agents(
    State(app): State<Dashboard>,
    viewer: Viewer,
    form: Form,
) -> PageResult {
    if !form.is_confirmed() {
        let agents = queries::agents::agents(&app, &viewer.caller().scope()).await?;
        let count = agents.upgradable();
        let line = "Each agent downloads the new version from this service and replaces itself when \
                    it is not working on an order. If the new agent does not reach the service, the \
                    previous one is restored.";
        return confirm_page(
            &app,
            &viewer,
            format!("Upgrade {count} {}?", pages::plural(count, "agent", "agents")),
            line,
            "/settings/agents/upgrade".to_owned(),
            "Upgrade",
        );
    }
    let body: Body<UpgradeAgents> = Body::from_value(&json!({"targets": {"all": true}}))?;
    let done = requests::agents::upgrade(&app, &viewer.caller(), body.into_parts()).await?;
    refuse_if_none_requested(&done)?;
    redirect("/settings/agents")
}

/// Revokes an enrollment token.
pub(crate) async fn revoke_token(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<TokenId>,
    form: Form,
) -> PageResult {
    if !form.is_confirmed() {
        let scope = viewer.caller().scope();
        let token = queries::credentials::find_enrollment_token(&app, &scope, id).await?;
        let line = "New servers cannot enroll with it. Enrolled servers are not affected.";
        return confirm_page(
            &app,
            &viewer,
            format!("Revoke {}?", token.name),
            line,
            format!("/settings/tokens/{id}/revoke"),
            "Revoke",
        );
    }
    requests::enrollment_tokens::revoke(&app, &viewer.caller(), id, &Versions::Any).await?;
    redirect("/settings/tokens")
}
