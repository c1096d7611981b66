//! Why the service did not do what it was asked, one variant for each thing that a caller does differently.

use store::StoreError;

/// Why the service did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// There is no such thing in this organization. Answered with 404.
    #[error("no {kind} `{id}`")]
    NotFound {
        /// What was looked for, as the API calls it.
        kind: &'static str,
        /// The id that was asked for.
        id: String,
    },
    /// It cannot be done as things are now. Answered with 409.
    #[error("{detail}")]
    Conflict {
        /// Why, as a word of the API's closed list.
        code: &'static str,
        /// Why, in a sentence.
        detail: String,
    },
    /// It can never be done: everything that is wrong, all at once. Answered with 422.
    #[error("{} of the fields cannot be used", .0.len())]
    Invalid(Vec<FieldError>),
    /// The caller may not do it. Answered with 403.
    #[error("{0}")]
    Forbidden(String),
    /// It is not in the version that the caller has seen. Answered with 412.
    #[error("its version is {current}")]
    OtherVersion {
        /// The version that it is in.
        current: i64,
    },
    /// Somebody else changed it since it was read. Answered with 412, or 409 where no version was named.
    #[error("changed since it was read")]
    Stale,
    /// The database does not answer. Answered with 503.
    #[error("the database did not answer")]
    Unavailable(#[source] StoreError),
    /// A bug, or a hand in the database. Answered with 500, and told to the log alone.
    #[error("something is broken")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// One thing that is wrong with what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Where, as a JSON pointer.
    pub pointer: String,
    /// What kind of error, as a word for programs.
    pub code: &'static str,
    /// What is wrong, in a sentence.
    pub detail: String,
}

impl FieldError {
    /// Something is wrong at `pointer`.
    pub fn new(
        pointer: impl Into<String>,
        code: &'static str,
        detail: impl std::fmt::Display,
    ) -> Self {
        Self { pointer: pointer.into(), code, detail: detail.to_string() }
    }
}

impl ServiceError {
    /// It cannot be done as things are now.
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
            | StoreError::File { .. } => ServiceError::Internal(error.into()),
        }
    }
}
