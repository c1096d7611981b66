//! What every error looks like: RFC 9457, `application/problem+json`.

use serde::{Deserialize, Serialize};

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// A URI that names the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem in a few words; the same for each of its kind.
    pub title: String,
    /// The HTTP status, repeated.
    pub status: u16,
    /// What is wrong with this very request.
    pub detail: String,
    /// The kind of problem as a word from a closed list, for programs.
    pub code: String,
    /// By what the request is known in the logs.
    pub request_id: String,
    /// Everything that is wrong with the body or the parameters, all at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One thing that is wrong with a body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// Where, as a JSON pointer.
    pub pointer: String,
    /// What kind of error, as a word from a closed list.
    pub code: String,
    /// What is wrong.
    pub detail: String,
}
