//! Why a feed was refused, and at which file and record.

use std::fmt;
use std::path::PathBuf;

use crate::limits::Limit;

/// A file of a feed, or one entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedLocation {
    pub file: PathBuf,
    /// The name of the entry, if `file` is an archive.
    pub entry: Option<String>,
}

impl fmt::Display for FeedLocation {
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
    Read { place: FeedLocation, source: std::io::Error },
    /// The file ends in the middle of a record or of its compressed stream.
    #[error("{place} is truncated")]
    Truncated { place: FeedLocation },
    /// The file is not a zip archive, or the archive is damaged.
    #[error("{place}: invalid zip archive")]
    Archive { place: FeedLocation, source: zip::result::ZipError },
    /// A record is not valid JSON, or lacks a required field.
    #[error("{place}: record {record} cannot be parsed")]
    Parse {
        place: FeedLocation,
        /// The number of the record, from 1.
        record: u64,
        source: serde_json::Error,
    },
    /// A record parses, but its content is invalid.
    #[error("{place}: record {record}: {why}")]
    InvalidRecord {
        place: FeedLocation,
        /// The number of the record, from 1.
        record: u64,
        why: String,
    },
    /// One record or document exceeds a limit.
    #[error("{place}: record {record} exceeds the limit of {limit}")]
    RecordTooLarge {
        place: FeedLocation,
        /// The number of the record, from 1.
        record: u64,
        limit: Limit,
    },
    /// The feed as a whole exceeds a limit, for example a decompression bomb.
    #[error("{place} exceeds the limit of {limit}")]
    FeedTooLarge {
        /// The file that was being read when the limit was reached.
        place: FeedLocation,
        limit: Limit,
    },
    #[error("{} contains no records", path.display())]
    Empty { path: PathBuf },
    /// The feed is not the one that was checked.
    #[error("{} changed between the check and the import", path.display())]
    Changed { path: PathBuf },
}

/// Why a pass over a feed stopped early.
pub(crate) enum PassError {
    Feed(Box<FeedError>),
    /// The consumer of the records asked to stop.
    Stopped,
}

impl From<FeedError> for PassError {
    fn from(error: FeedError) -> Self {
        PassError::Feed(Box::new(error))
    }
}

impl FeedLocation {
    /// Classifies an I/O error: a limit, a truncated file, or a failure to read.
    pub(crate) fn read_error(&self, source: std::io::Error) -> FeedError {
        if let Some(limit) = Limit::from_io_error(&source) {
            return FeedError::FeedTooLarge { place: self.clone(), limit };
        }
        match source.kind() {
            std::io::ErrorKind::UnexpectedEof => FeedError::Truncated { place: self.clone() },
            _ => FeedError::Read { place: self.clone(), source },
        }
    }

    pub(crate) fn too_large(&self, record: u64, limit: Limit) -> FeedError {
        FeedError::RecordTooLarge { place: self.clone(), record, limit }
    }

    pub(crate) fn invalid_record(&self, record: u64, why: impl Into<String>) -> FeedError {
        FeedError::InvalidRecord { place: self.clone(), record, why: why.into() }
    }

    pub(crate) fn parse_error(&self, record: u64, source: serde_json::Error) -> FeedError {
        match source.is_eof() {
            true => FeedError::Truncated { place: self.clone() },
            false => FeedError::Parse { place: self.clone(), record, source },
        }
    }
}
