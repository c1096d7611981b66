//! Pinned versions: what the first wave of a batch installed, and nothing else, goes to the others.

use serde_json::json;
use server::app::App;
use service::auth::root_keys;
use service::commands::batches::{self, Decision};
use service::secrets::Secrets;
use store::Page;
use store::rollouts::Rollout;
use vocab::{FailureCode, TaskId};
use wire::agent::{InstallVersions, Outcome, PackageMove, Work};

use crate::agent::{Agent, facts};
use crate::rollouts::{event_kinds, wait_for_state};
use crate::support::{World, eventually};

fn change(name: &str, from: Option<&str>, to: &str) -> PackageMove {
    PackageMove {
        name: name.into(),
        arch: "amd64".into(),
        from: from.map(Into::into),
        to: Some(to.into()),
    }
}

async fn succeed(world: &World, agent: &mut Agent, order: TaskId, changes: &[PackageMove]) {
    agent.report_result(order, Outcome::Succeeded, world.now());
    agent.next_sync.results[0].packages = changes.to_vec();
    assert!(agent.sync(0).await.unwrap().acknowledged.contains(&order));
}

async fn pinned_order(agent: &mut Agent) -> (TaskId, InstallVersions) {
    let order = agent.wait_for_order().await;
    let Work::InstallVersions(versions) = order.work else { panic!("{:?}", order.work) };
    assert!(versions.install.health, "the order asks for the health");
    (order.id, versions)
}

fn versions(order: &InstallVersions) -> Vec<String> {
    let line = |pin: &wire::agent::PackageVersion| {
        format!("{} {} {}", pin.name, pin.arch.as_str(), pin.version.as_str())
    };
    order.versions.iter().map(line).collect()
}

async fn tasks(app: &App, world: &World, batch: &Rollout) -> Vec<wire::v1::Task> {
    let scope = service::queries::Scope { org: world.org, environments: None };
    let page = Page { limit: 100, offset: 0 };
    service::queries::tasks::list(app, &scope, batch.id, &[], page).await.unwrap().items
}

/// A batch over these servers, one of them in the first wave.
async fn start(app: &App, world: &World, agents: &[&Agent], rest: serde_json::Value) -> Rollout {
    let options = json!({"packages": ["bash"], "exclude": ["linux-*"], "security_only": true,
        "pin_versions": true, "waves": [{"size": 1}, rest]});
    let servers = agents.iter().map(|agent| agent.id).collect();
    batches::create(app, world.new_rollout(servers, options)).await.unwrap()
}

async fn later_waves_install_the_versions_of_the_first(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let mut rocky = Agent::join(&app, &token, "rocky-1").await;
    let mut other = facts("rocky-1");
    other["os"] = json!({"id": "rocky", "version": "9.4", "name": "Rocky Linux 9.4"});
    other["package_manager"] = json!("dnf");
    rocky.next_sync.facts = Some(serde_json::from_value(other).unwrap());
    rocky.sync(0).await.unwrap();
    let batch = start(&app, world, &[&web, &rocky, &db], json!({})).await;
    let order = web.wait_for_order().await;
    assert!(matches!(order.work, Work::Install(_)), "{:?}", order.work);
    let installed = [
        change("bash", Some("5.1"), "5.2"),
        change("libtinfo6", None, "6.4"),
        // An order could not name it.
        change("not a name", Some("1"), "2"),
        PackageMove { to: None, ..change("removed", Some("1"), "2") },
    ];
    succeed(world, &mut web, order.id, &installed).await;

    // The other system installed nothing in the first wave.
    wait_for_state(&app, world, batch.id, "running: succeeded skipped dispatched").await;
    let skipped = tasks(&app, world, &batch).await.remove(1);
    let result = skipped.result.unwrap();
    assert_eq!(result.failure_code, Some(FailureCode::VersionUnproven));
    assert!(result.message.unwrap().as_str().starts_with("versions are pinned"));
    assert!(rocky.orders(0).await.is_empty());

    let (id, order) = pinned_order(&mut db).await;
    assert_eq!(versions(&order), ["bash amd64 5.2", "libtinfo6 amd64 6.4"]);
    // The versions include what the named packages needed, so names do not restrict them again.
    assert!(order.install.packages.is_empty());
    assert_eq!(order.install.exclude, ["linux-*".parse().unwrap()]);
    engine.stop().await;

    // Another replica sends the same order.
    let (app, engine) = world.leader("b").await;
    db.switch_to(&app);
    let (again, same) = pinned_order(&mut db).await;
    assert_eq!((again, &same), (id, &order));
    db.report_result(id, Outcome::Succeeded, world.now());
    db.next_sync.results[0].newer_available = vec![wire::agent::NewerVersion {
        name: "bash".into(),
        pinned: "5.2".into(),
        available: "5.3".into(),
    }];
    db.sync(0).await.unwrap();
    let end = "completed_with_errors: succeeded skipped succeeded";
    wait_for_state(&app, world, batch.id, end).await;
    let newer = tasks(&app, world, &batch).await.remove(2).result.unwrap().newer_available;
    assert_eq!(json!(newer), json!([{"name": "bash", "pinned": "5.2", "available": "5.3"}]));
    engine.stop().await;
}

