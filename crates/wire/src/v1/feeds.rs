//! Vulnerability feeds: where each one comes from, its size, and its age.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A feed: `GET /v1/feeds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feed {
    /// Name.
    #[cfg_attr(feature = "openapi", schema(example = "Debian"))]
    pub name: String,
    /// Format: `osv`, `csaf`, `arch`, `secdb`, `debian_tracker`, `kev`, `epss`, or `bundle`;
    /// `unknown` if it was never imported.
    #[cfg_attr(feature = "openapi", schema(example = "osv"))]
    pub kind: String,
    /// File or URL that it was imported from.
    #[cfg_attr(feature = "openapi", schema(example = "Debian/all.zip"))]
    pub source: String,
    /// Number of records at the last import.
    pub records: u64,
    /// Size in bytes at the last import.
    pub size_bytes: u64,
    /// Time of its newest entry.
    pub as_of: Option<Timestamp>,
    /// Last import; null if it was never imported.
    pub imported_at: Option<Timestamp>,
    /// When it was last imported or found to be unchanged.
    pub checked_at: Option<Timestamp>,
    /// Age: the time since `as_of`, or since `imported_at` if `as_of` is unknown.
    pub age_seconds: Option<u64>,
    /// Next update; null if it is not updated automatically.
    pub next_update_at: Option<Timestamp>,
    /// Number of consecutive failed updates.
    pub failures: u32,
    /// Error of the last update; null if it succeeded.
    #[cfg_attr(feature = "openapi", schema(example = json!(null)))]
    pub last_error: Option<String>,
}
