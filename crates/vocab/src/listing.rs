//! What an agent reports of packages, and the one way to write a list of it as bytes.
//!
//! A listing is one JSON object a line, sorted by name, architecture and version, each once. Its
//! digest stands for the list: agent and server both make it with this code, so that a list
//! which has not changed is never sent again.
//!
//! Names here are what a host said, not words of an order: bounded and free of control
//! characters, but otherwise as they came, because an odd package must not hide the others.

use std::cmp::Ordering;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::word::{BlockedBy, Severity, UpdateType};

/// The most bytes of a listing.
pub const BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most lines of a listing.
pub const LINES_MAX: usize = 50_000;
/// The most bytes of each text in it.
pub const TEXT_BYTES_MAX: usize = 512;
/// The most advisories, and the most CVEs, of one pending update. A kernel may fix hundreds.
pub const REFERENCES_MAX: usize = 5_000;

/// One installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Installed {
    /// The name of the package.
    #[serde(rename = "n")]
    pub name: String,
    /// Its architecture, as the manager spells it.
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// Its version with epoch and release, as the manager spells it.
    #[serde(rename = "v")]
    pub version: String,
    /// The source package, if it is not named as the package is.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// The version of the source package, if it is not that of the package.
    #[serde(rename = "sv", default, skip_serializing_if = "Option::is_none")]
    source_version: Option<String>,
    /// Who built it or where it came from, if the manager knows.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Whether the administrator holds it at this version.
    #[serde(rename = "h", default, skip_serializing_if = "is_false")]
    pub held: bool,
    /// The module and stream that it belongs to, on systems with modules: `nodejs:18`.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
}

impl Installed {
    /// A package of which no more is known.
    pub fn new(name: &str, version: &str, arch: &str) -> Self {
        Self {
            name: name.to_owned(),
            arch: arch.to_owned(),
            version: version.to_owned(),
            source: None,
            source_version: None,
            origin: None,
            held: false,
            module: None,
        }
    }

    /// With its source package. One that is like the package itself is not written down, so that
    /// the same facts make the same bytes.
    #[must_use]
    pub fn with_source(mut self, name: &str, version: &str) -> Self {
        self.source = (name != self.name).then(|| name.to_owned());
        self.source_version = (version != self.version).then(|| version.to_owned());
        self
    }

    /// The name of the source package.
    pub fn source(&self) -> &str {
        self.source.as_deref().unwrap_or(&self.name)
    }

    /// The version of the source package.
    pub fn source_version(&self) -> &str {
        self.source_version.as_deref().unwrap_or(&self.version)
    }
}

/// One pending update.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pending {
    /// The name of the package.
    #[serde(rename = "n")]
    pub name: String,
    /// Its architecture, as the manager spells it.
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// The version that would be installed.
    #[serde(rename = "c")]
    pub candidate: String,
    /// The version that is installed.
    #[serde(rename = "i", default, skip_serializing_if = "String::is_empty")]
    pub installed: String,
    /// Whether it fixes a security flaw, as far as the manager knows.
    #[serde(rename = "s", default, skip_serializing_if = "is_false")]
    pub security: bool,
    /// What it is for, as far as the manager knows.
    #[serde(rename = "t", default = "other", skip_serializing_if = "is_other")]
    #[serde(deserialize_with = "type_or_other")]
    pub update_type: UpdateType,
    /// How bad the flaws are that it fixes, if the manager knows.
    #[serde(rename = "sv", default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "severity_or_unknown")]
    pub severity: Option<Severity>,
    /// The advisories that announce it.
    #[serde(rename = "ad", default, skip_serializing_if = "Vec::is_empty")]
    pub advisories: Vec<String>,
    /// The CVEs that it fixes.
    #[serde(rename = "cv", default, skip_serializing_if = "Vec::is_empty")]
    pub cves: Vec<String>,
    /// Why it would not be installed.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "reason_or_kept_back")]
    pub blocked_by: Option<BlockedBy>,
}