async fn vanished_version_and_old_agent_are_reported(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let mut old = Agent::join(&app, &token, "old-1").await;
    let batch = start(&app, world, &[&web, &db, &old], json!({})).await;
    let order = web.wait_for_order().await;
    succeed(world, &mut web, order.id, &[change("bash", Some("5.1"), "5.2")]).await;
    let (id, _) = pinned_order(&mut db).await;
    db.report_result(id, Outcome::Skipped, world.now());
    db.next_sync.results[0].failure_code = Some(FailureCode::VersionGone);
    db.sync(0).await.unwrap();
    let (id, _) = pinned_order(&mut old).await;
    old.report_result(id, Outcome::Failed, world.now());
    old.next_sync.results[0].failure_code = Some(FailureCode::UnsupportedOrder);
    old.next_sync.results[0].message =
        Some("this agent does not support orders of type `install_versions`".into());
    old.sync(0).await.unwrap();
    let end = "completed_with_errors: succeeded skipped failed";
    wait_for_state(&app, world, batch.id, end).await;
    let results: Vec<_> =
        tasks(&app, world, &batch).await.into_iter().map(|task| task.result.unwrap()).collect();
    assert_eq!(results[1].failure_code, Some(FailureCode::VersionGone));
    let message = results[2].message.as_ref().unwrap().as_str();
    assert!(message.starts_with("the agent is too old for pinned versions"), "{message}");
    engine.stop().await;
}

/// A dry run installs nothing, so there is nothing to pin.
async fn dry_run_pins_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let options = json!({"dry_run": true, "pin_versions": true, "canary": 1});
    let new = world.new_rollout(vec![web.id, db.id], options);
    batches::create(&app, new).await.unwrap();
    let order = web.wait_for_order().await;
    succeed(world, &mut web, order.id, &[change("bash", Some("5.1"), "5.2")]).await;
    assert!(matches!(db.wait_for_order().await.work, Work::Plan(_)));
    engine.stop().await;
}

