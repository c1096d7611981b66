//! Reads what is published about flaws, in the forms in which it is published.
//!
//! A feed is a file or a directory. It is read twice: [`Feed::check`] reads all of it and keeps
//! nothing, and only what it returns can hand out records. So a feed that is broken, cut off or
//! empty is refused before anyone could have applied a part of it, and neither pass needs more
//! memory than one record, a file of the small kinds, or the table of contents of an archive.
//!
//! | [`Kind`] | what | as |
//! |---|---|---|
//! | `Osv` | advisories in OSV's form | `.json`, an array, `.jsonl`, each also `.gz`; `.zip`; a directory of them |
//! | `Csaf` | Red Hat's and SUSE's CSAF documents | as `Osv`, and `.tar`, `.tar.gz`, `.tar.zst` |
//! | `Arch` | Arch Linux's security tracker | `.json`, also `.gz` |
//! | `Secdb` | Alpine's fixes | `.json`, also `.gz` |
//! | `DebianTracker` | Debian's word on each CVE | its own list, also `.gz` |
//! | `Kev` | known exploited vulnerabilities | `.json`, also `.gz` |
//! | `Epss` | how likely exploitation is | `.csv`, also `.gz` |
//!
//! What a feed may cost is bounded while it is read ([`limits`]), however it is packed.
//!
//! What is packed is told by its first bytes, not by its name. Nothing here knows a database or a
//! network: whoever downloads puts a file on the disk first.

mod arch;
mod csaf;
mod epss;
mod error;
mod json;
mod kev;
pub mod limits;
mod osv;
mod records;
mod secdb;
mod sniff;
mod source;
mod tar;
mod text;
mod tracker;

pub use error::{FeedError, Place};
pub use sniff::{Sniffed, sniff};
pub use source::is_tar;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use domain::advisory::{Advisory, Epss, Exploited};
use jiff::Timestamp;

use error::Halt;
use limits::Limit;

/// What a feed holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Advisories in OSV's form.
    Osv,
    /// CSAF documents of Red Hat or SUSE.
    Csaf,
    /// Arch Linux's security tracker.
    Arch,
    /// Alpine's database of fixes.
    Secdb,
    /// The list of Debian's security tracker, read for one release.
    DebianTracker {
        /// What the list calls the release: `bookworm`.
        codename: String,
        /// Its number: `12`.
        version: String,
    },
    /// CISA's list of known exploited vulnerabilities.
    Kev,
    /// FIRST's estimates of exploitation.
    Epss,
}

impl Kind {
    /// The word for it.
    pub const fn word(&self) -> &'static str {
        match self {
            Kind::Osv => "osv",
            Kind::Csaf => "csaf",
            Kind::Arch => "arch",
            Kind::Secdb => "secdb",
            Kind::DebianTracker { .. } => "debian_tracker",
            Kind::Kev => "kev",
            Kind::Epss => "epss",
        }
    }
}

/// As it is written down: the word, and for Debian's list the release that it is read for.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::DebianTracker { codename, version } => {
                write!(f, "{}:{codename}={version}", self.word())
            }
            kind => f.write_str(kind.word()),
        }
    }
}

/// What was written down is no kind that is known.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no kind of feed")]
pub struct UnknownKind(String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let plain = [Kind::Osv, Kind::Csaf, Kind::Arch, Kind::Secdb, Kind::Kev, Kind::Epss];
        let release = text.strip_prefix("debian_tracker:").and_then(|rest| rest.split_once('='));
        match release {
            Some((codename, version)) => Ok(Kind::DebianTracker {
                codename: codename.to_owned(),
                version: version.to_owned(),
            }),
            None => plain
                .into_iter()
                .find(|kind| kind.word() == text)
                .ok_or_else(|| UnknownKind(text.to_owned())),
        }
    }
}

/// One thing that a feed says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// On flaws in packages.
    Advisory(Box<Advisory>),
    /// On a flaw that is exploited.
    Exploited(Exploited),
    /// On how likely a flaw is to be exploited.
    Epss(Epss),
}

/// How far the reading is, in bytes as they are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Read so far.
    pub bytes: u64,
    /// Of so many.
    pub total: u64,
}

/// What a feed holds, counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How many records.
    pub records: u64,
    /// In how many files, those of archives counted one by one.
    pub files: u64,
    /// Of how many bytes on the disk.
    pub bytes: u64,
    /// What was read, in short. A second reading that comes to another is refused.
    fingerprint: u64,
}

