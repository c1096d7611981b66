//! A new installation gets its feeds without any step: the real program, a mirror on this machine,
//! and a simulated server.

use std::fs::File;

use serde_json::{Value, json};
use testkit::publisher::{Publisher, ok, status};

use crate::operator::Operator;
use crate::support::{Dir, Running, first_key, fleetmend};
use crate::terminal::Cli;
use crate::whole_machine::fleet::slow_agents;

/// Every OSV archive of the mirror: the simulated servers have several systems.
const OSV: &str = "/all.zip";
const ADVISORY: &str = crate::feeds::ADVISORY;

/// The lines of the log about feeds: level and message.
fn feed_log(text: &str, name: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = lines.filter(|line| line["fields"]["feed"] == name || line["feed"] == name);
    let word = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
    ours.map(|line| {
        let message = match &line["fields"]["message"] {
            Value::Null => word(&line, "message"),
            message => message.as_str().unwrap_or_default().to_owned(),
        };
        (word(&line, "level").to_uppercase(), message)
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_server_brings_its_feeds_and_failures_are_logged_once() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let publisher = Publisher::new().await;
    publisher.serve(OSV, ok("", ADVISORY));
    publisher.serve("/all.json", status("503 Busy", ""));
    publisher.serve("/epss_scores-current.csv.gz", status("503 Busy", ""));
    let kev = json!({"title": "list", "catalogVersion": "1", "dateReleased": "2026-11-13T00:00:00Z",
        "count": 1, "vulnerabilities": [{"cveID": "CVE-2026-1", "dateAdded": "2026-11-12",
            "knownRansomwareCampaignUse": "Known"}]});
    publisher.enqueue_at(
        "/known_exploited_vulnerabilities.json",
        [status("503 Busy", ""), status("503 Busy", ""), ok("", kev.to_string())],
    );
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let log = dir.0.join("server.log");
    let mirror = publisher.url("feeds");
    let flags = ["--feeds", "auto", "--feed-mirror", &mirror];
    let service = Running::with("127.0.0.1:0", &dir.data(), &flags, |command| {
        command.stderr(File::create(&log).unwrap());
    });
    let operator = Operator::new(&service.address, &key);
    assert_eq!(operator.get("/v1/feeds").await["data"], json!([]));
    let fleet = operator.fleet(6, slow_agents).await;

    let state = |seen: &Value, name: &str| {
        let feeds = seen["data"].as_array().unwrap();
        feeds.iter().find(|feed| feed["name"] == name).map(|feed| feed["state"].clone())
    };
    let is_done = |seen: &Value| {
        state(seen, "Debian") == Some(json!("current"))
            && state(seen, "KEV") == Some(json!("failed"))
    };
    operator.until_at("/v1/feeds", is_done).await;
    let cli = Cli { url: service.address.clone(), key };
    let shown = cli.run_ok(&["feeds", "status"]);
    assert!(shown.starts_with("FEED\tKIND\tSTATE\t"), "{shown}");
    assert!(shown.contains("Debian\tosv\tcurrent\t1\t"), "{shown}");
    assert!(shown.contains("the server returned 503"), "{shown}");
    let waited = cli.run_piped(&["feeds", "update", "KEV", "--wait"]);
    assert!(waited.code == 1 && waited.err.contains("503"), "{}", waited.err);
    let waited = cli.run_ok(&["feeds", "update", "kev", "--wait"]);
    assert_eq!(waited, "KEV: 1 records\n");
    let doctor = fleetmend(&["doctor", "--data-dir", dir.data().to_str().unwrap(), "--json"]);
    let doctor: Value = serde_json::from_slice(&{ doctor }.output().unwrap().stdout).unwrap();
    let problem = doctor["findings"].as_array().unwrap().iter().any(|found| {
        found["state"] == "problem" && found["detail"].as_str().unwrap().contains("EPSS")
    });
    assert!(problem, "{doctor}");
    fleet.stop().await;
    drop(service);

    let log = std::fs::read_to_string(log).unwrap();
    let lines = feed_log(&log, "KEV");
    let expected = [
        ("INFO", "following a feed that servers need"),
        ("WARN", "feed update failed; keeping the previous import and retrying"),
        ("INFO", "feed can be updated again"),
    ];
    let expected: Vec<_> = expected.map(|(level, text)| (level.to_owned(), text.to_owned())).into();
    assert_eq!(lines, expected, "{log}");
}
