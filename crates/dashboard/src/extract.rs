//! Extractors for what browsers send: query strings with empty fields, and forms.

use std::collections::BTreeSet;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use httpkit::problem::{ApiError, Code};
use httpkit::{body, query};
use serde::de::DeserializeOwned;

use crate::cookies;
use crate::pages::facets::Filters;

/// The query parameters of a page, parsed like those of the API. Filter forms also send empty
/// fields; these count as absent.
#[derive(Debug)]
pub(crate) struct PageQuery<T> {
    pub(crate) parameters: T,
    pairs: Vec<(String, String)>,
}

impl<T> PageQuery<T> {
    /// The value of a parameter as it was sent.
    pub(crate) fn text(&self, name: &str) -> String {
        value(&self.pairs, name).to_owned()
    }

    /// The same parameters without `limit` and `offset`, as a query string that starts with `?`, or
    /// empty.
    pub(crate) fn query(&self) -> String {
        let kept =
            self.pairs.iter().filter(|(name, _)| !matches!(name.as_str(), "limit" | "offset"));
        let kept: Vec<&(String, String)> = kept.collect();
        match kept.is_empty() {
            true => String::new(),
            false => format!("?{}", serde_html_form::to_string(kept).unwrap_or_default()),
        }
    }
}

impl<T: DeserializeOwned> PageQuery<T> {
    fn from_pairs(mut pairs: Vec<(String, String)>) -> Result<PageQuery<T>, ApiError> {
        pairs.retain(|(_, value)| !value.is_empty());
        let text = serde_html_form::to_string(&pairs).unwrap_or_default();
        Ok(PageQuery { parameters: query::parse(&text)?, pairs })
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for PageQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        PageQuery::from_pairs(parse_pairs(parts.uri.query().unwrap_or("").as_bytes())?)
    }
}

/// The query parameters of a list, and the columns that are shown.
#[derive(Debug)]
pub(crate) struct ListQuery<T> {
    pub(crate) page: PageQuery<T>,
    /// The columns that the address names.
    pub(crate) columns: Option<String>,
    /// The columns that this browser remembers for the list.
    pub(crate) remembered_columns: Option<String>,
}

impl<T> ListQuery<T> {
    /// The filters with these names, for the links of the list at this path.
    pub(crate) fn filters(&self, path: &'static str, names: &[&'static str]) -> Filters {
        let pairs = names.iter().map(|name| (*name, self.page.text(name))).collect();
        Filters::new(path, pairs).keeping_columns(self.columns.as_deref())
    }
}

/// The parameter of a list that names its columns.
const COLUMNS: &str = "columns";

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for ListQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut pairs = parse_pairs(parts.uri.query().unwrap_or("").as_bytes())?;
        let columns = pairs.iter().find(|(name, _)| name == COLUMNS).map(|(_, text)| text.clone());
        pairs.retain(|(name, _)| name != COLUMNS);
        let remembered_columns = cookies::columns(&parts.headers, parts.uri.path());
        Ok(ListQuery { page: PageQuery::from_pairs(pairs)?, columns, remembered_columns })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// The first value of a field, trimmed.
    pub(crate) fn text(&self, name: &str) -> String {
        value(&self.0, name).trim().to_owned()
    }

    /// The first value of a field, unchanged.
    pub(crate) fn raw(&self, name: &str) -> &str {
        value(&self.0, name)
    }

    /// All values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let named = self.0.iter().filter(|(key, _)| key == name);
        named.map(|(_, value)| value.clone()).collect()
    }

    /// Whether the user confirmed the action on a confirmation page.
    pub(crate) fn is_confirmed(&self) -> bool {
        !self.raw("go").is_empty()
    }
}

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes: Bytes = body::read(request, body::BODY_BYTES_MAX).await?;
        Ok(Form(form_pairs(&bytes)?))
    }
}

/// The largest form accepted from a client that is not signed in.
const SIGN_IN_BYTES_MAX: usize = 4 << 10;

/// A form from a client that is not signed in: a name, a password or a code, and the page to open
/// next.
#[derive(Debug, Default)]
pub(crate) struct SignInForm(pub(crate) Form);

impl<S: Send + Sync> FromRequest<S> for SignInForm {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes: Bytes = body::read_from_anyone(request, SIGN_IN_BYTES_MAX).await?;
        Ok(SignInForm(Form(form_pairs(&bytes)?)))
    }
}

/// The first value of a field, or an empty string.
pub(crate) fn value<'a>(pairs: &'a [(String, String)], name: &str) -> &'a str {
    pairs.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
}

/// Parses the names and values of a URL-encoded form or query.
pub(crate) fn parse_pairs(bytes: &[u8]) -> Result<Vec<(String, String)>, ApiError> {
    serde_html_form::from_bytes(bytes)
        .map_err(|_| ApiError::new(Code::BadRequest, "The request is not a valid form."))
}

/// The fields that a form may repeat.
const REPEATABLE_FIELDS: [&str; 4] = ["server_ids", "pending", "columns", "types"];
/// The number of characters of a field name that an error message repeats.
const NAME_CHARS_SHOWN: usize = 40;

/// Parses a form. Our pages send every field once, except [`REPEATABLE_FIELDS`]. A form that repeats
/// another field is rejected, so that no two readers of the form can see different values.
pub(crate) fn form_pairs(bytes: &[u8]) -> Result<Vec<(String, String)>, ApiError> {
    let pairs = parse_pairs(bytes)?;
    let mut names = BTreeSet::new();
    let single = pairs
        .iter()
        .map(|(name, _)| name)
        .filter(|name| !REPEATABLE_FIELDS.contains(&name.as_str()));
    if let Some(name) = { single }.find(|name| !names.insert(name.as_str())) {
        let name: String = name.chars().take(NAME_CHARS_SHOWN).collect();
        let detail = format!("The form has the field \"{name}\" more than once.");
        return Err(ApiError::new(Code::BadRequest, detail));
    }
    Ok(pairs)
}

/// Splits a text at commas and whitespace.
pub(crate) fn split_words(text: &str) -> Vec<String> {
    let parts = text.split([',', ' ', '\n', '\t']).map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
