//! Formats values for display.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use service::attention::{self, Area, Urgency};
use vocab::{ComplianceState, Cron, HealthMode, Selector, Tone, Zone};
use wire::v1::{
    Compliance, ComplianceDay, FeedPhase, FeedProgress, Freeze, Meta, Options, PackageChange,
    PolicyRule, Progress, TaskHealth,
};

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Text as a segment of a path.
pub fn path_segment(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// The API name of an enum value.
pub fn api_name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// The API name of an enum value, with spaces instead of underscores.
pub fn label(value: impl Serialize) -> String {
    with_spaces(&api_name(&value))
}

/// An API name with spaces instead of underscores.
pub fn with_spaces(word: &str) -> String {
    word.replace('_', " ")
}

/// A state as a colored label.
pub fn pill(value: &impl Serialize) -> String {
    let word = api_name(value);
    let class = Tone::for_word(&word).class();
    format!("<span class=\"pill {class}\">{}</span>", escape(&with_spaces(&word)))
}

/// The class of the color of a state or severity.
pub fn tone_class(word: &str) -> &'static str {
    Tone::for_word(word).class()
}

/// How far the import of a feed is: `Importing: 41%, about 3 min left`.
pub fn describe_import(progress: &FeedProgress) -> String {
    [phase_name(progress.phase), &import_figures(progress)].concat()
}

/// How far the import of a feed is, with its name: `Importing Debian: 41%`.
pub fn describe_import_of(name: &str, progress: &FeedProgress) -> String {
    format!("{} {name}{}", phase_name(progress.phase), import_figures(progress))
}

const fn phase_name(phase: FeedPhase) -> &'static str {
    match phase {
        FeedPhase::Downloading => "Downloading",
        FeedPhase::Checking => "Checking",
        FeedPhase::Importing => "Importing",
    }
}

/// Begins with a colon, or is empty if nothing is known.
fn import_figures(progress: &FeedProgress) -> String {
    let done = match progress.percent {
        Some(percent) => format!(": {percent}%"),
        None if progress.bytes > 0 => format!(": {} MiB", progress.bytes >> 20),
        None => return String::new(),
    };
    match progress.estimated_seconds_left {
        Some(seconds @ 0..90) => format!("{done}, about {seconds} s left"),
        Some(seconds) => format!("{done}, about {} min left", (seconds + 30) / 60),
        None => done,
    }
}

/// A number, passed by value or by reference, of any integer type. Templates need this.
pub trait Count {
    fn count(&self) -> u64;
}

macro_rules! count {
    ($($kind:ty),*) => {$(
        impl Count for $kind {
            fn count(&self) -> u64 {
                u64::try_from(*self).unwrap_or(u64::MAX)
            }
        }
    )*};
}
count!(u32, u64, usize);

impl<T: Count> Count for &T {
    fn count(&self) -> u64 {
        (**self).count()
    }
}

pub fn is_truncated(shown: impl Count, all: impl Count) -> bool {
    shown.count() < all.count()
}

/// A number with thousands separators.
pub fn number(value: impl Count) -> String {
    attention::number(value.count())
}

/// The class of an item that needs a person.
pub const fn urgency_class(urgency: &Urgency) -> &'static str {
    match urgency {
        Urgency::Bad => "is-bad",
        Urgency::Warn => "is-warn",
        Urgency::Unknown => "is-open",
    }
}

/// The class of the state of the fleet; `None` if all is well.
pub fn verdict_class(urgency: &Option<Urgency>) -> &'static str {
    urgency.as_ref().map_or("is-good", urgency_class)
}

/// The name of the icon of an item that needs a person.
pub const fn area_icon(area: &Area) -> &'static str {
    match area {
        Area::Batches => "batches",
        Area::Cves => "cves",
        Area::Servers => "servers",
        Area::Patches => "patches",
        Area::Reboots => "power",
        Area::Feeds => "download",
        Area::Scans => "clock",
    }
}

/// The number of the last row on the page.
pub fn last_shown(meta: &Meta) -> u64 {
    meta.total.min(meta.offset.saturating_add(u64::from(meta.limit)))
}

/// The singular or the plural form.
pub fn plural(count: impl Count, one: &'static str, many: &'static str) -> &'static str {
    attention::plural(count.count(), one, many)
}

/// A percentage that is never rounded up to 100 %.
pub fn share(part: impl Count, whole: impl Count) -> String {
    let part = part.count();
    match whole.count() {
        0 => "–".into(),
        whole => format!("{} %", part.min(whole).saturating_mul(100) / whole),
    }
}

pub fn score(value: &Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |score| format!("{score:.1}"))
}

/// A probability as a percentage.
pub fn probability(value: &Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |chance| format!("{:.1} %", chance * 100.0))
}

/// The number of tasks by state, for the states that occur.
pub fn counts(progress: &Progress) -> Vec<(String, u64)> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(progress) else {
        return Vec::new();
    };
    let states =
        fields.into_iter().filter(|(name, _)| !matches!(name.as_str(), "total" | "percent"));
    states
        .filter_map(|(name, count)| Some((name, count.as_u64()?)))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// A package change as one line of HTML.
