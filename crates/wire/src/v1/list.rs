//! A page of a list.

use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct List<T> {
    /// Items of this page.
    pub data: Vec<T>,
    /// Position of this page in the list.
    pub meta: Meta,
    /// Links to other pages.
    pub links: Links,
}

/// Position of a page in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Meta {
    /// Number of items in the list.
    pub total: u64,
    /// Maximum number of items per page.
    pub limit: u32,
    /// Number of items before this page.
    pub offset: u64,
}

/// Links to the pages of a list, relative to the base URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Links {
    /// This page.
    #[serde(rename = "self")]
    pub this: String,
    /// Next page, if there is one.
    pub next: Option<String>,
    /// Previous page, if there is one.
    pub prev: Option<String>,
}
