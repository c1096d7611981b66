//! The activity page: the audit log as sentences, newest first.

use std::collections::BTreeSet;

use axum::extract::State;
use httpkit::problem::{ApiError, Code};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use service::audit::ActionGroup;
use service::queries;
use service::queries::activity::{ActivityFilter, Entry, Resources};
use service::queries::{Page, Scope};

use crate::display::display;
use crate::extract::ListQuery;
use crate::pages::activity::{days, named_ids};
use crate::pages::display::ACTIVITY;
use crate::pages::facets::{FacetMenu, Filters};
use crate::pages::sentence::{SYSTEM_ACTORS, actor_name};
use crate::pages::{Section, choice};
use crate::response::{PageResult, frame, page};
use crate::{Dashboard, Viewer, pages};

/// Number of entries on a page, before similar ones are folded.
const PAGE_ENTRIES: u32 = 100;
/// Maximum number of users and of keys in the menu of actors.
const ACTORS: Page = Page { limit: 100, offset: 0 };
const PATH: &str = "/activity";

/// The filters of the activity page and of its CSV file.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActivityQuery {
    actor: Option<String>,
    kind: Option<ActionGroup>,
    /// The id or the name of a server.
    server: Option<String>,
    /// The id of a batch.
    batch: Option<String>,
    from: Option<Date>,
    /// The last day, inclusive.
    until: Option<Date>,
    before: Option<i64>,
}

impl ActivityQuery {
    /// The filter, with the id of the server.
    async fn filter(&self, app: &Dashboard, scope: &Scope) -> Result<ActivityFilter, ApiError> {
        let server = match &self.server {
            Some(server) => Some(server_id(app, scope, server).await?),
            None => None,
        };
        if server.is_some() && self.batch.is_some() {
            let detail = "Filter by a server or by a batch, not by both.";
            return Err(ApiError::new(Code::BadRequest, detail));
        }
        let until = self.until.map(|day| day.tomorrow().unwrap_or(day));
        Ok(ActivityFilter {
            actor: self.actor.clone(),
            actions: self.kind.map(|group| group.actions().collect()).unwrap_or_default(),
            subject: server.or_else(|| self.batch.clone()),
            from: self.from.and_then(day_start),
            until: until.and_then(day_start),
        })
    }
}

fn day_start(day: Date) -> Option<Timestamp> {
    day.to_zoned(TimeZone::UTC).ok().map(|start| start.timestamp())
}

/// The id of the server that a user named by its id or its name. A text that names no server is
/// returned unchanged: no entry has it as its subject.
async fn server_id(app: &Dashboard, scope: &Scope, text: &str) -> Result<String, ApiError> {
    if text.starts_with("srv_") {
        return Ok(text.to_owned());
    }
    let found = queries::servers::by_name(app, scope, text).await?;
    match found.as_slice() {
        [] => Ok(text.to_owned()),
        [one] => Ok(one.to_string()),
        _ => {
            let detail = format!("{} servers are named {text}. Filter by the id.", found.len());
            Err(ApiError::new(Code::BadRequest, detail))
        }
    }
}

/// The newest entries that match, and where the older ones begin. For the CSV file.
pub(crate) async fn matching(
    app: &Dashboard,
    viewer: &Viewer,
    query: &ActivityQuery,
    before: i64,
    limit: u32,
) -> Result<(Vec<Entry>, Option<i64>), ApiError> {
    let scope = viewer.caller().scope();
    let filter = query.filter(app, &scope).await?;
    let found = queries::activity::list(app, &scope, &filter, before, limit).await?;
    Ok((found.entries, found.older))
}

/// What is known about the resources that entries name.
pub(crate) async fn resources(
    app: &Dashboard,
    viewer: &Viewer,
    entries: &[Entry],
    others: impl IntoIterator<Item = String>,
) -> Result<Resources, ApiError> {
    let ids: BTreeSet<String> = entries.iter().flat_map(named_ids).chain(others).collect();
    Ok(queries::activity::resources(app, &viewer.caller().scope(), &ids).await?)
}

pub(crate) async fn activity(
    State(app): State<Dashboard>,
    viewer: Viewer,
    list_query: ListQuery<ActivityQuery>,
) -> PageResult {
    let names = ["actor", "kind", "server", "batch", "from", "until"];
    let filters = list_query.filters(PATH, &names);
    let display = display(&app, &viewer, &ACTIVITY, &list_query, &filters).await?;
    let query = list_query.page;
    let before = query.parameters.before;
    let first = before.unwrap_or(i64::MAX);
    let (entries, older) = matching(&app, &viewer, &query.parameters, first, PAGE_ENTRIES).await?;
    let chosen = ["actor", "server", "batch"].map(|name| filters.get(name).to_owned());
    let known = resources(&app, &viewer, &entries, chosen).await?;
    let menus = vec![
        actor_menu(&app, &viewer, &filters, &known).await?,
        filters.choices("Kind", "kind", choice::ACTION_GROUP),
    ];
    // Filters without a menu: their chips only.
    let plain = [("Server", "server"), ("Batch", "batch"), ("From", "from"), ("Until", "until")];
    let plain = plain.map(|(label, name)| {
        let value = filters.get(name);
        let text = known.names.get(value).cloned().unwrap_or_else(|| value.to_owned());
        let values = (!value.is_empty()).then(|| (value.to_owned(), text, None));
        filters.menu(label, name, values)
    });
    let chips = menus.iter().chain(&plain).cloned().collect::<Vec<FacetMenu>>();
    let chips = pages::facets::chips(&filters, &chips);
    let query = filters.query();
    let older = older.map(|seq| filters.with("before", &seq.to_string()));
    let newest = before.map(|_| filters.with("before", ""));
    let frame = frame(&app, &viewer, Section::Activity, "Activity");
    let days = days(&entries, &known);
    page(&pages::Activity { frame, days, filters, menus, chips, query, newest, older, display })
}

/// The menu of users, keys and parts of the service.
async fn actor_menu(
    app: &Dashboard,
    viewer: &Viewer,
    filters: &Filters,
    known: &Resources,
) -> Result<FacetMenu, ApiError> {
    let scope = viewer.caller().scope();
    let users = queries::users::list(app, &scope, ACTORS).await?.items;
    let keys = queries::credentials::api_keys(app, &scope, ACTORS).await?.items;
    let users = users.into_iter().map(|user| (user.id.to_string(), user.name));
    let keys = keys.into_iter().map(|key| (key.id.to_string(), format!("API key {}", key.name)));
    let system = SYSTEM_ACTORS.map(|(id, name)| (id.to_owned(), name.to_owned()));
    let mut actors: Vec<(String, String)> = users.chain(keys).chain(system).collect();
    let chosen = filters.get("actor");
    // A user who was removed, or an enrollment token.
    if !chosen.is_empty() && !actors.iter().any(|(id, _)| id == chosen) {
        actors.push((chosen.to_owned(), actor_name(chosen, known)));
    }
    Ok(filters.menu("Actor", "actor", actors.into_iter().map(|(id, name)| (id, name, None))))
}
