//! Why a feed was refused, and at which file and record.

use std::fmt;
use std::path::PathBuf;

use crate::limits::Limit;

/// A file of a feed, or one entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// The name of the entry, if `file` is an archive.
    pub entry: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        match &self.entry {
            Some(entry) => write!(f, " ({})", entry.escape_debug()),
            None => Ok(()),
        }
    }
}

/// Why a feed was refused. No part of it has been applied.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    #[error("{} cannot be opened", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{place} cannot be read")]
    Read { place: Place, source: std::io::Error },
    /// The file ends in the middle of a record or of its compressed stream.
    #[error("{place} is cut off")]
    CutOff { place: Place },
    /// The file is not a zip archive, or a damaged one.
    #[error("{place}: invalid zip archive")]
    Archive { place: Place, source: zip::result::ZipError },
    /// A record is not valid JSON, or lacks a required field.
    #[error("{place}: record {record} cannot be parsed")]
    Record {
        place: Place,
        /// The number of the record, from 1.
        record: u64,
        source: serde_json::Error,
    },
    /// A record parses, but its content is invalid.
    #[error("{place}: record {record}: {why}")]
    Nonsense {
        place: Place,
        /// The number of the record, from 1.
        record: u64,
        why: String,
    },
    /// One record or document exceeds a limit.
    #[error("{place}: record {record} exceeds the limit of {limit}")]
    TooLarge {
        place: Place,
        /// The number of the record, from 1.
        record: u64,
        limit: Limit,
    },
    /// The feed as a whole exceeds a limit, for example a decompression bomb.
    #[error("{place} exceeds the limit of {limit}")]
    Bomb {
        /// The file that was being read when the limit was reached.
        place: Place,
        limit: Limit,
    },
    #[error("{} contains no records", path.display())]
    Empty { path: PathBuf },
    /// The feed is not the one that was checked.
    #[error("{} changed between the check and the import", path.display())]
    Changed { path: PathBuf },
}

/// Why a pass over a feed stopped early.
pub(crate) enum Halt {
    Feed(Box<FeedError>),
    /// The consumer of the records asked to stop.
    Stopped,
}

impl From<FeedError> for Halt {
    fn from(error: FeedError) -> Self {
        Halt::Feed(Box::new(error))
    }
}

impl Place {
    /// Classifies an I/O error: a limit, a truncated file, or a failure to read.
    pub(crate) fn failed(&self, source: std::io::Error) -> FeedError {
        if let Some(limit) = Limit::of(&source) {
            return FeedError::Bomb { place: self.clone(), limit };
        }
        match source.kind() {
            std::io::ErrorKind::UnexpectedEof => FeedError::CutOff { place: self.clone() },
            _ => FeedError::Read { place: self.clone(), source },
        }
    }

    pub(crate) fn too_large(&self, record: u64, limit: Limit) -> FeedError {
        FeedError::TooLarge { place: self.clone(), record, limit }
    }

    pub(crate) fn nonsense(&self, record: u64, why: impl Into<String>) -> FeedError {
        FeedError::Nonsense { place: self.clone(), record, why: why.into() }
    }

    pub(crate) fn broken(&self, record: u64, source: serde_json::Error) -> FeedError {
        match source.is_eof() {
            true => FeedError::CutOff { place: self.clone() },
            false => FeedError::Record { place: self.clone(), record, source },
        }
    }
}
