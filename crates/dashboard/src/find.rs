//! Search over everything: pages, servers, packages with updates, CVEs and batches.

use axum::extract::State;
use service::queries;
use service::queries::Page;

use crate::extract::PageQuery;
use crate::pages::{Found, Section};
use crate::response::{PageResult, frame, page};
use crate::{Dashboard, Viewer, pages};

/// Maximum number of results of each kind.
const EACH_MAX: u32 = 6;
/// Longer searches find nothing.
const CHARS_MAX: usize = 200;

#[derive(Debug, serde::Deserialize)]
pub(crate) struct FindQuery {
    #[serde(default)]
    q: String,
}

/// `/find?q=…`. The command palette shows the results of this page.
pub(crate) async fn find(
    State(app): State<Dashboard>,
    viewer: Viewer,
    query: PageQuery<FindQuery>,
) -> PageResult {
    let q: String = query.parameters.q.trim().chars().take(CHARS_MAX).collect();
    let frame = frame(&app, &viewer, Section::Search, "Search");
    let wanted = q.to_lowercase();
    let sections =
        frame.nav().into_iter().filter(|item| item.name.to_lowercase().contains(&wanted));
    let mut found: Vec<Found> = sections
        .map(|item| Found {
            href: item.path.to_owned(),
            icon: item.icon,
            text: item.name.to_owned(),
            detail: "Page".to_owned(),
        })
        .collect();
    if !q.is_empty() {
        found.splice(0..0, search(&app, &viewer, &q).await?);
    }
    page(&pages::Find { frame, q, found })
}

async fn search(
    app: &Dashboard,
    viewer: &Viewer,
    q: &str,
) -> Result<Vec<Found>, httpkit::problem::ApiError> {
    let scope = viewer.caller().scope();
    let part = Page { limit: EACH_MAX, offset: 0 };
    let mut found = Vec::new();
    let filter = queries::servers::Filter { search: Some(q.to_owned()), ..Default::default() };
    let servers =
        queries::servers::list(app, &scope, filter, queries::servers::Sort::Hostname, part);
    found.extend(servers.await?.items.into_iter().map(|server| Found {
        href: format!("/servers/{}", server.id),
        icon: "servers",
        text: server.name().to_owned(),
        detail: server.environment.map_or_else(|| "Server".to_owned(), |it| it.to_string()),
    }));
    let filter = queries::cves::Filter { search: Some(q.to_owned()), ..Default::default() };
    let cves = queries::cves::list(app, &scope, filter, part).await?;
    found.extend(cves.items.into_iter().map(|cve| Found {
        href: format!("/cves/{}", pages::path_segment(&cve.id)),
        icon: "cves",
        detail: pages::label(cve.severity),
        text: cve.id,
    }));
    let filter = queries::patches::Filter { search: Some(q.to_owned()), ..Default::default() };
    let patches = queries::patches::list(app, &scope, filter, part).await?;
    found.extend(patches.items.into_iter().map(|patch| Found {
        href: format!("/patches/{}", pages::path_segment(&patch.package_name)),
        icon: "patches",
        detail: format!(
            "{} {}",
            pages::number(patch.affected_servers),
            pages::plural(patch.affected_servers, "server", "servers")
        ),
        text: patch.package_name,
    }));
    let batches = queries::batches::search(app, &scope, q, EACH_MAX).await?;
    found.extend(batches.into_iter().map(|(id, name, state)| Found {
        href: format!("/batches/{id}"),
        icon: "batches",
        text: name.to_string(),
        detail: pages::label(state),
    }));
    Ok(found)
}
