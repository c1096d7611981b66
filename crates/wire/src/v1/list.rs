//! A page of a list.

use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct List<T> {
    /// The rows of this page.
    pub data: Vec<T>,
    /// Where in the list they are.
    pub meta: Meta,
    /// Where the other pages are.
    pub links: Links,
}

/// Where in a list a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Meta {
    /// How many rows the list has.
    pub total: u64,
    /// How many rows a page has at most.
    pub limit: u32,
    /// How many rows come before this page.
    pub offset: u64,
}

/// Where the pages of a list are, relative to the base URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Links {
    /// This page.
    #[serde(rename = "self")]
    pub this: String,
    /// The page after it, if there is one.
    pub next: Option<String>,
    /// The page before it, if there is one.
    pub prev: Option<String>,
}
