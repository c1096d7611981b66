//! The package sets that an agent reports, and their canonical encoding.
//!
//! A package set has one JSON object per line, sorted by name, architecture and version, without
//! duplicates. Agent and service both compute its digest with this code, so that an unchanged set
//! is never uploaded again.
//!
//! Names come from the host and are not validated like the names in an order: they are bounded and
//! free of control characters, but otherwise unchanged, because one odd package must not hide the
//! others.

use std::cmp::Ordering;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::keyword::{BlockedBy, Severity, UpdateType};

/// Maximum size of a package set in bytes.
pub const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of lines of a package set.
pub const LINES_MAX: usize = 50_000;
/// Maximum size in bytes of each string in a package set.
pub const TEXT_BYTES_MAX: usize = 512;
/// Maximum number of advisories, and of CVEs, of one pending update. A kernel update may fix
/// hundreds.
pub const REFERENCES_MAX: usize = 5_000;

/// One installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Installed {
    #[serde(rename = "n")]
    pub name: String,
    /// Architecture, as the package manager spells it.
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// Version with epoch and release, as the package manager spells it.
    #[serde(rename = "v")]
    pub version: String,
    /// The source package, if its name differs from the package's.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// The version of the source package, if it differs from the package's.
    #[serde(rename = "sv", default, skip_serializing_if = "Option::is_none")]
    source_version: Option<String>,
    /// Vendor or repository, if the package manager knows it.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Whether the administrator holds the package at this version.
    #[serde(rename = "h", default, skip_serializing_if = "is_false")]
    pub held: bool,
    /// Module and stream, on systems with modules: `nodejs:18`.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
}

impl Installed {
    /// Creates an entry with the required fields only.
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

    /// Sets the source package. Values that equal the package's own are omitted, so that the same
    /// facts produce the same bytes.
    #[must_use]
    pub fn with_source(mut self, name: &str, version: &str) -> Self {
        self.source = (name != self.name).then(|| name.to_owned());
        self.source_version = (version != self.version).then(|| version.to_owned());
        self
    }

    pub fn source(&self) -> &str {
        self.source.as_deref().unwrap_or(&self.name)
    }

    pub fn source_version(&self) -> &str {
        self.source_version.as_deref().unwrap_or(&self.version)
    }
}

/// One pending update.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pending {
    #[serde(rename = "n")]
    pub name: String,
    /// Architecture, as the package manager spells it.
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// The version that would be installed.
    #[serde(rename = "c")]
    pub candidate: String,
    /// The version that is installed.
    #[serde(rename = "i", default, skip_serializing_if = "String::is_empty")]
    pub installed: String,
    /// Whether it fixes a vulnerability, according to the package manager.
    #[serde(rename = "s", default, skip_serializing_if = "is_false")]
    pub security: bool,
    /// Type of the update, according to the package manager.
    #[serde(rename = "t", default = "default_update_type", skip_serializing_if = "is_other")]
    #[serde(deserialize_with = "type_or_other")]
    pub update_type: UpdateType,
    /// Highest severity of the vulnerabilities that it fixes, if the package manager knows it.
    #[serde(rename = "sv", default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "severity_or_unknown")]
    pub severity: Option<Severity>,
    #[serde(rename = "ad", default, skip_serializing_if = "Vec::is_empty")]
    pub advisories: Vec<String>,
    #[serde(rename = "cv", default, skip_serializing_if = "Vec::is_empty")]
    pub cves: Vec<String>,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "reason_or_kept_back")]
    pub blocked_by: Option<BlockedBy>,
}

impl Pending {
    /// Creates an entry with the required fields only.
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

fn default_update_type() -> UpdateType {
    UpdateType::Other
}

fn is_other(update_type: &UpdateType) -> bool {
    *update_type == UpdateType::Other
}

// A newer agent may send values that this service does not know. One unknown value must not make
// the whole package set invalid, so it becomes the most cautious known value.

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

/// An entry of a package set.
pub trait Entry: Serialize + DeserializeOwned + Ord {
    /// The sort key, unique within a package set: name, architecture, version.
    fn key(&self) -> (&str, &str, &str);

    /// Every string in it, with the name of its field.
    fn strings(&self) -> impl Iterator<Item = (&'static str, &str)>;

    /// Length of its longest list.
    fn max_references(&self) -> usize {
        0
    }
}

impl Entry for Installed {
    fn key(&self) -> (&str, &str, &str) {
        (&self.name, &self.arch, &self.version)
    }

