//! Servers: the list, one, and what is done to one.

use axum::extract::State;
use pages::{Section, ServerFilter};
use vocab::ServerId;

use crate::app::App;
use crate::http::{Here, Id, IfMatch, NoBody, NoQuery, Query, servers};
use crate::web::Viewer;
use crate::web::answer::{Answer, frame, live, page, see};
use crate::web::asked::{Asked, Form};

/// `/servers`, with the API's own filters.
pub(crate) async fn list(
    State(app): State<App>,
    viewer: Viewer,
    here: Here,
    asked: Asked<servers::Filter>,
) -> Answer {
    let filter = ServerFilter {
        q: asked.text("q"),
        status: asked.text("status"),
        environment: asked.text("environment"),
        os: asked.text("os"),
        tag: asked.text("tag"),
        reboot_required: asked.text("reboot_required"),
        sort: asked.text("sort"),
    };
    let query = asked.query();
    let list =
        servers::list(State(app.clone()), viewer.caller(), here, Query(asked.meant)).await?.0;
    let frame = live(&app, &viewer, Section::Servers, "Servers");
    page(&pages::Servers { frame, list, filter, query })
}

/// `/servers/{id}`.
pub(crate) async fn one(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let (_, it) = servers::detail(&app, &viewer.caller(), id).await?;
    let frame = live(&app, &viewer, Section::Servers, it.server.hostname.to_string());
    page(&pages::ServerPage { frame, it })
}

/// Has its agent look at the packages.
pub(crate) async fn refresh(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> Answer {
    drop(servers::refresh(State(app), viewer.caller(), Id(id), Query(NoQuery {}), NoBody).await?);
    see(&format!("/servers/{id}"))
}

/// Asks before a server is removed.
pub(crate) async fn ask_remove(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> Answer {
    let (_, it) = servers::detail(&app, &viewer.caller(), id).await?;
    let title = format!("Remove {}?", it.server.hostname);
    let lines = vec![
        "It leaves every list, and its unfinished tasks end as canceled.".into(),
        "Its agent stays installed: it is told at its next contact, and executes nothing any more. To join again, \
         it must enrol again, and is then a new server."
            .into(),
    ];
    let here = format!("/servers/{id}");
    page(&pages::Confirm {
        frame: frame(&app, &viewer, Section::Servers, title),
        lines,
        preview: None,
        action: format!("{here}/remove"),
        verb: "Remove it".into(),
        back: here,
        risky: true,
    })
}

/// Removes a server.
pub(crate) async fn remove(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
    form: Form,
) -> Answer {
    if !form.goes() {
        return see(&format!("/servers/{id}/remove"));
    }
    let any = IfMatch::any();
    servers::remove(State(app), viewer.caller(), Id(id), Query(NoQuery {}), any).await?;
    see("/servers")
}

/// Lets a server out of quarantine.
pub(crate) async fn release(
    State(app): State<App>,
    viewer: Viewer,
    Id(id): Id<ServerId>,
) -> Answer {
    drop(servers::release(State(app), viewer.caller(), Id(id), Query(NoQuery {}), NoBody).await?);
    see(&format!("/servers/{id}"))
}
