//! Selection of servers: the `targets` of a schedule or a batch.
//!
//! This module only parses selectors; `domain::selector` matches servers. No input selects every
//! server by accident: that takes an explicit `{"all": true}`.

use std::fmt;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde_json::Value;

use crate::id::{IdError, ServerId};
use crate::label::{Environment, LabelError, Tag};
use crate::os::{OsFilter, OsFilterError};
use crate::text::quote_input;

/// A selection of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// Every server of the organization: `{"all": true}`.
    All,
    /// The servers that match all of the criteria.
    Matching(Criteria),
}

/// What servers must match. At least one of the four criteria is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Criteria {
    environment: Option<Environment>,
    os: Option<OsFilter>,
    tags: Vec<Tag>,
    server_ids: Vec<ServerId>,
}

/// One error in a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("targets must be an object like {{\"environment\": \"production\"}}")]
    NotAnObject,
    #[error(
        "targets must select servers by environment, os, tags or server_ids; to select every server, write {{\"all\": true}}"
    )]
    Empty,
    #[error("`{found}` is not a known selector{}", suggestion(*nearest))]
    Unknown {
        /// The name, shortened.
        found: String,
        /// The name that was probably intended.
        nearest: Option<&'static str>,
    },
    /// `all` together with another selector.
    #[error("`all` cannot be combined with other selectors: remove it or the others")]
    AllAndMore,
    /// `"all": false`, or any other value than `true`.
    #[error("`all` must be true or omitted")]
    All,
    #[error("`{field}` must be {expected}")]
    Type {
        field: &'static str,
        /// Description of the expected type.
        expected: &'static str,
    },
    #[error("`{field}` must not be empty; omit it to match any")]
    EmptyList { field: &'static str },
    #[error("`{field}` must have at most {max} items (got {found})")]
    TooMany { field: &'static str, max: usize, found: usize },
    #[error("{source}")]
    Environment { source: LabelError },
    #[error("{source}")]
    Os { source: OsFilterError },
    #[error("{source}")]
    Tag {
        /// Index of the tag, from 0.
        place: usize,
        source: LabelError,
    },
    #[error("`{found}`: {source}")]
    ServerId {
        /// Index of the id, from 0.
        index: usize,
        /// The text, shortened.
        found: String,
        source: IdError,
    },
}

fn suggestion(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!(": did you mean `{nearest}`?"),
        None => "; use environment, os, tags, server_ids or all".to_owned(),
    }
}

impl SelectorError {
    /// Returns the location of the error, as a JSON pointer relative to the selector.
    pub fn pointer(&self) -> String {
        match self {
            Self::NotAnObject | Self::Empty => String::new(),
            Self::Unknown { found, .. } => {
                format!("/{}", found.replace('~', "~0").replace('/', "~1"))
            }
            Self::AllAndMore | Self::All => "/all".to_owned(),
            Self::Type { field, .. } | Self::EmptyList { field } | Self::TooMany { field, .. } => {
                format!("/{field}")
            }
            Self::Environment { .. } => "/environment".to_owned(),
            Self::Os { .. } => "/os".to_owned(),
            Self::Tag { place, .. } => format!("/tags/{place}"),
            Self::ServerId { index: place, .. } => format!("/server_ids/{place}"),
        }
    }
}

const FIELDS: [&str; 5] = ["environment", "os", "tags", "server_ids", "all"];

impl Selector {
    /// Maximum number of tags in one selector.
    pub const TAGS_MAX: usize = 64;
    /// Maximum number of servers in one selector.
    pub const SERVER_IDS_MAX: usize = 10_000;

