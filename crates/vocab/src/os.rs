//! Operating systems of servers, and the filter that selects servers by operating system.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::quote_input;

/// An operating system, as named by `/etc/os-release`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawOs")]
pub struct Os {
    id: String,
    version: String,
    name: String,
}

/// The same three strings before validation.
#[derive(Deserialize)]
struct RawOs {
    id: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    name: String,
}

impl TryFrom<RawOs> for Os {
    type Error = OsError;
    fn try_from(raw: RawOs) -> Result<Self, OsError> {
        Os::new(&raw.id, &raw.version, &raw.name)
    }
}

/// Why a reported operating system is invalid. It is validated because agents cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OsError {
    /// The id is missing, too long, or contains other characters.
    #[error(
        "`{0}` is not a valid operating system id: use 1 to 64 of a to z, 0 to 9, `.`, `_`, `-`"
    )]
    Id(String),
    /// The version is too long or contains other characters.
    #[error(
        "`{0}` is not a valid operating system version: use up to 64 letters, digits, `.`, `_`, `+`, `~`, `-`"
    )]
    Version(String),
    /// The name is too long or contains control characters.
    #[error("`{0}` is not a valid operating system name: use up to 200 printable characters")]
    Name(String),
}

impl Os {
    /// Creates an operating system from an id (`debian`), a version (`12`; empty for a rolling
    /// release) and a name.
    pub fn new(id: &str, version: &str, name: &str) -> Result<Os, OsError> {
        let plain = |c: char, more: &str| c.is_ascii_alphanumeric() || more.contains(c);
        let lower = |c: char| plain(c, "._-") && !c.is_ascii_uppercase();
        if id.is_empty() || id.len() > 64 || !id.chars().all(lower) {
            return Err(OsError::Id(quote_input(id)));
        }
        if version.len() > 64 || !version.chars().all(|c| plain(c, "._+~-")) {
            return Err(OsError::Version(quote_input(version)));
        }
        if name.chars().count() > 200 || name.chars().any(char::is_control) {
            return Err(OsError::Name(quote_input(name)));
        }
        Ok(Os { id: id.to_owned(), version: version.to_owned(), name: name.to_owned() })
    }

    /// `debian`
    pub fn id(&self) -> &str {
        &self.id
    }

    /// `12`; empty for a rolling release.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `Debian GNU/Linux 12 (bookworm)`
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.version.is_empty() { "" } else { " " };
        write!(f, "{}{separator}{}", self.id, self.version)
    }
}

/// Selects operating systems by id, or by id and version: `debian`, `Debian 12`. Case-insensitive.
///
/// A version selects itself and all versions below it, part by part: `debian 12` selects `12` and
/// `12.5`, `rhel 9` selects `9.4`, `ubuntu 22` selects `22.04`. But `ubuntu 22.0` does not select
/// `22.04`, and `rhel 9` does not select `90`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OsFilter(String);

/// Error returned when parsing an operating system filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OsFilterError {
    /// Not one or two words.
    #[error(
        "`{0}` is not an operating system filter: write an id like `debian`, or an id and a version like `debian 12`"
    )]
    Words(String),
    /// A character that is allowed neither in an id nor in a version.
    #[error("`{}` is not allowed in an operating system id or version", .0.escape_debug())]
    Character(char),
    #[error("an operating system filter must have at most 129 characters (got {found})")]
    TooLong { found: usize },
}

impl OsFilter {
    pub fn matches(&self, os: &Os) -> bool {
        let (id, version) = self.0.split_once(' ').unwrap_or((&self.0, ""));
        if !os.id.eq_ignore_ascii_case(id) {
            return false;
        }
        let (wanted, has) = (version.as_bytes(), os.version.as_bytes());
        wanted.is_empty()
            || has.len() >= wanted.len()
                && has[..wanted.len()].eq_ignore_ascii_case(wanted)
                && has.get(wanted.len()).is_none_or(|next| *next == b'.')
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OsFilter {
    type Err = OsFilterError;
    fn from_str(text: &str) -> Result<Self, OsFilterError> {
        let found = text.chars().count();
        if found > 129 {
            return Err(OsFilterError::TooLong { found });
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        if words.is_empty() || words.len() > 2 {
            return Err(OsFilterError::Words(quote_input(text)));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || "._+~-".contains(c);
        match words.iter().flat_map(|word| word.chars()).find(|c| !legal(*c)) {
            Some(found) => Err(OsFilterError::Character(found)),
            None => Ok(Self(words.join(" "))),
        }
    }
}

impl fmt::Display for OsFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

crate::text::serde_as_text!(OsFilter);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn selects(filter: &str, id: &str, version: &str) -> bool {
        filter.parse::<OsFilter>().unwrap().matches(&Os::new(id, version, "").unwrap())
    }

    #[test]
    fn id_selects_every_version() {
        assert!(selects("debian", "debian", "12") && selects("Debian", "debian", ""));
        assert!(!selects("debian", "debian-derivative", "12") && !selects("deb", "debian", "12"));
    }

    #[test]
    fn version_selects_itself_and_versions_below_it() {
        assert!(selects("Debian 12", "debian", "12") && selects("debian 12", "debian", "12.5"));
        assert!(selects("rhel 9", "rhel", "9.4") && !selects("rhel 9", "rhel", "90"));
        assert!(
            selects("ubuntu 22", "ubuntu", "22.04") && selects("ubuntu 22.04", "ubuntu", "22.04")
        );
        assert!(
            !selects("ubuntu 22.0", "ubuntu", "22.04")
                && !selects("ubuntu 24.04", "ubuntu", "22.04")
        );
        assert!(!selects("debian 12", "debian", "") && !selects("debian 12.5", "debian", "12"));
    }

    #[test]
    fn errors_say_what_to_write() {
        let refusal = |text: &str| text.parse::<OsFilter>().unwrap_err().to_string();
        let example = "write an id like `debian`, or an id and a version like `debian 12`";
        assert_eq!(refusal(""), format!("`` is not an operating system filter: {example}"));
        assert_eq!(
            refusal("Red Hat 9"),
            format!("`Red Hat 9` is not an operating system filter: {example}")
        );
        assert_eq!(refusal("debian*"), "`*` is not allowed in an operating system id or version");
    }

    #[test]
    fn os_matches_api_shape_and_rejects_control_characters() {
        let text = r#"{"id":"debian","version":"12","name":"Debian GNU/Linux 12 (bookworm)"}"#;
        let os: Os = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&os).unwrap(), text);
        assert_eq!(os.to_string(), "debian 12");
        assert!(matches!(Os::new("debian", "12", "x\u{1b}"), Err(OsError::Name(_))));
        assert!(matches!(Os::new("Debian", "12", ""), Err(OsError::Id(_))));
        assert!(matches!(Os::new("debian", "12 ", ""), Err(OsError::Version(_))));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_parsed_filter_round_trips(text in "\\PC{0,40}|[a-zA-Z0-9. ]{0,12}") {
            if let Ok(filter) = text.parse::<OsFilter>() {
                prop_assert_eq!(filter.to_string().parse(), Ok(filter));
            }
        }

        #[test]
        fn every_os_is_selected_by_its_displayed_text(id in "[a-z]{1,8}", version in "[0-9]{0,2}(\\.[0-9]{1,2})?") {
            let os = Os::new(&id, &version, "").unwrap();
            prop_assert!(os.to_string().parse::<OsFilter>().unwrap().matches(&os));
        }
    }
}
