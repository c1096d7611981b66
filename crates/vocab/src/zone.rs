//! Time zones by IANA name, from the database embedded in the program: the host's own database may
//! be missing or outdated, and replicas must agree.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::text::quote_input;

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A time zone with an IANA name: `Europe/Berlin`. The default is `UTC`.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

/// Error returned when parsing a time zone name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneError {
    /// The name, shortened.
    pub found: String,
    /// The name that was probably intended.
    pub nearest: Option<String>,
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not an IANA time zone name: ", self.found)?;
        match &self.nearest {
            Some(nearest) => write!(f, "did you mean `{nearest}`?"),
            None => write!(f, "use a name like `Europe/Berlin` or `UTC`"),
        }
    }
}

impl std::error::Error for ZoneError {}

impl Zone {
    /// The name, in the database's letter case.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    pub fn time_zone(&self) -> &TimeZone {
        &self.0
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl FromStr for Zone {
    type Err = ZoneError;
    fn from_str(text: &str) -> Result<Self, ZoneError> {
        let unknown = || ZoneError { found: quote_input(text), nearest: suggestion(text) };
        // The database also accepts this placeholder and returns UTC for it.
        if text.len() > 64 || text.eq_ignore_ascii_case("etc/unknown") {
            return Err(unknown());
        }
        if text.eq_ignore_ascii_case("UTC") {
            return Ok(Self::default());
        }
        DATABASE
            .get(text)
            .ok()
            .filter(|zone| zone.iana_name().is_some())
            .map(Self)
            .ok_or_else(unknown)
    }
}

/// Suggests the name with a typo corrected, or the full name of a city: `Berlin` becomes
/// `Europe/Berlin`.
fn suggestion(text: &str) -> Option<String> {
    let names: Vec<String> = DATABASE.available().map(|name| name.to_string()).collect();
    let city = text.trim().replace(' ', "_");
    names
        .iter()
        .find(|name| name.rsplit('/').next().is_some_and(|last| last.eq_ignore_ascii_case(&city)))
        .map(String::as_str)
        .or_else(|| crate::nearest(&city, names.iter().map(String::as_str)))
        .map(str::to_owned)
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

crate::text::serde_as_text!(Zone);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zone_displays_its_name_and_defaults_to_utc() {
        assert_eq!("Europe/Berlin".parse::<Zone>().unwrap().to_string(), "Europe/Berlin");
        assert_eq!("europe/berlin".parse::<Zone>().unwrap().to_string(), "Europe/Berlin");
        assert_eq!(Zone::default().to_string(), "UTC");
        assert_eq!("UTC".parse::<Zone>(), Ok(Zone::default()));
    }

    #[test]
    fn typo_or_bare_city_gets_a_suggestion() {
        let refusal = |text: &str| text.parse::<Zone>().unwrap_err().to_string();
        let suggestion = |text: &str| text.parse::<Zone>().unwrap_err().nearest.unwrap();
        assert_eq!(
            refusal("Europe/Berln"),
            "`Europe/Berln` is not an IANA time zone name: did you mean `Europe/Berlin`?"
        );
        assert_eq!(suggestion("Berlin"), "Europe/Berlin");
        assert_eq!(suggestion("new york"), "America/New_York");
        assert_eq!(
            refusal("+02:00"),
            "`+02:00` is not an IANA time zone name: use a name like `Europe/Berlin` or `UTC`"
        );
    }

    #[test]
    fn placeholders_paths_and_rules_are_rejected() {
        for text in ["", "Etc/Unknown", "../../etc/passwd", "/etc/localtime", "CET-1CEST", "local"]
        {
            assert!(text.parse::<Zone>().is_err(), "{text}");
        }
        assert!("x".repeat(10_000).parse::<Zone>().is_err());
    }

    #[test]
    fn every_zone_round_trips_through_text() {
        let mut count = 0;
        for name in DATABASE.available() {
            assert_eq!(name.as_str().parse::<Zone>().unwrap().to_string(), name.as_str());
            count += 1;
        }
        assert!(count > 400, "{count}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,80}") {
            if let Ok(zone) = text.parse::<Zone>() {
                prop_assert_eq!(zone.to_string().parse(), Ok(zone));
            }
        }
    }
}
