//! Reads vulnerability feeds in the formats in which they are published.
//!
//! A feed is a file or a directory. The crate reads each feed twice: [`Feed::check`] parses all of
//! it without keeping the records, and only its result gives access to them. A broken, truncated or
//! empty feed is therefore refused before a caller can apply any part of it. Neither pass needs
//! more memory than one record, one whole file of the small formats, or the table of contents of an
//! archive.
//!
//! | [`FeedKind`] | content | file formats |
//! |---|---|---|
//! | `Osv` | OSV advisories | `.json`, an array, `.jsonl`, each also `.gz`; `.zip`; a directory of them |
//! | `Csaf` | CSAF documents of Red Hat and SUSE | as `Osv`, and `.tar`, `.tar.gz`, `.tar.zst` |
//! | `Updateinfo` | advisories of a repository of rpm packages | `.xml`, also `.gz` or `.zst`; a directory of them |
//! | `Arch` | the Arch Linux security tracker | `.json`, also `.gz` |
//! | `Secdb` | the Alpine database of fixes | `.json`, also `.gz` |
//! | `DebianTracker` | the Debian security tracker's state of each CVE | its own list format, also `.gz` |
//! | `Kev` | CISA's known exploited vulnerabilities | `.json`, also `.gz` |
//! | `Epss` | FIRST's exploit prediction scores | `.csv`, also `.gz` |
//!
//! The compression format is detected from the first bytes, not from the file name. [`limits`]
//! bounds the memory and time that a feed can cost, however it is compressed. This crate has no
//! database and no network access: callers download a feed to a file first.

mod arch;
pub mod catalog;
mod csaf;
mod epss;
mod error;
mod json;
mod kev;
pub mod limits;
mod osv;
mod records;
pub mod repomd;
mod secdb;
mod sniff;
mod source;
mod tar;
mod text;
mod tracker;
mod updateinfo;
mod xml;

pub use error::{FeedError, FeedLocation};
pub use sniff::{SniffResult, sniff};
pub use source::is_tar;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use domain::advisory::{Advisory, Epss, KevEntry};
use jiff::Timestamp;

use error::PassError;
use limits::Limit;

/// The format of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedKind {
    Osv,
    Csaf,
    Arch,
    /// Alpine's secdb: the fixed versions of each package.
    Secdb,
    /// Debian's security tracker list, read for one release.
    DebianTracker {
        /// The release name as the list spells it: `bookworm`.
        codename: String,
        /// The release number: `12`.
        version: String,
    },
    /// The advisories of a repository of rpm packages, for one release.
    Updateinfo {
        /// The system with its release: `Amazon Linux:2023`.
        ecosystem: String,
    },
    Kev,
    Epss,
}

impl FeedKind {
    /// The stable name of the format, as stored and as written on the command line.
    pub const fn as_str(&self) -> &'static str {
        match self {
            FeedKind::Osv => "osv",
            FeedKind::Csaf => "csaf",
            FeedKind::Arch => "arch",
            FeedKind::Secdb => "secdb",
            FeedKind::DebianTracker { .. } => "debian_tracker",
            FeedKind::Updateinfo { .. } => "updateinfo",
            FeedKind::Kev => "kev",
            FeedKind::Epss => "epss",
        }
    }
}

/// The format's name, followed by the release for formats that do not name it:
/// `debian_tracker:bookworm=12`, `updateinfo:Amazon Linux:2023`.
impl fmt::Display for FeedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeedKind::DebianTracker { codename, version } => {
                write!(f, "{}:{codename}={version}", self.as_str())
            }
            FeedKind::Updateinfo { ecosystem } => write!(f, "{}:{ecosystem}", self.as_str()),
            kind => f.write_str(kind.as_str()),
        }
    }
}

/// The text names no known feed format.
#[derive(Debug, thiserror::Error)]
#[error("unknown feed type `{0}`")]
pub struct UnknownFeedKind(String);

impl FromStr for FeedKind {
    type Err = UnknownFeedKind;

    fn from_str(text: &str) -> Result<Self, UnknownFeedKind> {
        let plain = [
            FeedKind::Osv,
            FeedKind::Csaf,
            FeedKind::Arch,
            FeedKind::Secdb,
            FeedKind::Kev,
            FeedKind::Epss,
        ];
        if let Some(ecosystem) = text.strip_prefix("updateinfo:").filter(|name| !name.is_empty()) {
            return Ok(FeedKind::Updateinfo { ecosystem: ecosystem.to_owned() });
        }
        let release = text.strip_prefix("debian_tracker:").and_then(|rest| rest.split_once('='));
        match release {
            Some((codename, version)) => Ok(FeedKind::DebianTracker {
                codename: codename.to_owned(),
                version: version.to_owned(),
            }),
            None => plain
                .into_iter()
                .find(|kind| kind.as_str() == text)
                .ok_or_else(|| UnknownFeedKind(text.to_owned())),
        }
    }
}

/// One record of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Advisory(Box<Advisory>),
    /// A CVE that is known to be exploited.
    Exploited(KevEntry),
    /// The exploit prediction score of a CVE.
    Epss(Epss),
}

/// Progress of a read, in bytes on disk (compressed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub bytes: u64,
    pub total: u64,
}