impl Pending {
    /// An update of which no more is known.
    pub fn new(name: &str, arch: &str, installed: &str, candidate: &str) -> Self {
        Self {
            name: name.to_owned(),
            arch: arch.to_owned(),
            candidate: candidate.to_owned(),
            installed: installed.to_owned(),
            security: false,
            update_type: UpdateType::Other,
            severity: None,
            advisories: Vec::new(),
            cves: Vec::new(),
            blocked_by: None,
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn other() -> UpdateType {
    UpdateType::Other
}

fn is_other(update_type: &UpdateType) -> bool {
    *update_type == UpdateType::Other
}

// A newer agent may know words that this server does not. One such word must not cost the whole
// list, so each becomes the most careful word that is known.

fn type_or_other<'de, D: Deserializer<'de>>(from: D) -> Result<UpdateType, D::Error> {
    Ok(String::deserialize(from)?.parse().unwrap_or(UpdateType::Other))
}

fn severity_or_unknown<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Severity>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| text.parse().unwrap_or(Severity::Unknown)))
}

fn reason_or_kept_back<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BlockedBy>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| text.parse().unwrap_or(BlockedBy::KeptBack)))
}

/// What a listing lists.
pub trait Entry: Serialize + DeserializeOwned + Ord {
    /// What it is sorted by, and what there is one line of: name, architecture, version.
    fn key(&self) -> (&str, &str, &str);

    /// Every text in it with the name of its field.
    fn texts(&self) -> impl Iterator<Item = (&'static str, &str)>;

    /// The longest of its lists.
    fn references(&self) -> usize {
        0
    }
}

impl Entry for Installed {
    fn key(&self) -> (&str, &str, &str) {
        (&self.name, &self.arch, &self.version)
    }

    fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let optional = [
            ("source", &self.source),
            ("source version", &self.source_version),
            ("origin", &self.origin),
            ("module", &self.module),
        ];
        [("name", &self.name), ("architecture", &self.arch), ("version", &self.version)]
            .into_iter()
            .map(|(field, text)| (field, text.as_str()))
            .chain(optional.into_iter().filter_map(|(field, text)| Some((field, text.as_deref()?))))
    }
}

impl Entry for Pending {
    fn key(&self) -> (&str, &str, &str) {
        (&self.name, &self.arch, &self.candidate)
    }

    fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("name", &self.name),
            ("architecture", &self.arch),
            ("candidate", &self.candidate),
            ("installed", &self.installed),
        ]
        .into_iter()
        .chain(self.advisories.iter().map(|text| ("advisory", text)))
        .chain(self.cves.iter().map(|text| ("CVE", text)))
        .map(|(field, text)| (field, text.as_str()))
    }

    fn references(&self) -> usize {
        self.advisories.len().max(self.cves.len())
    }
}

/// Why bytes are not a listing.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// There are too many bytes.
    #[error("a listing has at most {BYTES_MAX} bytes, this one has {found}")]
    Bytes {
        /// How many there were.
        found: usize,
    },
    /// There are too many lines.
    #[error("a listing has at most {LINES_MAX} lines")]
    Lines,
    /// The last line has no end: something was cut off.
    #[error("the last line of the listing has no end")]
    CutOff,
    /// A line is not an entry.
    #[error("line {line} of the listing does not parse")]
    Line {
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A line has no name or no version.
    #[error("line {line} of the listing: there is no {field}")]
    Missing {
        /// Which line, from 1.
        line: usize,
        /// What is missing.
        field: &'static str,
    },
    /// A text is too long.
    #[error("line {line} of the listing: the {field} has more than {TEXT_BYTES_MAX} bytes")]
    TooLong {
        /// Which line, from 1.
        line: usize,
        /// Which text.
        field: &'static str,
    },
    /// A text holds a control character.
    #[error("line {line} of the listing: the {field} holds a control character")]
    Control {
        /// Which line, from 1.
        line: usize,
        /// Which text.
        field: &'static str,
    },
    /// An update names too many advisories or CVEs.
    #[error("line {line} of the listing names more than {REFERENCES_MAX} advisories or CVEs")]
    References {
        /// Which line, from 1.
        line: usize,
    },
}