/// A feed that nobody has looked into.
#[derive(Debug, Clone)]
pub struct Feed {
    path: PathBuf,
    kind: Kind,
    as_of: Option<Timestamp>,
}

impl Feed {
    /// The feed at `path`.
    pub fn new(path: impl Into<PathBuf>, kind: Kind) -> Self {
        Self { path: path.into(), kind, as_of: None }
    }

    /// Says when it was published, for kinds that do not say so themselves. Without it an older
    /// copy cannot be told from a newer one.
    #[must_use]
    pub fn as_of(mut self, time: Timestamp) -> Self {
        self.as_of = Some(time);
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all of it and keeps nothing.
    pub fn check(self, progress: &mut dyn FnMut(Progress)) -> Result<Checked, FeedError> {
        let summary = match self.pass(progress, &mut |_| Ok(())) {
            Ok(summary) => summary,
            Err(Halt::Feed(error)) => return Err(*error),
            Err(Halt::Stopped) => unreachable!("nobody stops a check"),
        };
        match summary.records {
            0 => Err(FeedError::Empty { path: self.path }),
            _ => Ok(Checked { feed: self, summary }),
        }
    }

    fn pass(
        &self,
        progress: &mut dyn FnMut(Progress),
        each: &mut dyn FnMut(Record) -> Result<(), Halt>,
    ) -> Result<Summary, Halt> {
        let mut records = 0;
        let walked = source::walk(&self.path, progress, &mut |input, place| {
            let mut number = 0;
            let mut count = |record| {
                records += 1;
                number += 1;
                if limits::weight(&record) > limits::ADVISORY_BYTES_MAX {
                    return Err(place.too_large(number, Limit::AdvisoryBytes).into());
                }
                if records > limits::RECORDS_MAX {
                    return Err(place.too_large(number, Limit::Records).into());
                }
                each(record)
            };
            match &self.kind {
                Kind::Osv => osv::read(input, place, &mut count),
                Kind::Csaf => csaf::read(input, place, &mut count),
                Kind::Arch => arch::read(input, place, self.as_of, &mut count),
                Kind::Secdb => secdb::read(input, place, self.as_of, &mut count),
                Kind::DebianTracker { codename, version } => {
                    tracker::Tracker { codename, version, as_of: self.as_of }
                        .read(input, place, &mut count)
                }
                Kind::Kev => kev::read(input, place, &mut count),
                Kind::Epss => epss::read(input, place, &mut count),
            }
        })?;
        let source::Walked { files, bytes, fingerprint } = walked;
        Ok(Summary { records, files, bytes, fingerprint })
    }
}

/// A feed that can be read to its end.
#[derive(Debug, Clone)]
pub struct Checked {
    feed: Feed,
    summary: Summary,
}

/// Why reading a checked feed ended early.
#[derive(Debug)]
pub enum Stopped<E> {
    /// It is no longer the feed that was checked. Whatever was applied of it must be taken back.
    Feed(FeedError),
    /// Whoever took the records did not want more.
    Taker(E),
}

impl Checked {
    /// What it holds.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Hands out each record, in the order of the feed.
    ///
    /// Apply them in one transaction: should someone change the file between the check and now, the
    /// end of this says so, and not the beginning.
    pub fn read<E>(
        &self,
        progress: &mut dyn FnMut(Progress),
        mut each: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), Stopped<E>> {
        let mut refusal = None;
        let passed = self.feed.pass(progress, &mut |record| {
            each(record).map_err(|error| {
                refusal = Some(error);
                Halt::Stopped
            })
        });
        match (passed, refusal) {
            (_, Some(refusal)) => Err(Stopped::Taker(refusal)),
            (Err(Halt::Feed(error)), None) => Err(Stopped::Feed(*error)),
            (Ok(summary), None) if summary == self.summary => Ok(()),
            (_, None) => Err(Stopped::Feed(FeedError::Changed { path: self.feed.path.clone() })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_back_from_what_it_writes() {
        let list = Kind::DebianTracker { codename: "bookworm".into(), version: "12".into() };
        assert_eq!(list.to_string(), "debian_tracker:bookworm=12");
        let plain = [Kind::Osv, Kind::Csaf, Kind::Arch, Kind::Secdb, Kind::Kev, Kind::Epss];
        for kind in plain.into_iter().chain([list]) {
            assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
        }
        assert!("debian_tracker".parse::<Kind>().is_err() && "nvd".parse::<Kind>().is_err());
    }
}
