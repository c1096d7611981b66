use super::*;

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn at(second: i8) -> Timestamp {
    format!("2026-11-15T04:00:{second:02}Z").parse().unwrap()
}

fn tcp(port: u16) -> Socket {
    Socket { is_udp: false, port, is_loopback: false }
}

/// A healthy host: nginx and cron run, mdadm has failed for a long time.
fn healthy() -> HealthSnapshot {
    HealthSnapshot {
        at: at(0),
        boot_id: "boot-1".into(),
        units: Some(Units {
            failed: set(&["mdadm.service"]),
            active: set(&["nginx.service", "cron.service", "ssh.socket"]),
            ..Units::default()
        }),
        sockets: Some([tcp(80), tcp(22)].into()),
        hooks: [("10-web".to_owned(), HookState::Passed), ("20-old".to_owned(), HookState::Failed)]
            .into(),
        boot_state: None,
        unreadable: None,
    }
}

fn problems(change: impl FnOnce(&mut HealthSnapshot)) -> Vec<String> {
    let mut now = healthy();
    now.at = at(9);
    change(&mut now);
    let report = now.report(&healthy());
    assert_eq!((report.measured_at, report.baseline_at), (at(9), at(0)));
    let text = |problem: &HealthProblem| format!("{} {}", problem.kind, problem.name);
    report
        .problems
        .iter()
        .map(text)
        .chain(report.not_measured.map(|why| format!("? {why}")))
        .collect()
}

fn units(now: &mut HealthSnapshot) -> &mut Units {
    now.units.as_mut().unwrap()
}

#[test]
fn unchanged_or_improved_host_is_healthy() {
    assert_eq!(problems(|_| {}), [""; 0]);
    let better = problems(|now| {
        units(now).failed.clear();
        units(now).active.extend(set(&["new.service", "mdadm.service"]));
        now.sockets.as_mut().unwrap().insert(tcp(443));
        now.hooks.insert("20-old".to_owned(), HookState::Passed);
        now.boot_id = "boot-2".into();
    });
    assert_eq!(better, [""; 0]);
}

#[test]
fn unit_that_failed_is_named_once() {
    let found = problems(|now| {
        units(now).active.remove("nginx.service");
        units(now).failed.insert("nginx.service".to_owned());
    });
    assert_eq!(found, ["unit_failed nginx.service"]);
    let new = problems(|now| units(now).failed.extend(set(&["new.service"])));
    assert_eq!(new, ["unit_failed new.service"]);
}

#[test]
fn unit_that_stopped_is_inactive_unless_expected() {
    let stop = |now: &mut HealthSnapshot| units(now).active.retain(|unit| unit != "cron.service");
    assert_eq!(problems(stop), ["unit_inactive cron.service"]);
    let expected = problems(|now| {
        stop(now);
        units(now).expected_inactive.insert("cron.service".to_owned());
    });
    assert_eq!(expected, [""; 0]);
    let looping = problems(|now| {
        stop(now);
        units(now).restarting.insert("cron.service".to_owned());
    });
    assert_eq!(looping, ["unit_failed cron.service"]);
}

#[test]
fn lost_socket_is_named_by_protocol_and_port() {
    let lost = problems(|now| now.sockets = Some([tcp(22)].into()));
    assert_eq!(lost, ["socket_lost tcp/80"]);
    let local = |is_udp| Socket { is_udp, port: 80, is_loopback: true };
    for (instead, word) in
        [(local(false), "tcp/80"), (Socket { is_udp: true, ..tcp(80) }, "tcp/80")]
    {
        let found = problems(|now| {
            let sockets = now.sockets.as_mut().unwrap();
            sockets.remove(&tcp(80));
            sockets.insert(instead);
        });
        assert_eq!(found, [format!("socket_lost {word}")]);
    }
    assert!(local(false).is_served_by(&tcp(80)), "a public socket serves local clients too");
    assert!(!local(true).is_served_by(&tcp(80)));
}

#[test]
fn hook_counts_if_it_passed_before_or_is_untrusted() {
    let states = |web, old| {
        problems(|now| {
            now.hooks =
                [("10-web".to_owned(), web), ("20-old".to_owned(), old)].into_iter().collect();
        })
    };
    assert_eq!(states(HookState::Failed, HookState::Failed), ["hook_failed 10-web"]);
    assert_eq!(states(HookState::Passed, HookState::Refused), ["hook_failed 20-old"]);
    assert_eq!(problems(|now| now.hooks.clear()), [""; 0], "hooks do not run every time");
}

#[test]
fn boot_must_be_complete_only_after_a_reboot() {
    let starting = |now: &mut HealthSnapshot| now.boot_state = Some("starting".into());
    assert_eq!(problems(starting), [""; 0]);
    let rebooted = problems(|now| {
        starting(now);
        now.boot_id = "boot-2".into();
    });
    assert_eq!(rebooted, ["boot_incomplete starting"]);
}

