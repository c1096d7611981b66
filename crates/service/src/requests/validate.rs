//! Validates request bodies and converts them, or reports all errors at once. Does not access the
//! database.

use std::collections::BTreeSet;

use domain::freeze::{Freeze, MERGE_HORIZON, Timing};
use domain::policy::{Match, Rule};
use domain::rollout::Pace;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use vocab::{
    Cron, HealthMode, Line, Portion, RebootPolicy, Selector, SelectorError, ServerId, Severity,
    Wave, Zone,
};
use wire::v1::{
    FreezeRequest, OptionsRequest, PolicyMatchRequest, PolicyRequest, PolicyRuleRequest,
    ScheduleRequest, WaveRequest,
};

use super::ValidationErrors;
use crate::commands::freezes::FreezeInput;
use crate::commands::policies::PolicyInput;
use crate::commands::schedules::ScheduleInput;
use crate::{OrderOptions, PatchOptions, Result, ServiceError};

const PACKAGES_MAX: usize = 1_000;
const STAGGER_MINUTES_MAX: u32 = 1_440;
const PARALLEL_MAX: u32 = 100_000;
/// Four weeks: a longer window is probably a mistake in the unit.
const WINDOW_MINUTES_MAX: u32 = 40_320;
/// Maximum length of the reason for overriding freezes.
const OVERRIDE_CHARS_MAX: usize = 200;
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

/// Maximum duration of one period of a recurring freeze: 30 days.
const FREEZE_MINUTES_MAX: i64 = 43_200;

/// Validates a freeze. A one-off freeze without a start begins `now`.
pub fn freeze(
    (body, mut errors): (FreezeRequest, ValidationErrors),
    now: Timestamp,
) -> Result<FreezeInput> {
    let name = errors.name("/name", body.name);
    if body.reason.trim().is_empty() {
        errors.add("/reason", "empty", "must not be empty");
    }
    errors.prose("/reason", &body.reason);
    let targets = targets(&mut errors, &body.targets);
    let is_one_off = body.starts_at.is_some() || body.ends_at.is_some();
    let is_recurring =
        body.cron.is_some() || body.duration_minutes.is_some() || body.timezone.is_some();
    if is_one_off && is_recurring {
        let detail = "use either `ends_at` (and `starts_at`), or `cron` and `duration_minutes` \
                      (and `timezone`)";
        errors.add("", "one_off_and_recurring", detail);
    } else if !is_one_off && !is_recurring {
        errors.add("", "no_period", "`ends_at` or `cron` is required");
    }
    let starts_at = errors.time("/starts_at", body.starts_at.as_deref());
    let ends_at = errors.time("/ends_at", body.ends_at.as_deref());
    let mut timing = None;
    if is_one_off && !is_recurring {
        if body.ends_at.is_none() {
            errors.add("/ends_at", "required", "is required for a one-off freeze");
        }
        // With microsecond precision, as stored.
        let starts_at = match body.starts_at {
            Some(_) => starts_at,
            None => Timestamp::from_microsecond(now.as_microsecond()).ok(),
        };
        if let (Some(starts_at), Some(ends_at)) = (starts_at, ends_at) {
            check_length(&mut errors, starts_at, ends_at);
            timing = Some(Timing::OneOff { starts_at, ends_at });
        }
    }
    let cron = body.cron.as_deref().and_then(|cron| errors.parse("/cron", "invalid_cron", cron));
    let timezone = body.timezone.as_deref().unwrap_or("UTC");
    let timezone: Option<Zone> = errors.parse("/timezone", "invalid_timezone", timezone);
    let minutes = body.duration_minutes;
    if minutes.is_some_and(|minutes| !(1..=FREEZE_MINUTES_MAX).contains(&minutes)) {
        let detail = format!("must be from 1 to {FREEZE_MINUTES_MAX}");
        errors.add("/duration_minutes", "out_of_range", detail);
    } else if is_recurring && !is_one_off {
        if body.cron.is_none() {
            errors.add("/cron", "required", "is required for a recurring freeze");
        }
        if minutes.is_none() {
            errors.add("/duration_minutes", "required", "is required for a recurring freeze");
        }
        if let (Some(cron), Some(minutes), Some(timezone)) = (cron, minutes, timezone) {
            let duration = SignedDuration::from_mins(minutes);
            let recurring = Timing::Recurring { cron, duration, timezone };
            if recurring.is_endless(now) {
                let detail = "each period begins before the previous one has ended, so the freeze \
                              would never end: use a shorter duration or a rarer `cron`, or \
                              `starts_at` and `ends_at`";
                errors.add("/duration_minutes", "never_ends", detail);
            }
            timing = Some(recurring);
        }
    }
    errors.into_result()?;
    match (targets, timing) {
        (Some(targets), Some(timing)) => {
            Ok(FreezeInput { name, reason: body.reason, rule: Freeze { targets, timing } })
        }
        _ => Err(ServiceError::Internal(
            "the freeze is incomplete although validation succeeded".into(),
        )),
    }
}