/// Counts over a whole feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub records: u64,
    /// Number of files. Files in an archive are counted individually.
    pub files: u64,
    /// Size on disk.
    pub bytes: u64,
    /// A hash of everything that was read. A second read with a different hash is rejected.
    fingerprint: u64,
}

/// A feed that has not been checked yet.
#[derive(Debug, Clone)]
pub struct Feed {
    path: PathBuf,
    kind: FeedKind,
    as_of: Option<Timestamp>,
}

impl Feed {
    pub fn new(path: impl Into<PathBuf>, kind: FeedKind) -> Self {
        Self { path: path.into(), kind, as_of: None }
    }

    /// Sets the publication time, for formats that do not contain it. Without it, an older copy of
    /// a feed cannot be distinguished from a newer one.
    #[must_use]
    pub fn as_of(mut self, time: Timestamp) -> Self {
        self.as_of = Some(time);
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Parses the whole feed and keeps nothing. Returns the only handle that can hand out records.
    pub fn check(self, progress: &mut dyn FnMut(Progress)) -> Result<CheckedFeed, FeedError> {
        let summary = match self.read_all(progress, &mut |_| Ok(())) {
            Ok(summary) => summary,
            Err(PassError::Feed(error)) => return Err(*error),
            Err(PassError::Stopped) => unreachable!("the callback of a check never stops it"),
        };
        match summary.records {
            0 => Err(FeedError::Empty { path: self.path }),
            _ => Ok(CheckedFeed { feed: self, summary }),
        }
    }

    fn read_all(
        &self,
        progress: &mut dyn FnMut(Progress),
        each: &mut dyn FnMut(Record) -> Result<(), PassError>,
    ) -> Result<Summary, PassError> {
        let mut records = 0;
        let totals = source::walk(&self.path, progress, &mut |input, place| {
            let mut number = 0;
            let mut count = |record| {
                records += 1;
                number += 1;
                if limits::record_memory_bytes(&record) > limits::ADVISORY_BYTES_MAX {
                    return Err(place.too_large(number, Limit::AdvisoryBytes).into());
                }
                if records > limits::RECORDS_MAX {
                    return Err(place.too_large(number, Limit::Records).into());
                }
                each(record)
            };
            match &self.kind {
                FeedKind::Osv => osv::read(input, place, &mut count),
                FeedKind::Csaf => csaf::read(input, place, &mut count),
                FeedKind::Arch => arch::read(input, place, self.as_of, &mut count),
                FeedKind::Secdb => secdb::read(input, place, self.as_of, &mut count),
                FeedKind::DebianTracker { codename, version } => {
                    tracker::Tracker { codename, version, as_of: self.as_of }
                        .read(input, place, &mut count)
                }
                FeedKind::Updateinfo { ecosystem } => {
                    updateinfo::read(input, place, ecosystem, &mut count)
                }
                FeedKind::Kev => kev::read(input, place, &mut count),
                FeedKind::Epss => epss::read(input, place, &mut count),
            }
        })?;
        let source::WalkTotals { files, bytes, fingerprint } = totals;
        Ok(Summary { records, files, bytes, fingerprint })
    }
}

/// A feed that was parsed completely, without errors.
#[derive(Debug, Clone)]
pub struct CheckedFeed {
    feed: Feed,
    summary: Summary,
}

/// Why reading a checked feed stopped early.
#[derive(Debug)]
pub enum FeedReadError<E> {
    /// The file changed after the check. The caller must roll back whatever it has applied.
    Feed(FeedError),
    /// The caller's callback returned this error.
    Consumer(E),
}

impl CheckedFeed {
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Passes each record to `each`, in feed order.
    ///
    /// Apply all records in one transaction: if the file changes between the check and this read,
    /// the error is returned at the end, after records were handed out.
    pub fn read<E>(
        &self,
        progress: &mut dyn FnMut(Progress),
        mut each: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), FeedReadError<E>> {
        let mut consumer_error = None;
        let result = self.feed.read_all(progress, &mut |record| {
            each(record).map_err(|error| {
                consumer_error = Some(error);
                PassError::Stopped
            })
        });
        match (result, consumer_error) {
            (_, Some(refusal)) => Err(FeedReadError::Consumer(refusal)),
            (Err(PassError::Feed(error)), None) => Err(FeedReadError::Feed(*error)),
            (Ok(summary), None) if summary == self.summary => Ok(()),
            (_, None) => {
                Err(FeedReadError::Feed(FeedError::Changed { path: self.feed.path.clone() }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feed_kind_round_trips_through_its_text() {
        let list = FeedKind::DebianTracker { codename: "bookworm".into(), version: "12".into() };
        assert_eq!(list.to_string(), "debian_tracker:bookworm=12");
        let plain = [
            FeedKind::Osv,
            FeedKind::Csaf,
            FeedKind::Arch,
            FeedKind::Secdb,
            FeedKind::Kev,
            FeedKind::Epss,
        ];
        let updateinfo = FeedKind::Updateinfo { ecosystem: "Amazon Linux:2023".into() };
        for kind in plain.into_iter().chain([list, updateinfo]) {
            assert_eq!(kind.to_string().parse::<FeedKind>().unwrap(), kind);
        }
        assert!(
            "debian_tracker".parse::<FeedKind>().is_err() && "nvd".parse::<FeedKind>().is_err()
        );
        assert!("updateinfo:".parse::<FeedKind>().is_err());
    }
}
