//! Error responses: RFC 9457, `application/problem+json`.

use serde::{Deserialize, Serialize};

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// URI of the problem type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Short description of the problem type.
    pub title: String,
    /// HTTP status code.
    pub status: u16,
    /// What is wrong with this request.
    pub detail: String,
    /// Problem type as a code from a closed list.
    pub code: String,
    /// ID of the request in the logs.
    pub request_id: String,
    /// All invalid fields of the body or the parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// Location, as a JSON pointer.
    pub pointer: String,
    /// Error code from a closed list.
    pub code: String,
    /// What is wrong.
    pub detail: String,
}
