//! Tests of the worker with a simulated clock.

use jiff::{SignedDuration, Timestamp};
use vocab::{FailureCode, RebootPolicy, Stage, TaskId};
use wire::agent::{Install, Order, OrderResult, Outcome, Reboot, Work};
use wire::v1::Activity;

use super::{Behavior, HostEvent, OrderReceipt, Script, Worker};
use crate::fleet::{Fleet, Host};
use crate::ledger::Ledger;

const NO_FAULTS: Behavior = Behavior { seed: 1, fail: 0.0, crash: 0.0, offline: 0.0, speed: 1.0 };

/// One agent, its clock, and a ledger of its events.
struct Scenario {
    worker: Worker,
    now: Timestamp,
    ledger: Ledger,
    event: Vec<HostEvent>,
}

fn id(number: u128) -> TaskId {
    TaskId::new(Timestamp::UNIX_EPOCH, number)
}

fn install_everything(reboot: RebootPolicy, host: &Host) -> Work {
    let boot_id = host.boot_id();
    let (packages, exclude) = (Vec::new(), Vec::new());
    Work::Install(Install {
        packages,
        exclude,
        security_only: false,
        security_packages: Vec::new(),
        reboot,
        boot_id,
        health: false,
    })
}

impl Scenario {
    fn new(host: Host, behavior: Behavior) -> Scenario {
        let now = "2026-11-15T04:00:00Z".parse().unwrap();
        let worker = Worker::new(host, behavior, now);
        Scenario { worker, now, ledger: Ledger::default(), event: Vec::new() }
    }

    /// A host with a pending kernel update, so that it needs a reboot after installing.
    fn calm() -> Scenario {
        let fleet = Fleet::new(1, 400);
        let wants = |host: &Host| {
            let installs = install_everything(RebootPolicy::Never, host);
            let Work::Install(order) = installs else { return false };
            let kernel = host.group().kernel_update();
            let chosen = host.group().select(host.state.packages, &order).updates;
            kernel.is_some_and(|kernel| chosen.contains(&kernel)) && chosen.len() > 4
        };
        Scenario::new((0..400).map(|index| fleet.host(index)).find(wants).unwrap(), NO_FAULTS)
    }

    fn send_order(&mut self, number: u128, work: Work) -> OrderReceipt {
        let order = Order {
            id: id(number),
            server_id: "srv_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap(),
            issued_at: self.now,
            expires_at: self.now + SignedDuration::from_mins(10),
            work,
        };
        let taken = self.worker.accept(order, self.now);
        self.advance_seconds(0);
        taken
    }

    fn order_install(&mut self, number: u128, reboot: RebootPolicy) -> OrderReceipt {
        let work = install_everything(reboot, self.worker.host());
        self.send_order(number, work)
    }

    /// Advances the clock in small steps, so that events do not all happen at once.
    fn advance_seconds(&mut self, seconds: i64) -> &mut Scenario {
        let parts = seconds.clamp(1, 100);
        for _ in 0..parts {
            self.advance(SignedDuration::from_millis(seconds * 1_000 / parts));
        }
        for result in self.worker.results() {
            self.ledger.result_reported(0, &result);
        }
        assert_eq!(self.ledger.violations(), []);
        self
    }

    fn advance(&mut self, time: SignedDuration) {
        self.now += time;
        let kind = |worker: &Worker, packages| worker.host().group().installed(packages);
        for happening in self.worker.advance(self.now) {
            match &happening {
                HostEvent::OrderStarted { order, plan } => {
                    self.ledger.order_started(0, *order, *plan, self.now);
                }
                HostEvent::PackagesChanged { order, before, after } => {
                    self.ledger.packages_changed(
                        0,
                        *order,
                        &kind(&self.worker, *before),
                        &kind(&self.worker, *after),
                    );
                }
                HostEvent::Booted { order } => self.ledger.host_booted(0, *order),
                HostEvent::StageReached { .. }
                | HostEvent::Crashed
                | HostEvent::OrderEnded { .. } => {}
            }
            self.event.push(happening);
        }
    }

