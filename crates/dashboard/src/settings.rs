//! The pages of the settings: organization, users, API keys, enrollment tokens, agents and sign-in.
//! Feeds are in [`crate::feeds`], webhooks in [`crate::webhooks`].

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use httpkit::problem::ApiError;
use httpkit::{Body, Id, NoQuery, Query, RequestUrl, page as paging};
use serde_json::{Map, json};
use service::agent_install;
use service::auth::{sessions, users};
use service::commands::organizations;
use service::queries::Page;
use service::queries::users::{Organization, User};
use service::requests::Versions;
use service::{FieldError, ServiceError, queries, requests};
use vocab::{KeyId, Role, TokenId, UserId};
use wire::v1::{CreateApiKey, CreateEnrollmentToken, UpgradeAgents};

use crate::cookies::base_url;
use crate::extract::Form;
use crate::pages::form::{
    INVITE_FIELDS, InviteForm, KEY_FIELDS, KeyForm, ORGANIZATION_FIELDS, TOKEN_FIELDS, TokenForm,
};
use crate::pages::form_errors::FormErrors;
use crate::pages::{ProviderFacts, Section, UserRow};
use crate::response::{PageResult, form_errors, frame, invalid_input_with, page, redirect};
use crate::servers::{environments, refuse_if_none_requested};
use crate::{Dashboard, Viewer, pages};

/// Maximum number of rows in each table.
const ROWS_MAX: u32 = 200;

const FIRST: Page = Page { limit: ROWS_MAX, offset: 0 };

const PEOPLE: &str = "/settings/people";

/// The organization and the service.
pub(crate) async fn organization(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let organization = queries::users::organization(&app, viewer.user.org_id).await?;
    let name = organization.name.clone();
    page(&organization_page(&app, &viewer, &organization, name, FormErrors::default()).await?)
}

async fn organization_page(
    app: &Dashboard,
    viewer: &Viewer,
    organization: &Organization,
    typed_name: String,
    errors: FormErrors,
) -> Result<pages::Settings, ApiError> {
    let help = match queries::users::has_several_organizations(app).await? {
        true => "People type it to sign in. Tell them if you change it.",
        false => "Shown in the navigation of every page.",
    };
    Ok(pages::Settings {
        frame: frame(app, viewer, Section::Settings, "Organization"),
        typed_name,
        help,
        id: organization.id.to_string(),
        created_at: organization.created_at,
        generation: organization.generation.to_string(),
        database: if app.db.engine() == "sqlite" { "SQLite" } else { "PostgreSQL" },
        errors,
    })
}

/// Renames the organization.
pub(crate) async fn rename_organization(
    State(app): State<Dashboard>,
    viewer: Viewer,
    form: Form,
) -> PageResult {
    let now = queries::users::organization(&app, viewer.user.org_id).await?;
    let name = form.text("name");
    let seen = Organization {
        generation: form.text("generation").parse().unwrap_or(i64::MIN),
        ..now.clone()
    };
    let renamed = organizations::rename(&app, &users::actor(&viewer.user), &seen, &name).await;
    match renamed {
        Ok(()) => redirect("/settings"),
        Err(ServiceError::Stale) => {
            let mut errors = FormErrors::new(ORGANIZATION_FIELDS);
            let detail = "The organization was renamed meanwhile. Check the name and save again.";
            errors.add_general(detail);
            let again = organization_page(&app, &viewer, &now, name, errors).await?;
            invalid_input_with(StatusCode::CONFLICT, &again)
        }
        Err(error) => {
            let error = ApiError::from(error);
            let status = error.code().status();
            let errors = form_errors(error, ORGANIZATION_FIELDS)?;
            let again = organization_page(&app, &viewer, &now, name, errors).await?;
            invalid_input_with(status, &again)
        }
    }
}

/// Maximum number of names in the sentence about two-factor authentication.
const NAMES_MAX: usize = 20;

/// How people sign in.
pub(crate) async fn sign_in(
    State(app): State<Dashboard>,
    viewer: Viewer,
    headers: HeaderMap,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let everyone = Page { limit: u32::MAX, offset: 0 };
    let people = queries::users::list(&app, &viewer.caller().scope(), everyone).await?.items;
    let with_password: Vec<User> =
        people.into_iter().filter(|user| user.password.is_some()).collect();
    let without: Vec<&User> =
        with_password.iter().filter(|user| user.totp_secret.is_none()).collect();
    let names = match without.len() <= NAMES_MAX {
        true => without.iter().map(|user| user.name.clone()).collect(),
        false => Vec::new(),
    };
    let redirect_url = format!("{}/sign-in/oidc/back", base_url(&app, &headers));
    let provider = app.settings.oidc.as_ref().map(|it| ProviderFacts {
        name: it.name.clone(),
        issuer: it.issuer.clone(),
        client_id: it.client_id.clone(),
        has_secret: it.client_secret.is_some(),
        scope: it.scope.clone(),
        redirect_url: redirect_url.clone(),
        roles: it.roles.as_ref().map_or_else(Vec::new, |mapping| {
            let sentence = |(role, value): &(Role, String)| {
                format!("{role} if the claim {} is {value}", mapping.claim)
            };
            mapping.by_value.iter().map(sentence).collect()
        }),
        default_role: it.default_role,
    });
    page(&pages::SettingsSignIn {
        frame: frame(&app, &viewer, Section::Settings, "Sign-in"),
        session_hours: sessions::SESSION_TTL.as_hours(),
        without_totp: without.len(),
        with_password: with_password.len(),
        names,
        provider,
        redirect_url,
    })
}

