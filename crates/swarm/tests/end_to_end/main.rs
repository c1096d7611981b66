//! The swarm against a side door that checks every word, over real connections.
//!
//! The last story takes a real server instead: `FLEETMEND_SWARM_URL` and `FLEETMEND_SWARM_TOKEN`
//! say which, and `cargo test -p swarm --test end_to_end -- --ignored` runs it.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod door;
mod secured;

use std::time::Duration;

use door::{Door, NOW};
use swarm::behave::{Nature, Script};
use swarm::{Config, Swarm};
use vocab::{FailureCode, RebootPolicy, ServerId, Stage, TaskId};
use wire::agent::{Install, Outcome, Reboot, Work};

const CALM: Nature = Nature { seed: 1, fail: 0.0, crash: 0.0, offline: 0.0, speed: 1_000.0 };

/// A door and a swarm that has come through it.
struct Scene {
    door: Door,
    swarm: Swarm,
}

impl Scene {
    async fn of(servers: u64, nature: Nature) -> Scene {
        let door = Door::new();
        let (url, token) = door.open().await;
        let mut config = Config::new(&url, token.parse().unwrap(), servers);
        config.nature = nature;
        config.reconnect_max = Duration::from_millis(50);
        let swarm = Swarm::start(config).unwrap();
        swarm.wait_until_enrolled().await.unwrap();
        Scene { door, swarm }
    }

    fn server(&self, agent: usize) -> ServerId {
        self.swarm.server_id(agent).unwrap()
    }

    /// Orders everything that is pending on a server, and a reboot if one is wanted after it.
    async fn installs(&self, agent: usize, task: TaskId, reboot: RebootPolicy) {
        let server = self.server(agent);
        eventually("the server was heard", || !self.door.book().servers[&server].boots.is_empty())
            .await;
        let boot_id = self.door.book().servers[&server].boots.last().unwrap().clone();
        let (packages, exclude) = (Vec::new(), Vec::new());
        let install = Install {
            packages,
            exclude,
            security_only: false,
            security_packages: Vec::new(),
            reboot,
            boot_id,
        };
        self.door.order(server, task, Work::Install(install));
    }

    fn has_result(&self, agent: usize, task: TaskId) -> bool {
        self.door.book().servers[&self.server(agent)].results.contains_key(&task)
    }

    fn result(&self, agent: usize, task: TaskId) -> (Outcome, Option<FailureCode>) {
        let book = self.door.book();
        let result = &book.servers[&self.server(agent)].results[&task];
        (result.outcome, result.failure_code)
    }

    fn is_well(&self) {
        assert_eq!(self.door.book().protests, Vec::<String>::new());
        assert_eq!(self.swarm.ledger().violations(), []);
        assert_eq!(self.swarm.refusal(), None);
    }
}

fn task(number: u128) -> TaskId {
    TaskId::new(NOW.parse().unwrap(), number)
}