    fn result(&self) -> OrderResult {
        let mut results = self.worker.results();
        assert_eq!(results.len(), 1, "{results:?}");
        results.remove(0)
    }

    /// Advances the clock until the worker is in this stage.
    fn run_until_stage(&mut self, stage: Stage) {
        for _ in 0..600 {
            if self
                .worker
                .progress(self.now)
                .first()
                .is_some_and(|progress| progress.stage == Some(stage))
            {
                return;
            }
            self.advance_seconds(1);
        }
        panic!("never reached {stage}: {:?}", self.worker.progress(self.now));
    }
}

#[test]
fn installation_passes_all_stages_and_applies_every_update() {
    let mut scenario = Scenario::calm();
    let before = scenario.worker.host().clone();
    assert_eq!(scenario.order_install(1, RebootPolicy::Never), OrderReceipt::Accepted);
    for stage in [Stage::Preflight, Stage::Downloading, Stage::Installing, Stage::Verifying] {
        scenario.run_until_stage(stage);
        assert_eq!(scenario.worker.activity(), Activity::Patching);
    }
    let result = scenario.advance_seconds(600).result();
    assert_eq!((result.outcome, result.exit), (Outcome::Succeeded, Some(0)));
    assert!(result.packages.len() > 4 && result.reboot_needed && result.reboot_seconds.is_none());
    let after = scenario.worker.host();
    let pending = after.group().pending(after.state.packages);
    assert!(pending.iter().all(|update| update.blocked_by.is_some()), "{pending:?}");
    let digests = |host: &Host| host.group().digests(host.state.packages);
    assert_ne!(digests(after).installed, digests(&before).installed);
    assert_ne!(digests(after).pending, digests(&before).pending);
    assert_eq!(scenario.worker.activity(), Activity::Idle);
}

#[test]
fn repeated_order_is_answered_with_its_earlier_result() {
    let mut scenario = Scenario::calm();
    scenario.order_install(1, RebootPolicy::Never);
    scenario.advance_seconds(5);
    assert_eq!(scenario.order_install(1, RebootPolicy::Never), OrderReceipt::InProgress);
    let first = scenario.advance_seconds(600).result();
    scenario.worker.mark_acknowledged(id(1));
    assert_eq!(scenario.worker.results(), []);
    assert_eq!(scenario.order_install(1, RebootPolicy::Never), OrderReceipt::AlreadyDone);
    assert_eq!(scenario.advance_seconds(600).result(), first);
    let effects = |event: &&HostEvent| matches!(event, HostEvent::PackagesChanged { .. });
    assert_eq!(scenario.event.iter().filter(effects).count(), 1);
}

#[test]
fn reboot_takes_host_down_and_changes_boot_id() {
    let mut scenario = Scenario::calm();
    let boot = scenario.worker.host().boot_id();
    scenario.order_install(1, RebootPolicy::IfRequired);
    scenario.run_until_stage(Stage::Rebooting);
    assert!(!scenario.worker.is_down(), "the agent announces the reboot first");
    scenario.advance_seconds(3);
    assert!(scenario.worker.is_down());
    assert_eq!(scenario.worker.activity(), Activity::Rebooting);
    let result = scenario.advance_seconds(600).result();
    assert!((20..=80).contains(&result.reboot_seconds.unwrap()) && !result.reboot_needed);
    assert_ne!(scenario.worker.host().boot_id(), boot);
}

#[test]
fn order_for_another_boot_does_not_reboot() {
    let mut scenario = Scenario::calm();
    let other = "another boot".into();
    let Work::Install(order) = install_everything(RebootPolicy::Always, scenario.worker.host())
    else {
        unreachable!()
    };
    scenario.send_order(1, Work::Install(Install { boot_id: other, ..order }));
    assert_eq!(scenario.advance_seconds(600).result().reboot_seconds, None);
    scenario.worker.mark_acknowledged(id(1));
    scenario.send_order(2, Work::Reboot(Reboot { boot_id: "another boot".into() }));
    assert_eq!(scenario.advance_seconds(600).result().outcome, Outcome::NoChange);
    assert_eq!(scenario.worker.host().state.boots, 1);
}

