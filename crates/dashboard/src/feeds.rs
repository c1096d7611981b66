//! The page of the vulnerability feeds: add, update and remove them.

use axum::extract::State;
use httpkit::problem::ApiError;
use httpkit::{Body, Id, NoQuery, Query, RequestUrl, page as paging};
use serde_json::{Map, json};
use service::app::FeedMode;
use service::queries::Page;
use service::{queries, requests};
use vocab::FeedId;
use wire::v1::CreateFeed;

use crate::extract::Form;
use crate::pages::Section;
use crate::pages::form::{FEED_FIELDS, FeedForm};
use crate::pages::form_errors::FormErrors;
use crate::response::{
    PageResult, form_errors, frame, invalid_input_with, live_frame, page, redirect,
};
use crate::{Dashboard, Viewer, pages};

const PATH: &str = "/settings/feeds";
/// Maximum number of rows of the table.
const ROWS_MAX: u32 = 200;

/// Where the feeds come from, in one or two sentences.
pub(crate) fn explanation(app: &Dashboard) -> &'static str {
    let settings = &app.settings.feeds;
    match settings.mode {
        _ if settings.offline => {
            "The service is set to offline and fetches no feeds. Import files with \
             fleetmend feeds import --data-dir D FILE."
        }
        FeedMode::Auto => {
            "The service imports the feeds that your servers need, and keeps them up to date."
        }
        FeedMode::Manual => {
            "Add a feed here or with fleetmend feeds add. The service keeps it up to date."
        }
    }
}

pub(crate) async fn show(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    Query(NoQuery {}): Query<NoQuery>,
) -> PageResult {
    page(&feeds_page(&app, &viewer, &url, FeedForm::default(), FormErrors::default()).await?)
}

async fn feeds_page(
    app: &Dashboard,
    viewer: &Viewer,
    url: &RequestUrl,
    form: FeedForm,
    errors: FormErrors,
) -> Result<pages::SettingsFeeds, ApiError> {
    let first = Page { limit: ROWS_MAX, offset: 0 };
    let found = queries::feeds::page(app, first).await?;
    let feeds = paging::list(url, first, found, |feed| feed).0;
    let mut catalog = queries::feeds::catalog(app).await?;
    catalog.retain(|feed| !feed.added);
    catalog.sort_by_key(|feed| !feed.needed);
    Ok(pages::SettingsFeeds {
        frame: live_frame(app, viewer, Section::Settings, "Feeds"),
        feeds,
        catalog,
        explanation: explanation(app),
        is_offline: app.settings.feeds.offline,
        may_manage: requests::feeds::are_manageable(app).await?,
        form,
        errors,
    })
}

/// Adds a built-in feed, or one from a URL.
pub(crate) async fn add(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    form: Form,
) -> PageResult {
    let form = FeedForm { url: form.text("url"), name: form.text("name") };
    let mut body = Map::new();
    for (name, text) in [("url", &form.url), ("name", &form.name)] {
        if !text.is_empty() {
            body.insert(name.into(), json!(text));
        }
    }
    let body: Body<CreateFeed> = Body::from_value(&body.into())?;
    let added = requests::feeds::create(&app, &viewer.caller(), body.into_parts()).await;
    match added.map_err(ApiError::from) {
        Ok(_) => redirect(PATH),
        Err(error) => {
            let status = error.code().status();
            let errors = form_errors(error, FEED_FIELDS)?;
            invalid_input_with(status, &feeds_page(&app, &viewer, &url, form, errors).await?)
        }
    }
}

/// Updates a feed now.
pub(crate) async fn update(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<FeedId>,
    _form: Form,
) -> PageResult {
    requests::feeds::update(&app, &viewer.caller(), id).await?;
    redirect(PATH)
}

/// Removes a feed with its advisories.
pub(crate) async fn remove(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<FeedId>,
    form: Form,
) -> PageResult {
    if !form.is_confirmed() {
        let feed = queries::feeds::get(&app, id).await?;
        let line = "CVEs that appear only in this feed disappear from every server. The service \
                    does not follow the feed on its own again.";
        return page(&pages::Confirm {
            frame: frame(&app, &viewer, Section::Settings, format!("Remove {}?", feed.name)),
            errors: Vec::new(),
            lines: vec![line.into()],
            previewed: None,
            action: format!("{PATH}/{id}/remove"),
            verb: "Remove".into(),
            back: PATH.into(),
            risky: true,
        });
    }
    requests::feeds::delete(&app, &viewer.caller(), id).await?;
    redirect(PATH)
}
