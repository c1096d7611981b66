//! Orders on a host with a fake package manager.

use std::fs;

use vocab::listing::{Installed, decode};
use vocab::{FailureCode, Line};
use wire::agent::{OrderResult, Outcome, Work};

use crate::fake_host::{FakeHost, install, now, order};

fn failure_text(result: &OrderResult) -> String {
    let code = result.failure_code.map(|code| code.to_string()).unwrap_or_default();
    format!("{code}: {}", result.message.as_ref().map(Line::as_str).unwrap_or_default())
}

#[test]
fn installed_update_is_reported_as_inventory_difference() {
    let host =
        FakeHost::new("installs", &[("bash", "1"), ("zsh", "1")], &[("bash", "2"), ("zsh", "2")]);
    let worker = host.worker();
    let order = order(1, Work::Install(install(&["bash"])));
    worker.accept(order.clone());
    let result = host.wait_for_result(&worker, order.id);
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(result.exit, Some(0));
    let moves: Vec<_> =
        result.packages.iter().map(|p| (p.name.as_str(), p.from.clone(), p.to.clone())).collect();
    assert_eq!(moves, [("bash", Some("1".into()), Some("2".into()))]);
    assert_eq!(host.read_text("db/zsh"), "1");
    assert_eq!(host.read_text("ran"), "refresh\ndownload\ninstall");
    let log = String::from_utf8(worker.read_log(order.id, 0, 1 << 20)).unwrap();
    assert!(log.contains("setting up bash\n"), "{log}");
    assert_eq!(worker.open_logs(), [(order.id, log.len() as u64, true)]);
}

#[test]
fn repeated_order_returns_its_stored_result() {
    let host = FakeHost::new("again", &[("bash", "1")], &[("bash", "2")]);
    let order = order(1, Work::Install(install(&[])));
    let first = host.execute(&order);
    let worker = host.worker();
    worker.accept(order.clone());
    assert_eq!(host.wait_for_result(&worker, order.id), first);
    worker.acknowledge(&[order.id]);
    assert!(worker.report().results.is_empty());
    worker.accept(order.clone());
    assert_eq!(host.wait_for_result(&worker, order.id), first);
    assert_eq!(host.read_text("ran").matches("install").count(), 1);
}

#[test]
fn unknown_or_malformed_orders_are_rejected_by_name() {
    let host = FakeHost::new("refused", &[], &[]);
    let unknown = host.execute(&order(1, Work::Unknown { name: "run_script".into() }));
    assert_eq!(unknown.failure_code, Some(FailureCode::UnsupportedOrder));
    assert!(unknown.message.unwrap().as_str().contains("run_script"));
    let reason = "bash-".into();
    let malformed = host.execute(&order(2, Work::Malformed { name: "install".into(), reason }));
    assert_eq!(malformed.failure_code, Some(FailureCode::RejectedByAgent));
    assert_eq!(host.read_text("ran"), "");
}

#[test]
fn health_hooks_run_before_and_after_a_change() {
    let host = FakeHost::new("health", &[("bash", "1")], &[("bash", "2")]);
    fs::create_dir(host.dir.join("health.d")).unwrap();
    let dir = host.dir.display();
    let hook =
        format!("echo \"$FLEETMEND_HOOK $FLEETMEND_HEALTH $(cat {dir}/db/bash)\" >> {dir}/looks");
    host.script("health.d/10-look", &hook);
    let measured = wire::agent::Install { health: true, ..install(&[]) };
    let result = host.execute(&order(1, Work::Install(measured.clone())));
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(host.read_text("looks"), "health before 1\nhealth after 2");
    let health = result.health.unwrap();
    assert_eq!((health.problems.len(), health.not_measured), (0, None));
    // Nothing changed, so there is nothing to measure; and without the request nothing is.
    let unchanged = host.execute(&order(2, Work::Install(measured)));
    assert_eq!((unchanged.outcome, unchanged.health), (Outcome::NoChange, None));
    fs::write(host.dir.join("offer/bash"), "3").unwrap();
    assert_eq!(host.execute(&order(3, Work::Install(install(&[])))).health, None);
    assert_eq!(host.read_text("looks").lines().count(), 2);
}

/// A system in a directory has no units and no sockets of its own.
#[test]
fn host_without_any_measurement_is_not_reported_as_healthy() {
    let host = FakeHost::new("unmeasured", &[("bash", "1")], &[("bash", "2")]);
    let measured = wire::agent::Install { health: true, ..install(&[]) };
    let health = host.execute(&order(1, Work::Install(measured))).health.unwrap();
    assert!(health.not_measured.unwrap().as_str().ends_with("is not the running one"));
}

