//! One batch for ten hosts.

use lab::apt::{Deb, Pocket, Repo, Server};
use serde_json::json;

use crate::hosts::{Host, Service};

const HOSTS: usize = 10;

#[tokio::test]
async fn one_batch_updates_one_package_on_ten_hosts() {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1")),
        (Pocket::Stable, Deb::new("other", "1")),
        (Pocket::Security, Deb::new("hello", "2").counts_runs()),
        (Pocket::Updates, Deb::new("other", "2").counts_runs()),
    ]);
    let Some(repo) = repo else { return };
    let service = Service::start();
    let token = service.token().await;
    let mut hosts = Vec::new();
    for number in 0..HOSTS {
        let Some(server) = Server::with_installed(&repo, &["hello", "other"]) else { return };
        server.root.write("/etc/hostname", &format!("web-{number}\n"));
        hosts.push(Host::join(&service, &token, server));
    }
    let ids = service.servers(HOSTS, || {}).await;
    let order = json!({"server_ids": ids, "packages": ["hello"], "reboot": "never"});
    let batch = service.post("/v1/batches", order).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let seen = service.until(&path, || {}, |seen| !seen["finished_at"].is_null()).await;

    assert_eq!((&seen["state"], &seen["progress"]["succeeded"]), (&json!("succeeded"), &json!(10)));
    let results = seen["results"].as_array().unwrap();
    let mut names: Vec<_> = results.iter().map(|task| task["hostname"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, (0..HOSTS).map(|number| format!("web-{number}")).collect::<Vec<_>>());
    for task in results {
        let moved = json!([{"name": "hello", "from": "1", "to": "2"}]);
        assert_eq!((&task["result"]["packages"], &task["result"]["exit"]), (&moved, &json!(0)));
    }
    for host in &hosts {
        let (hello, other) = (host.server.version("hello"), host.server.version("other"));
        assert_eq!((hello.as_deref(), other.as_deref()), (Some("2"), Some("1")));
        assert_eq!(host.server.runs("hello"), ["2"], "the script must run once");
    }
}
