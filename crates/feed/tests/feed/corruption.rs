//! Corrupted documents never make a reader panic: they are read or refused.

use domain::advisory::Advisory;
use domain::finding::AdvisoryIndex;
use feed::{FeedKind, Record};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Folder, all, check};
use crate::{arch, csaf};

/// Reads a document. Everything that can be read must also be indexable and serializable.
fn assert_no_panic(folder: &Folder, kind: &FeedKind, bytes: &[u8]) {
    let path = folder.write("damaged.json", bytes);
    let _ = feed::sniff(&path);
    let Ok(checked) = check(&path, kind.clone()) else { return };
    let advisories: Vec<Advisory> = all(&checked)
        .into_iter()
        .filter_map(|record| match record {
            Record::Advisory(advisory) => Some(*advisory),
            _ => None,
        })
        .collect();
    for advisory in &advisories {
        let text = serde_json::to_string(advisory).unwrap();
        assert_eq!(&serde_json::from_str::<Advisory>(&text).unwrap(), advisory);
        for affected in &advisory.affected {
            AdvisoryIndex::new(&affected.ecosystem.base().0, &advisories);
        }
    }
}

fn documents() -> Vec<(FeedKind, Value)> {
    vec![
        (FeedKind::Csaf, csaf::sample()),
        (FeedKind::Arch, serde_json::from_str(&arch::sample()).unwrap()),
        (
            FeedKind::Osv,
            json!({"id": "DSA-1-1", "upstream": ["CVE-2026-0001"], "affected": [{
                "package": {"ecosystem": "Debian:12", "name": "foo"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1-1"}]}],
                "ecosystem_specific": {"urgency": "low"},
            }]}),
        ),
        (
            FeedKind::Secdb,
            json!({"distroversion": "v3.22", "reponame": "main", "packages": [
                {"pkg": {"name": "foo", "secfixes": {"1.0-r1": ["CVE-2026-0001"], "0": null}}}]}),
        ),
    ]
}

/// Replaces the JSON node with this number, counted depth first.
fn replace_node(value: &mut Value, number: &mut usize, with: &Value) {
    if *number == 0 {
        *value = with.clone();
    }
    *number = number.wrapping_sub(1);
    match value {
        Value::Array(list) => list.iter_mut().for_each(|one| replace_node(one, number, with)),
        Value::Object(map) => map.values_mut().for_each(|one| replace_node(one, number, with)),
        _ => {}
    }
}

fn count_nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count_nodes).sum(),
        Value::Object(map) => map.values().map(count_nodes).sum(),
        _ => 0,
    }
}

fn replacement() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!(-1)),
        Just(json!([null, "", 7])),
        "[-:/.%@?&=a1é]{0,12}".prop_map(Value::String),
        "(pkg:rpm/|cpe:/o:redhat:|SUSE |AVG-)[-:/.%@?&=a1é]{0,12}".prop_map(Value::String),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn documents_with_changed_values_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), replacement()), 1..4),
    ) {
        let folder = Folder::new("damage-values");
        for (kind, mut document) in documents() {
            for (at, with) in &changes {
                let mut number = at.index(count_nodes(&document));
                replace_node(&mut document, &mut number, with);
            }
            assert_no_panic(&folder, &kind, document.to_string().as_bytes());
        }
    }

    #[test]
    fn documents_with_changed_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_usize..3), 1..6),
    ) {
        let folder = Folder::new("damage-bytes");
        for (kind, document) in documents() {
            let mut bytes = document.to_string().into_bytes();
            for (at, byte, how) in &changes {
                let at = at.index(bytes.len());
                match how {
                    0 => bytes[at] = *byte,
                    1 => bytes.insert(at, *byte),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            assert_no_panic(&folder, &kind, &bytes);
        }
    }

    #[test]
    fn tar_archives_with_changed_bytes_never_panic(
        changes in prop::collection::vec((0_usize..1024, any::<u8>()), 1..6),
    ) {
        let folder = Folder::new("damage-tar");
        let document = csaf::sample().to_string();
        let mut archive = csaf::tar(&[("a.json", document.as_bytes()), ("b.json", document.as_bytes())]);
        for (at, byte) in &changes {
            archive[*at] = *byte;
        }
        assert_no_panic(&folder, &FeedKind::Csaf, &archive);
    }
}

#[test]
fn circular_relationships_are_ignored() {
    let folder = Folder::new("damage-circle");
    let mut document = csaf::sample();
    let product =
        document["product_tree"]["relationships"][0]["full_product_name"]["product_id"].clone();
    document["product_tree"]["relationships"][0]["relates_to_product_reference"] = product;
    assert_no_panic(&folder, &FeedKind::Csaf, document.to_string().as_bytes());
}

#[test]
fn excessively_nested_branches_are_refused() {
    let folder = Folder::new("damage-depth");
    let deep = format!("{}{}", "{\"branches\":[".repeat(5_000), "]}".repeat(5_000));
    let document =
        csaf::sample().to_string().replacen("\"branches\":[", &format!("\"branches\":[{deep},"), 1);
    let path = folder.write("deep.json", document);
    assert!(check(&path, FeedKind::Csaf).is_err());
}
