//! Findings that depend on what runs, and not only on what is installed: old code that stays in
//! memory after an update, and kernels that are installed but not running.

use serde_json::{Value, json};
use server::app::App;

use service::commands::feeds::{ImportRequest, import};
use service::projections::findings::{assess_servers, rebuild, server_findings};
use store::{findings, servers};
use vocab::{Exposure, Installed, Pending, listing};
use wire::agent::{Facts, Outcome, Work};

use crate::agent::{Agent, facts};
use crate::support::World;

/// An advisory for Debian 12.
fn advisory(id: &str, cve: &str, package: &str, fixed: &str) -> Value {
    json!({"id": id, "modified": "2026-11-13T00:00:00Z", "aliases": [cve], "affected": [{
        "package": {"ecosystem": "Debian:12", "name": package},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]}]})
}

/// One advisory each for openssl and the kernel of Debian 12.
async fn publish(app: &App, world: &World) {
    let openssl = advisory("DSA-1", "CVE-2026-1", "openssl", "3.0.2");
    let linux = advisory("DSA-2", "CVE-2026-2", "linux", "6.1.90-1");
    import_feed(app, world, &format!("{openssl}\n{linux}\n")).await;
}

/// One advisory for curl of Alpine 3.22.
async fn publish_alpine(app: &App, world: &World) {
    let record = json!({"id": "ALPINE-1", "modified": "2026-11-13T00:00:00Z", "aliases": ["CVE-2026-3"],
        "affected": [{"package": {"ecosystem": "Alpine:v3.22", "name": "curl"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1-r0"}]}]}]});
    import_feed(app, world, &record.to_string()).await;
}

async fn import_feed(app: &App, world: &World, text: &str) {
    let path = world.data_dir().join("feed.json");
    std::fs::write(&path, text).unwrap();
    let wanted = ImportRequest { path: path.clone(), name: None, kind: None, as_of: None };
    import(&app.db, wanted, world.now(), |_| {}).await.unwrap();
    std::fs::remove_file(path).unwrap();
}

fn openssl(version: &str) -> Vec<Installed> {
    vec![Installed::new("libssl3", version, "amd64").with_source("openssl", version)]
}

/// The facts of a host, with a change.
fn facts_with(change: Value) -> Option<Facts> {
    let mut reported = facts("web-1");
    for (name, value) in change.as_object().unwrap() {
        reported[name] = value.clone();
    }
    Some(serde_json::from_value(reported).unwrap())
}

fn facts_with_old_code(packages: &[&str]) -> Option<Facts> {
    let one =
        |package: &&str| json!({"package": package, "unit": "nginx.service", "process": "nginx"});
    facts_with(json!({"old_code": packages.iter().map(one).collect::<Vec<_>>()}))
}

/// The agent now has this package set, and uploads it if the service requests it.
async fn set_packages(agent: &mut Agent, list: &[Installed]) {
    let bytes = listing::encode(list);
    let digest = vocab::Digest::compute(&bytes);
    agent.next_sync.installed = Some(digest);
    if !agent.sync(0).await.unwrap().wanted.is_empty() {
        agent.upload("packages", digest, bytes, None).await.unwrap();
        assert_eq!(agent.sync(0).await.unwrap().wanted, []);
    }
}

/// The agent now has these pending updates.
async fn set_pending_updates(agent: &mut Agent, list: &[Pending]) {
    let bytes = listing::encode(list);
    let digest = vocab::Digest::compute(&bytes);
    agent.next_sync.pending = Some(digest);
    if !agent.sync(0).await.unwrap().wanted.is_empty() {
        agent.upload("updates", digest, bytes, None).await.unwrap();
        assert_eq!(agent.sync(0).await.unwrap().wanted, []);
    }
}

/// Each finding of the server with its exposure. Checks that the list and the counts agree.
async fn exposures(app: &App, world: &World, agent: &Agent) -> Vec<(String, Exposure)> {
    rebuild(app, world.org).await.unwrap();
    let mut reader = app.db.read().await.unwrap();
    let row = servers::get(&mut reader, world.org, agent.id).await.unwrap();
    let (found, _) = server_findings(&mut reader, &row).await.unwrap();
    let shown: Vec<_> = found
        .iter()
        .map(|one| (one.server_finding.finding.cve.to_string(), one.server_finding.exposure))
        .collect();
    let listed = findings::all(&mut reader, world.org).await.unwrap();
    let listed: Vec<_> = listed.into_iter().map(|cve| cve.id).collect();
    assert_eq!(
        listed,
        shown.iter().map(|(cve, _)| cve.clone()).collect::<Vec<_>>(),
        "the list agrees"
    );
    let counts: Vec<_> = assess_servers(&mut reader, world.org, std::slice::from_ref(&row))
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.cves)
        .collect();
    assert_eq!(counts[0].values().sum::<u32>() as usize, shown.len(), "the count agrees");
    shown
}

async fn security_order_includes_updates_known_from_feeds(world: &World) {
    let (app, _engine) = world.leader("a").await;
    publish(&app, world).await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut second_agent = Agent::join(&app, &token, "web-2").await;
    // Its repository has an update of each package, and marks none as a security update.
    let updates = listing::encode(&[
        Pending::new("libssl3", "amd64", "3.0.1", "3.0.2"),
        Pending::new("vim", "amd64", "1", "2"),
    ]);
    let digest = vocab::Digest::compute(&updates);
    let vim = Installed::new("vim", "1", "amd64");
    for agent in [&mut web, &mut second_agent] {
        agent.next_sync.pending = Some(digest);
        if !agent.sync(0).await.unwrap().wanted.is_empty() {
            agent.upload("updates", digest, updates.clone(), None).await.unwrap();
        }
        set_packages(agent, &[openssl("3.0.1"), vec![vim.clone()]].concat()).await;
    }
    rebuild(&app, world.org).await.unwrap();
    let reported = async |agent: &mut Agent, security_only: bool| {
        let options = json!({"packages": [], "security_only": security_only});
        service::commands::batches::create(&app, world.new_rollout(vec![agent.id], options))
            .await
            .unwrap();
        let order = agent.wait_for_order().await;
        let Work::Install(install) = &order.work else { panic!("{:?}", order.work) };
        agent.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
        install.security_packages.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(reported(&mut web, true).await, ["libssl3"]);
    assert_eq!(reported(&mut web, false).await, [""; 0]);
    assert_eq!(
        reported(&mut second_agent, true).await,
        ["libssl3"],
        "same package set as the other server"
    );
    // What a feed states later applies to every order that is sent later.
    let more = advisory("DSA-3", "CVE-2026-4", "vim", "2");
    import_feed(&app, world, &more.to_string()).await;
    rebuild(&app, world.org).await.unwrap();
    assert_eq!(reported(&mut second_agent, true).await, ["libssl3", "vim"]);
    assert_eq!(reported(&mut web, true).await, ["libssl3", "vim"]);
}

/// apk marks no update as a security update. A changed package set does not mean that there are
/// none.
async fn security_count_stays_where_the_manager_reports_none(world: &World) {
    let app = world.app("a").await;
    publish_alpine(&app, world).await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.next_sync.facts = facts_with(json!({"package_manager": "apk",
        "os": {"id": "alpine", "version": "3.22.1", "name": "Alpine"}}));
    let [curl, vim] = ["curl", "vim"].map(|name| Pending::new(name, "x86_64", "1.0-r0", "1.1-r0"));
    set_packages(&mut web, &["curl", "vim"].map(|name| Installed::new(name, "1.0-r0", "x86_64")))
        .await;
    let number = async |agent: &Agent| {
        let mut reader = app.db.read().await.unwrap();
        let row = servers::get(&mut reader, world.org, agent.id).await.unwrap();
        (row.updates, row.security_updates)
    };
    let count = async || {
        rebuild(&app, world.org).await.unwrap();
        service::projections::patches::rebuild(&app, world.org).await.unwrap();
    };
    set_pending_updates(&mut web, std::slice::from_ref(&curl)).await;
    count().await;
    assert_eq!(number(&web).await, (1, 1));
    set_pending_updates(&mut web, &[curl, vim.clone()]).await;
    // Patches that are counted before the findings say nothing about what is not assessed yet.
    service::projections::patches::rebuild(&app, world.org).await.unwrap();
    assert_eq!(number(&web).await, (2, 1));
    count().await;
    assert_eq!(number(&web).await, (2, 1));
    set_pending_updates(&mut web, &[vim]).await;
    assert_eq!(number(&web).await, (1, 1), "at most as many as are pending");
    count().await;
    assert_eq!(number(&web).await, (1, 0));
    set_pending_updates(&mut web, &[]).await;
    assert_eq!(number(&web).await, (0, 0));
}

async fn finding_stays_until_old_code_no_longer_runs(world: &World) {
    let app = world.app("a").await;
    publish(&app, world).await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    set_packages(&mut web, &openssl("3.0.1")).await;
    assert_eq!(exposures(&app, world, &web).await, [("CVE-2026-1".to_owned(), Exposure::Open)]);
    // The update is installed, and nginx keeps running with the old library.
    web.next_sync.facts = facts_with_old_code(&["libssl3"]);
    set_packages(&mut web, &openssl("3.0.2")).await;
    let fixed = [("CVE-2026-1".to_owned(), Exposure::FixedOnDisk)];
    assert_eq!(exposures(&app, world, &web).await, fixed);
    // Another update does not change what runs.
    set_packages(&mut web, &openssl("3.0.3")).await;
    assert_eq!(exposures(&app, world, &web).await, fixed);
    web.next_sync.facts = facts_with_old_code(&[]);
    web.sync(0).await.unwrap();
    assert_eq!(exposures(&app, world, &web).await, []);
}

async fn old_code_of_another_package_keeps_no_finding_open(world: &World) {
    let app = world.app("a").await;
    publish(&app, world).await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    set_packages(&mut web, &openssl("3.0.1")).await;
    web.next_sync.facts = facts_with_old_code(&["libc6"]);
    set_packages(&mut web, &openssl("3.0.2")).await;
    assert_eq!(exposures(&app, world, &web).await, []);
}

async fn container_has_no_findings_of_an_installed_kernel(world: &World) {
    let app = world.app("a").await;
    publish(&app, world).await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let image = Installed::new("linux-image-6.1.0-18-amd64", "6.1.76-1", "amd64");
    set_packages(&mut web, &[image.with_source("linux-signed-amd64", "6.1.76+1")]).await;
    assert_eq!(exposures(&app, world, &web).await, [("CVE-2026-2".to_owned(), Exposure::Open)]);
    web.next_sync.facts = facts_with(json!({"foreign_kernel": true}));
    web.sync(0).await.unwrap();
    assert_eq!(exposures(&app, world, &web).await, []);
}

testkit::both!(
    crate::support:
    security_order_includes_updates_known_from_feeds,
    security_count_stays_where_the_manager_reports_none,
    finding_stays_until_old_code_no_longer_runs,
    old_code_of_another_package_keeps_no_finding_open,
    container_has_no_findings_of_an_installed_kernel,
);
