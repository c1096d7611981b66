//! `fleetmend feeds`, as its users run it.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::support::{Dir, first_key, fleetmend};

const ADVISORY: &str = r#"{"id": "DSA-1", "modified": "2026-11-13T00:00:00Z", "aliases": ["CVE-2026-1"], "affected": [
    {"package": {"ecosystem": "Debian:12", "name": "curl"}, "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}]}]}"#;

fn feeds(data: &Path, args: &[&str]) -> Output {
    let data = data.to_str().unwrap();
    fleetmend(&[&["feeds"], args, &["--data-dir", data]].concat()).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_feed_is_imported_once_and_a_refused_one_is_remembered() {
    let dir = Dir::new();
    first_key(&dir.data());
    let none = feeds(&dir.data(), &["status"]);
    assert!(String::from_utf8_lossy(&none.stdout).contains("No feed was imported yet"));
    let file = dir.0.join("Debian.json");
    std::fs::write(&file, ADVISORY).unwrap();
    let name = file.to_str().unwrap();
    for changed in [1, 0] {
        let done = feeds(&dir.data(), &["import", name, "--json"]);
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(
            (&json(&done)["records"], &json(&done)["changed"]),
            (&1.into(), &changed.into())
        );
        assert!(done.stderr.is_empty(), "a bar is for terminals");
    }
    std::fs::write(&file, &ADVISORY[..60]).unwrap();
    let refused = feeds(&dir.data(), &["import", name]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Debian.json was not imported"));
    let status = json(&feeds(&dir.data(), &["status", "--json"]));
    assert_eq!(
        (&status["feeds"][0]["records"], &status["feeds"][0]["kind"]),
        (&1.into(), &"osv".into())
    );
    assert!(status["feeds"][0]["last_error"].as_str().unwrap().contains("cut off"), "{status}");
    assert_eq!(feeds(&dir.data(), &["import"]).status.code(), Some(2));
}
