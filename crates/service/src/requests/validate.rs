//! Validates request bodies and converts them, or reports all errors at once. Does not access the
//! database.

use std::collections::BTreeSet;

use domain::rollout::Pace;
use serde_json::Value;
use vocab::{Cron, Line, RebootPolicy, Selector, SelectorError, ServerId, Zone};
use wire::v1::{OptionsRequest, ScheduleRequest};

use super::ValidationErrors;
use crate::commands::schedules::ScheduleInput;
use crate::{OrderOptions, PatchOptions, Result, ServiceError};

const PACKAGES_MAX: usize = 1_000;
const STAGGER_MINUTES_MAX: u32 = 1_440;
const PARALLEL_MAX: u32 = 100_000;
/// Four weeks: a longer window is probably a mistake in the unit.
const WINDOW_MINUTES_MAX: u32 = 40_320;
/// The maximum number of servers in one request.
pub const SERVER_IDS_MAX: usize = 10_000;

/// Validates a schedule. The caller handles `allow_empty`, because that depends on the current
/// servers.
pub fn schedule((body, mut errors): (ScheduleRequest, ValidationErrors)) -> Result<ScheduleInput> {
    let name = errors.name("/name", body.name);
    let description = body.description.unwrap_or_default();
    errors.prose("/description", &description);
    let cron: Option<Cron> = errors.parse("/cron", "invalid_cron", &body.cron);
    let timezone = body.timezone.as_deref().unwrap_or("UTC");
    let timezone: Option<Zone> = errors.parse("/timezone", "invalid_timezone", timezone);
    let targets = targets(&mut errors, &body.targets);
    let options = options(&mut errors, "/options", body.options.unwrap_or_default());
    errors.into_result()?;
    match (cron, timezone, targets) {
        (Some(cron), Some(timezone), Some(targets)) => Ok(ScheduleInput {
            name,
            description,
            enabled: body.enabled.unwrap_or(true),
            cron,
            timezone,
            targets,
            options,
        }),
        _ => Err(ServiceError::Internal(
            "the schedule is incomplete although validation succeeded".into(),
        )),
    }
}

/// Validates a selector.
pub fn targets(errors: &mut ValidationErrors, value: &Value) -> Option<Selector> {
    let wrong = match Selector::parse(value) {
        Ok(selector) => return Some(selector),
        Err(wrong) => wrong,
    };
    for error in wrong {
        errors.add(&format!("/targets{}", error.pointer()), selector_code(&error), &error);
    }
    None
}

fn selector_code(error: &SelectorError) -> &'static str {
    match error {
        SelectorError::NotAnObject | SelectorError::Type { .. } => "invalid_type",
        SelectorError::Empty => "empty_targets",
        SelectorError::Unknown { .. } => "unknown_field",
        SelectorError::AllAndMore => "all_and_more",
        SelectorError::All => "invalid",
        SelectorError::EmptyList { .. } => "empty",
        SelectorError::TooMany { .. } => "too_many",
        SelectorError::Environment { .. } => "invalid_environment",
        SelectorError::Os { .. } => "invalid_os",
        SelectorError::Tag { .. } => "invalid_tag",
        SelectorError::ServerId { .. } => "invalid_id",
    }
}

/// Validates the options of a batch that a user starts now. They must state what to install; there
/// is no default.
pub fn batch_options(errors: &mut ValidationErrors, requested: OptionsRequest) -> PatchOptions {
    if requested.packages.is_none() && requested.security_only.is_none() {
        let detail = "`packages` or `security_only` is required; \
                      `\"packages\": []` selects all available updates";
        errors.add("", "nothing_selected", detail);
    }
    options(errors, "", requested)
}

/// Validates the name that a user gave a batch.
pub fn batch_name(errors: &mut ValidationErrors, name: Option<String>) -> Option<Line> {
    let name = errors.name("/name", name?);
    Some(Line::sanitize(&name))
}

/// Validates patch options. Omitted options have their defaults.
pub fn options(errors: &mut ValidationErrors, at: &str, requested: OptionsRequest) -> PatchOptions {
    let packages = requested.packages.unwrap_or_default();
    let exclude = requested.exclude.unwrap_or_default();
    for (field, list) in [("packages", &packages), ("exclude", &exclude)] {
        if list.len() > PACKAGES_MAX {
            errors.add(
                &format!("{at}/{field}"),
                "too_many",
                format!("must have at most {PACKAGES_MAX} entries"),
            );
        }
    }
    let packages = errors.parse_all(&format!("{at}/packages"), "invalid_package_name", &packages);
    let exclude = errors.parse_all(&format!("{at}/exclude"), "invalid_pattern", &exclude);
    let reboot = requested.reboot.as_deref().and_then(|text| {
        errors.parse::<RebootPolicy>(&format!("{at}/reboot"), "invalid_reboot_policy", text)
    });
    let mut number = |field: &str, value: Option<i64>, min: u32, max: u32| {
        let value = value?;
        let within = u32::try_from(value).ok().filter(|value| (min..=max).contains(value));
        if within.is_none() {
            errors.add(
                &format!("{at}/{field}"),
                "out_of_range",
                format!("must be from {min} to {max}"),
            );
        }
        within
    };
    let stagger = number("stagger_minutes", requested.stagger_minutes, 0, STAGGER_MINUTES_MAX);
    let max_parallel = number("max_parallel", requested.max_parallel, 1, PARALLEL_MAX);
    let window_minutes = number("window_minutes", requested.window_minutes, 1, WINDOW_MINUTES_MAX);
    if let Some(Err(error)) = requested.max_failures.map(vocab::Portion::at_least_one) {
        errors.add(&format!("{at}/max_failures"), "out_of_range", error);
    }
    PatchOptions {
        order: OrderOptions {
            packages: deduplicate(packages),
            exclude: deduplicate(exclude),
            security_only: requested.security_only.unwrap_or(false),
            reboot: reboot.unwrap_or_default(),
            dry_run: requested.dry_run.unwrap_or(false),
        },
        pace: Pace {
            stagger_minutes: stagger.unwrap_or(0),
            max_parallel,
            canary: requested.canary.filter(|canary| *canary != vocab::Portion::Count(0)),
            max_failures: requested.max_failures,
            window_minutes,
        },
    }
}