/// Waits for something to become true, and not for ever.
async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never came about that {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_join_and_each_list_is_uploaded_once_for_all_who_share_it() {
    let scene = Scene::of(48, CALM).await;
    let known = || {
        let book = scene.door.book();
        let has = |digest| book.listings.contains_key(&digest);
        book.servers.len() == 48
            && book
                .servers
                .values()
                .all(|row| row.installed.is_some_and(has) && row.pending.is_some_and(has))
    };
    eventually("every list is there", known).await;
    let lists = scene.door.book().listings.len();
    assert!(lists < 80, "{lists} lists of 48 hosts");
    // Two or three for the lists, and then one is held open; nobody asks again and again.
    let most = scene.door.book().servers.values().map(|row| row.syncs).max();
    assert!(most < Some(12), "{most:?} syncs of a host that has nothing to say");
    // Others who are set up alike have nothing to upload.
    let (url, token) = scene.door.open().await;
    let mut config = Config::new(&url, token.parse().unwrap(), 48);
    config.nature = CALM;
    let alike = Swarm::start(config).unwrap();
    alike.wait_until_enrolled().await.unwrap();
    let heard = || {
        let book = scene.door.book();
        book.servers.len() == 96 && book.servers.values().all(|row| row.syncs > 0)
    };
    eventually("they were heard", heard).await;
    assert_eq!((alike.counts().listings, scene.door.book().listings.len()), (0, lists));
    scene.is_well();
}

/// Every third answer is lost after it had its effect, agents crash, hosts reboot and fail.
#[tokio::test(flavor = "multi_thread")]
async fn in_rough_weather_every_order_takes_effect_once_and_its_result_is_true() {
    let scene = Scene::of(40, Nature { fail: 0.2, crash: 0.3, ..CALM }).await;
    scene.door.lose_answers(33);
    for agent in 0..40 {
        scene.installs(agent, task(agent as u128), RebootPolicy::IfRequired).await;
    }
    eventually("all have answered", || {
        (0..40).all(|agent| scene.has_result(agent, task(agent as u128)))
    })
    .await;
    let failed = (0..40)
        .filter(|agent| scene.result(*agent, task(*agent as u128)).0 == Outcome::Failed)
        .count();
    assert!((2..18).contains(&failed), "{failed} of 40 failed");
    let counts = scene.swarm.counts();
    assert!(counts.crashes > 5 && counts.boots > 5 && counts.failed > 10, "{counts:?}");
    assert_eq!(counts.orders, 40);
    scene.door.lose_answers(0);
    // The lists after the installation are with the server, and no others are claimed.
    eventually("the new lists are there", || {
        let book = scene.door.book();
        let has = |digest| book.listings.contains_key(&digest);
        book.servers
            .values()
            .all(|row| row.installed.is_some_and(has) && row.pending.is_some_and(has))
    })
    .await;
    assert!(scene.swarm.ledger().effects() > 20);
    scene.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_is_told_stage_by_stage_with_its_log_and_a_new_boot() {
    // Slow enough that every stage is heard of.
    let scene = Scene::of(8, Nature { speed: 20.0, ..CALM }).await;
    scene.swarm.script(0, Script::Succeed);
    scene.installs(0, task(1), RebootPolicy::Always).await;
    eventually("it has ended", || scene.has_result(0, task(1))).await;
    let book = scene.door.book();
    let row = &book.servers[&scene.server(0)];
    let stages = &row.stages[&task(1)];
    for stage in [Stage::Downloading, Stage::Installing, Stage::Rebooting] {
        assert!(stages.contains(&stage), "{stages:?}");
    }
    let result = &row.results[&task(1)];
    assert!(result.outcome == Outcome::Succeeded && result.reboot_seconds.is_some());
    let log = String::from_utf8(book.logs[&task(1)].clone()).unwrap();
    let installed = result.packages.iter().filter(|moved| log.contains(moved.name.as_str()));
    assert!(!result.packages.is_empty());
    assert_eq!(installed.count(), result.packages.len(), "{log}");
    assert_eq!(row.boots.len(), 2);
    drop(book);
    scene.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_makes_one_agent_fail_hang_fall_silent_or_be_late() {
    let scene = Scene::of(8, CALM).await;
    let scripts = [
        Script::FailWith(FailureCode::DiskFull),
        Script::NeverAnswer,
        Script::HangInReboot,
        Script::CutOff,
        Script::Succeed,
    ];
    for (agent, script) in scripts.into_iter().enumerate() {
        scene.swarm.script(agent, script);
    }
    for agent in [0, 1, 2, 4] {
        scene.installs(agent, task(agent as u128), RebootPolicy::Always).await;
    }
    eventually("two have ended", || [0, 4].iter().all(|i| scene.has_result(*i, task(*i as u128))))
        .await;
    assert_eq!(scene.result(0, task(0)), (Outcome::Failed, Some(FailureCode::DiskFull)));
    assert_eq!(scene.result(4, task(4)), (Outcome::Succeeded, None));
    eventually("one hangs", || {
        let book = scene.door.book();
        book.servers[&scene.server(2)]
            .stages
            .get(&task(2))
            .is_some_and(|s| s.contains(&Stage::Rebooting))
    })
    .await;
    assert!(!scene.has_result(1, task(1)) && !scene.has_result(2, task(2)));
    scene.swarm.script(1, Script::Usual);
    scene.swarm.script(2, Script::Usual);
    eventually("they come round", || scene.has_result(1, task(1)) && scene.has_result(2, task(2)))
        .await;
    scene.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_cut_off_works_on_and_tells_it_late() {
    let scene = Scene::of(8, Nature { speed: 20.0, ..CALM }).await;
    scene.installs(3, task(1), RebootPolicy::Never).await;
    let begun = || scene.door.book().servers[&scene.server(3)].stages.contains_key(&task(1));
    eventually("it has begun", begun).await;
    scene.swarm.script(3, Script::CutOff);
    eventually("its packages have changed", || scene.swarm.ledger().effects() == 1).await;
    assert!(!scene.has_result(3, task(1)));
    scene.swarm.script(3, Script::Usual);
    eventually("it tells", || scene.has_result(3, task(1))).await;
    assert_eq!(scene.result(3, task(1)), (Outcome::Succeeded, None));
    scene.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_are_late_or_withdrawn_are_answered_and_do_nothing() {
    let scene = Scene::of(8, CALM).await;
    let late = scene.server(0);
    scene.door.let_orders_expire(late);
    scene.installs(0, task(1), RebootPolicy::Never).await;
    scene.door.withdraw(scene.server(1), task(2));
    eventually("both are answered", || {
        scene.has_result(0, task(1)) && scene.has_result(1, task(2))
    })
    .await;
    assert_eq!(scene.result(0, task(1)), (Outcome::Failed, Some(FailureCode::OrderExpired)));
    assert_eq!(scene.result(1, task(2)), (Outcome::Withdrawn, None));
    scene.door.order(scene.server(1), task(2), Work::Reboot(Reboot { boot_id: "x".into() }));
    eventually("it is answered once more", || {
        !scene.door.book().servers[&scene.server(1)].results.is_empty()
            && scene.swarm.counts().results >= 3
    })
    .await;
    assert_eq!(scene.swarm.ledger().effects(), 0);
    scene.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_host_goes_dormant() {
    let scene = Scene::of(8, CALM).await;
    scene.door.remove(scene.server(5));
    eventually("it knows", || scene.swarm.counts().removed == 1).await;
    assert_eq!(scene.swarm.counts().enrolled, 8, "and does not enrol again by itself");
    let saved = scene.swarm.stop().await;
    assert_eq!(saved.len(), 7);
}

/// A swarm that stops and starts again is the same hosts, not clones of them.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_with_saved_identities_is_not_taken_for_a_clone() {
    let Scene { door, swarm } = Scene::of(20, CALM).await;
    eventually("all were heard", || swarm.counts().syncs >= 20).await;
    let folder = std::env::temp_dir().join(format!("fleetmend-swarm-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("identities");
    swarm.stop().await.write(&path).unwrap();
    let saved = swarm::Saved::read(&path).unwrap().unwrap();
    swarm::Saved::taken(&path).unwrap();
    assert!(matches!(swarm::Saved::read(&path), Err(swarm::SavedError::Unclean { .. })));
    let (url, token) = door.open().await;
    let mut config = Config::new(&url, token.parse().unwrap(), 20);
    (config.nature, config.saved) = (CALM, Some(saved));
    let again = Swarm::start(config).unwrap();
    again.wait_until_enrolled().await.unwrap();
    let scene = Scene { door, swarm: again };
    scene.installs(7, task(1), RebootPolicy::Never).await;
    eventually("it has ended", || scene.has_result(7, task(1))).await;
    scene.is_well();
    assert_eq!(scene.door.book().enrolments, 20);
    scene.swarm.stop().await.write(&path).unwrap();
    assert_eq!(
        swarm::Saved::read(&path).unwrap().unwrap().len(),
        20,
        "a clean end can be taken up"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_taken_is_said_and_not_tried_for_ever() {
    let (url, token) = Door::new().open().await;
    let other = token.replace("BgYG", "BwcH");
    let swarm = Swarm::start(Config::new(&url, other.parse().unwrap(), 5)).unwrap();
    let refused = swarm.wait_until_enrolled().await.unwrap_err().to_string();
    assert!(
        refused.contains("bad_token") && refused.contains("there is no such token"),
        "{refused}"
    );
}