pub fn change_html(change: &PackageChange) -> String {
    let version = |version: &Option<String>, none| {
        version.as_deref().map_or_else(|| format!("<em>{none}</em>"), escape)
    };
    let (from, to) = (version(&change.from, "new"), version(&change.to, "removed"));
    let name = escape(&change.name);
    format!("<div>{name} <span class=\"mono dim\">{from} → {to}</span></div>")
}

/// What a batch installs.
pub fn describe_updates(options: &Options) -> String {
    let names: Vec<String> = options.packages.iter().map(ToString::to_string).collect();
    let mut label = match (names.as_slice(), options.security_only) {
        ([], true) => "Security updates".to_owned(),
        ([], false) => "All updates".to_owned(),
        ([one, two, three, .., _], _) => {
            format!("{one}, {two}, {three} and {} more", names.len() - 3)
        }
        (few, _) => few.join(", "),
    };
    if !options.exclude.is_empty() {
        let never: Vec<String> = options.exclude.iter().map(ToString::to_string).collect();
        label += &format!(" except {}", never.join(", "));
    }
    if options.dry_run { label + " (dry run)" } else { label }
}

/// The label of the button that starts a batch.
pub fn start_label(options: &Options, servers: impl Count) -> String {
    let count = servers.count();
    let target = format!("{} {}", number(count), plural(count, "server", "servers"));
    let packages = options.packages.len();
    let named = format!("{} {}", number(packages), plural(packages, "package", "packages"));
    let what = match (packages, options.security_only) {
        (0, false) => String::new(),
        (0, true) => " (security updates)".to_owned(),
        (_, false) => format!(" ({named})"),
        (_, true) => format!(" (security updates of {named})"),
    };
    match options.dry_run {
        true => format!("Dry run on {target}{what}"),
        false => format!("Patch {target}{what}"),
    }
}

/// The rollout options of a batch, such as parallelism and canary.
pub fn describe_pace(options: &Options) -> String {
    let canary = options.canary.to_string();
    let parts = [
        (options.stagger_minutes > 0)
            .then(|| format!("{} min between starts", options.stagger_minutes)),
        options.max_parallel.map(|max| format!("max {max} in parallel")),
        (canary != "0").then(|| format!("canary {canary}")),
        options.max_failures.map(|limit| format!("failure limit {limit}")),
        options.window_minutes.map(|window| format!("window {window} min")),
        describe_health(options),
    ];
    let label: Vec<String> = parts.into_iter().flatten().collect();
    if label.is_empty() { "all in parallel".into() } else { label.join(", ") }
}

/// What a batch does about the health of its servers, unless it only shows it.
pub fn describe_health(options: &Options) -> Option<String> {
    match options.health {
        HealthMode::Off => Some("health not measured".to_owned()),
        HealthMode::Report => None,
        HealthMode::Gate => match options.max_unhealthy.to_string() {
            zero if zero == "0" => Some("waves must be healthy".to_owned()),
            limit => Some(format!("waves must be healthy, except {limit}")),
        },
    }
}

/// The problems of a server in words, separated by commas.
pub fn describe_problems(health: &TaskHealth) -> String {
    let problems: Vec<&str> =
        health.problems.iter().map(|problem| problem.description.as_str()).collect();
    problems.join(", ")
}

/// The servers that a selector matches.
pub fn describe_targets(selector: &Selector) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(selector) else {
        return String::new();
    };
    let label = fields.iter().filter(|(_, value)| !value.is_null()).filter_map(|(name, value)| {
        match (name.as_str(), value) {
            ("all", serde_json::Value::Bool(true)) => Some("every server".to_owned()),
            (_, serde_json::Value::Array(list)) if list.is_empty() => None,
            ("server_ids", serde_json::Value::Array(list)) => {
                Some(format!("{} selected servers", list.len()))
            }
            (name, serde_json::Value::Array(list)) => {
                let texts: Vec<&str> = list.iter().filter_map(serde_json::Value::as_str).collect();
                Some(format!("{name} {}", texts.join(", ")))
            }
            (name, serde_json::Value::String(text)) => Some(format!("{name} {text}")),
            _ => None,
        }
    });
    label.collect::<Vec<_>>().join(" · ")
}

/// When a schedule runs, as HTML: a sentence with the cron expression as tooltip, or the expression
/// if there is no sentence for it.
pub fn when(cron: &Cron) -> String {
    let text = escape(&cron.to_string());
    match cron.pattern() {
        Some(pattern) => format!("<span title=\"{text}\">{pattern}</span>"),
        None => format!("<code>{text}</code>"),
    }
}

/// The rules of a policy in words: "critical within 7 days, all security updates within 30 days".
pub fn policy_rules(rules: &[PolicyRule]) -> String {
    let rule = |rule: &PolicyRule| {
        let days = plural(u64::from(rule.within_days), "day", "days");
        format!("{} within {} {days}", rule.matches.description(), rule.within_days)
    };
    rules.iter().map(rule).collect::<Vec<_>>().join(", ")
}

