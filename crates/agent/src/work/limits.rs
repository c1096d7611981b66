//! Host limits, set by the host's administrator in `/etc/fleetmend/limits.toml`. They override
//! orders.
//!
//! ```toml
//! frozen = false            # no installations, restarts or reboots
//! never_reboot = true       # this host is never rebooted
//! never_upgrade_agent = true # the agent is never replaced by a newer version
//! reboot_in_container = true # a system container may be rebooted like a server
//! security_only = true      # updates other than security updates are skipped
//! exclude = ["linux-*"]     # never updated
//! max_packages = 200        # an order that would change more is rejected
//! allowed_hours = [{ days = ["sat", "sun"], from = "22:00", to = "05:00" }]
//! ```
//!
//! Hours are in the host's local time, from its `/etc/localtime`, or in UTC if that cannot be read.
//! A span that ends before it starts crosses midnight and belongs to the day on which it starts;
//! without `days` it applies to every day. If the file is invalid, only scans are allowed: an
//! administrator's typo must not permit what was meant to be forbidden. If the file does not exist,
//! everything is allowed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use jiff::Timestamp;
use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use serde::Deserialize;
use vocab::{Line, PackagePattern};
use wire::v1::HostLimits;

use crate::root::Root;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// No installations, restarts or reboots.
    pub frozen: bool,
    /// This host is never rebooted.
    pub never_reboot: bool,
    /// The agent is never replaced by a newer version.
    pub never_upgrade_agent: bool,
    /// Whether a container may be rebooted. Set this only for a container with its own init: one
    /// that runs a single program would stop and not come back.
    pub reboot_in_container: bool,
    /// Install only security updates.
    pub security_only: bool,
    /// Packages that are never updated.
    pub exclude: Vec<PackagePattern>,
    /// Maximum number of packages that one order may change.
    pub max_packages: Option<usize>,
    /// When installations, restarts and reboots are allowed; always if not set.
    pub allowed_hours: Option<Vec<AllowedHours>>,
}

/// Allowed hours on some days.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedHours {
    /// The days on which the span starts; every day if empty.
    #[serde(default)]
    pub days: Vec<Day>,
    /// Start time, such as `22:00`.
    pub from: TimeOfDay,
    /// End time (exclusive), such as `05:00`. `24:00` is the end of the day.
    pub to: TimeOfDay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// A time of day, in minutes since midnight; at most 24 hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct TimeOfDay(u32);

/// What the limits forbid at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActiveLimits {
    /// Why the file is invalid. If set, only scans are allowed.
    pub unreadable: Option<Line>,
    /// Why no changes are allowed.
    pub no_change: Option<Line>,
    /// Why reboots are not allowed.
    pub no_reboot: Option<Line>,
    /// Why the agent must not be upgraded.
    pub no_upgrade: Option<Line>,
}

impl ActiveLimits {
    /// Why installations and restarts are forbidden, if they are.
    pub fn forbids_change(&self) -> Option<Line> {
        self.unreadable.clone().or_else(|| self.no_change.clone())
    }

    /// Why reboots are forbidden, if they are.
    pub fn forbids_reboot(&self) -> Option<Line> {
        self.forbids_change().or_else(|| self.no_reboot.clone())
    }

    /// Why an upgrade of the agent is forbidden, if it is.
    pub fn forbids_upgrade(&self) -> Option<Line> {
        self.forbids_change().or_else(|| self.no_upgrade.clone())
    }
}

impl Limits {
    /// Reads the file. A missing file sets no limits; an invalid one is an error with its reason.
    pub fn read(path: &Path) -> Result<Limits, Line> {
        let wrong = |why: String| Line::from(format!("{}: {why}", path.display()));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Limits::default());
            }
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        };
        if let Some(why) = untrusted_reason(path) {
            return Err(wrong(why));
        }
        toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            wrong(format!("line {line}: {}", error.message()))
        })
    }

    /// The limits in effect at `now`.
    pub fn active_at(&self, path: &Path, zone: &TimeZone, now: Timestamp) -> ActiveLimits {
        let says = |words: &str| Some(Line::from(format!("{}: {words}", path.display())));
        let mut active_limits = ActiveLimits::default();
        if self.frozen {
            active_limits.no_change = says("`frozen` is set");
        } else if !self.allows(zone, now) {
            let local = now.to_zoned(zone.clone()).strftime("%a %H:%M").to_string();
            active_limits.no_change = says(&format!("`allowed_hours` does not include {local}"));
        }
        if self.never_reboot {
            active_limits.no_reboot = says("`never_reboot` is set");
        }
        if self.never_upgrade_agent {
            active_limits.no_upgrade = says("`never_upgrade_agent` is set");
        }
        active_limits
    }

    /// The limits as reported to the service.
    pub fn to_host_limits(path: &Path, zone: &TimeZone) -> HostLimits {
        match Limits::read(path) {
            Err(error) => HostLimits { error: Some(error), ..HostLimits::default() },
            Ok(limits) => HostLimits {
                error: None,
                frozen: limits.frozen,
                never_reboot: limits.never_reboot,
                never_upgrade_agent: limits.never_upgrade_agent,
                security_only: limits.security_only,
                exclude: limits.exclude,
                max_packages: limits.max_packages.map(|max| max.try_into().unwrap_or(u32::MAX)),
                allowed_hours: match limits.allowed_hours.as_deref() {
                    None => Vec::new(),
                    Some([]) => vec![Line::from("never".to_owned())],
                    Some(spans) => spans.iter().map(|span| span.describe(zone)).collect(),
                },
            },
        }
    }

    fn allows(&self, zone: &TimeZone, now: Timestamp) -> bool {
        let Some(spans) = &self.allowed_hours else { return true };
        let local = now.to_zoned(zone.clone());
        let minute = minute_of_day(local.time());
        let today = Day::from_weekday(local.weekday());
        let yesterday = Day::from_weekday(local.weekday().previous());
        spans.iter().any(|span| span.contains(today, yesterday, minute))
    }
}

