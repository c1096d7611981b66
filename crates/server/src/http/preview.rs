//! `/v1/preview`: what an order would do.

use axum::Json;
use axum::extract::State;
use store::{Conn, server_list};
use utoipa_axum::routes as handlers;
use vocab::{Environment, Pending, Role, Selector, ServerId, Status};
use wire::v1::{Preview, PreviewRequest, PreviewServer, PreviewUpdate, RebootOutlook, WaitingFor};

use crate::app::App;
use crate::http::{ApiError, Body, Caller, NoQuery, Query, Routes, batches, read, show};
use service::PatchOptions;
use service::queries::preview::{Meant, Outlook, SHOWN_MAX, ServerOutlook, outlook};
use service::queries::targets::unmatched;

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(preview))
}

/// Preview an order
///
/// What it would do: on which servers, in which order and when by the pace alone, which updates, which reboots. Nothing is changed.
/// Give `server_ids` for an order like `POST /v1/batches`, or `targets` for one like a schedule's.
#[utoipa::path(post, path = "/v1/preview", tag = "Preview", operation_id = "preview_order",
    request_body(content = PreviewRequest, example = json!({"server_ids": ["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"],
        "security_only": true, "reboot": "if_required", "stagger_minutes": 10})),
    responses((status = 200, description = "What the order would do.", body = Preview)))]
pub(crate) async fn preview(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<PreviewRequest>,
) -> Result<Json<Preview>, ApiError> {
    of_order(&app, &caller, body, SHOWN_MAX).await.map(Json)
}

/// The same with no more than so many servers one by one.
pub(crate) async fn of_order(
    app: &App,
    caller: &Caller,
    body: Body<PreviewRequest>,
    shown: usize,
) -> Result<Preview, ApiError> {
    let (body, mut errors) = body.open();
    let options = match body.targets.is_some() {
        true => read::options(&mut errors, "", body.options()),
        false => read::order(&mut errors, body.options()),
    };
    let (mut named, mut selector) = (Vec::new(), None);
    match (&body.server_ids, &body.targets) {
        (Some(ids), None) => named = batches::existing(app, caller, &mut errors, ids).await?,
        (None, Some(targets)) => selector = read::targets(&mut errors, targets),
        (Some(_), Some(_)) | (None, None) => {
            errors.note(
                "",
                "one_of",
                "say which servers: `server_ids` or `targets`, one of the two",
            );
        }
    }
    errors.done()?;
    match selector {
        Some(selector) => of_targets(app, caller, &options, &selector, shown).await,
        None => of_servers(app, caller, &options, &named, shown).await,
    }
}

/// What these options would do to these servers, however many they are.
pub(crate) async fn of_servers(
    app: &App,
    caller: &Caller,
    options: &PatchOptions,
    named: &[ServerId],
    shown: usize,
) -> Result<Preview, ApiError> {
    let online = service::queries::servers::online_span(app);
    let mut reader = app.db.snapshot().await?;
    let meant =
        Meant::named(&mut reader, caller.org, options, named.to_vec(), shown, online).await?;
    of_meant(app, &mut reader, options, meant).await
}

async fn of_targets(
    app: &App,
    caller: &Caller,
    options: &PatchOptions,
    selector: &Selector,
    shown: usize,
) -> Result<Preview, ApiError> {
    let online = service::queries::servers::online_span(app);
    let mut reader = app.db.snapshot().await?;
    let filter = server_list::Filter {
        environments: caller.environments.as_deref().map(<[Environment]>::to_vec),
        ..server_list::Filter::from(selector)
    };
    let meant = Meant::matching(&mut reader, caller.org, options, &filter, shown, online).await?;
    let mut preview = of_meant(app, &mut reader, options, meant).await?;
    if preview.total == 0 {
        let visible = caller.environments.as_deref();
        let unmatched = unmatched(&mut reader, caller.org, visible, selector).await?;
        preview.warnings.extend(unmatched.map(|unmatched| unmatched.reason));
    }
    Ok(preview)
}

async fn of_meant(
    app: &App,
    conn: &mut Conn,
    options: &PatchOptions,
    meant: Meant,
) -> Result<Preview, ApiError> {
    let now = app.clock.now();
    let seen = outlook(conn, options, meant, now).await?;
    let mut warnings = show::warnings(options, u64::from(seen.total));
    warnings.extend(canary_warning(&seen));
    warnings.extend(refusal_warning(&seen));
    Ok(Preview {
        options: show::options(options),
        total: seen.total,
        offline: seen.offline,
        first_start_at: (seen.total > 0).then_some(now),
        last_start_at: seen.last_start_at,
        beyond_window: seen.beyond_window,
        warnings,
        servers: seen.servers.into_iter().map(|one| of_server(app, one)).collect(),
    })
}

/// Warns of a canary that proves nothing. Servers with something to install go first, so a canary
/// without an update means that no other server is known to have one. Servers that are not shown are
/// not judged.
fn canary_warning(seen: &Outlook) -> Option<String> {
    let canaries = seen.servers.iter().filter(|server| server.canary);
    let (idle, count) = canaries.fold((0_u32, 0_u32), |(idle, count), server| {
        (idle + u32::from(server.updates.is_empty()), count + 1)
    });
    // If every server is a canary, no server waits for it.
    if idle == 0 || count >= seen.total {
        return None;
    }
    let without = match (idle, count) {
        (1, 1) => "the canary server has nothing to install".to_owned(),
        (idle, count) if idle == count => {
            format!("none of the {count} canary servers has anything to install")
        }
        (1, count) => format!("1 of the {count} canary servers has nothing to install"),
        (idle, count) => format!("{idle} of the {count} canary servers have nothing to install"),
    };
    Some(format!(
        "{without}: as of the last scans no other server has either, so the rest starts after them \
         without an update that was tested"
    ))
}

/// Warns of servers that refuse the order because of their own limits.
fn refusal_warning(seen: &Outlook) -> Option<String> {
    let refuse = |server: &&ServerOutlook| server.refused;
    let count = seen.servers.iter().filter(refuse).count();
    let first = seen.servers.iter().find(refuse)?;
    let name = &first.server.hostname;
    Some(match count {
        1 => format!("{name} will refuse this order: see its limits"),
        count => format!("{count} servers, {name} first, will refuse this order: see their limits"),
    })
}

fn of_server(app: &App, seen: ServerOutlook) -> PreviewServer {
    let status = show::status(app, Some(seen.server.last_seen_at));
    let waits = [
        (seen.waits_for_canary, WaitingFor::Canary),
        (seen.waits_for_parallel, WaitingFor::Parallel),
        (status == Status::Offline, WaitingFor::Offline),
        (seen.starts_at.is_none(), WaitingFor::Window),
    ];
    let update = |pending: Pending| PreviewUpdate {
        name: pending.name,
        from: pending.installed,
        to: pending.candidate,
        security: pending.security,
        blocked_by: pending.blocked_by,
    };
    PreviewServer {
        server_id: seen.server.id,
        hostname: seen.server.hostname,
        status,
        environment: seen.server.environment,
        canary: seen.canary,
        starts_at: seen.starts_at,
        waits_for: waits.into_iter().filter(|(does, _)| *does).map(|(_, what)| what).collect(),
        updates: seen.updates.into_iter().map(update).collect(),
        blocked: seen.blocked.into_iter().map(update).collect(),
        nothing_pending: seen.nothing_pending,
        reboot: match seen.reboots {
            Some(false) => RebootOutlook::No,
            None => RebootOutlook::Possible,
            Some(true) => RebootOutlook::Certain,
        },
        host_limits: seen.host_limits,
    }
}