async fn changed_pins_cancel_the_batch(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let changes = [
        "update rollout_pins set versions = replace(versions, '5.2', '4.0')",
        "update rollout_pins set seal = null",
        "update rollout_pins set versions = replace(versions, 'bash', 'dash')",
    ];
    for (n, sql) in changes.iter().enumerate() {
        let mut web = Agent::join(&app, &token, &format!("web-{n}")).await;
        let mut db = Agent::join(&app, &token, &format!("db-{n}")).await;
        let batch = start(&app, world, &[&web, &db], json!({"approval": true})).await;
        let order = web.wait_for_order().await;
        succeed(world, &mut web, order.id, &[change("bash", Some("5.1"), "5.2")]).await;
        wait_for_state(&app, world, batch.id, "awaiting_approval: succeeded waiting").await;
        let sql = format!("{sql} where rollout_id = '{}'", batch.id);
        assert_eq!(world.execute_sql(&sql).await, 1, "{sql}");
        let colleague = service::Actor { id: "key_colleague".into(), ..world.admin() };
        let decided =
            batches::decide(&app, &colleague, world.org, batch.id, Decision::Approve, None, None);
        decided.await.unwrap();
        eventually("an alarm is raised", async || {
            let kinds = event_kinds(&app, world).await;
            kinds.iter().filter(|kind| *kind == "batch.tampered").count() == n + 1
        })
        .await;
        assert!(db.orders(0).await.is_empty(), "{sql}");
        // No order went out for the task that had started; it ends at its deadline.
        wait_for_state(&app, world, batch.id, "canceling: succeeded dispatched").await;
    }
    engine.stop().await;
}

/// Without a row of its system, a server has no proven version.
async fn deleted_pins_skip_the_servers(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let db = Agent::join(&app, &token, "db-1").await;
    let batch = start(&app, world, &[&web, &db], json!({"approval": true})).await;
    let order = web.wait_for_order().await;
    succeed(world, &mut web, order.id, &[change("bash", Some("5.1"), "5.2")]).await;
    wait_for_state(&app, world, batch.id, "awaiting_approval: succeeded waiting").await;
    engine.stop().await;
    world.execute_sql("delete from rollout_pins").await;
    let (app, engine) = world.leader("b").await;
    let colleague = service::Actor { id: "key_colleague".into(), ..world.admin() };
    batches::decide(&app, &colleague, world.org, batch.id, Decision::Approve, None, None)
        .await
        .unwrap();
    wait_for_state(&app, world, batch.id, "completed_with_errors: succeeded skipped").await;
    engine.stop().await;
}

/// The first wave installs nothing: nothing is proven, and nothing is installed.
async fn first_wave_without_changes_proves_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let db = Agent::join(&app, &token, "db-1").await;
    let batch = start(&app, world, &[&web, &db], json!({})).await;
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::NoChange, world.now()).await;
    wait_for_state(&app, world, batch.id, "completed_with_errors: no_change skipped").await;
    engine.stop().await;
}

async fn pins_survive_a_new_root_key(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let db = Agent::join(&app, &token, "db-1").await;
    let batch = start(&app, world, &[&web, &db], json!({"approval": true})).await;
    let order = web.wait_for_order().await;
    succeed(world, &mut web, order.id, &[change("bash", Some("5.1"), "5.2")]).await;
    wait_for_state(&app, world, batch.id, "awaiting_approval: succeeded waiting").await;
    engine.stop().await;
    app.db.close().await;
    let authentic = async |app: &App| {
        let mut reader = app.db.read().await.unwrap();
        let sets = store::rollout_pins::all(&mut reader, batch.id).await.unwrap();
        assert_eq!(sets.len(), 1);
        sets.iter().all(|set| app.db.is_authentic(set))
    };
    Secrets::rotate_root(world.data_dir()).unwrap();
    let app = world.app("b").await;
    assert!(authentic(&app).await, "before they are resealed");
    root_keys::reseal(&app).await.unwrap();
    let retired = app.secrets.old_root_key_id().unwrap().to_owned();
    root_keys::retire(&app, &retired, &json!({"key": "root"})).await.unwrap();
    app.db.close().await;
    Secrets::retire_root(world.data_dir()).unwrap();
    assert!(authentic(&world.app("c").await).await);
}

testkit::both!(
    crate::support:
    later_waves_install_the_versions_of_the_first,
    vanished_version_and_old_agent_are_reported,
    dry_run_pins_nothing,
    changed_pins_cancel_the_batch,
    deleted_pins_skip_the_servers,
    first_wave_without_changes_proves_nothing,
    pins_survive_a_new_root_key,
);
