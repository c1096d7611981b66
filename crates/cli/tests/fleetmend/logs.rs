//! A service keeps working when its log cannot be written.

use std::fs::OpenOptions;
use std::process::Stdio;

use serde_json::json;

use crate::support::{Dir, Running, first_key};

/// Sends requests that are logged, and expects successful responses.
async fn assert_serves(
    data: &std::path::Path,
    key: &str,
    log: Stdio,
    before: impl FnOnce(&mut Running),
) {
    let mut service = Running::with("127.0.0.1:0", data, &[], |command| _ = command.stderr(log));
    before(&mut service);
    let http = reqwest::Client::new();
    for number in 0..3 {
        let url = format!("{}/v1/suppressions", service.address);
        let body = json!({"cve": format!("CVE-2026-{}", 1_000 + number), "reason": "test"});
        let sent = http.post(url).bearer_auth(key).json(&body).send().await.unwrap();
        assert!(matches!(sent.status().as_u16(), 201 | 409), "{}", sent.text().await.unwrap());
        let ready = http.get(format!("{}/readyz", service.address)).send().await.unwrap();
        assert_eq!(ready.status(), 200, "{}", ready.text().await.unwrap());
    }
    drop(service);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_works_without_a_writable_log() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    // The reader of the log has gone away.
    assert_serves(&dir.data(), &key, Stdio::piped(), |service| drop(service.child.stderr.take()))
        .await;
    // The log's disk is full.
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_serves(&dir.data(), &key, full.into(), |_| {}).await;
}