/// Maximum number of rules of a policy.
const RULES_MAX: usize = 20;
/// Maximum number of days that a policy leaves: ten years.
const WITHIN_DAYS_MAX: u32 = 3_650;

/// Validates a policy.
pub fn policy((body, mut errors): (PolicyRequest, ValidationErrors)) -> Result<PolicyInput> {
    let name = errors.name("/name", body.name);
    errors.prose("/description", &body.description);
    let targets = targets(&mut errors, &body.targets);
    if body.rules.is_empty() {
        errors.add("/rules", "empty", "at least one rule is required");
    } else if body.rules.len() > RULES_MAX {
        errors.add("/rules", "too_many", format!("must have at most {RULES_MAX} items"));
    }
    let rules: Vec<Option<Rule>> = body
        .rules
        .iter()
        .enumerate()
        .take(RULES_MAX)
        .map(|(place, rule)| policy_rule(&mut errors, &format!("/rules/{place}"), rule))
        .collect();
    errors.into_result()?;
    match (targets, rules.into_iter().collect()) {
        (Some(targets), Some(rules)) => {
            Ok(PolicyInput { name, description: body.description, targets, rules })
        }
        _ => Err(ServiceError::Internal(
            "the policy is incomplete although validation succeeded".into(),
        )),
    }
}

fn policy_rule(errors: &mut ValidationErrors, at: &str, rule: &PolicyRuleRequest) -> Option<Rule> {
    let days = u32::try_from(rule.within_days).ok().filter(|days| *days <= WITHIN_DAYS_MAX);
    if days.is_none() {
        let detail = format!("must be from 0 to {WITHIN_DAYS_MAX}");
        errors.add(&format!("{at}/within_days"), "out_of_range", detail);
    }
    let PolicyMatchRequest { kev, severity, security } = &rule.matches;
    let given = usize::from(kev.is_some())
        + usize::from(severity.is_some())
        + usize::from(security.is_some());
    if given != 1 {
        let detail = "must have exactly one of `kev`, `severity` and `security`";
        errors.add(&format!("{at}/match"), "ambiguous", detail);
        return None;
    }
    for (field, value) in [("kev", kev), ("security", security)] {
        if *value == Some(false) {
            let detail = "must be true; leave the rule out to require nothing";
            errors.add(&format!("{at}/match/{field}"), "not_true", detail);
            return None;
        }
    }
    let matches = match severity {
        None if kev.is_some() => Match::Kev,
        None => Match::Security,
        Some(severity) => {
            let pointer = format!("{at}/match/severity");
            let severity: Severity = errors.parse(&pointer, "invalid_severity", severity)?;
            if severity == Severity::Unknown {
                let detail = "must be a severity; use `security` for all security updates";
                errors.add(&pointer, "invalid_severity", detail);
                return None;
            }
            Match::Severity(severity)
        }
    };
    Some(Rule { matches, within_days: days? })
}