#[test]
fn crash_at_any_stage_does_not_change_outcome() {
    for stage in [Stage::Preflight, Stage::Downloading, Stage::Installing, Stage::Verifying] {
        let mut calm = Scenario::calm();
        let mut crashing = Scenario::calm();
        crashing.worker.set_script(Script::CrashIn(stage), crashing.now);
        calm.worker.set_script(Script::Succeed, calm.now);
        for story in [&mut calm, &mut crashing] {
            story.order_install(1, RebootPolicy::IfRequired);
            story.advance_seconds(900);
        }
        assert!(crashing.event.contains(&HostEvent::Crashed), "{stage}");
        let (calm, crashing) = (calm.result(), crashing.result());
        assert_eq!(crashing.packages, calm.packages);
        assert_eq!(crashing.outcome, calm.outcome);
    }
}

#[test]
fn failure_reports_code_and_changes_so_far() {
    for (code, changes) in [
        (FailureCode::PkgLockTimeout, false),
        (FailureCode::DiskFull, false),
        (FailureCode::RepoUnreachable, false),
        (FailureCode::InstallFailed, true),
        (FailureCode::VerifyFailed, true),
    ] {
        let mut scenario = Scenario::calm();
        scenario.worker.set_script(Script::FailWith(code), scenario.now);
        scenario.order_install(1, RebootPolicy::Always);
        let result = scenario.advance_seconds(900).result();
        assert_eq!((result.outcome, result.failure_code), (Outcome::Failed, Some(code)));
        assert_eq!(!result.packages.is_empty(), changes, "{code}");
    }
}

#[test]
fn host_hanging_in_reboot_returns_after_script_change() {
    let mut scenario = Scenario::calm();
    scenario.worker.set_script(Script::HangInReboot, scenario.now);
    scenario.order_install(1, RebootPolicy::IfRequired);
    scenario.advance_seconds(100_000);
    assert!(scenario.worker.is_down() && scenario.worker.next_due().is_none());
    assert_eq!(scenario.worker.results(), []);
    scenario.worker.set_script(Script::Random, scenario.now);
    let result = scenario.advance_seconds(600).result();
    assert_eq!(result.outcome, Outcome::Succeeded);
    assert!(result.reboot_seconds.unwrap() > 90_000);
}

#[test]
fn only_orders_without_effects_can_be_withdrawn() {
    let mut scenario = Scenario::calm();
    scenario.order_install(1, RebootPolicy::Never);
    scenario.run_until_stage(Stage::Downloading);
    scenario.worker.withdraw(id(1), scenario.now);
    assert_eq!(scenario.advance_seconds(0).result().outcome, Outcome::Withdrawn);
    scenario.worker.mark_acknowledged(id(1));
    // A withdrawal of an unknown order is answered, and the order is not started if it arrives
    // later.
    scenario.worker.withdraw(id(2), scenario.now);
    assert_eq!(scenario.order_install(2, RebootPolicy::Never), OrderReceipt::AlreadyDone);
    assert_eq!(scenario.advance_seconds(600).result().outcome, Outcome::Withdrawn);
    scenario.worker.mark_acknowledged(id(2));
    scenario.order_install(3, RebootPolicy::Never);
    scenario.run_until_stage(Stage::Installing);
    assert!(!scenario.worker.withdraw(id(3), scenario.now));
    assert_eq!(scenario.advance_seconds(600).result().outcome, Outcome::Succeeded);
}

