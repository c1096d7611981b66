//! Matches servers against a selector. The targets of a run or a batch are resolved here when it
//! starts, not earlier.

use std::collections::BTreeSet;

use vocab::{Criteria, Selector, ServerId};

use crate::server::ServerFacts;

/// Whether the selector selects this server. All given criteria must match.
pub fn matches(selector: &Selector, server: &ServerFacts) -> bool {
    match selector {
        Selector::All => true,
        Selector::Matching(criteria) => {
            let ids = criteria.server_ids();
            (ids.is_empty() || ids.contains(&server.id)) && matches_attributes(criteria, server)
        }
    }
}

/// Returns the selected servers, in the given order. A selector may name 10,000 of 100,000 servers,
/// so ids are looked up in a set instead of being searched one by one.
pub fn select<'a>(
    selector: &Selector,
    servers: impl IntoIterator<Item = &'a ServerFacts>,
) -> Vec<ServerId> {
    let servers = servers.into_iter();
    match selector {
        Selector::All => servers.map(|server| server.id).collect(),
        Selector::Matching(criteria) => {
            let ids: BTreeSet<ServerId> = criteria.server_ids().iter().copied().collect();
            servers
                .filter(|server| ids.is_empty() || ids.contains(&server.id))
                .filter(|server| matches_attributes(criteria, server))
                .map(|server| server.id)
                .collect()
        }
    }
}

fn matches_attributes(criteria: &Criteria, server: &ServerFacts) -> bool {
    criteria.environment().is_none_or(|wanted| server.environment.as_ref() == Some(wanted))
        && criteria
            .os()
            .is_none_or(|filter| server.os.as_ref().is_some_and(|os| filter.matches(os)))
        && criteria.tags().iter().all(|tag| server.tags.contains(tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::Os;

    fn server(number: u128, environment: &str, tags: &[&str], os: &str) -> ServerFacts {
        let (id, version) = os.split_once(' ').unwrap();
        ServerFacts {
            id: ServerId::new(jiff::Timestamp::UNIX_EPOCH, number),
            environment: Some(environment.parse().unwrap()),
            tags: tags.iter().map(|tag| tag.parse().unwrap()).collect(),
            os: Some(Os::new(id, version, "").unwrap()),
        }
    }

    fn selector(text: &str) -> Selector {
        serde_json::from_str(text).unwrap()
    }

    fn fleet() -> [ServerFacts; 4] {
        [
            server(0, "production", &["web", "eu"], "debian 12"),
            server(1, "production", &["db", "eu"], "rhel 9.4"),
            server(2, "staging", &["web"], "debian 11"),
            ServerFacts {
                id: ServerId::new(jiff::Timestamp::UNIX_EPOCH, 3),
                environment: None,
                tags: BTreeSet::new(),
                os: None,
            },
        ]
    }

    /// Returns the indexes of the servers in the fleet that a selector selects.
    fn selected(text: &str) -> Vec<usize> {
        let (fleet, selector) = (fleet(), selector(text));
        let one_by_one: Vec<usize> =
            (0..fleet.len()).filter(|place| matches(&selector, &fleet[*place])).collect();
        let ids: Vec<ServerId> = one_by_one.iter().map(|place| fleet[*place].id).collect();
        assert_eq!(select(&selector, &fleet), ids, "`matches` and `select` agree");
        one_by_one
    }

    #[test]
    fn all_given_criteria_must_match() {
        assert_eq!(selected(r#"{"environment": "production"}"#), [0, 1]);
        assert_eq!(selected(r#"{"environment": "production", "os": "Debian"}"#), [0]);
        assert_eq!(selected(r#"{"os": "rhel 9"}"#), [1]);
        assert_eq!(selected(r#"{"tags": ["web"]}"#), [0, 2]);
        assert_eq!(selected(r#"{"tags": ["web", "eu"]}"#), [0]);
        assert_eq!(selected(r#"{"environment": "production", "tags": ["absent"]}"#), [0; 0]);
        assert_eq!(selected(r#"{"all": true}"#), [0, 1, 2, 3]);
    }

    #[test]
    fn server_id_must_match_other_criteria_too() {
        let ids = [fleet()[0].id, fleet()[2].id];
        let named = format!(r#"{{"server_ids": ["{}", "{}"]}}"#, ids[0], ids[1]);
        assert_eq!(selected(&named), [0, 2]);
        let narrowed =
            format!(r#"{{"server_ids": ["{}", "{}"], "environment": "staging"}}"#, ids[0], ids[1]);
        assert_eq!(selected(&narrowed), [2]);
    }
}
