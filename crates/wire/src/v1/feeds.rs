//! Vulnerability feeds: where each one comes from, its size, and its age.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::FeedId;

/// A feed: `GET /v1/feeds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feed {
    /// ID. It depends only on the name.
    pub id: FeedId,
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
    /// State.
    pub state: FeedState,
    /// Progress, while it is being imported.
    #[cfg_attr(feature = "openapi", schema(example = json!(null)))]
    pub progress: Option<FeedProgress>,
    /// Whether it is one of the feeds in `GET /v1/feed-catalog`.
    pub built_in: bool,
    /// Whether the service follows it because servers need it, and no user added it.
    pub automatic: bool,
}

/// State of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FeedState {
    /// It will be imported for the first time soon.
    Waiting,
    /// It is being downloaded or imported; see `progress`.
    Importing,
    /// The last update succeeded.
    Current,
    /// The last update failed; see `last_error`. Data of earlier imports stays in use.
    Failed,
    /// The service is set to `offline` and does not update it.
    Offline,
    /// No server needs it any more, so it is not updated. Its data stays.
    Unused,
    /// It was imported from a file and is not updated automatically.
    Manual,
}

/// Progress of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedProgress {
    /// What is being done.
    pub phase: FeedPhase,
    /// Number of bytes downloaded or read in this phase.
    pub bytes: u64,
    /// Total number of bytes of this phase; null if the publisher does not say.
    pub total_bytes: Option<u64>,
    /// Number of records written.
    pub records: u64,
    /// Total number of records; null before the feed was checked.
    pub total_records: Option<u64>,
    /// Percentage of this phase; null if the total is unknown.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub percent: Option<u8>,
    /// Estimated time until the end of this phase; null if there is no basis for an estimate.
    pub estimated_seconds_left: Option<u64>,
}

/// Phase of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FeedPhase {
    /// The feed is being downloaded.
    Downloading,
    /// The whole feed is read, so that a broken one changes nothing.
    Checking,
    /// The records are being written.
    Importing,
}

/// The body of `POST /v1/feeds`: a URL, or the name of a built-in feed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateFeed {
    /// URL to import from and to update from. Omit it for a built-in feed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 2_000, example = "https://feeds.example.org/osv/Debian/all.zip")
    )]
    pub url: Option<String>,
    /// Without `url`: the name of a built-in feed. With `url`: the name of the feed; by default it
    /// is derived from the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 200, example = "our advisories"))]
    pub name: Option<String>,
    /// Time between two updates in hours; by default that of the built-in feed, or 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 168, example = 12))]
    pub every_hours: Option<u32>,
}

/// A built-in feed: `GET /v1/feed-catalog`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CatalogFeed {
    /// Name, for `POST /v1/feeds`.
    #[cfg_attr(feature = "openapi", schema(example = "Debian"))]
    pub name: String,
    /// The systems that it covers, or what it contains.
    #[cfg_attr(feature = "openapi", schema(example = "Debian, Raspbian, LMDE"))]
    pub covers: String,
    /// URL of the publisher.
    pub url: String,
    /// Format.
    #[cfg_attr(feature = "openapi", schema(example = "osv"))]
    pub kind: String,
    /// Time between two updates in hours.
    pub every_hours: u32,
    /// Terms under which the publisher offers the data.
    #[cfg_attr(feature = "openapi", schema(example = "MIT"))]
    pub license: String,
    /// Whether it is only used if someone adds it, because of its license or because it is incomplete.
    pub opt_in: bool,
    /// Whether a server needs it.
    pub needed: bool,
    /// Whether there is a feed with this name.
    pub added: bool,
}
