//! The errors of the service. There is one variant for each case that callers handle differently.

use store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The object does not exist in this organization. HTTP status 404.
    #[error("no {kind} `{id}`")]
    NotFound {
        /// The type of the object, as the API names it.
        kind: &'static str,
        id: String,
    },
    /// Not possible in the current state. HTTP status 409.
    #[error("{detail}")]
    Conflict {
        /// One of the API's error codes.
        code: &'static str,
        /// The reason in one sentence.
        detail: String,
    },
    /// The request is invalid. Contains all errors. HTTP status 422.
    #[error("{} fields are invalid", .0.len())]
    Invalid(Vec<FieldError>),
    /// The caller is not allowed to do this. HTTP status 403.
    #[error("{0}")]
    Forbidden(String),
    /// The creator of a batch may not approve its waves. HTTP status 403.
    #[error("the creator of a batch cannot approve it")]
    OwnBatch,
    /// The object does not have the version that the caller expects. HTTP status 412.
    #[error("the current version is {current}")]
    VersionMismatch { current: i64 },
    /// The object has changed since it was read. HTTP status 412, or 409 if the request named no
    /// version.
    #[error("changed since it was read")]
    Stale,
    /// The database is not available. HTTP status 503.
    #[error("the database is not available")]
    Unavailable(#[source] StoreError),
    /// A bug, or data that was changed directly in the database. HTTP status 500; only the log has
    /// the cause.
    #[error("internal error")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// One error in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The location as a JSON pointer.
    pub pointer: String,
    /// The error code for programs.
    pub code: &'static str,
    /// The error in one sentence.
    pub detail: String,
}

impl FieldError {
    pub fn new(
        pointer: impl Into<String>,
        code: &'static str,
        detail: impl std::fmt::Display,
    ) -> Self {
        Self { pointer: pointer.into(), code, detail: detail.to_string() }
    }
}

impl ServiceError {
    /// Not possible in the current state.
    pub fn conflict(code: &'static str, detail: impl Into<String>) -> ServiceError {
        ServiceError::Conflict { code, detail: detail.into() }
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { kind, id } => ServiceError::NotFound { kind, id },
            StoreError::AlreadyExists { what } => ServiceError::Conflict {
                code: "already_exists",
                detail: format!("{what} is already taken"),
            },
            StoreError::Stale => ServiceError::Stale,
            StoreError::Busy(_)
            | StoreError::DiskFull(_)
            | StoreError::Database(_)
            | StoreError::RootKeyRotated
            | StoreError::LeaseLost { .. } => ServiceError::Unavailable(error),
            StoreError::Corrupt { .. }
            | StoreError::NewerDatabase { .. }
            | StoreError::MigrationChanged { .. }
            | StoreError::BadAddress { .. }
            | StoreError::SchemaDiffers { .. }
            | StoreError::CopyDiffers { .. }
            | StoreError::Table { .. }
            | StoreError::File { .. } => ServiceError::Internal(error.into()),
        }
    }
}