/// The four states of a row: the label, the name in the API, the number of servers, and the class.
pub fn compliance_counts(row: &Compliance) -> [(&'static str, &'static str, u64, &'static str); 4] {
    let state = |label, state: ComplianceState, count| {
        (label, state.as_str(), count, Tone::for_word(state.as_str()).class())
    };
    [
        state("Compliant", ComplianceState::Compliant, row.compliant),
        state("Due soon", ComplianceState::DueSoon, row.due_soon),
        state("Breaching", ComplianceState::Breaching, row.breaching),
        state("Unknown", ComplianceState::Unknown, row.unknown),
    ]
}

/// The share of compliant servers on each day of the trend, as a small chart.
pub fn compliance_trend(row: &Compliance) -> String {
    let share = |day: &ComplianceDay| {
        let all = day.compliant + day.due_soon + day.breaching + day.unknown;
        (day.compliant + day.due_soon) * 100 / all.max(1)
    };
    let Some((first, last)) = row.trend.first().zip(row.trend.last()) else {
        return "<span class=\"dim\">–</span>".to_owned();
    };
    let label = format!(
        "{} % not in breach on {}, {} % on {}",
        share(first),
        first.day,
        share(last),
        last.day
    );
    let points: Vec<String> = row
        .trend
        .iter()
        .enumerate()
        .map(|(place, day)| {
            format!("{},{}", (90 + place).saturating_sub(row.trend.len()), 21 - share(day) / 5)
        })
        .collect();
    format!(
        "<svg class=\"spark\" width=\"90\" height=\"22\" viewBox=\"0 0 90 22\" role=\"img\" \
         aria-label=\"{label}\"><polyline points=\"{}\" fill=\"none\" stroke=\"currentColor\"/></svg> \
         <span class=\"dim\">{}\u{a0}%</span>",
        points.join(" "),
        share(last)
    )
}

/// When a freeze is active, in words.
pub fn freeze_when(freeze: &Freeze) -> String {
    match (freeze.starts_at, freeze.ends_at, &freeze.cron, freeze.duration_minutes) {
        (Some(starts_at), Some(ends_at), ..) => {
            let utc = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M").to_string();
            format!("{} to {} UTC", utc(starts_at), utc(ends_at))
        }
        (_, _, Some(cron), Some(minutes)) => {
            let zone = freeze.timezone.as_ref().map(|zone| format!(" ({zone})"));
            let zone = zone.unwrap_or_default();
            format!("{}{zone}, for {}", cron.describe(), describe_minutes(minutes))
        }
        _ => String::new(),
    }
}

/// A duration of whole minutes, such as `10 h` or `1 h 30 min`.
fn describe_minutes(minutes: u32) -> String {
    let (days, hours, rest) = (minutes / 1_440, minutes / 60 % 24, minutes % 60);
    let parts = [(days, "d"), (hours, "h"), (rest, "min")];
    let shown = parts.into_iter().filter(|(count, _)| *count > 0);
    shown.map(|(count, unit)| format!("{count} {unit}")).collect::<Vec<_>>().join(" ")
}

/// A time in the given time zone.
pub fn in_zone(at: &Timestamp, zone: &Zone) -> String {
    let zone = TimeZone::get(&zone.to_string()).unwrap_or(TimeZone::UTC);
    at.to_zoned(zone).strftime("%a %Y-%m-%d %H:%M").to_string()
}

/// A time that the page's script converts to the browser's time zone.
pub fn local(at: &Timestamp) -> String {
    format!("<time data-local datetime=\"{at}\">{}</time>", at.strftime("%Y-%m-%d %H:%M UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_display() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0_u64, 999, 1_000, 1_234_567].map(number)[..]
        );
        assert_eq!(
            [share(1_u32, 3_u32), share(999_u64, 1_000_u64), share(0_usize, 0_usize)],
            ["33 %", "99 %", "–"]
        );
    }

    #[test]
    fn import_progress_shows_only_what_is_known() {
        let progress = |percent, left| FeedProgress {
            phase: FeedPhase::Importing,
            bytes: 5 << 20,
            total_bytes: None,
            records: 0,
            total_records: None,
            percent,
            estimated_seconds_left: left,
        };
        for (percent, left, expected) in [
            (Some(41), None, "Importing Debian: 41%"),
            (Some(41), Some(7), "Importing Debian: 41%, about 7 s left"),
            (Some(41), Some(170), "Importing Debian: 41%, about 3 min left"),
            (None, None, "Importing Debian: 5 MiB"),
        ] {
            assert_eq!(describe_import_of("Debian", &progress(percent, left)), expected);
        }
        let start =
            FeedProgress { phase: FeedPhase::Downloading, bytes: 0, ..progress(None, None) };
        assert_eq!(describe_import(&start), "Downloading");
    }

    #[test]
    fn functions_that_build_markup_escape_values() {
        assert_eq!(
            escape("<b onx='1' y=\"2\">&"),
            "&lt;b onx=&#39;1&#39; y=&quot;2&quot;&gt;&amp;"
        );
        let pill = pill(&"<script>");
        assert!(!pill.contains("<script>"), "{pill}");
    }
}