    /// Parses the JSON object of the API. Returns all errors, not only the first.
    pub fn parse(value: &Value) -> Result<Selector, Vec<SelectorError>> {
        let Value::Object(fields) = value else {
            return Err(vec![SelectorError::NotAnObject]);
        };
        let mut errors = Vec::new();
        let mut criteria = Criteria::default();
        for (field, value) in fields {
            let read = match field.as_str() {
                "all" if *value == Value::Bool(true) => Ok(()),
                "all" => Err(vec![SelectorError::All]),
                "environment" => parse_string(value, "environment", |source| {
                    SelectorError::Environment { source }
                })
                .map(|environment| criteria.environment = Some(environment)),
                "os" => parse_string(value, "os", |source| SelectorError::Os { source })
                    .map(|os| criteria.os = Some(os)),
                "tags" => {
                    let wrong = |place, _: &str, source| SelectorError::Tag { place, source };
                    parse_string_list(value, "tags", Self::TAGS_MAX, wrong)
                        .map(|tags| criteria.tags = tags)
                }
                "server_ids" => {
                    let wrong = |place, text: &str, source| SelectorError::ServerId {
                        index: place,
                        found: quote_input(text),
                        source,
                    };
                    parse_string_list(value, "server_ids", Self::SERVER_IDS_MAX, wrong)
                        .map(|ids| criteria.server_ids = ids)
                }
                other => Err(vec![SelectorError::Unknown {
                    found: quote_input(other),
                    nearest: crate::nearest(other, FIELDS),
                }]),
            };
            errors.extend(read.err().into_iter().flatten());
        }
        if fields.is_empty() {
            errors.push(SelectorError::Empty);
        } else if fields.contains_key("all") && fields.len() > 1 {
            errors.push(SelectorError::AllAndMore);
        }
        match errors.is_empty() {
            true if fields.contains_key("all") => Ok(Selector::All),
            true => Ok(Selector::Matching(criteria)),
            false => Err(errors),
        }
    }

    /// Creates a selector of exactly these servers; `None` if there are none.
    pub fn servers(ids: impl IntoIterator<Item = ServerId>) -> Option<Selector> {
        let server_ids = distinct(ids);
        let some = !server_ids.is_empty();
        some.then(|| Selector::Matching(Criteria { server_ids, ..Criteria::default() }))
    }
}

impl Criteria {
    pub fn environment(&self) -> Option<&Environment> {
        self.environment.as_ref()
    }

    pub fn os(&self) -> Option<&OsFilter> {
        self.os.as_ref()
    }

    /// Tags that a server must all have; empty if tags do not matter.
    pub fn tags(&self) -> &[Tag] {
        &self.tags
    }

    /// Servers to select; empty if ids do not matter.
    pub fn server_ids(&self) -> &[ServerId] {
        &self.server_ids
    }
}

fn parse_string<T: std::str::FromStr>(
    value: &Value,
    field: &'static str,
    wrong: impl Fn(T::Err) -> SelectorError,
) -> Result<T, Vec<SelectorError>> {
    let Value::String(text) = value else {
        return Err(vec![SelectorError::Type { field, expected: "a string" }]);
    };
    text.parse().map_err(|error| vec![wrong(error)])
}

fn parse_string_list<T: std::str::FromStr + Clone + Ord>(
    value: &Value,
    field: &'static str,
    max: usize,
    wrong: impl Fn(usize, &str, T::Err) -> SelectorError,
) -> Result<Vec<T>, Vec<SelectorError>> {
    let not_a_list = || vec![SelectorError::Type { field, expected: "a list of strings" }];
    let Value::Array(items) = value else { return Err(not_a_list()) };
    if items.is_empty() {
        return Err(vec![SelectorError::EmptyList { field }]);
    }
    if items.len() > max {
        return Err(vec![SelectorError::TooMany { field, max, found: items.len() }]);
    }
    let texts: Vec<&str> =
        items.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(not_a_list)?;
    let mut found = Vec::with_capacity(texts.len());
    let mut errors = Vec::new();
    for (place, text) in texts.into_iter().enumerate() {
        match text.parse() {
            Ok(word) => found.push(word),
            Err(error) => errors.push(wrong(place, text, error)),
        }
    }
    if errors.is_empty() { Ok(distinct(found)) } else { Err(errors) }
}

/// Removes duplicates and keeps the order.
fn distinct<T: Clone + Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = std::collections::BTreeSet::new();
    items.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

impl serde::Serialize for Selector {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        match self {
            Selector::All => map.serialize_entry("all", &true)?,
            Selector::Matching(criteria) => {
                let Criteria { environment, os, tags, server_ids } = criteria;
                if let Some(environment) = environment {
                    map.serialize_entry("environment", environment)?;
                }
                if let Some(os) = os {
                    map.serialize_entry("os", os)?;
                }
                if !tags.is_empty() {
                    map.serialize_entry("tags", tags)?;
                }
                if !server_ids.is_empty() {
                    map.serialize_entry("server_ids", server_ids)?;
                }
            }
        }
        map.end()
    }
}