    fn strings(&self) -> impl Iterator<Item = (&'static str, &str)> {
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

    fn strings(&self) -> impl Iterator<Item = (&'static str, &str)> {
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

    fn max_references(&self) -> usize {
        self.advisories.len().max(self.cves.len())
    }
}

/// Error returned when decoding a package set.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    #[error("a package set must have at most {BYTES_MAX} bytes (got {found})")]
    Bytes { found: usize },
    #[error("a package set must have at most {LINES_MAX} lines")]
    Lines,
    /// The last line has no line feed: the package set was truncated.
    #[error("the package set is truncated: its last line has no line feed")]
    CutOff,
    #[error("line {line} of the package set is not a valid entry")]
    Line {
        /// Line number, from 1.
        line: usize,
        source: serde_json::Error,
    },
    #[error("line {line} of the package set: the {field} is missing")]
    Missing {
        /// Line number, from 1.
        line: usize,
        field: &'static str,
    },
    #[error("line {line} of the package set: the {field} has more than {TEXT_BYTES_MAX} bytes")]
    TooLong {
        /// Line number, from 1.
        line: usize,
        field: &'static str,
    },
    #[error("line {line} of the package set: the {field} contains a control character")]
    Control {
        /// Line number, from 1.
        line: usize,
        field: &'static str,
    },
    #[error("line {line} of the package set has more than {REFERENCES_MAX} advisories or CVEs")]
    References {
        /// Line number, from 1.
        line: usize,
    },
}

/// Sorts a list in canonical order and removes entries with a duplicate key.
pub fn sort<T: Entry>(entries: &mut Vec<T>) {
    entries.sort_unstable_by(canonical_order);
    entries.dedup_by(|b, a| a.key() == b.key());
}

/// Orders by key first. The key order is part of the format; comparing whole entries only breaks
/// ties.
fn canonical_order<T: Entry>(a: &T, b: &T) -> Ordering {
    a.key().cmp(&b.key()).then_with(|| a.cmp(b))
}

/// Encodes a list canonically: sorted, without duplicate keys, one object per line.
pub fn encode<T: Entry>(entries: &[T]) -> Vec<u8> {
    let mut sorted: Vec<&T> = entries.iter().collect();
    sorted.sort_unstable_by(|a, b| canonical_order(*a, *b));
    sorted.dedup_by(|b, a| a.key() == b.key());
    let mut bytes = Vec::with_capacity(sorted.len() * 96);
    for entry in sorted {
        serde_json::to_writer(&mut bytes, entry)
            .expect("strings, flags and lists of strings always serialize");
        bytes.push(b'\n');
    }
    bytes
}

/// Decodes a listing in the order of its lines. Unknown fields are ignored.
pub fn decode<T: Entry>(bytes: &[u8]) -> Result<Vec<T>, ListingError> {
    if bytes.len() > BYTES_MAX {
        return Err(ListingError::Bytes { found: bytes.len() });
    }
    let Some((last, lines)) = bytes.split_last() else { return Ok(Vec::new()) };
    if *last != b'\n' {
        return Err(ListingError::CutOff);
    }
    let mut entries = Vec::new();
    for (index, text) in lines.split(|byte| *byte == b'\n').enumerate() {
        if index == LINES_MAX {
            return Err(ListingError::Lines);
        }
        let line = index + 1;
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
    if entry.max_references() > REFERENCES_MAX {
        return Err(ListingError::References { line });
    }
    for (field, text) in entry.strings() {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ListingError::TooLong { line, field });
        }
        // Nearly every string is ASCII, and then checking bytes is enough.
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
    fn encoding_does_not_depend_on_package_order() {
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
        assert_eq!(Digest::compute(&bytes), Digest::compute(&encode(&[old, zlib, bash])));
    }

    #[test]
    fn unknown_values_from_newer_agent_become_cautious_ones() {
        let text = r#"{"n":"bash","a":"amd64","i":"1","c":"2","t":"miracle","sv":"dire","b":"moon","new":[1]}"#;
        let pending = &decoded::<Pending>(&format!("{text}\n")).unwrap()[0];
        assert_eq!(pending.update_type, UpdateType::Other);
        assert_eq!(pending.severity, Some(Severity::Unknown));
        assert_eq!(pending.blocked_by, Some(BlockedBy::KeptBack));
    }

    #[test]
    fn errors_name_the_line() {
        let good = "{\"n\":\"a\",\"v\":\"1\"}\n";
        let refusal = |text: &str| decoded::<Installed>(&format!("{good}{text}")).unwrap_err();
        let line = "line 2 of the package set";
        assert_eq!(refusal("nonsense\n"), format!("{line} is not a valid entry"));
        assert_eq!(refusal("\n"), format!("{line} is not a valid entry"));
        assert_eq!(refusal("{\"n\":\"a\"}\n"), format!("{line} is not a valid entry"));
        assert_eq!(refusal("{\"n\":\"\",\"v\":\"1\"}\n"), format!("{line}: the name is missing"));
        assert_eq!(
            refusal("{\"n\":\"a\\u001b[2J\",\"v\":\"1\"}\n"),
            format!("{line}: the name contains a control character")
        );
        assert_eq!(
            refusal(&format!("{{\"n\":\"a\",\"v\":\"{}\"}}\n", "1".repeat(513))),
            format!("{line}: the version has more than 512 bytes")
        );
        assert_eq!(
            refusal("{\"n\":\"a\""),
            "the package set is truncated: its last line has no line feed"
        );
    }

    #[test]
    fn oversized_listing_is_rejected() {
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
        fn decoded_listing_encodes_to_same_bytes(list in proptest::collection::vec(installed(), 0..30)) {
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
