//! Filters of a list as menus of links, so that they work without a script.

use vocab::{Selector, Tag};

use crate::pages::choice::Choice;

/// The filters of a list as they were sent, and the path of the list.
#[derive(Debug, Clone)]
pub struct Filters {
    path: &'static str,
    /// Name and value of each filter that is set, in the order of the query string.
    pairs: Vec<(&'static str, String)>,
    /// The columns that the address names, which every link keeps; may be empty.
    columns: String,
}

impl Filters {
    /// Keeps the filters that have a value.
    pub fn new(path: &'static str, pairs: Vec<(&'static str, String)>) -> Filters {
        let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        Filters { path, pairs, columns: String::new() }
    }

    /// The same filters, whose links keep the columns of the list.
    pub fn keeping_columns(self, columns: Option<&str>) -> Filters {
        Filters { columns: columns.unwrap_or("").to_owned(), ..self }
    }

    /// The columns that the address names; may be empty.
    pub fn columns(&self) -> &str {
        &self.columns
    }

    /// The value of a filter, or an empty string.
    pub fn get(&self, name: &str) -> &str {
        self.pairs.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    /// The filters that are set.
    pub fn pairs(&self) -> &[(&'static str, String)] {
        &self.pairs
    }

    /// The path of the list with one filter changed; an empty value removes it.
    pub fn with(&self, name: &'static str, value: &str) -> String {
        let others = self.pairs.iter().filter(|(key, _)| *key != name);
        let mut pairs: Vec<(&str, &str)> = others.map(|(key, value)| (*key, &**value)).collect();
        if !value.is_empty() {
            pairs.push((name, value));
        }
        if !self.columns.is_empty() {
            pairs.push(("columns", &self.columns));
        }
        match pairs.is_empty() {
            true => self.path.to_owned(),
            false => {
                format!("{}?{}", self.path, serde_html_form::to_string(pairs).unwrap_or_default())
            }
        }
    }

    /// The filters as a query string that starts with `?`, or empty.
    pub fn query(&self) -> String {
        match self.pairs.is_empty() {
            true => String::new(),
            false => format!("?{}", serde_html_form::to_string(&self.pairs).unwrap_or_default()),
        }
    }

    /// The filters and these parameters as a query string without a question mark.
    pub fn query_with(&self, more: &[(&str, &str)]) -> String {
        let pairs = self.pairs.iter().map(|(name, value)| (*name, value.as_str()));
        let pairs: Vec<(&str, &str)> = pairs.chain(more.iter().copied()).collect();
        serde_html_form::to_string(pairs).unwrap_or_default()
    }

    /// A menu with the values of one filter and the number of rows of each.
    pub fn menu(
        &self,
        label: &'static str,
        name: &'static str,
        values: impl IntoIterator<Item = (String, String, Option<u64>)>,
    ) -> FacetMenu {
        let chosen = self.get(name);
        let items: Vec<FacetItem> = values
            .into_iter()
            .map(|(value, text, count)| FacetItem {
                href: self.with(name, if value == chosen { "" } else { &value }),
                chosen: value == chosen,
                text,
                count,
            })
            .collect();
        let current = items.iter().find(|item| item.chosen).map(|item| item.text.clone());
        let current = current.or_else(|| (!chosen.is_empty()).then(|| chosen.to_owned()));
        FacetMenu { label, current, clear: self.with(name, ""), items }
    }

    /// A menu with fixed values. The value that stands for no filter is left out.
    pub fn choices(
        &self,
        label: &'static str,
        name: &'static str,
        choices: &'static [Choice],
    ) -> FacetMenu {
        let values = choices.iter().filter(|(value, _)| !value.is_empty());
        let owned = values.map(|(value, text)| ((*value).to_owned(), (*text).to_owned(), None));
        self.menu(label, name, owned)
    }

    /// A menu with fixed values and the number of rows of each.
    pub fn counted(
        &self,
        label: &'static str,
        name: &'static str,
        choices: &'static [Choice],
        count: impl Fn(&str) -> u64,
    ) -> FacetMenu {
        let values = choices.iter().filter(|(value, _)| !value.is_empty());
        let owned = values
            .map(|(value, text)| ((*value).to_owned(), (*text).to_owned(), Some(count(value))));
        self.menu(label, name, owned)
    }

    /// The link that sorts by a column, and whether the list is sorted by it: `ascending`,
    /// `descending` or not at all.
    pub fn sort(&self, value: &str, order: &'static str) -> (String, &'static str) {
        (self.with("sort", value), if self.get("sort") == value { order } else { "" })
    }
}

/// A menu of links, one for each value of a filter.
#[derive(Debug, Clone)]
pub struct FacetMenu {
    pub label: &'static str,
    /// The value that the list is filtered by.
    pub current: Option<String>,
    /// The list without this filter.
    pub clear: String,
    pub items: Vec<FacetItem>,
}

#[derive(Debug, Clone)]
pub struct FacetItem {
    pub text: String,
    /// The number of rows with this value, if it is known.
    pub count: Option<u64>,
    pub href: String,
    pub chosen: bool,
}

/// The list of the servers that a selector matches; `None` if it names servers, which the filters
/// of the list cannot.
pub fn servers_path(selector: &Selector) -> Option<String> {
    let Selector::Matching(criteria) = selector else { return Some("/servers".to_owned()) };
    if !criteria.server_ids().is_empty() {
        return None;
    }
    let tags: Vec<&str> = criteria.tags().iter().map(Tag::as_str).collect();
    let text = |value: Option<String>| value.unwrap_or_default();
    let pairs = vec![
        ("environment", text(criteria.environment().map(ToString::to_string))),
        ("os", text(criteria.os().map(ToString::to_string))),
        ("tag", tags.join(",")),
    ];
    Some(Filters::new("/servers", pairs).with("q", ""))
}

/// The filters that are set, each with the link that removes it.
pub fn chips(filters: &Filters, menus: &[FacetMenu]) -> Vec<(String, String)> {
    let search = filters.get("q");
    let search = (!search.is_empty()).then(|| (format!("“{search}”"), filters.with("q", "")));
    let chosen = menus.iter().filter_map(|menu| {
        let current = menu.current.as_ref()?;
        Some((format!("{}: {current}", menu.label), menu.clear.clone()))
    });
    search.into_iter().chain(chosen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_links_to_the_list_of_its_servers() {
        let path = |value| servers_path(&Selector::parse(&value).unwrap());
        assert_eq!(path(serde_json::json!({"all": true})).as_deref(), Some("/servers"));
        let all = serde_json::json!({"environment": "production", "os": "debian 12", "tags": ["a", "b:c"]});
        assert_eq!(
            path(all).as_deref(),
            Some("/servers?environment=production&os=debian+12&tag=a%2Cb%3Ac")
        );
        let named = serde_json::json!({"server_ids": ["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"]});
        assert_eq!(path(named), None);
    }

    #[test]
    fn links_change_one_filter_and_keep_the_others() {
        let filters = Filters::new(
            "/servers",
            vec![("q", "a b".into()), ("environment", "production".into()), ("os", String::new())],
        );
        assert_eq!(filters.with("environment", "x&y"), "/servers?q=a+b&environment=x%26y");
        assert_eq!(filters.with("environment", ""), "/servers?q=a+b");
        assert_eq!(Filters::new("/servers", vec![]).with("q", ""), "/servers");
        let values = [("production", 2), ("staging", 1)];
        let values = values.map(|(name, n)| (name.to_owned(), name.to_owned(), Some(n)));
        let menu = filters.menu("Environment", "environment", values);
        assert_eq!(menu.current.as_deref(), Some("production"));
        // The chosen value links to the list without it.
        assert_eq!(menu.items[0].href, "/servers?q=a+b");
        assert_eq!(menu.items[1].href, "/servers?q=a+b&environment=staging");
        // A value that no server has any more is still shown as chosen.
        let gone = filters.menu("Environment", "environment", []);
        assert_eq!(gone.current.as_deref(), Some("production"));
    }
}