/// Checks that a one-off freeze ends after its start, and not too long after it.
fn check_length(errors: &mut ValidationErrors, starts_at: Timestamp, ends_at: Timestamp) {
    if ends_at <= starts_at {
        errors.add("/ends_at", "out_of_range", "must be after `starts_at`");
    } else if ends_at.duration_since(starts_at) > MERGE_HORIZON {
        let days = MERGE_HORIZON.as_hours() / 24;
        errors.add(
            "/ends_at",
            "out_of_range",
            format!("must be at most {days} days after `starts_at`"),
        );
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
    let health = requested.health.as_deref().and_then(|text| {
        errors.parse::<HealthMode>(&format!("{at}/health"), "invalid_health_mode", text)
    });
    let health = health.unwrap_or_default();
    let max_unhealthy = requested.max_unhealthy.filter(|limit| *limit != Portion::Count(0));
    let canary = requested.canary.filter(|canary| *canary != Portion::Count(0));
    let waves = waves(errors, at, requested.waves.unwrap_or_default());
    if canary.is_some() && !waves.is_empty() {
        let detail = "`canary` is short for two waves: use either `canary` or `waves`";
        errors.add(&format!("{at}/waves"), "canary_and_waves", detail);
    }
    let override_freeze = requested
        .override_freeze
        .map(|reason| errors.line(&format!("{at}/override_freeze"), reason, OVERRIDE_CHARS_MAX));
    let pin_versions = requested.pin_versions.unwrap_or(false);
    let is_single = canary.is_none() && waves.len() < 2 && waves.iter().all(|w| w.size.is_none());
    if pin_versions && is_single {
        let detail = "needs `canary` or at least two waves: the first one installs the versions \
                      that the others get";
        errors.add(&format!("{at}/pin_versions"), "single_wave", detail);
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
            canary,
            waves,
            max_failures: requested.max_failures,
            window_minutes,
            override_freeze,
            pin_versions,
            health,
            max_unhealthy,
        },
    }
}

