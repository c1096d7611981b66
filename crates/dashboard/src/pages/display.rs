//! How a list is shown: its columns, the density of its rows, and its saved views.

use crate::pages::Density;
use crate::pages::choice::Choice;

/// A list whose views can be saved.
#[derive(Debug, PartialEq, Eq)]
pub struct ListKind {
    /// The name in forms, in cookies and in the database.
    pub name: &'static str,
    pub path: &'static str,
    /// The columns that can be hidden, with their labels. The first column of a list cannot.
    pub columns: &'static [Choice],
}

pub const SERVERS: ListKind = ListKind {
    name: "servers",
    path: "/servers",
    columns: &[
        ("status", "Status"),
        ("environment", "Environment"),
        ("os", "System"),
        ("updates", "Updates"),
        ("security", "Security"),
        ("cves", "CVEs"),
        ("last_seen", "Last seen"),
    ],
};
pub const PATCHES: ListKind = ListKind {
    name: "patches",
    path: "/patches",
    columns: &[
        ("severity", "Severity"),
        ("type", "Type"),
        ("servers", "Servers"),
        ("cves", "CVEs"),
        ("versions", "Versions"),
        ("first_seen", "First seen"),
    ],
};
pub const CVES: ListKind = ListKind {
    name: "cves",
    path: "/cves",
    columns: &[
        ("severity", "Severity"),
        ("cvss", "CVSS"),
        ("epss", "EPSS"),
        ("servers", "Servers"),
        ("packages", "Packages"),
        ("published", "Published"),
    ],
};
pub const BATCHES: ListKind = ListKind {
    name: "batches",
    path: "/batches",
    columns: &[
        ("state", "State"),
        ("updates", "Updates"),
        ("servers", "Servers"),
        ("failed", "Failed"),
        ("progress", "Progress"),
        ("requested", "Requested"),
        ("started_by", "Started by"),
    ],
};
pub const ACTIVITY: ListKind = ListKind { name: "activity", path: "/activity", columns: &[] };

impl ListKind {
    const ALL: [&'static ListKind; 5] = [&SERVERS, &PATCHES, &CVES, &BATCHES, &ACTIVITY];

    pub fn from_name(name: &str) -> Option<&'static ListKind> {
        ListKind::ALL.into_iter().find(|list| list.name == name)
    }

    /// The list with this query string.
    pub fn href(&self, query: &str) -> String {
        if query.is_empty() { self.path.to_owned() } else { format!("{}?{query}", self.path) }
    }
}

/// Stands for a list with its first column only.
const NO_COLUMNS: &str = "none";

/// The columns of a list that are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    list: &'static ListKind,
    shown: Vec<&'static str>,
}

impl Columns {
    /// All columns of a list.
    pub fn all(list: &'static ListKind) -> Columns {
        Columns { list, shown: list.columns.iter().map(|(name, _)| *name).collect() }
    }

    /// The columns with these names, in the order of the list. Unknown names are ignored.
    pub fn named<'a>(list: &'static ListKind, names: impl IntoIterator<Item = &'a str>) -> Columns {
        let names: Vec<&str> = names.into_iter().collect();
        let known = list.columns.iter().map(|(name, _)| *name);
        Columns { list, shown: known.filter(|name| names.contains(name)).collect() }
    }

    /// Reads the text of a query parameter or a cookie. All columns, if it names none of them.
    pub fn parse(list: &'static ListKind, text: &str) -> Columns {
        let columns = Columns::named(list, text.split('.'));
        match columns.shown.is_empty() && text != NO_COLUMNS {
            true => Columns::all(list),
            false => columns,
        }
    }

    pub fn is_all(&self) -> bool {
        self.shown.len() == self.list.columns.len()
    }

    pub fn has(&self, name: &str) -> bool {
        self.shown.contains(&name)
    }
}

impl std::fmt::Display for Columns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.shown.is_empty() {
            true => f.write_str(NO_COLUMNS),
            false => f.write_str(&self.shown.join(".")),
        }
    }
}

/// A saved view in the menu of a list.
#[derive(Debug)]
pub struct ViewLink {
    pub id: String,
    pub name: String,
    pub href: String,
    pub shared: bool,
    pub may_delete: bool,
    /// Whether the list shows this view now.
    pub chosen: bool,
}

/// How a list is shown.
#[derive(Debug)]
pub struct Display {
    pub list: &'static ListKind,
    pub columns: Columns,
    pub density: Density,
    /// The query string of the current filters, order and columns, without the question mark.
    pub query: String,
    pub views: Vec<ViewLink>,
}

impl Display {
    pub fn has(&self, column: &str) -> bool {
        self.columns.has(column)
    }

    /// The name of the view that is shown.
    pub fn current(&self) -> Option<&str> {
        self.views.iter().find(|view| view.chosen).map(|view| view.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_keep_the_order_of_the_list_and_ignore_unknown_names() {
        let columns = Columns::parse(&SERVERS, "cves.status.<b>.status");
        assert_eq!(columns.to_string(), "status.cves");
        assert!(columns.has("cves") && !columns.has("os") && !columns.is_all());
    }

    #[test]
    fn a_text_without_a_known_column_shows_all() {
        for text in ["", ".", "nonsense", "none.nonsense"] {
            assert!(Columns::parse(&CVES, text).is_all(), "{text}");
        }
    }

    #[test]
    fn all_columns_can_be_hidden() {
        let none = Columns::named(&CVES, []);
        assert_eq!(none.to_string(), "none");
        assert_eq!(Columns::parse(&CVES, "none"), none);
    }
}
