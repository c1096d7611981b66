//! Requests about feeds: add, update now, remove. Feeds belong to the whole installation, so a key
//! that is limited to environments cannot change them. If there are several organizations, none of
//! them can: it would change what the others see.

use async_recursion::async_recursion as boxed;
use feed::catalog;
use jiff::SignedDuration;
use store::organizations;
use vocab::FeedId;
use wire::v1::{CreateFeed, Feed};

use super::{Body, forbidden};
use crate::auth::caller::Caller;
use crate::commands::feeds::manage::{self, NewFeed};
use crate::queries::feeds::{get, id};
use crate::{App, Result, fetch};

const URL_CHARS_MAX: usize = 2_000;
const EVERY_HOURS_MAX: u32 = 24 * 7;

#[boxed]
pub async fn create(app: &App, caller: &Caller, body: Body<CreateFeed>) -> Result<Feed> {
    require_installation(app, caller).await?;
    let (new, every) = validate(body)?;
    let name = manage::add(app, &caller.actor(), new, every).await?;
    get(app, id(&name)).await
}

#[boxed]
pub async fn update(app: &App, caller: &Caller, id: FeedId) -> Result<Feed> {
    require_installation(app, caller).await?;
    let feed = get(app, id).await?;
    manage::update(app, &caller.actor(), &feed.name).await?;
    get(app, id).await
}

#[boxed]
pub async fn delete(app: &App, caller: &Caller, id: FeedId) -> Result<()> {
    require_installation(app, caller).await?;
    let feed = get(app, id).await?;
    manage::remove(app, &caller.actor(), &feed.name).await
}

/// Whether administrators can change feeds here. Otherwise only the operator of the service can.
#[boxed]
pub async fn are_manageable(app: &App) -> Result<bool> {
    Ok(organizations::list(&mut *app.db.read().await?).await?.len() <= 1)
}

async fn require_installation(app: &App, caller: &Caller) -> Result<()> {
    if caller.environments.is_some() {
        return forbidden(
            "This API key is limited to certain environments, and feeds apply to all servers.",
        );
    }
    if !are_manageable(app).await? {
        return forbidden(
            "The organizations of this installation share its feeds. Change them on the machine \
             of the service, with `fleetmend feeds` and --data-dir.",
        );
    }
    Ok(())
}

fn validate((body, mut errors): Body<CreateFeed>) -> Result<(NewFeed, Option<SignedDuration>)> {
    let every = body.every_hours;
    if every.is_some_and(|hours| !(1..=EVERY_HOURS_MAX).contains(&hours)) {
        let detail = format!("must be a number from 1 to {EVERY_HOURS_MAX}");
        errors.add("/every_hours", "out_of_range", detail);
    }
    let every = every.map(|hours| SignedDuration::from_hours(hours.into()));
    let new = match (body.url, body.name) {
        (None, None) => {
            let detail = "is required, or the `name` of a built-in feed";
            errors.add("/url", "missing", detail);
            None
        }
        (None, Some(name)) => {
            let found = catalog::find(&name);
            if found.is_none() {
                let names: Vec<_> = catalog::BUILT_IN.iter().map(|feed| feed.name).collect();
                let detail =
                    format!("must be a built-in feed ({}), or add a `url`", names.join(", "));
                errors.add("/name", "unknown_feed", detail);
            }
            found.map(NewFeed::BuiltIn)
        }
        (Some(url), name) => {
            let name = name.map(|name| errors.name("/name", name));
            let url = errors.line("/url", url, URL_CHARS_MAX);
            match fetch::parse_url(&url) {
                Ok(url) => Some(NewFeed::Url { url, name }),
                Err(error) => {
                    errors.add("/url", "invalid_url", error);
                    None
                }
            }
        }
    };
    errors.into_result()?;
    // Without errors there is a feed.
    new.map(|new| (new, every)).ok_or_else(|| crate::ServiceError::Invalid(Vec::new()))
}
