//! Which servers a selector means. Whoever starts a run or an order resolves its targets here,
//! at that moment and not before.

use std::collections::BTreeSet;

use vocab::{Criteria, Selector, ServerId};

use crate::server::ServerFacts;

/// Whether the selector means this server. All that is given must match.
pub fn matches(selector: &Selector, server: &ServerFacts) -> bool {
    match selector {
        Selector::All => true,
        Selector::Matching(criteria) => {
            let ids = criteria.server_ids();
            (ids.is_empty() || ids.contains(&server.id)) && has_traits(criteria, server)
        }
    }
}

/// The servers that the selector means, in the order given. A selector may name 10,000 of
/// 100,000 servers, so the names are looked up and not walked through.
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
                .filter(|server| has_traits(criteria, server))
                .map(|server| server.id)
                .collect()
        }
    }
}

fn has_traits(criteria: &Criteria, server: &ServerFacts) -> bool {
    criteria.environment().is_none_or(|asked| server.environment.as_ref() == Some(asked))
        && criteria.os().is_none_or(|asked| server.os.as_ref().is_some_and(|os| asked.matches(os)))
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

    /// The places in the fleet of those that a selector means.
    fn meant(text: &str) -> Vec<usize> {
        let (fleet, selector) = (fleet(), selector(text));
        let one_by_one: Vec<usize> =
            (0..fleet.len()).filter(|place| matches(&selector, &fleet[*place])).collect();
        let ids: Vec<ServerId> = one_by_one.iter().map(|place| fleet[*place].id).collect();
        assert_eq!(select(&selector, &fleet), ids, "both ways agree");
        one_by_one
    }

    #[test]
    fn all_that_is_given_must_match() {
        assert_eq!(meant(r#"{"environment": "production"}"#), [0, 1]);
        assert_eq!(meant(r#"{"environment": "production", "os": "Debian"}"#), [0]);
        assert_eq!(meant(r#"{"os": "rhel 9"}"#), [1]);
        assert_eq!(meant(r#"{"tags": ["web"]}"#), [0, 2]);
        assert_eq!(meant(r#"{"tags": ["web", "eu"]}"#), [0]);
        assert_eq!(meant(r#"{"environment": "production", "tags": ["nobody"]}"#), [0; 0]);
        assert_eq!(meant(r#"{"all": true}"#), [0, 1, 2, 3]);
    }

    #[test]
    fn a_named_server_must_match_the_rest_too() {
        let ids = [fleet()[0].id, fleet()[2].id];
        let named = format!(r#"{{"server_ids": ["{}", "{}"]}}"#, ids[0], ids[1]);
        assert_eq!(meant(&named), [0, 2]);
        let narrowed =
            format!(r#"{{"server_ids": ["{}", "{}"], "environment": "staging"}}"#, ids[0], ids[1]);
        assert_eq!(meant(&narrowed), [2]);
    }
}