#[test]
fn watch_is_measured_and_its_end_reported() {
    let host = FakeHost::new("watch", &[("bash", "1")], &[("bash", "2")]);
    let worker = host.worker();
    let (start, end) = (now(), now() + std::time::Duration::from_secs(60));
    worker.watch_health(None, start);
    assert!(!host.dir.join("state/health.json").exists(), "no watch costs nothing");
    worker.watch_health(Some(end), start);
    // A restart of the agent does not end the watch.
    drop(worker);
    let worker = host.worker();
    worker.watch_health(Some(end), start);
    worker.watch_health(None, end);
    let report = host.wait_until(&worker, |report| report.health.clone());
    assert!(report.not_measured.is_some());
    worker.health_delivered(&report);
    assert_eq!(worker.report().health, None);
}

/// A host taken out of its load balancer must be put back, whatever happened in between.
#[test]
fn failing_pre_hook_stops_the_order_and_post_hooks_run() {
    let host = FakeHost::new("hooks", &[("bash", "1")], &[("bash", "2")]);
    host.script("hooks/pre-install.d/10-drain", "echo \"drains for $FLEETMEND_PACKAGES\"");
    host.script("hooks/pre-install.d/20-asks", "echo 'not during the sale'; exit 1");
    let dir = host.dir.display();
    host.script("hooks/post-install.d/10-back", &format!("echo $FLEETMEND_OUTCOME > {dir}/back"));
    let result = host.execute(&order(1, Work::Install(install(&[]))));
    assert_eq!(result.failure_code, Some(FailureCode::HookFailed));
    let message = result.message.unwrap().to_string();
    assert!(message.ends_with("pre-install.d/20-asks: not during the sale"), "{message}");
    assert_eq!(
        (host.read_text("back"), host.read_text("db/bash")),
        ("not_installed".into(), "1".into())
    );
}

#[test]
fn host_limits_override_orders_and_are_named() {
    let host = FakeHost::new("limits", &[("bash", "1")], &[("bash", "2")]);
    let limits = host.dir.join("limits.toml");
    fs::write(&limits, "frozen = true").unwrap();
    let frozen = host.execute(&order(1, Work::Install(install(&[]))));
    assert_eq!(
        failure_text(&frozen),
        format!("rejected_by_agent: {}: `frozen` is set", limits.display())
    );
    // A typo forbids everything but scans.
    fs::write(&limits, "frosen = true").unwrap();
    for (number, work) in [(2, Work::Install(install(&[]))), (3, Work::Plan(install(&[])))] {
        let refused = host.execute(&order(number, work));
        assert!(failure_text(&refused).contains("unknown field `frosen`"), "{refused:?}");
    }
    assert_eq!(host.read_text("ran"), "");
    assert_eq!(host.execute(&order(4, Work::Scan)).outcome, Outcome::Succeeded);
}

