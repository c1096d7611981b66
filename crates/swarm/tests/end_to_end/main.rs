//! Runs the swarm against a fake server that checks every request, over real connections.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod fake_server;
mod tls;

use std::time::Duration;

use fake_server::{FakeServer, NOW};
use swarm::behavior::{Behavior, Script};
use swarm::{Config, Swarm};
use vocab::{FailureCode, RebootPolicy, ServerId, Stage, TaskId};
use wire::agent::{Install, Outcome, Reboot, Work};

const NO_FAULTS: Behavior =
    Behavior { seed: 1, fail: 0.0, crash: 0.0, offline: 0.0, speed: 1_000.0 };

/// A fake server and a swarm that is enrolled with it.
struct Fixture {
    server: FakeServer,
    swarm: Swarm,
}

impl Fixture {
    async fn new(servers: u64, behavior: Behavior) -> Fixture {
        let server = FakeServer::new();
        let (url, token) = server.listen().await;
        let mut config = Config::new(&url, token.parse().unwrap(), servers);
        config.behavior = behavior;
        config.reconnect_max = Duration::from_millis(50);
        let swarm = Swarm::start(config).unwrap();
        swarm.wait_until_enrolled().await.unwrap();
        Fixture { server, swarm }
    }

    fn server_id(&self, agent: usize) -> ServerId {
        self.swarm.server_id(agent).unwrap()
    }

    /// Orders all pending updates on a server, with this reboot policy.
    async fn order_install(&self, agent: usize, task: TaskId, reboot: RebootPolicy) {
        let server = self.server_id(agent);
        wait_until("the server synced", || {
            !self.server.records().servers[&server].boots.is_empty()
        })
        .await;
        let boot_id = self.server.records().servers[&server].boots.last().unwrap().clone();
        let (packages, exclude) = (Vec::new(), Vec::new());
        let install = Install {
            packages,
            exclude,
            security_only: false,
            security_packages: Vec::new(),
            reboot,
            boot_id,
            health: false,
        };
        self.server.order(server, task, Work::Install(install));
    }

    fn has_result(&self, agent: usize, task: TaskId) -> bool {
        self.server.records().servers[&self.server_id(agent)].results.contains_key(&task)
    }

    fn result(&self, agent: usize, task: TaskId) -> (Outcome, Option<FailureCode>) {
        let records = self.server.records();
        let result = &records.servers[&self.server_id(agent)].results[&task];
        (result.outcome, result.failure_code)
    }

    fn assert_no_violations(&self) {
        assert_eq!(self.server.records().violations, Vec::<String>::new());
        assert_eq!(self.swarm.ledger().violations(), []);
        assert_eq!(self.swarm.refusal(), None);
    }
}

fn task(number: u128) -> TaskId {
    TaskId::new(NOW.parse().unwrap(), number)
}

/// Waits until a condition is true. Fails after 30 seconds.
async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("timed out waiting until {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_inventories_are_uploaded_once() {
    let fixture = Fixture::new(48, NO_FAULTS).await;
    let known = || {
        let records = fixture.server.records();
        let has = |digest| records.listings.contains_key(&digest);
        records.servers.len() == 48
            && records
                .servers
                .values()
                .all(|row| row.installed.is_some_and(has) && row.pending.is_some_and(has))
    };
    wait_until("every inventory is uploaded", known).await;
    let lists = fixture.server.records().listings.len();
    assert!(lists < 80, "{lists} inventories of 48 hosts");
    // Two or three syncs for the inventories, then one is held open. No agent polls repeatedly.
    let max = fixture.server.records().servers.values().map(|row| row.syncs).max();
    assert!(max < Some(12), "{max:?} syncs of an idle host");
    // Hosts with the same setup have nothing to upload.
    let (url, token) = fixture.server.listen().await;
    let mut config = Config::new(&url, token.parse().unwrap(), 48);
    config.behavior = NO_FAULTS;
    let alike = Swarm::start(config).unwrap();
    alike.wait_until_enrolled().await.unwrap();
    let heard = || {
        let records = fixture.server.records();
        records.servers.len() == 96 && records.servers.values().all(|row| row.syncs > 0)
    };
    wait_until("all hosts synced", heard).await;
    assert_eq!((alike.counts().listings, fixture.server.records().listings.len()), (0, lists));
    fixture.assert_no_violations();
}

