//! Why a feed was refused, and where in it.

use std::fmt;
use std::path::PathBuf;

use crate::limits::Limit;

/// Where in a feed something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Which file inside of it, if it is an archive.
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

/// Why a feed was refused. Nothing of it has been applied.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// It cannot be opened.
    #[error("{} cannot be opened", path.display())]
    Open {
        /// What was to be opened.
        path: PathBuf,
        /// Why it was not.
        source: std::io::Error,
    },
    /// It cannot be read on.
    #[error("{place} cannot be read")]
    Read {
        /// Where.
        place: Place,
        /// Why not.
        source: std::io::Error,
    },
    /// It ends in the middle of something.
    #[error("{place} is cut off")]
    CutOff {
        /// Where.
        place: Place,
    },
    /// It is no archive, or a broken one.
    #[error("{place} is a broken archive")]
    Archive {
        /// Where.
        place: Place,
        /// What is wrong with it.
        source: zip::result::ZipError,
    },
    /// A record is not what it should be.
    #[error("{place}: record {record} does not parse")]
    Record {
        /// Where.
        place: Place,
        /// Which one, from 1.
        record: u64,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A record parses, and says something impossible.
    #[error("{place}: record {record}: {why}")]
    Nonsense {
        /// Where.
        place: Place,
        /// Which one, from 1.
        record: u64,
        /// What is wrong with it.
        why: String,
    },
    /// A record, or a whole document, is too large.
    #[error("{place}: record {record} exceeds the limit of {limit}")]
    TooLarge {
        /// Where.
        place: Place,
        /// Which one, from 1.
        record: u64,
        /// The limit.
        limit: Limit,
    },
    /// The whole is too large.
    #[error("{place} exceeds the limit of {limit}")]
    Bomb {
        /// Where the limit was reached.
        place: Place,
        /// The limit.
        limit: Limit,
    },
    /// There is nothing in it.
    #[error("{} holds no record", path.display())]
    Empty {
        /// What is empty.
        path: PathBuf,
    },
    /// It is not what was checked.
    #[error("{} changed while it was read", path.display())]
    Changed {
        /// What changed.
        path: PathBuf,
    },
}

/// Why a pass over a feed ended early.
pub(crate) enum Halt {
    Feed(Box<FeedError>),
    /// Whoever takes the records does not want more.
    Stopped,
}

impl From<FeedError> for Halt {
    fn from(error: FeedError) -> Self {
        Halt::Feed(Box::new(error))
    }
}

impl Place {
    /// What a failure to read at this place is.
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