/// The users.
pub(crate) async fn people(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let form = InviteForm { name: String::new(), role: Role::Viewer.to_string() };
    page(&people_page(&app, &viewer, form, FormErrors::default()).await?)
}

async fn people_page(
    app: &Dashboard,
    viewer: &Viewer,
    form: InviteForm,
    errors: FormErrors,
) -> Result<pages::SettingsPeople, ApiError> {
    let scope = viewer.caller().scope();
    let found = queries::users::list(app, &scope, FIRST).await?;
    let linked = queries::users::linked(app, &scope).await?;
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
    let frame = frame(app, viewer, Section::Settings, "People");
    Ok(pages::SettingsPeople { frame, users, form, errors })
}

pub(crate) async fn keys(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    let form = KeyForm { name: String::new(), role: Role::Viewer.to_string() };
    page(&keys_page(&app, &viewer, &url, form, FormErrors::default()).await?)
}

async fn keys_page(
    app: &Dashboard,
    viewer: &Viewer,
    url: &RequestUrl,
    form: KeyForm,
    errors: FormErrors,
) -> Result<pages::SettingsKeys, ApiError> {
    let found = queries::credentials::api_keys(app, &viewer.caller().scope(), FIRST).await?;
    let keys = paging::list(url, FIRST, found, |key| key).0;
    let frame = frame(app, viewer, Section::Settings, "API keys");
    Ok(pages::SettingsKeys { frame, keys, form, errors })
}

pub(crate) async fn tokens(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    page(&tokens_page(&app, &viewer, &url, TokenForm::default(), FormErrors::default()).await?)
}

async fn tokens_page(
    app: &Dashboard,
    viewer: &Viewer,
    url: &RequestUrl,
    form: TokenForm,
    errors: FormErrors,
) -> Result<pages::SettingsTokens, ApiError> {
    let scope = viewer.caller().scope();
    let found = queries::credentials::enrollment_tokens(app, &scope, FIRST).await?;
    let tokens = paging::list(url, FIRST, found, |token| token).0;
    let environments = environments(app, viewer).await?;
    let frame = frame(app, viewer, Section::Settings, "Enrollment");
    Ok(pages::SettingsTokens { frame, tokens, form, environments, errors })
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
    page(&pages::Secret { frame, lines, secret, back: back.to_owned() })
}

fn confirm_page(
    app: &Dashboard,
    viewer: &Viewer,
    title: String,
    line: &str,
    action: String,
    verb: &str,
) -> PageResult {
    // `/settings/keys/…` belongs to the list of keys; the rest to the list of users.
    let list = pages::choice::SETTINGS.iter().skip(1).find(|(path, _)| action.starts_with(path));
    let back = list.map_or(PEOPLE, |(path, _)| path).to_owned();
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
    let form = InviteForm { name: form.text("name"), role: form.text("role") };
    let invited = match form.role.parse::<Role>() {
        Ok(role) => users::invite(&app, &users::actor(&viewer.user), &form.name, role).await,
        Err(_) => {
            let wrong = FieldError::new("/role", "invalid_role", "choose a role from the list");
            Err(ServiceError::Invalid(vec![wrong]))
        }
    };
    let (user, link) = match invited.map_err(ApiError::from) {
        Ok(invited) => invited,
        Err(error) => {
            let status = error.code().status();
            let errors = form_errors(error, INVITE_FIELDS)?;
            return invalid_input_with(status, &people_page(&app, &viewer, form, errors).await?);
        }
    };
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
        PEOPLE,
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
        PEOPLE,
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
    redirect(PEOPLE)
}

/// Creates an API key.
pub(crate) async fn create_key(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    form: Form,
) -> PageResult {
    let form = KeyForm { name: form.text("name"), role: form.text("role") };
    let body = json!({"name": form.name, "role": form.role});
    let body: Body<CreateApiKey> = Body::from_value(&body)?;
    let created = requests::api_keys::create(&app, &viewer.caller(), body.into_parts()).await;
    let (key, text) = match created.map_err(ApiError::from) {
        Ok(created) => created,
        Err(error) => {
            let status = error.code().status();
            let errors = form_errors(error, KEY_FIELDS)?;
            let again = keys_page(&app, &viewer, &url, form, errors).await?;
            return invalid_input_with(status, &again);
        }
    };
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
    url: RequestUrl,
    headers: HeaderMap,
    form: Form,
) -> PageResult {
    let [name, environment, max_uses] = ["name", "environment", "max_uses"].map(|it| form.text(it));
    let form = TokenForm { name, environment, max_uses };
    let mut body = Map::new();
    for (name, text) in [("name", &form.name), ("environment", &form.environment)] {
        if !text.is_empty() {
            body.insert(name.into(), json!(text));
        }
    }
    if !form.max_uses.is_empty() {
        let uses = form.max_uses.parse::<i64>();
        let uses = uses.map_or_else(|_| json!(form.max_uses), |uses| json!(uses));
        body.insert("max_uses".into(), uses);
    }
    let body: Body<CreateEnrollmentToken> = Body::from_value(&body.into())?;
    let created =
        requests::enrollment_tokens::create(&app, &viewer.caller(), body.into_parts()).await;
    let text = match created.map_err(ApiError::from) {
        Ok((_, text)) => text,
        Err(error) => {
            let status = error.code().status();
            let errors = form_errors(error, TOKEN_FIELDS)?;
            let again = tokens_page(&app, &viewer, &url, form, errors).await?;
            return invalid_input_with(status, &again);
        }
    };
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
