//! Paging: the requested part of a list, and its response with links.

use std::convert::Infallible;
use std::fmt;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::{self, Deserializer, Visitor};
use service::queries::{Page, Paged};
use wire::v1::{Links, List, Meta};

/// Maximum page size.
pub const LIMIT_MAX: u32 = 500;
/// Default page size.
pub const LIMIT_DEFAULT: u32 = 50;

/// Maximum number of rows: 1 to 500, 50 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub u32);

/// Number of rows to skip, 0 by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offset(pub u64);

impl Default for Limit {
    fn default() -> Self {
        Limit(LIMIT_DEFAULT)
    }
}

impl<'de> serde::Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expected = "a whole number from 1 to 500";
        let value =
            from.deserialize_str(NumberVisitor { expected, max: u64::from(LIMIT_MAX), min: 1 })?;
        Ok(Limit(u32::try_from(value).unwrap_or(LIMIT_MAX)))
    }
}

impl<'de> serde::Deserialize<'de> for Offset {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expected = "a whole number, 0 or greater";
        // The largest value of a database column.
        let max = i64::MAX.unsigned_abs();
        from.deserialize_str(NumberVisitor { expected, max, min: 0 }).map(Offset)
    }
}

struct NumberVisitor {
    expected: &'static str,
    min: u64,
    max: u64,
}

impl Visitor<'_> for NumberVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        // `u64::from_str` accepts a plus sign, which is not a plain number.
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| plain);
        number
            .filter(|number| (self.min..=self.max).contains(number))
            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// The page for the store's query.
pub fn page(limit: Limit, offset: Offset) -> Page {
    Page { limit: limit.0, offset: offset.0 }
}

/// The path and query of the request, from which the links of the response are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestUrl {
    path: String,
    query: String,
}

impl<S: Send + Sync> FromRequestParts<S> for RequestUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(RequestUrl {
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or("").to_owned(),
        })
    }
}

impl RequestUrl {
    pub fn url(&self) -> String {
        match self.query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, self.query),
        }
    }

    /// A link to the same list with another value of one parameter.
    pub fn with(&self, name: &str, value: &str) -> String {
        let kept = self.query.split('&').filter(|pair| {
            let key = pair.split('=').next().unwrap_or("");
            !key.is_empty() && key != name
        });
        let pairs: Vec<String> =
            kept.map(str::to_owned).chain([format!("{name}={value}")]).collect();
        format!("{}?{}", self.path, pairs.join("&"))
    }

    /// A link to the same list with another offset and the same filters.
    fn at_offset(&self, limit: u32, offset: u64) -> String {
        let kept = self.query.split('&').filter(|pair| {
            let name = pair.split('=').next().unwrap_or("");
            !matches!(name, "limit" | "offset" | "")
        });
        let mut pairs: Vec<String> = kept.map(str::to_owned).collect();
        pairs.push(format!("limit={limit}"));
        pairs.push(format!("offset={offset}"));
        format!("{}?{}", self.path, pairs.join("&"))
    }
}

/// Builds the response of a list: `show` converts each row, and links lead to the adjacent pages.
pub fn list<T, U>(
    url: &RequestUrl,
    page: Page,
    paged: Paged<T>,
    show: impl FnMut(T) -> U,
) -> Json<List<U>> {
    let Page { limit, offset } = page;
    let shown = paged.items.len() as u64;
    let total = paged.total;
    let after = offset.saturating_add(shown);
    let next = (shown > 0 && after < total).then(|| url.at_offset(limit, after));
    // From an offset beyond the end, the previous page is the last one, not another empty one.
    let before = offset.min(total).saturating_sub(u64::from(limit));
    let prev = (offset > 0 && total > 0).then(|| url.at_offset(limit, before));
    Json(List {
        data: paged.items.into_iter().map(show).collect(),
        meta: Meta { total, limit, offset },
        links: Links { this: url.url(), next, prev },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(query: &str, page: Page, total: u64) -> Links {
        let url = RequestUrl { path: "/v1/servers".into(), query: query.into() };
        let rows = total.saturating_sub(page.offset).min(u64::from(page.limit));
        let paged = Paged { items: (0..rows).collect(), total };
        list(&url, page, paged, |row| row).0.links
    }

    #[test]
    fn links_cover_the_whole_list_and_keep_filters() {
        let first = links("status=online&limit=20", Page { limit: 20, offset: 0 }, 45);
        assert_eq!(first.this, "/v1/servers?status=online&limit=20");
        assert_eq!(first.next.unwrap(), "/v1/servers?status=online&limit=20&offset=20");
        assert_eq!(first.prev, None);
        let last = links("offset=40&limit=20", Page { limit: 20, offset: 40 }, 45);
        assert_eq!(last.next, None);
        assert_eq!(last.prev.unwrap(), "/v1/servers?limit=20&offset=20");
    }

    #[test]
    fn offset_beyond_the_end_links_to_the_last_page() {
        let beyond = links("offset=900", Page { limit: 50, offset: 900 }, 45);
        assert_eq!(
            (beyond.next, beyond.prev.unwrap()),
            (None, "/v1/servers?limit=50&offset=0".into())
        );
        let empty = links("", Page { limit: 50, offset: 0 }, 0);
        assert_eq!((empty.this.as_str(), empty.next, empty.prev), ("/v1/servers", None, None));
    }
}