/// Every third response is lost after the sync took effect, agents crash, hosts reboot, orders
/// fail.
#[tokio::test(flavor = "multi_thread")]
async fn orders_take_effect_once_despite_faults() {
    let fixture = Fixture::new(40, Behavior { fail: 0.2, crash: 0.3, ..NO_FAULTS }).await;
    fixture.server.lose_responses(33);
    for agent in 0..40 {
        fixture.order_install(agent, task(agent as u128), RebootPolicy::IfRequired).await;
    }
    wait_until("all agents have reported a result", || {
        (0..40).all(|agent| fixture.has_result(agent, task(agent as u128)))
    })
    .await;
    let failed = (0..40)
        .filter(|agent| fixture.result(*agent, task(*agent as u128)).0 == Outcome::Failed)
        .count();
    assert!((2..18).contains(&failed), "{failed} of 40 failed");
    let counts = fixture.swarm.counts();
    assert!(counts.crashes > 5 && counts.boots > 5 && counts.failed > 10, "{counts:?}");
    assert_eq!(counts.orders, 40);
    fixture.server.lose_responses(0);
    // The server has the inventories after the installation, and agents claim no others.
    wait_until("the new inventories are uploaded", || {
        let records = fixture.server.records();
        let has = |digest| records.listings.contains_key(&digest);
        records
            .servers
            .values()
            .all(|row| row.installed.is_some_and(has) && row.pending.is_some_and(has))
    })
    .await;
    assert!(fixture.swarm.ledger().orders_with_effects() > 20);
    fixture.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_reports_stages_log_and_new_boot() {
    // Slow enough that every stage is reported.
    let fixture = Fixture::new(8, Behavior { speed: 20.0, ..NO_FAULTS }).await;
    fixture.swarm.script(0, Script::Succeed);
    fixture.order_install(0, task(1), RebootPolicy::Always).await;
    wait_until("the order has ended", || fixture.has_result(0, task(1))).await;
    let records = fixture.server.records();
    let row = &records.servers[&fixture.server_id(0)];
    let stages = &row.stages[&task(1)];
    for stage in [Stage::Downloading, Stage::Installing, Stage::Rebooting] {
        assert!(stages.contains(&stage), "{stages:?}");
    }
    let result = &row.results[&task(1)];
    assert!(result.outcome == Outcome::Succeeded && result.reboot_seconds.is_some());
    let log = String::from_utf8(records.logs[&task(1)].clone()).unwrap();
    let installed = result.packages.iter().filter(|moved| log.contains(moved.name.as_str()));
    assert!(!result.packages.is_empty());
    assert_eq!(installed.count(), result.packages.len(), "{log}");
    assert_eq!(row.boots.len(), 2);
    drop(records);
    fixture.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_make_single_agents_fail_hang_or_ignore_orders() {
    let fixture = Fixture::new(8, NO_FAULTS).await;
    let scripts = [
        Script::FailWith(FailureCode::DiskFull),
        Script::IgnoreOrders,
        Script::HangInReboot,
        Script::Disconnect,
        Script::Succeed,
    ];
    for (agent, script) in scripts.into_iter().enumerate() {
        fixture.swarm.script(agent, script);
    }
    for agent in [0, 1, 2, 4] {
        fixture.order_install(agent, task(agent as u128), RebootPolicy::Always).await;
    }
    wait_until("two orders have ended", || {
        [0, 4].iter().all(|i| fixture.has_result(*i, task(*i as u128)))
    })
    .await;
    assert_eq!(fixture.result(0, task(0)), (Outcome::Failed, Some(FailureCode::DiskFull)));
    assert_eq!(fixture.result(4, task(4)), (Outcome::Succeeded, None));
    wait_until("one host hangs in its reboot", || {
        let records = fixture.server.records();
        records.servers[&fixture.server_id(2)]
            .stages
            .get(&task(2))
            .is_some_and(|s| s.contains(&Stage::Rebooting))
    })
    .await;
    assert!(!fixture.has_result(1, task(1)) && !fixture.has_result(2, task(2)));
    fixture.swarm.script(1, Script::Random);
    fixture.swarm.script(2, Script::Random);
    wait_until("both agents report", || {
        fixture.has_result(1, task(1)) && fixture.has_result(2, task(2))
    })
    .await;
    fixture.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_host_continues_and_reports_later() {
    let fixture = Fixture::new(8, Behavior { speed: 20.0, ..NO_FAULTS }).await;
    fixture.order_install(3, task(1), RebootPolicy::Never).await;
    let has_started =
        || fixture.server.records().servers[&fixture.server_id(3)].stages.contains_key(&task(1));
    wait_until("the order has started", has_started).await;
    fixture.swarm.script(3, Script::Disconnect);
    wait_until("the packages have changed", || fixture.swarm.ledger().orders_with_effects() == 1)
        .await;
    assert!(!fixture.has_result(3, task(1)));
    fixture.swarm.script(3, Script::Random);
    wait_until("the agent reports", || fixture.has_result(3, task(1))).await;
    assert_eq!(fixture.result(3, task(1)), (Outcome::Succeeded, None));
    fixture.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_and_withdrawn_orders_have_no_effect() {
    let fixture = Fixture::new(8, NO_FAULTS).await;
    let late = fixture.server_id(0);
    fixture.server.let_orders_expire(late);
    fixture.order_install(0, task(1), RebootPolicy::Never).await;
    fixture.server.withdraw(fixture.server_id(1), task(2));
    wait_until("both orders have a result", || {
        fixture.has_result(0, task(1)) && fixture.has_result(1, task(2))
    })
    .await;
    assert_eq!(fixture.result(0, task(1)), (Outcome::Failed, Some(FailureCode::OrderExpired)));
    assert_eq!(fixture.result(1, task(2)), (Outcome::Withdrawn, None));
    fixture.server.order(
        fixture.server_id(1),
        task(2),
        Work::Reboot(Reboot { boot_id: "x".into() }),
    );
    wait_until("the result is sent again", || {
        !fixture.server.records().servers[&fixture.server_id(1)].results.is_empty()
            && fixture.swarm.counts().results >= 3
    })
    .await;
    assert_eq!(fixture.swarm.ledger().orders_with_effects(), 0);
    fixture.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_host_stops_syncing() {
    let fixture = Fixture::new(8, NO_FAULTS).await;
    fixture.server.remove(fixture.server_id(5));
    wait_until("the agent is removed", || fixture.swarm.counts().removed == 1).await;
    assert_eq!(fixture.swarm.counts().enrolled, 8, "the agent does not enroll again");
    let saved = fixture.swarm.stop().await;
    assert_eq!(saved.len(), 7);
}

/// A restarted swarm has the same hosts, not clones of them.
#[tokio::test(flavor = "multi_thread")]
async fn restart_with_saved_identities_is_not_a_clone() {
    let Fixture { server, swarm } = Fixture::new(20, NO_FAULTS).await;
    wait_until("all agents synced", || swarm.counts().syncs >= 20).await;
    let folder = std::env::temp_dir().join(format!("fleetmend-swarm-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("identities");
    swarm.stop().await.write(&path).unwrap();
    let saved = swarm::SavedAgents::read(&path).unwrap().unwrap();
    swarm::SavedAgents::mark_taken(&path).unwrap();
    assert!(matches!(swarm::SavedAgents::read(&path), Err(swarm::SavedError::Unclean { .. })));
    let (url, token) = server.listen().await;
    let mut config = Config::new(&url, token.parse().unwrap(), 20);
    (config.behavior, config.saved) = (NO_FAULTS, Some(saved));
    let again = Swarm::start(config).unwrap();
    again.wait_until_enrolled().await.unwrap();
    let fixture = Fixture { server, swarm: again };
    fixture.order_install(7, task(1), RebootPolicy::Never).await;
    wait_until("the order has ended", || fixture.has_result(7, task(1))).await;
    fixture.assert_no_violations();
    assert_eq!(fixture.server.records().enrollments, 20);
    fixture.swarm.stop().await.write(&path).unwrap();
    assert_eq!(
        swarm::SavedAgents::read(&path).unwrap().unwrap().len(),
        20,
        "a clean shutdown can be resumed"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_is_reported_and_not_retried() {
    let (url, token) = FakeServer::new().listen().await;
    let other = token.replace("BgYG", "BwcH");
    let swarm = Swarm::start(Config::new(&url, other.parse().unwrap(), 5)).unwrap();
    let refused = swarm.wait_until_enrolled().await.unwrap_err().to_string();
    assert!(
        refused.contains("bad_token") && refused.contains("the token does not exist"),
        "{refused}"
    );
}