/// The servers that a request names, without duplicates, each with its index. An invalid id is
/// reported as an unknown server.
pub fn server_ids(errors: &mut ValidationErrors, texts: &[String]) -> Vec<(usize, ServerId)> {
    if texts.is_empty() {
        errors.add("/server_ids", "empty", "at least one server is required");
    }
    if texts.len() > SERVER_IDS_MAX {
        errors.add(
            "/server_ids",
            "too_many",
            format!("must have at most {SERVER_IDS_MAX} entries"),
        );
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut ids = Vec::with_capacity(texts.len());
    for (place, text) in texts.iter().enumerate() {
        match text.parse::<ServerId>() {
            Ok(id) if seen.insert(id) => ids.push((place, id)),
            Ok(_) => {}
            Err(_) => add_unknown_server(errors, place, text),
        }
    }
    ids
}

/// Reports a server that does not exist.
pub fn add_unknown_server(errors: &mut ValidationErrors, place: usize, text: &str) {
    let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    errors.add(
        &format!("/server_ids/{place}"),
        "not_found",
        format!("there is no server `{shown}`"),
    );
}

fn deduplicate<T: Ord + Clone>(items: Vec<T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    items.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(body: Value) -> Vec<(String, &'static str)> {
        let body: ScheduleRequest = serde_json::from_value(body).unwrap();
        let error = schedule((body, ValidationErrors::default())).unwrap_err();
        let ServiceError::Invalid(errors) = error else { panic!("{error}") };
        errors.iter().map(|error| (error.pointer.clone(), error.code)).collect()
    }

    #[test]
    fn all_errors_of_a_schedule_are_reported_at_once() {
        let wrong = refused(
            json!({"name": " ", "description": "x".repeat(2_001), "cron": "0 0 30 2 *",
            "timezone": "Mars/Olympus", "targets": {}, "options": {"packages": ["bash", "bash="],
            "exclude": ["a b"], "reboot": "if-required", "stagger_minutes": 1_441, "max_parallel": 0,
            "max_failures": 0, "window_minutes": -1}}),
        );
        let wrong: Vec<_> = wrong.iter().map(|(pointer, code)| (pointer.as_str(), *code)).collect();
        assert_eq!(
            wrong,
            [
                ("/name", "empty"),
                ("/description", "too_long"),
                ("/cron", "invalid_cron"),
                ("/timezone", "invalid_timezone"),
                ("/targets", "empty_targets"),
                ("/options/packages/1", "invalid_package_name"),
                ("/options/exclude/0", "invalid_pattern"),
                ("/options/reboot", "invalid_reboot_policy"),
                ("/options/stagger_minutes", "out_of_range"),
                ("/options/max_parallel", "out_of_range"),
                ("/options/window_minutes", "out_of_range"),
                ("/options/max_failures", "out_of_range"),
            ]
        );
    }

    #[test]
    fn omitted_fields_have_the_documented_defaults() {
        let body = json!({"name": "n", "cron": "@daily", "targets": {"all": true}});
        let body = serde_json::from_value(body).unwrap();
        let wanted = schedule((body, ValidationErrors::default())).unwrap();
        assert!(wanted.enabled && wanted.description.is_empty());
        assert_eq!(
            (wanted.timezone.to_string(), wanted.options),
            ("UTC".into(), PatchOptions::default())
        );
    }

    #[test]
    fn order_must_state_what_to_install() {
        let request = |body: Value| {
            let mut errors = ValidationErrors::default();
            batch_options(&mut errors, serde_json::from_value(body).unwrap());
            errors.into_result().map_err(|error| match error {
                ServiceError::Invalid(errors) => errors[0].code,
                other => panic!("{other}"),
            })
        };
        assert_eq!(request(json!({"reboot": "never"})), Err("nothing_selected"));
        assert_eq!(request(json!({"packages": []})), Ok(()));
        assert_eq!(request(json!({"security_only": true})), Ok(()));
    }
}