/// Puts a list into the order of its listing, each key once.
pub fn sort<T: Entry>(entries: &mut Vec<T>) {
    entries.sort_unstable_by(in_order);
    entries.dedup_by(|b, a| a.key() == b.key());
}

/// By key first: that order is a promise, and the entries' own only breaks ties.
fn in_order<T: Entry>(a: &T, b: &T) -> Ordering {
    a.key().cmp(&b.key()).then_with(|| a.cmp(b))
}

/// The canonical bytes of a list: sorted, each key once, one object a line.
pub fn encode<T: Entry>(entries: &[T]) -> Vec<u8> {
    let mut sorted: Vec<&T> = entries.iter().collect();
    sorted.sort_unstable_by(|a, b| in_order(*a, *b));
    sorted.dedup_by(|b, a| a.key() == b.key());
    let mut bytes = Vec::with_capacity(sorted.len() * 96);
    for entry in sorted {
        serde_json::to_writer(&mut bytes, entry)
            .expect("texts, flags and lists of texts always serialize into memory");
        bytes.push(b'\n');
    }
    bytes
}

/// Reads a listing, in the order of its lines. Fields that are not known are passed over.
pub fn decode<T: Entry>(bytes: &[u8]) -> Result<Vec<T>, ListingError> {
    if bytes.len() > BYTES_MAX {
        return Err(ListingError::Bytes { found: bytes.len() });
    }
    let Some((last, lines)) = bytes.split_last() else { return Ok(Vec::new()) };
    if *last != b'\n' {
        return Err(ListingError::CutOff);
    }
    let mut entries = Vec::new();
    for (place, text) in lines.split(|byte| *byte == b'\n').enumerate() {
        if place == LINES_MAX {
            return Err(ListingError::Lines);
        }
        let line = place + 1;
        let entry: T =
            serde_json::from_slice(text).map_err(|source| ListingError::Line { line, source })?;
        check(&entry, line)?;
        entries.push(entry);
    }
    Ok(entries)
}