impl<'de> serde::Deserialize<'de> for Selector {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        Selector::parse(&value).map_err(|errors| {
            let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
            D::Error::custom(messages.join("; "))
        })
    }
}

impl fmt::Display for Selector {
    /// Human-readable: `environment production, tags web and db`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Selector::Matching(criteria) = self else { return f.write_str("all servers") };
        let mut parts = Vec::new();
        parts.extend(criteria.environment.iter().map(|it| format!("environment {it}")));
        parts.extend(criteria.os.iter().map(|it| format!("os {it}")));
        match criteria.tags.as_slice() {
            [] => {}
            [tag] => parts.push(format!("tag {tag}")),
            tags => {
                let tags: Vec<&str> = tags.iter().map(Tag::as_str).collect();
                parts.push(format!("tags {}", tags.join(" and ")));
            }
        }
        match criteria.server_ids.len() {
            0 => {}
            1 => parts.push("1 selected server".to_owned()),
            count => parts.push(format!("{count} selected servers")),
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "srv_01jcqk3m8ye0fr5cq0k6s8v2xw";

    fn error_texts(value: Value) -> Vec<String> {
        let errors = Selector::parse(&value).unwrap_err();
        errors.iter().map(|error| format!("{} {error}", error.pointer())).collect()
    }

    #[test]
    fn selector_round_trips_through_json() {
        for value in [
            json!({"environment": "production"}),
            json!({"environment": "production", "os": "Debian 12", "tags": ["web", "db"], "server_ids": [ID]}),
            json!({"all": true}),
        ] {
            let selector = Selector::parse(&value).unwrap();
            assert_eq!(serde_json::to_value(&selector).unwrap(), value);
            assert_eq!(serde_json::from_value::<Selector>(value).unwrap(), selector);
        }
    }

    #[test]
    fn empty_selector_never_selects_every_server() {
        assert_eq!(
            error_texts(json!({})),
            [" targets must select servers by environment, os, tags or server_ids; \
              to select every server, write {\"all\": true}"]
        );
        assert_eq!(error_texts(json!({"all": false})), ["/all `all` must be true or omitted"]);
        assert_eq!(
            error_texts(json!({"tags": []})),
            ["/tags `tags` must not be empty; omit it to match any"]
        );
        assert_eq!(
            error_texts(json!({"server_ids": []})),
            ["/server_ids `server_ids` must not be empty; omit it to match any"]
        );
        assert!(Selector::parse(&json!({"environment": null})).is_err());
        assert_eq!(Selector::servers([]), None);
    }

    #[test]
    fn all_cannot_be_combined_with_other_selectors() {
        assert_eq!(
            error_texts(json!({"all": true, "os": "debian"})),
            ["/all `all` cannot be combined with other selectors: remove it or the others"]
        );
    }

    #[test]
    fn misspelled_selector_is_rejected_with_suggestion() {
        assert_eq!(
            error_texts(json!({"enviroment": "production"})),
            ["/enviroment `enviroment` is not a known selector: did you mean `environment`?"]
        );
        assert_eq!(
            error_texts(json!({"colour": "red"})),
            [
                "/colour `colour` is not a known selector; use environment, os, tags, server_ids or all"
            ]
        );
    }

    #[test]
    fn all_errors_are_reported_with_pointers() {
        let wrong = json!({"environment": 3, "os": "a b c", "tags": ["ok", "not ok"],
            "server_ids": ["srv_1", "x"]});
        let errors = Selector::parse(&wrong).unwrap_err();
        let pointers: Vec<String> = errors.iter().map(SelectorError::pointer).collect();
        assert_eq!(pointers, ["/environment", "/os", "/server_ids/0", "/server_ids/1", "/tags/1"]);
    }

    #[test]
    fn duplicate_servers_and_tags_count_once() {
        let twice =
            Selector::parse(&json!({"server_ids": [ID, ID], "tags": ["b", "a", "b"]})).unwrap();
        let Selector::Matching(criteria) = &twice else { panic!("criteria were given") };
        assert_eq!(criteria.server_ids().len(), 1);
        assert_eq!(twice.to_string(), "tags b and a, 1 selected server");
    }
}
