//! Reads the list of Debian's security tracker for one release.
//!
//! ```text
//! CVE-2023-39804 [one line about it]
//!     {DSA-5678-1}
//!     - tar 1.34+dfsg-1.3 (bug #1058079)
//!     [bookworm] - tar <no-dsa> (Minor issue)
//! ```
//!
//! A line without a release is about unstable. A line for the release takes precedence. Without
//! one, a server that has unstable's fixed version is not vulnerable, but the release itself has no
//! fix. Fixes published as advisories (`{DSA-…}`) are not in the list and must be imported
//! separately.

use std::collections::BTreeMap;
use std::io::BufRead;

use domain::advisory::{Advisory, Affected, Span, SpanEnd, parse_vendor_severity};
use jiff::Timestamp;
use vocab::FixState;

use crate::Record;
use crate::error::{FeedError, FeedLocation, PassError};
use crate::limits::Limit;
use crate::text;

type OnRecord<'a> = dyn FnMut(Record) -> Result<(), PassError> + 'a;

pub(crate) struct Tracker<'a> {
    pub(crate) codename: &'a str,
    pub(crate) version: &'a str,
    pub(crate) as_of: Option<Timestamp>,
}

/// The entry of one CVE.
struct Entry {
    cve: String,
    summary: String,
    /// By package: the line for unstable, and the line for the release.
    lines: BTreeMap<String, (Option<Line>, Option<Line>)>,
    bytes: usize,
}

/// Maximum packages of one CVE.
const PACKAGES_MAX: usize = 20_000;
/// Maximum bytes of the lines of one CVE.
const ENTRY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One line about one package.
#[derive(Clone)]
struct Line {
    /// A version such as `5.36.0-7+deb12u3`, or a state: `<no-dsa>` without the angle brackets.
    value: String,
    is_version: bool,
    /// The text in parentheses.
    notes: String,
}