/// Validates the waves of a batch.
fn waves(errors: &mut ValidationErrors, at: &str, requested: Vec<WaveRequest>) -> Vec<Wave> {
    if requested.len() > Wave::COUNT_MAX {
        let detail = format!("must have at most {} entries", Wave::COUNT_MAX);
        errors.add(&format!("{at}/waves"), "too_many", detail);
        return Vec::new();
    }
    let last = requested.len().saturating_sub(1);
    let mut wave = |(n, wave): (usize, WaveRequest)| {
        let at = format!("{at}/waves/{n}");
        match wave.size.map(Portion::at_least_one) {
            Some(Err(error)) => errors.add(&format!("{at}/size"), "out_of_range", error),
            None if n < last => {
                errors.add(
                    &format!("{at}/size"),
                    "required",
                    "only the last wave may omit its size",
                );
            }
            None | Some(Ok(_)) => {}
        }
        let soak = u32::try_from(wave.soak_minutes.unwrap_or(0)).ok();
        let soak = soak.filter(|minutes| *minutes <= Wave::SOAK_MINUTES_MAX);
        if soak.is_none() {
            let detail = format!("must be from 0 to {}", Wave::SOAK_MINUTES_MAX);
            errors.add(&format!("{at}/soak_minutes"), "out_of_range", detail);
        }
        if wave.size.is_none() && soak.is_some_and(|minutes| minutes > 0) {
            let detail =
                "no wave follows the one that takes the rest, so nothing waits for its soak";
            errors.add(&format!("{at}/soak_minutes"), "soak_in_last_wave", detail);
        }
        Wave {
            size: wave.size,
            soak_minutes: soak.unwrap_or(0),
            approval: wave.approval.unwrap_or(false),
        }
    };
    requested.into_iter().enumerate().map(&mut wave).collect()
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
            "max_failures": 0, "window_minutes": -1, "canary": 1, "override_freeze": "",
            "waves": [{"size": 0, "soak_minutes": 10_081}, {}, {"soak_minutes": 5}]}}),
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
                ("/options/waves/0/size", "out_of_range"),
                ("/options/waves/0/soak_minutes", "out_of_range"),
                ("/options/waves/1/size", "required"),
                ("/options/waves/2/soak_minutes", "soak_in_last_wave"),
                ("/options/waves", "canary_and_waves"),
                ("/options/override_freeze", "empty"),
            ]
        );
    }

    fn freeze_errors(body: Value) -> Vec<(String, &'static str)> {
        let body: FreezeRequest = serde_json::from_value(body).unwrap();
        let now = "2026-11-15T04:00:00Z".parse().unwrap();
        match freeze((body, ValidationErrors::default()), now) {
            Ok(_) => Vec::new(),
            Err(ServiceError::Invalid(errors)) => {
                errors.iter().map(|error| (error.pointer.clone(), error.code)).collect()
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn all_errors_of_a_freeze_are_reported_at_once() {
        let refused = |body: Value, expected: &[(&str, &str)]| {
            let found = freeze_errors(body);
            let found: Vec<_> =
                found.iter().map(|(pointer, code)| (pointer.as_str(), *code)).collect();
            assert_eq!(found, expected);
        };
        refused(
            json!({"name": "", "reason": " ", "targets": {}, "cron": "61 * * * *",
                "duration_minutes": 43_201, "timezone": "Mars/Base"}),
            &[
                ("/name", "empty"),
                ("/reason", "empty"),
                ("/targets", "empty_targets"),
                ("/cron", "invalid_cron"),
                ("/timezone", "invalid_timezone"),
                ("/duration_minutes", "out_of_range"),
            ],
        );
        let with = |timing: Value| {
            let mut body = json!({"name": "n", "reason": "r", "targets": {"all": true}});
            body.as_object_mut().unwrap().extend(timing.as_object().unwrap().clone());
            body
        };
        refused(with(json!({})), &[("", "no_period")]);
        refused(with(json!({"starts_at": "2026-11-20T00:00:00Z"})), &[("/ends_at", "required")]);
        refused(with(json!({"cron": "@daily"})), &[("/duration_minutes", "required")]);
        refused(
            with(json!({"timezone": "UTC"})),
            &[("/cron", "required"), ("/duration_minutes", "required")],
        );
        refused(with(json!({"ends_at": "soon"})), &[("/ends_at", "invalid_time")]);
        refused(
            with(
                json!({"ends_at": "2026-11-20T00:00:00Z", "cron": "@daily", "duration_minutes": 1}),
            ),
            &[("", "one_off_and_recurring")],
        );
        let at = "2026-11-20T00:00:00Z";
        refused(with(json!({"starts_at": at, "ends_at": at})), &[("/ends_at", "out_of_range")]);
        // Without a start, it starts now, and an end in the past is before it.
        refused(with(json!({"ends_at": "2026-11-15T03:59:59Z"})), &[("/ends_at", "out_of_range")]);
        refused(
            with(json!({"starts_at": at, "ends_at": "2027-12-26T00:00:00Z"})),
            &[("/ends_at", "out_of_range")],
        );
        refused(with(json!({"starts_at": at, "ends_at": "2027-12-25T00:00:00Z"})), &[]);
        refused(
            with(json!({"cron": "0 0 30 2 *", "duration_minutes": 60})),
            &[("/cron", "invalid_cron")],
        );
        refused(
            with(json!({"cron": "@daily", "duration_minutes": 1_440})),
            &[("/duration_minutes", "never_ends")],
        );
        refused(with(json!({"cron": "@daily", "duration_minutes": 1_439})), &[]);
        refused(
            with(json!({"cron": "@daily", "duration_minutes": 0})),
            &[("/duration_minutes", "out_of_range")],
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
