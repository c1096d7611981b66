//! Resource versions: `ETag` in responses, `If-Match` in requests.

use axum::extract::FromRequestParts;
use axum::http::header::{ETAG, HeaderName, HeaderValue, IF_MATCH};
use axum::http::request::Parts;
use axum::response::{IntoResponseParts, ResponseParts};
use service::requests::Versions;

use crate::problem::{ApiError, Code};

/// The version of a resource, from the generation of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ETag(pub i64);

impl std::fmt::Display for ETag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

impl ETag {
    pub fn header(self) -> (HeaderName, HeaderValue) {
        let value = HeaderValue::try_from(self.to_string());
        (ETAG, value.unwrap_or(HeaderValue::from_static("\"\"")))
    }
}

impl IntoResponseParts for ETag {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut to: ResponseParts) -> Result<ResponseParts, Self::Error> {
        let (name, value) = self.header();
        to.headers_mut().insert(name, value);
        Ok(to)
    }
}

/// The versions that the caller is willing to change; all versions without the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IfMatch(pub Versions);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut wanted = Vec::new();
        let mut any = !parts.headers.contains_key(IF_MATCH);
        for value in parts.headers.get_all(IF_MATCH) {
            let text = value.to_str().map_err(|_| malformed())?;
            // RFC 9110 ignores empty list members. A list of only empty members matches nothing.
            for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
                match tag {
                    "*" => any = true,
                    tag => wanted.extend(parse_tag(tag)?),
                }
            }
        }
        Ok(IfMatch(if any { Versions::Any } else { Versions::Only(wanted) }))
    }
}

/// The version in a tag. A weak tag is accepted and matches nothing, because `If-Match` compares
/// strongly. A tag that we did not issue matches nothing either.
fn parse_tag(tag: &str) -> Result<Option<i64>, ApiError> {
    let quoted = tag.strip_prefix("W/").unwrap_or(tag);
    let opaque = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match opaque {
        Some(opaque) if !opaque.contains('"') && quoted.len() > 1 => {
            let version = opaque.parse().ok();
            Ok(version.filter(|version| ETag(*version).to_string() == tag))
        }
        _ => Err(malformed()),
    }
}

fn malformed() -> ApiError {
    ApiError::new(
        Code::InvalidHeader,
        "`If-Match` must be the `ETag` of an earlier response, including its quotes, or `*`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    async fn if_match(value: &str) -> Result<IfMatch, ApiError> {
        let request = Request::builder().header("if-match", value).body(()).unwrap();
        IfMatch::from_request_parts(&mut request.into_parts().0, &()).await
    }

    #[tokio::test]
    async fn only_the_version_that_was_read_may_be_changed() {
        for good in ["\"3\"", "\"2\", \"3\"", ", \"3\"", "*"] {
            let IfMatch(wanted) = if_match(good).await.unwrap();
            let fits = wanted == Versions::Any || wanted == Versions::Only(vec![3]);
            assert!(fits || wanted == Versions::Only(vec![2, 3]), "{good}: {wanted:?}");
        }
        for stale in ["\"2\"", "W/\"3\"", "\"\"", "", " , "] {
            let IfMatch(wanted) = if_match(stale).await.unwrap();
            assert!(
                matches!(&wanted, Versions::Only(list) if !list.contains(&3)),
                "{stale}: {wanted:?}"
            );
        }
    }

    #[tokio::test]
    async fn malformed_if_match_is_rejected() {
        for bad in ["3", "\"3", "\""] {
            assert_eq!(if_match(bad).await.unwrap_err().code(), Code::InvalidHeader, "{bad:?}");
        }
    }
}