impl Tracker<'_> {
    pub(crate) fn read(
        &self,
        input: &mut dyn BufRead,
        location: &FeedLocation,
        each: &mut OnRecord<'_>,
    ) -> Result<(), PassError> {
        let mut entry: Option<Entry> = None;
        text::for_each_line(input, location, |line, number| {
            if line.trim().is_empty() || line.starts_with('#') {
                return Ok(());
            }
            match line.strip_prefix(['\t', ' ']) {
                None => {
                    if let Some(done) = entry.replace(parse_heading(line, number, location)?) {
                        self.emit(done, each)?;
                    }
                    Ok(())
                }
                Some(line) => match &mut entry {
                    Some(entry) => Ok(self.parse_line(entry, line.trim(), number, location)?),
                    None => Err(location
                        .invalid_record(number, "the line does not belong to a CVE entry")
                        .into()),
                },
            }
        })?;
        match entry {
            Some(last) => self.emit(last, each),
            None => Ok(()),
        }
    }

    /// Parses one line of an entry. Other lines (`NOTE:`, `RESERVED`, `{DSA-…}`) contain no package
    /// and are skipped.
    fn parse_line(
        &self,
        entry: &mut Entry,
        line: &str,
        number: u64,
        location: &FeedLocation,
    ) -> Result<(), FeedError> {
        let (release, line) = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((release, rest)) => (Some(release), rest.trim_start()),
            None => (None, line),
        };
        let Some(line) = line.strip_prefix("- ") else { return Ok(()) };
        let mut words = line.splitn(3, ' ');
        let (Some(package), Some(status)) = (words.next(), words.next()) else {
            let why = format!("`{}` names a package but no state", text::excerpt(line));
            return Err(location.invalid_record(number, why));
        };
        let notes = words.next().unwrap_or_default();
        let notes = notes.trim().trim_start_matches('(').trim_end_matches(')').to_owned();
        let state = status.strip_prefix('<').and_then(|said| said.strip_suffix('>'));
        let line =
            Line { value: state.unwrap_or(status).to_owned(), is_version: state.is_none(), notes };
        entry.bytes += package.len() + line.value.len() + line.notes.len();
        if entry.bytes > ENTRY_BYTES_MAX {
            return Err(location.too_large(number, Limit::Count(ENTRY_BYTES_MAX, "bytes")));
        }
        let lines = entry.lines.entry(package.to_owned()).or_default();
        match release {
            None => lines.0 = Some(line),
            Some(release) if release == self.codename => lines.1 = Some(line),
            Some(_) => {}
        }
        match entry.lines.len() > PACKAGES_MAX {
            true => Err(location.too_large(number, Limit::Count(PACKAGES_MAX, "packages"))),
            false => Ok(()),
        }
    }

    fn emit(&self, entry: Entry, each: &mut OnRecord<'_>) -> Result<(), PassError> {
        let Entry { cve, summary, lines, .. } = entry;
        let affected: Vec<Affected> = lines
            .into_iter()
            .filter_map(|(package, (unstable, release))| {
                self.affected(&package, unstable.as_ref(), release.as_ref())
            })
            .collect();
        if affected.is_empty() {
            return Ok(());
        }
        each(Record::Advisory(Box::new(Advisory {
            id: format!("debian-tracker:{}/{cve}", self.codename),
            flaws: vec![cve],
            aliases: Vec::new(),
            summary,
            description: String::new(),
            published: None,
            modified: self.as_of,
            withdrawn: None,
            ratings: Vec::new(),
            affected,
        })))
    }

    fn affected(
        &self,
        package: &str,
        unstable: Option<&Line>,
        release: Option<&Line>,
    ) -> Option<Affected> {
        let decisive = release.or(unstable)?;
        // Intent to package: Debian does not have the package yet.
        if decisive.value == "itp" {
            return None;
        }
        let mut affected = Affected::new(&format!("Debian:{}", self.version), package);
        let elsewhere = unstable.filter(|line| line.is_version).map(|line| line.value.clone());
        let end = match (release, elsewhere) {
            (Some(line), _) if line.is_version => SpanEnd::Fixed(line.value.clone()),
            (_, Some(version)) => SpanEnd::FixedElsewhere(version),
            (_, None) => SpanEnd::Open,
        };
        affected.spans.push(Span { from: None, end });
        affected.stance =
            if decisive.is_version { None } else { fix_state_from_keyword(&decisive.value) };
        // This is a statement about unstable only. An advisory for the release can contradict it
        // and is not in the list, so this must not be final.
        if release.is_none() && affected.stance == Some(FixState::NotAffected) {
            affected.spans = vec![Span::until("0")];
            affected.stance = None;
            return Some(affected);
        }
        let urgency = [Some(decisive), unstable].into_iter().flatten().find_map(|line| {
            line.notes.split(';').find_map(|note| parse_vendor_severity(note.trim()))
        });
        affected.severity = urgency;
        let unimportant =
            |line: &Line| line.notes.split(';').any(|note| note.trim() == "unimportant");
        if affected.stance != Some(FixState::NotAffected)
            && [Some(decisive), unstable].into_iter().flatten().any(unimportant)
        {
            affected.stance = Some(FixState::Unimportant);
        }
        Some(affected)
    }
}

fn parse_heading(line: &str, number: u64, location: &FeedLocation) -> Result<Entry, FeedError> {
    let (cve, summary) = line.split_once(' ').unwrap_or((line, ""));
    if !["CVE-", "TEMP-"].iter().any(|start| cve.starts_with(start)) {
        let why = format!("`{}` is not the first line of an entry", text::excerpt(line));
        return Err(location.invalid_record(number, why));
    }
    let summary = summary.trim().trim_start_matches(['(', '[']).trim_end_matches([')', ']']);
    Ok(Entry { cve: cve.to_owned(), summary: summary.to_owned(), lines: BTreeMap::new(), bytes: 0 })
}

/// Maps a state of the tracker to a fix state.
pub(crate) fn fix_state_from_keyword(word: &str) -> Option<FixState> {
    match word {
        "unfixed" | "removed" => Some(FixState::Affected),
        "no-dsa" | "postponed" => Some(FixState::Deferred),
        "ignored" => Some(FixState::WontFix),
        "not-affected" | "not_affected" => Some(FixState::NotAffected),
        "end-of-life" => Some(FixState::EndOfLife),
        "undetermined" | "unknown" => Some(FixState::Unknown),
        _ => None,
    }
}
