//! Versions of things: `ETag` on the way out, `If-Match` on the way in.

use axum::extract::FromRequestParts;
use axum::http::header::{ETAG, HeaderName, HeaderValue, IF_MATCH};
use axum::http::request::Parts;
use axum::response::{IntoResponseParts, ResponseParts};
use service::requests::Versions;

use crate::problem::{ApiError, Code};

/// The version of what is answered, from its row's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ETag(pub i64);

impl std::fmt::Display for ETag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

impl ETag {
    /// As a header.
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

/// Which versions a caller is willing to change; all, if it does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IfMatch(pub Versions);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut wanted = Vec::new();
        let mut any = !parts.headers.contains_key(IF_MATCH);
        for value in parts.headers.get_all(IF_MATCH) {
            let text = value.to_str().map_err(|_| malformed())?;
            // RFC 9110 has empty members of a list passed over. A list of nothing else matches nothing.
            for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
                match tag {
                    "*" => any = true,
                    tag => wanted.extend(read(tag)?),
                }
            }
        }
        Ok(IfMatch(if any { Versions::Any } else { Versions::Only(wanted) }))
    }
}

/// The version that a tag names. A weak tag is read and names none, as `If-Match` compares strongly; nor does one that
/// we have not given out.
fn read(tag: &str) -> Result<Option<i64>, ApiError> {
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
        "`If-Match` holds the `ETag` of an earlier answer, with its quotes, or `*`.",
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
    async fn a_version_that_was_seen_may_be_changed_and_another_may_not() {
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
    async fn what_is_no_version_is_refused_rather_than_ignored() {
        for bad in ["3", "\"3", "\""] {
            assert_eq!(if_match(bad).await.unwrap_err().code(), Code::InvalidHeader, "{bad:?}");
        }
    }
}
