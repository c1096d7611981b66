//! Forecast of the schedules.

use async_recursion::async_recursion as boxed;
use wire::v1::{Forecast, ForecastRequest};

use super::{Body, ValidationErrors, forbidden, validate};
use crate::auth::caller::Caller;
use crate::queries::forecast::{self, Changes};
use crate::{App, Result, ServiceError};

/// The number of days if the request does not say.
pub const DAYS_DEFAULT: u32 = 30;

/// The maximum number of schedules, and of freezes, in the changes.
const CHANGES_MAX: usize = 20;

/// The forecast, with the changes in the request if there are any.
#[boxed]
pub async fn forecast(
    app: &App,
    caller: &Caller,
    (body, mut errors): Body<ForecastRequest>,
) -> Result<Forecast> {
    if caller.environments.is_some() {
        return forbidden(
            "This API key is limited to certain environments, and a forecast needs the whole fleet.",
        );
    }
    let days = body.days.map_or(Some(DAYS_DEFAULT), |days| u32::try_from(days).ok());
    let days = days.filter(|days| (1..=domain::forecast::DAYS_MAX).contains(days));
    if days.is_none() {
        let detail = format!("must be from 1 to {}", domain::forecast::DAYS_MAX);
        errors.add("/days", "out_of_range", detail);
    }
    let mut changes = Changes::default();
    let requested = body.changes.unwrap_or_default();
    let schedules = bounded(&mut errors, "schedules", requested.schedules.unwrap_or_default());
    for (n, schedule) in schedules.into_iter().enumerate() {
        let at = format!("/changes/schedules/{n}");
        let checked = validate::schedule((schedule, ValidationErrors::default()));
        changes.schedules.extend(nested(&mut errors, &at, checked)?);
    }
    let freezes = bounded(&mut errors, "freezes", requested.freezes.unwrap_or_default());
    for (n, freeze) in freezes.into_iter().enumerate() {
        let at = format!("/changes/freezes/{n}");
        let checked = validate::freeze((freeze, ValidationErrors::default()), app.clock.now());
        changes.freezes.extend(nested(&mut errors, &at, checked)?);
    }
    errors.into_result()?;
    forecast::forecast(app, &caller.scope(), days.unwrap_or(DAYS_DEFAULT), changes).await
}

fn bounded<T>(errors: &mut ValidationErrors, field: &str, list: Vec<T>) -> Vec<T> {
    if list.len() <= CHANGES_MAX {
        return list;
    }
    let detail = format!("must have at most {CHANGES_MAX} entries");
    errors.add(&format!("/changes/{field}"), "too_many", detail);
    Vec::new()
}

/// Adds the errors of a part of the body.
fn nested<T>(errors: &mut ValidationErrors, at: &str, checked: Result<T>) -> Result<Option<T>> {
    match checked {
        Ok(part) => Ok(Some(part)),
        Err(ServiceError::Invalid(found)) => {
            for error in found {
                errors.add(&format!("{at}{}", error.pointer), error.code, error.detail);
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