fn check<T: Entry>(entry: &T, line: usize) -> Result<(), ListingError> {
    let (name, _, version) = entry.key();
    for (field, text) in [("name", name), ("version", version)] {
        if text.is_empty() {
            return Err(ListingError::Missing { line, field });
        }
    }
    if entry.references() > REFERENCES_MAX {
        return Err(ListingError::References { line });
    }
    for (field, text) in entry.texts() {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ListingError::TooLong { line, field });
        }
        // Nearly every text is ASCII, and then bytes will do.
        let controls = match text.is_ascii() {
            true => text.bytes().any(|byte| byte.is_ascii_control()),
            false => text.chars().any(char::is_control),
        };
        if controls {
            return Err(ListingError::Control { line, field });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digest;
    use proptest::prelude::*;

    fn decoded<T: Entry>(text: &str) -> Result<Vec<T>, String> {
        decode(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_same_packages_make_the_same_bytes_in_whatever_order_they_come() {
        let bash = Installed::new("bash", "5.2-1", "amd64").with_source("bash", "5.2-1");
        let zlib = Installed::new("zlib1g", "1:1.2.13", "amd64").with_source("zlib", "1:1.2.13");
        let old = Installed::new("zlib1g", "1:1.2.11", "amd64");
        let bytes = encode(&[zlib.clone(), bash.clone(), old.clone(), bash.clone()]);
        assert_eq!(
            String::from_utf8(bytes.clone()).unwrap(),
            "{\"n\":\"bash\",\"a\":\"amd64\",\"v\":\"5.2-1\"}\n\
             {\"n\":\"zlib1g\",\"a\":\"amd64\",\"v\":\"1:1.2.11\"}\n\
             {\"n\":\"zlib1g\",\"a\":\"amd64\",\"v\":\"1:1.2.13\",\"s\":\"zlib\"}\n"
        );
        assert_eq!(Digest::of(&bytes), Digest::of(&encode(&[old, zlib, bash])));
    }

    #[test]
    fn a_line_from_a_newer_agent_is_understood_as_far_as_possible() {
        let text = r#"{"n":"bash","a":"amd64","i":"1","c":"2","t":"miracle","sv":"dire","b":"moon","new":[1]}"#;
        let pending = &decoded::<Pending>(&format!("{text}\n")).unwrap()[0];
        assert_eq!(pending.update_type, UpdateType::Other);
        assert_eq!(pending.severity, Some(Severity::Unknown));
        assert_eq!(pending.blocked_by, Some(BlockedBy::KeptBack));
    }

    #[test]
    fn each_refusal_says_which_line() {
        let good = "{\"n\":\"a\",\"v\":\"1\"}\n";
        let refusal = |text: &str| decoded::<Installed>(&format!("{good}{text}")).unwrap_err();
        let line = "line 2 of the listing";
        assert_eq!(refusal("nonsense\n"), format!("{line} does not parse"));
        assert_eq!(refusal("\n"), format!("{line} does not parse"));
        assert_eq!(refusal("{\"n\":\"a\"}\n"), format!("{line} does not parse"));
        assert_eq!(refusal("{\"n\":\"\",\"v\":\"1\"}\n"), format!("{line}: there is no name"));
        assert_eq!(
            refusal("{\"n\":\"a\\u001b[2J\",\"v\":\"1\"}\n"),
            format!("{line}: the name holds a control character")
        );
        assert_eq!(
            refusal(&format!("{{\"n\":\"a\",\"v\":\"{}\"}}\n", "1".repeat(513))),
            format!("{line}: the version has more than 512 bytes")
        );
        assert_eq!(refusal("{\"n\":\"a\""), "the last line of the listing has no end");
    }

    #[test]
    fn a_listing_beyond_its_limits_is_refused_before_it_is_read() {
        let line = "{\"n\":\"a\",\"v\":\"1\"}\n";
        assert!(matches!(
            decode::<Installed>(line.repeat(LINES_MAX + 1).as_bytes()),
            Err(ListingError::Lines)
        ));
        assert_eq!(
            decode::<Installed>(line.repeat(LINES_MAX).as_bytes()).unwrap().len(),
            LINES_MAX
        );
        assert!(matches!(
            decode::<Installed>(&vec![b'\n'; BYTES_MAX + 1]),
            Err(ListingError::Bytes { .. })
        ));
        assert_eq!(decode::<Installed>(b"").unwrap(), []);
    }

    fn installed() -> impl Strategy<Value = Installed> {
        ("[a-c]{1,2}", "[0-9]{1,2}", "amd64|i386|", "[a-c]{1,2}", any::<bool>()).prop_map(
            |(name, version, arch, source, held)| {
                let package = Installed::new(&name, &version, &arch).with_source(&source, &version);
                Installed { held, module: held.then(|| "nodejs:18".to_owned()), ..package }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_decoded_encodes_to_the_same_bytes(list in proptest::collection::vec(installed(), 0..30)) {
            let bytes = encode(&list);
            let back: Vec<Installed> = decode(&bytes).unwrap();
            prop_assert!(back.windows(2).all(|pair| pair[0].key() < pair[1].key()));
            let mut sorted = list;
            sort(&mut sorted);
            prop_assert_eq!(&back, &sorted);
            prop_assert_eq!(encode(&back), bytes);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Installed>(&bytes).map(|list| list.len());
            let _ = decode::<Pending>(&bytes).map(|list| list.len());
        }
    }
}
