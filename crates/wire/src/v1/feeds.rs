//! What is published about flaws: where it came from, how much of it there is, and how old.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A feed: `GET /v1/feeds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feed {
    /// What it is called.
    #[cfg_attr(feature = "openapi", schema(example = "Debian"))]
    pub name: String,
    /// What it holds: `osv`, `csaf`, `arch`, `secdb`, `debian_tracker`, `kev`, `epss`, or `bundle`; `unknown` if it was never read.
    #[cfg_attr(feature = "openapi", schema(example = "osv"))]
    pub kind: String,
    /// The file or the address that it was read from.
    #[cfg_attr(feature = "openapi", schema(example = "Debian/all.zip"))]
    pub source: String,
    /// How many records it had when it was last imported.
    pub records: u64,
    /// How many bytes it had.
    pub size_bytes: u64,
    /// Of when its newest statement is.
    pub as_of: Option<Timestamp>,
    /// When it was last imported; nothing if it never was.
    pub imported_at: Option<Timestamp>,
    /// When it was last known to be as it is published: imported, or found unchanged.
    pub checked_at: Option<Timestamp>,
    /// How old it is: the time since `as_of`, or since `imported_at` where that is not known.
    pub age_seconds: Option<u64>,
    /// When it is fetched next; nothing if it is not kept up to date by itself.
    pub next_update_at: Option<Timestamp>,
    /// How many times in a row it could not be fetched.
    pub failures: u32,
    /// Why the last try failed; nothing if it did not.
    #[cfg_attr(feature = "openapi", schema(example = json!(null)))]
    pub last_error: Option<String>,
}