/// What could be measured before and cannot be now is never reported as healthy.
#[test]
fn missing_measurement_is_not_health() {
    let no_units = problems(|now| {
        now.units = None;
        now.unreadable = Some("systemctl timed out".into());
    });
    assert_eq!(no_units, ["? systemctl timed out"]);
    let no_sockets = problems(|now| now.sockets = None);
    assert_eq!(no_sockets, ["? nothing can be measured on this host"]);
    let blank = HealthSnapshot::default();
    assert!(blank.not_measured(&blank).is_some());
    let hooks_only = HealthSnapshot {
        hooks: healthy().hooks,
        unreadable: Some("a directory".into()),
        ..HealthSnapshot::default()
    };
    assert_eq!(hooks_only.not_measured(&hooks_only), None, "hooks are a measurement");
}

#[test]
fn problems_are_limited() {
    let many = problems(|now| {
        units(now).failed.extend((0..500).map(|number| format!("x{number}.service")));
    });
    assert_eq!(many.len(), HEALTH_PROBLEMS_MAX);
}

/// systemd 252, shortened.
#[test]
fn units_of_users_transient_units_and_exited_services_do_not_count() {
    let list = "\
nginx.service loaded active running A high performance web server
dhclient.service loaded active exited Raise network interfaces
broken.service loaded failed failed A broken service
looping.service loaded activating auto-restart A service in a loop
starting.service loaded activating start A slow service
session-2.scope loaded failed failed Session 2
user@0.service loaded active running User Manager for UID 0
run-u1.service loaded active running /usr/bin/sleep 100
ssh.socket loaded active listening OpenBSD Secure Shell server socket
apt-daily.timer loaded active waiting Daily apt download activities
boot.mount loaded active mounted /boot
ghost.service not-found inactive dead ghost.service
";
    let units = parse_units(list, &set(&["run-u1.service"]));
    assert_eq!(units.active, set(&["apt-daily.timer", "nginx.service", "ssh.socket"]));
    assert_eq!(units.failed, set(&["broken.service"]));
    assert_eq!(units.restarting, set(&["looping.service"]));
}

#[test]
fn services_that_end_on_their_own_are_expected_to_be_inactive() {
    let block = |kind: &str, state: &str, file: &str, triggers: &str| {
        format!(
            "Type={kind}\nActiveState={state}\nSubState=dead\nUnitFileState={file}\n\
             Transient=no\nTriggeredBy={triggers}\n"
        )
    };
    let suspects = [
        "enabled.service",
        "gone.service",
        "oneshot.service",
        "static.service",
        "cups.service",
        "sleepy.service",
        "alias.service",
        "lost.socket",
    ];
    let shown = [
        block("simple", "inactive", "enabled", ""),
        block("", "inactive", "", ""),
        block("oneshot", "inactive", "enabled", ""),
        block("dbus", "inactive", "static", ""),
        block("simple", "inactive", "enabled", "cups.socket cups.path"),
        block("simple", "inactive", "enabled", "sleepy.timer"),
        block("simple", "active", "enabled", ""),
        block("", "inactive", "static", ""),
    ]
    .join("\n");
    let expected = parse_expected_inactive(&shown, &suspects, &set(&["cups.socket"]));
    assert_eq!(
        expected,
        set(&["alias.service", "cups.service", "oneshot.service", "static.service"])
    );
}

#[test]
fn only_ports_of_long_lived_listeners_count() {
    let tcp_table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1
   1: 0100007F:0019 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 102 1
   2: 00000000:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 103 1
   3: 0A00000A:0050 0B00000A:D431 01 00000000:00000000 00:00000000 00000000     0        0 104 1
";
    let udp_table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
   0: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 201 2
   1: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 202 2
   2: 00000000:2F59 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 203 2
";
    let random = parse_port_range("32768\t60999\n");
    let names = |text: &str, is_udp| -> Vec<String> {
        let bound = parse_sockets(text, is_udp).into_iter();
        let kept = bound.filter(|bound| is_long_lived(bound.socket, random));
        kept.map(|bound| format!("{} {}", bound.inode, bound.socket.name())).collect()
    };
    assert_eq!(names(tcp_table, false), ["101 tcp/80", "102 tcp/25 (loopback)"]);
    assert_eq!(names(udp_table, true), ["201 udp/53"]);
    assert!(parse_sockets("nonsense\n1: x y z\n", false).is_empty());
    let tcp6 = "head\n 0: 00000000000000000000000001000000:0277 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 301 1\n";
    assert_eq!(names(tcp6, false), ["301 tcp/631 (loopback)"]);
}

#[test]
fn system_in_a_directory_is_not_measured() {
    let host = Host::new(crate::root::Root::under("/srv/no-such-root".as_ref()));
    let snapshot = host.measure_health(at(0), None);
    let why = snapshot.not_measured(&snapshot).unwrap();
    assert_eq!(why.as_str(), "the managed system under /srv/no-such-root is not the running one");
}
