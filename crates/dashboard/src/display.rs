//! How lists are shown: columns and density, which a browser remembers in cookies, and saved views.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::SET_COOKIE;
use httpkit::Id;
use httpkit::problem::{ApiError, Code};
use service::commands::views::{self as commands, NewView};
use service::queries;
use vocab::ViewId;

use crate::extract::{Form, ListQuery, parse_pairs};
use crate::pages::display::{Columns, Display, ListKind, ViewLink};
use crate::pages::facets::Filters;
use crate::pages::{Density, Section};
use crate::response::{PageResult, appearance, frame, page, redirect};
use crate::{Dashboard, Viewer, cookies, pages};

/// How the list is shown: as the address says, or else as this browser remembers it.
pub(crate) async fn display<T>(
    app: &Dashboard,
    viewer: &Viewer,
    list: &'static ListKind,
    query: &ListQuery<T>,
    filters: &Filters,
) -> Result<Display, ApiError> {
    let text = query.columns.as_deref().or(query.remembered_columns.as_deref());
    let columns = text.map_or_else(|| Columns::all(list), |text| Columns::parse(list, text));
    let shown = match columns.is_all() {
        true => filters.query_with(&[]),
        false => filters.query_with(&[("columns", &columns.to_string())]),
    };
    let views = queries::views::list(app, &viewer.user, list.name).await?;
    let views = views.into_iter().map(|view| ViewLink {
        may_delete: commands::may_delete(&viewer.user, &view),
        chosen: view.query == shown,
        href: list.href(&view.query),
        id: view.id.to_string(),
        name: view.name,
        shared: view.shared,
    });
    let density = appearance().density;
    Ok(Display { list, columns, density, views: views.collect(), query: shown })
}

/// The parameters of a list.
type Pairs = Vec<(String, String)>;

/// The list and the query string that a form names.
fn list_and_query(form: &Form) -> Result<(&'static ListKind, Pairs), ApiError> {
    let unknown = || ApiError::new(Code::BadRequest, "The form names no list.");
    let list = ListKind::from_name(form.raw("list")).ok_or_else(unknown)?;
    let mut pairs = parse_pairs(form.raw("query").as_bytes())?;
    pairs.retain(|(name, _)| !matches!(name.as_str(), "limit" | "offset" | "before"));
    Ok((list, pairs))
}

fn encode(pairs: &[(String, String)]) -> String {
    serde_html_form::to_string(pairs).unwrap_or_default()
}

/// Stores the columns of a list and the density of all lists in this browser.
pub(crate) async fn choose(
    State(app): State<Dashboard>,
    headers: HeaderMap,
    form: Form,
) -> PageResult {
    let (list, mut pairs) = list_and_query(&form)?;
    pairs.retain(|(name, _)| name != "columns");
    let chosen = form.all("columns");
    let columns = Columns::named(list, chosen.iter().map(String::as_str));
    let density = Density::from_name(&form.text("density"));
    let mut response = redirect(&list.href(&encode(&pairs)))?;
    let sent = response.headers_mut();
    if !list.columns.is_empty() {
        sent.append(SET_COOKIE, cookies::columns_cookie(&app, &headers, list, &columns));
    }
    sent.append(SET_COOKIE, cookies::density_cookie(&app, &headers, density));
    Ok(response)
}

/// Saves the view that is shown.
pub(crate) async fn save(State(app): State<Dashboard>, viewer: Viewer, form: Form) -> PageResult {
    let (list, pairs) = list_and_query(&form)?;
    let query = encode(&pairs);
    let href = list.href(&query);
    let shared = !form.text("shared").is_empty();
    let new = NewView { list: list.name, name: form.text("name"), query, shared };
    commands::save(&app, &viewer.user, new).await?;
    redirect(&href)
}

/// Asks whether to delete a view, and deletes it.
pub(crate) async fn delete(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<ViewId>,
    form: Form,
) -> PageResult {
    let view = queries::views::find(&app, &viewer.user, id).await?;
    let back = ListKind::from_name(&view.list).map_or("/", |list| list.path);
    if form.is_confirmed() {
        commands::delete(&app, &viewer.user, &view).await?;
        return redirect(back);
    }
    let everyone = "Everyone in the organization sees this view.".to_owned();
    page(&pages::Confirm {
        frame: frame(
            &app,
            &viewer,
            Section::from_path(back),
            format!("Delete view {}?", view.name),
        ),
        errors: Vec::new(),
        lines: if view.shared { vec![everyone] } else { Vec::new() },
        previewed: None,
        action: format!("/views/{id}/delete"),
        verb: "Delete view".to_owned(),
        back: back.to_owned(),
        risky: true,
    })
}