#[test]
fn order_withdrawn_while_waiting_for_lock_changes_nothing() {
    let host = FakeHost::new("withdrawn", &[("bash", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("locked-by"), "unattended-upgr (pid 812)").unwrap();
    let worker = host.worker();
    let order = order(1, Work::Install(install(&[])));
    worker.accept(order.clone());
    let waits = host.wait_until(&worker, |report| report.progress.first()?.message.clone());
    assert_eq!(waits.as_str(), "waiting for unattended-upgr (pid 812)");
    worker.withdraw(order.id);
    assert_eq!(host.wait_for_result(&worker, order.id).outcome, Outcome::Withdrawn);
    assert_eq!(host.read_text("ran"), "");
}

#[test]
fn queued_order_is_withdrawn_at_once() {
    let host = FakeHost::new("queued", &[("bash", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("locked-by"), "unattended-upgr (pid 812)").unwrap();
    let worker = host.worker();
    let [first, second] = [1, 2].map(|number| order(number, Work::Install(install(&[]))));
    worker.accept(first.clone());
    host.wait_until(&worker, |report| report.progress.first()?.message.clone());
    worker.accept(second.clone());
    worker.withdraw(second.id);
    let report = worker.report();
    let answered: Vec<_> = report.results.iter().map(|r| (r.order_id, r.outcome)).collect();
    assert_eq!(answered, [(second.id, Outcome::Withdrawn)]);
    assert_eq!(report.progress[0].order_id, first.id, "the first order still waits");
    // Sent again, it does not start.
    worker.accept(second);
    assert_eq!(worker.report().results.len(), 1);
    assert_eq!(host.read_text("ran"), "");
}

#[test]
fn withdrawn_order_that_never_arrived_is_reported() {
    let host = FakeHost::new("never-arrived", &[("bash", "1")], &[("bash", "2")]);
    let order = order(1, Work::Install(install(&[])));
    let worker = host.worker();
    worker.withdraw(order.id);
    let result = host.wait_for_result(&worker, order.id);
    assert_eq!((result.outcome, result.failure_code), (Outcome::Withdrawn, None));
    // Even if it arrives later, before or after a restart of the agent.
    worker.accept(order.clone());
    assert!(worker.report().progress.is_empty());
    drop(worker);
    let worker = host.worker();
    assert_eq!(host.wait_for_result(&worker, order.id).outcome, Outcome::Withdrawn);
    worker.acknowledge(&[order.id]);
    worker.accept(order.clone());
    assert_eq!(host.wait_for_result(&worker, order.id).outcome, Outcome::Withdrawn);
    assert_eq!(host.read_text("ran"), "");
}

#[test]
fn order_without_record_is_reported_lost_and_not_run() {
    let host = FakeHost::new("lost-record", &[("bash", "1")], &[("bash", "2")]);
    let order = order(1, Work::Install(install(&[])));
    assert_eq!(host.execute(&order).outcome, Outcome::Succeeded);
    let ran = host.read_text("ran");
    assert_ne!(ran, "");
    // An order on record is reported again, with its result.
    let worker = host.worker();
    worker.acknowledge(&[order.id]);
    worker.answer_inquiries(&[order.id]);
    assert_eq!(host.wait_for_result(&worker, order.id).outcome, Outcome::Succeeded);
    drop(worker);
    fs::remove_dir_all(host.dir.join("state/orders")).unwrap();
    let worker = host.worker();
    worker.answer_inquiries(&[order.id]);
    let result = host.wait_for_result(&worker, order.id);
    assert_eq!(result.outcome, Outcome::Unknown);
    assert_eq!(result.failure_code, Some(FailureCode::OrderLost));
    worker.accept(order.clone());
    drop(worker);
    let worker = host.worker();
    assert_eq!(host.wait_for_result(&worker, order.id).outcome, Outcome::Unknown);
    assert!(worker.report().progress.is_empty());
    assert_eq!(host.read_text("ran"), ran, "the order did not run again");
}

#[test]
fn expired_order_is_reported_and_not_started() {
    let host = FakeHost::new("late", &[("bash", "1")], &[("bash", "2")]);
    let worker = host.worker();
    let late = order(1, Work::Install(install(&[])));
    worker.reject(&late, FailureCode::OrderExpired, "it expired an hour ago".into());
    let result = host.wait_for_result(&worker, late.id);
    assert_eq!(failure_text(&result), "order_expired: it expired an hour ago");
    assert_eq!(host.read_text("ran"), "");
}

#[test]
fn damage_is_repaired_first_or_stops_the_order() {
    let host = FakeHost::new("damage", &[("bash", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("damage"), "tzdata is half configured").unwrap();
    let result = host.execute(&order(1, Work::Install(install(&[]))));
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(result.notes, ["repaired before installing: 1 incomplete package operation(s), first: tzdata is half configured".into()]);
    assert_eq!(host.read_text("ran"), "repair\nrefresh\ndownload\ninstall");
    fs::write(host.dir.join("damage"), "tzdata is half configured").unwrap();
    fs::write(host.dir.join("hopeless"), "").unwrap();
    fs::write(host.dir.join("offer/bash"), "3").unwrap();
    let result = host.execute(&order(2, Work::Install(install(&[]))));
    assert!(failure_text(&result).starts_with("package_db_broken: "), "{result:?}");
    assert_eq!(host.read_text("db/bash"), "2");
}

#[test]
fn success_is_judged_by_inventory_not_exit_code() {
    let host = FakeHost::new("lies", &[("bash", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("lies"), "").unwrap();
    let lied = host.execute(&order(1, Work::Install(install(&[]))));
    assert_eq!(failure_text(&lied), "verify_failed: bash: installed 1, expected 2");
    assert_eq!(lied.exit, Some(0));
    fs::write(host.dir.join("fails"), "").unwrap();
    let failed = host.execute(&order(2, Work::Install(install(&[]))));
    assert_eq!(failure_text(&failed), "install_failed: ended with Some(100): E: the script failed");
    assert_eq!((failed.exit, failed.packages.len()), (Some(100), 0));
}

#[test]
fn missing_or_held_packages_are_not_reported_as_success() {
    let host = FakeHost::new("passed", &[("bash", "1"), ("zsh", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("held/bash"), "").unwrap();
    for (number, name, outcome, words) in [
        (1, "bash", Outcome::Skipped, "bash was skipped: held by the administrator"),
        (2, "zsh", Outcome::NoChange, "zsh was skipped: no update available"),
        (3, "ba.h", Outcome::NoChange, "ba.h was skipped: it is not installed"),
    ] {
        let result = host.execute(&order(number, Work::Install(install(&[name]))));
        assert_eq!((result.outcome, failure_text(&result)), (outcome, format!(": {words}")));
    }
    assert_eq!(host.read_text("ran"), "refresh\nrefresh\nrefresh");
}

#[test]
fn packages_are_never_removed() {
    let host = FakeHost::new("removal", &[("bash", "1"), ("zsh", "1")], &[("bash", "2")]);
    fs::create_dir_all(host.dir.join("removes")).unwrap();
    fs::write(host.dir.join("removes/zsh"), "").unwrap();
    let result = host.execute(&order(1, Work::Install(install(&["bash"]))));
    assert_eq!(failure_text(&result), "dependency_conflict: the update would remove zsh");
    assert_eq!(host.read_text("ran"), "refresh");
}

/// The agent is stopped, not the package manager.
#[test]
fn restarted_worker_collects_the_running_installation() {
    let host = FakeHost::new("dropped", &[("bash", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("gate"), "").unwrap();
    let order = order(1, Work::Install(install(&[])));
    let worker = host.worker();
    worker.accept(order.clone());
    host.wait_until(&worker, |_| {
        (!worker.read_log(order.id, 0, 1 << 16).is_empty()
            && !host.read_text("installing").is_empty())
        .then_some(())
    });
    drop(worker);
    fs::remove_file(host.dir.join("gate")).unwrap();
    let worker = host.worker();
    let result = host.wait_for_result(&worker, order.id);
    assert_eq!((result.outcome, result.exit), (Outcome::Succeeded, Some(0)));
    assert_eq!(host.read_text("ran").matches("install").count(), 1);
    let log = String::from_utf8(worker.read_log(order.id, 0, 1 << 16)).unwrap();
    assert_eq!(log.matches("setting up bash").count(), 1, "{log}");
}

#[test]
fn scan_and_listings_survive_an_agent_restart() {
    let host = FakeHost::new("scan", &[("bash", "1")], &[("bash", "2")]);
    let worker = host.worker();
    worker.scan();
    let scan = host.wait_until(&worker, |report| report.scan.clone());
    let listing = worker.listing(scan.installed).unwrap();
    assert_eq!(decode::<Installed>(&listing).unwrap(), [Installed::new("bash", "1", "all")]);
    assert!(scan.at <= now());
    drop(worker);
    let worker = host.worker();
    assert_eq!(worker.report().scan, Some(scan.clone()));
    // After an installation the packages are scanned again automatically.
    worker.accept(order(1, Work::Install(install(&[]))));
    let next = host.wait_until(&worker, |report| {
        report.scan.clone().filter(|next| next.installed != scan.installed)
    });
    let listing = worker.listing(next.installed).unwrap();
    assert_eq!(decode::<Installed>(&listing).unwrap(), [Installed::new("bash", "2", "all")]);
    assert_eq!(worker.listing(scan.installed), None);
}

#[test]
fn failed_refresh_fails_the_scan_but_reports_packages() {
    let host = FakeHost::new("offline", &[("bash", "1")], &[("bash", "2")]);
    fs::write(host.dir.join("no-network"), "").unwrap();
    let worker = host.worker();
    let order = order(1, Work::Scan);
    worker.accept(order.clone());
    assert_eq!(host.wait_for_result(&worker, order.id).outcome, Outcome::Failed);
    assert!(worker.report().scan.is_some());
}

#[test]
fn orders_run_one_at_a_time_in_arrival_order() {
    let host =
        FakeHost::new("queue", &[("bash", "1"), ("zsh", "1")], &[("bash", "2"), ("zsh", "2")]);
    let worker = host.worker();
    let orders =
        [order(9, Work::Install(install(&["zsh"]))), order(1, Work::Install(install(&["bash"])))];
    orders.iter().for_each(|order| worker.accept(order.clone()));
    let results = host.wait_until(&worker, |r| (r.results.len() == 2).then(|| r.results.clone()));
    let ids: Vec<_> = results.iter().map(|result| result.order_id).collect();
    assert_eq!(ids, orders.map(|order| order.id));
    assert!(results[0].finished_at <= results[1].started_at);
}

/// A journal that the disk lost must not leave the order unreported.
#[test]
fn unreadable_journal_is_reported_as_order_lost() {
    let host = FakeHost::new("torn", &[("bash", "1")], &[("bash", "2")]);
    let order = order(1, Work::Install(install(&[])));
    host.execute(&order);
    let journal = host.dir.join(format!("state/orders/{}/journal.json", order.id));
    fs::write(&journal, b"{\"id\":").unwrap();
    let worker = host.worker();
    let result = host.wait_for_result(&worker, order.id);
    assert!(failure_text(&result).starts_with("order_lost: cannot read the journal of this order"));
}