#[test]
fn package_selection_is_respected() {
    let mut scenario = Scenario::calm();
    let host = scenario.worker.host().clone();
    let pending = host.group().pending(host.state.packages);
    let free = pending.iter().find(|update| update.blocked_by.is_none()).unwrap();
    let blank = |packages: &[&str], exclude: &[&str]| Install {
        packages: packages.iter().map(|name| name.parse().unwrap()).collect(),
        exclude: exclude.iter().map(|pattern| pattern.parse().unwrap()).collect(),
        security_only: false,
        security_packages: Vec::new(),
        reboot: RebootPolicy::Never,
        boot_id: host.boot_id(),
        health: false,
    };
    scenario.send_order(1, Work::Plan(blank(&[&free.name], &[])));
    let plan = scenario.advance_seconds(60).result();
    assert_eq!((plan.outcome, plan.packages.len()), (Outcome::Succeeded, 1));
    assert_eq!(scenario.worker.host().state, host.state, "a plan changes nothing");
    scenario.worker.mark_acknowledged(id(1));
    scenario.send_order(2, Work::Install(blank(&["no-such-package"], &[])));
    let absent = scenario.advance_seconds(60).result();
    assert_eq!(absent.outcome, Outcome::NoChange);
    assert_eq!(absent.message, Some("not installed: no-such-package".into()));
    scenario.worker.mark_acknowledged(id(2));
    scenario.send_order(3, Work::Install(blank(&[], &["*"])));
    assert_eq!(scenario.advance_seconds(60).result().outcome, Outcome::Skipped);
    scenario.worker.mark_acknowledged(id(3));
    scenario.send_order(4, Work::Install(blank(&[&free.name], &[])));
    let one = scenario.advance_seconds(600).result();
    assert_eq!(one.packages[0].name.as_str(), free.name);
    assert_eq!(one.packages[0].to, Some(free.candidate.as_str().into()));
}

#[test]
fn unknown_order_is_refused_and_ignored_order_leaves_no_trace() {
    let mut scenario = Scenario::calm();
    let unknown = Work::Unknown { name: "run_script".into() };
    assert_eq!(scenario.send_order(1, unknown), OrderReceipt::Refused);
    let refused = scenario.advance_seconds(0).result();
    assert_eq!(refused.failure_code, Some(FailureCode::UnsupportedOrder));
    assert!(refused.message.unwrap().as_str().contains("run_script"));
    scenario.worker.mark_acknowledged(id(1));
    scenario.worker.set_script(Script::IgnoreOrders, scenario.now);
    assert_eq!(scenario.order_install(2, RebootPolicy::Never), OrderReceipt::Ignored);
    scenario.advance_seconds(600);
    assert!(scenario.worker.progress(scenario.now).is_empty());
    assert_eq!(scenario.worker.results(), []);
}

/// Many agents, many orders, every fault: the ledger finds no violation, and the failure rate is
/// close to the configured share.
#[test]
fn faulty_fleet_reports_truthfully_and_fails_at_configured_rate() {
    let fleet = Fleet::new(5, 100);
    let rough = Behavior { seed: 5, fail: 0.2, crash: 0.3, ..NO_FAULTS };
    let (mut failed, mut crashed) = (0, 0);
    for index in 0..100 {
        let mut scenario = Scenario::new(fleet.host(index), rough);
        for number in 1..=3 {
            scenario.order_install(number, RebootPolicy::IfRequired);
            scenario.advance_seconds(40);
            scenario.order_install(number, RebootPolicy::IfRequired);
            scenario.advance_seconds(900);
        }
        let results = scenario.worker.results();
        assert_eq!(results.len(), 3);
        failed += results.iter().filter(|result| result.outcome == Outcome::Failed).count();
        crashed += scenario.event.iter().filter(|what| **what == HostEvent::Crashed).count();
    }
    assert!((35..85).contains(&failed), "{failed} of 300 failed");
    assert!(crashed > 45, "{crashed} crashes");
}

#[test]
fn resumed_worker_continues_its_order() {
    let mut scenario = Scenario::calm();
    scenario.order_install(1, RebootPolicy::Never);
    scenario.run_until_stage(Stage::Installing);
    let written = serde_json::to_string(&scenario.worker.persistent_state()).unwrap();
    let fleet = Fleet::new(1, 400);
    let host = fleet.host(scenario.worker.host().index);
    scenario.worker = Worker::resumed(host, NO_FAULTS, serde_json::from_str(&written).unwrap());
    assert_eq!(scenario.order_install(1, RebootPolicy::Never), OrderReceipt::InProgress);
    assert_eq!(scenario.advance_seconds(600).result().outcome, Outcome::Succeeded);
}
