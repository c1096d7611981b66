//! Ids in paths. A malformed id gets the same response as an unknown one.

use std::str::FromStr;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;

use crate::problem::{ApiError, Code};

pub trait Segment: FromStr {
    /// The name of the resource in error messages.
    const KIND: &'static str;
}

macro_rules! segments {
    ($($kind:ty = $noun:literal;)*) => {$(
        impl Segment for $kind {
            const KIND: &'static str = $noun;
        }
    )*};
}

segments! {
    vocab::ServerId = "server";
    vocab::ScheduleId = "schedule";
    vocab::FreezeId = "freeze";
    vocab::PolicyId = "policy";
    vocab::RunId = "run";
    vocab::BatchId = "batch";
    vocab::TaskId = "task";
    vocab::KeyId = "API key";
    vocab::TokenId = "enrollment token";
    vocab::WebhookId = "webhook";
    vocab::EventId = "event";
    vocab::UserId = "user";
    vocab::SuppressionId = "suppression";
    vocab::DeliveryId = "delivery";
    vocab::NotificationRuleId = "notification rule";
    vocab::ViewId = "view";
    vocab::FeedId = "feed";
    String = "resource";
}

/// The only id in a path.
#[derive(Debug, Clone, Copy)]
pub struct Id<T>(pub T);

/// The two ids in a path, from left to right.
#[derive(Debug, Clone, Copy)]
pub struct Ids<A, B>(pub A, pub B);

impl<S: Send + Sync, T: Segment> FromRequestParts<S> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let texts = path_segments(parts, state).await?;
        Ok(Id(parse_nth(&texts, 0)?))
    }
}

impl<S: Send + Sync, A: Segment, B: Segment> FromRequestParts<S> for Ids<A, B> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let texts = path_segments(parts, state).await?;
        Ok(Ids(parse_nth(&texts, 0)?, parse_nth(&texts, 1)?))
    }
}

async fn path_segments<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
) -> Result<Vec<String>, ApiError> {
    let params = RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|_| ApiError::new(Code::NotFound, "There is nothing at this path."))?;
    Ok(params.iter().map(|(_, text)| text.to_owned()).collect())
}

fn parse_nth<T: Segment>(texts: &[String], index: usize) -> Result<T, ApiError> {
    let text = texts.get(index).map_or("", String::as_str);
    if text.contains('\0') {
        // No name contains a NUL, and PostgreSQL rejects it in a query.
        return Err(ApiError::not_found(T::KIND, text));
    }
    text.parse().map_err(|_| ApiError::not_found(T::KIND, text))
}