impl AllowedHours {
    fn describe(&self, zone: &TimeZone) -> Line {
        let days: Vec<&str> = self.days.iter().map(|day| day.as_str()).collect();
        let days = if days.is_empty() { "daily".to_owned() } else { days.join(", ") };
        let zone = zone.iana_name().unwrap_or("local time");
        Line::from(format!("{days} {}-{} ({zone})", self.from, self.to))
    }

    fn contains(&self, today: Day, yesterday: Day, minute: u32) -> bool {
        let on = |day: Day| self.days.is_empty() || self.days.contains(&day);
        let (from, to) = (self.from.0, self.to.0);
        match from < to {
            true => on(today) && from <= minute && minute < to,
            false => (on(today) && from <= minute) || (on(yesterday) && minute < to),
        }
    }
}

impl Day {
    fn as_str(self) -> &'static str {
        match self {
            Day::Mon => "Mon",
            Day::Tue => "Tue",
            Day::Wed => "Wed",
            Day::Thu => "Thu",
            Day::Fri => "Fri",
            Day::Sat => "Sat",
            Day::Sun => "Sun",
        }
    }

    fn from_weekday(day: Weekday) -> Day {
        match day {
            Weekday::Monday => Day::Mon,
            Weekday::Tuesday => Day::Tue,
            Weekday::Wednesday => Day::Wed,
            Weekday::Thursday => Day::Thu,
            Weekday::Friday => Day::Fri,
            Weekday::Saturday => Day::Sat,
            Weekday::Sunday => Day::Sun,
        }
    }
}

fn minute_of_day(time: Time) -> u32 {
    let (hour, minute) = (time.hour().unsigned_abs(), time.minute().unsigned_abs());
    u32::from(hour) * 60 + u32::from(minute)
}

impl std::fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = String;
    fn try_from(text: String) -> Result<TimeOfDay, String> {
        let wrong = || format!("`{text}` is not a time of day such as `22:00`");
        let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
        let number = |part: &str| match part.len() == 2 {
            true => part.parse::<u32>().map_err(|_| wrong()),
            false => Err(wrong()),
        };
        let (hour, minute) = (number(hour)?, number(minute)?);
        let clock = TimeOfDay(hour * 60 + minute);
        if minute < 60 && clock <= TimeOfDay(24 * 60) { Ok(clock) } else { Err(wrong()) }
    }
}

/// Why a file of the administrator cannot be trusted: another user may have written it.
pub(super) fn untrusted_reason(path: &Path) -> Option<String> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) => return Some(format!("cannot be read: {error}")),
    };
    let owner = found.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Some(format!("owned by user {owner} instead of root"));
    }
    (found.mode() & 0o022 != 0).then(|| "writable by users other than its owner".to_owned())
}

/// The local time zone of the managed system.
pub fn local_time_zone(root: &Root) -> TimeZone {
    let path = root.entry("/etc/localtime");
    // Reads the link's target text: it points into the managed system, not into the running one.
    if let Ok(target) = fs::read_link(&path) {
        let target = target.to_string_lossy();
        let name = target.split_once("zoneinfo/").map(|(_, name)| name).unwrap_or_default();
        return TimeZone::get(name).unwrap_or(TimeZone::UTC);
    }
    let read = fs::read(&path).ok().and_then(|bytes| TimeZone::tzif("localtime", &bytes).ok());
    read.unwrap_or(TimeZone::UTC)
}

#[cfg(test)]
#[path = "limits/tests.rs"]
mod tests;
