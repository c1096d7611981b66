use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn update() -> UpdateFacts {
    UpdateFacts {
        package: "openssl".into(),
        available: "3.0.2".into(),
        security: true,
        blocked_by: None,
    }
}

fn finding(fix: FixState) -> FindingFacts {
    FindingFacts {
        cve: "CVE-2026-1234".into(),
        package: "openssl".into(),
        fix,
        fixed_version: Some("3.0.2".into()),
        exposure: Exposure::Open,
        third_party: None,
        suppressed: None,
        has_update: false,
    }
}

fn schedule(number: u128, effect: Effect) -> ScheduleFacts {
    ScheduleFacts {
        id: ScheduleId::new(Timestamp::UNIX_EPOCH, number),
        name: format!("nightly {number}"),
        next: Some(at("2026-11-19T03:00:00Z")),
        effects: vec![effect],
    }
}

fn task(waits: Option<&str>) -> OpenTask {
    OpenTask {
        batch: BatchId::new(Timestamp::UNIX_EPOCH, 7),
        name: "Security updates".into(),
        installs: vec![true],
        waits: waits.map(str::to_owned),
    }
}

/// A scanned, online server with one pending update and nothing that installs it.
fn pending() -> Facts {
    Facts {
        host: HostState { scanned: true, ..HostState::default() },
        updates: vec![update()],
        ..Facts::default()
    }
}

/// A scanned server with one finding and no pending update.
fn exposed(one: FindingFacts) -> Facts {
    Facts { updates: Vec::new(), findings: vec![one], ..pending() }
}

fn with(mut facts: Facts, change: impl FnOnce(&mut Facts)) -> Facts {
    change(&mut facts);
    facts
}

fn codes(facts: &Facts) -> (PatchState, Vec<ReasonCode>) {
    let answer = explain(facts);
    (answer.state, answer.reasons.iter().map(|reason| reason.code).collect())
}

#[test]
fn every_reason_has_its_facts() {
    use PatchState as S;
    use ReasonCode as R;
    let scheduled = || with(pending(), |f| f.schedules.push(schedule(1, Effect::Installs)));
    let blocked = |by| with(scheduled(), |f| f.updates[0].blocked_by = Some(by));
    let host = |change: fn(&mut HostState)| with(scheduled(), |f| change(&mut f.host));
    let effect = |effect| with(pending(), |f| f.schedules.push(schedule(1, effect)));
    let fix = |fix| exposed(finding(fix));
    let on_disk = |change: fn(&mut HostState)| {
        let one = FindingFacts { exposure: Exposure::FixedOnDisk, ..finding(FixState::Fixed) };
        with(exposed(one), |f| change(&mut f.host))
    };
    let failed = FailedAttempt {
        batch: BatchId::new(Timestamp::UNIX_EPOCH, 7),
        name: "Nightly".into(),
        code: Some(FailureCode::DiskFull),
        message: None,
    };
    let cases: Vec<(Facts, S, Vec<R>)> = vec![
        (with(pending(), |f| f.tasks.push(task(None))), S::InProgress, vec![R::Installing]),
        (
            with(pending(), |f| f.tasks.push(task(Some("the canary")))),
            S::InProgress,
            vec![R::Waiting],
        ),
        (with(scheduled(), |f| f.failed = Some(failed)), S::Scheduled, vec![R::LastAttemptFailed]),
        (blocked(BlockedBy::Held), S::Blocked, vec![R::Held]),
        (blocked(BlockedBy::Phased), S::Blocked, vec![R::Phased]),
        (blocked(BlockedBy::KeptBack), S::Blocked, vec![R::KeptBack]),
        (blocked(BlockedBy::Pinned), S::Blocked, vec![R::Pinned]),
        (blocked(BlockedBy::Excluded), S::Blocked, vec![R::ExcludedByHost]),
        (host(|h| h.exclude.push("open*".parse().unwrap())), S::Blocked, vec![R::ExcludedByHost]),
        (
            with(host(|h| h.security_only = true), |f| f.updates[0].security = false),
            S::Blocked,
            vec![R::HostSecurityOnly],
        ),
        (host(|h| h.frozen = true), S::Blocked, vec![R::HostFrozen]),
        (host(|h| h.limits_error = Some("line 1".into())), S::Blocked, vec![R::HostLimitsUnusable]),
        (
            host(|h| h.allowed_hours.push("Sat 22:00-05:00".into())),
            S::Scheduled,
            vec![R::HostHours],
        ),
        (host(|h| h.quarantine = Some("cloned".into())), S::Blocked, vec![R::Quarantined]),
        (host(|h| h.offline_since = Some(Timestamp::UNIX_EPOCH)), S::Blocked, vec![R::Offline]),
        (host(|h| h.scanned = false), S::Unknown, vec![R::NotScanned]),
        (host(|h| h.stale_since = Some(Timestamp::UNIX_EPOCH)), S::Scheduled, vec![R::StaleScan]),
        (pending(), S::Unscheduled, vec![R::NoSchedule]),
        (effect(Effect::Excludes), S::Unscheduled, vec![R::ExcludedBySchedule]),
        (effect(Effect::OtherPackages), S::Unscheduled, vec![R::NotInSchedule]),
        (effect(Effect::SecurityOnly), S::Unscheduled, vec![R::ScheduleSecurityOnly]),
        (effect(Effect::DryRun), S::Unscheduled, vec![R::ScheduleDryRun]),
        (
            with(scheduled(), |f| f.schedules[0].next = None),
            S::Unscheduled,
            vec![R::ScheduleDisabled],
        ),
        (
            effect(Effect::Rejected("too many packages".into())),
            S::Unscheduled,
            vec![R::ScheduleRejectedByHost],
        ),
        (fix(FixState::Fixed), S::NoFix, vec![R::RepositoryHasNoFix]),
        (fix(FixState::Affected), S::NoFix, vec![R::NoFixYet]),
        (fix(FixState::Deferred), S::NoFix, vec![R::FixDeferred]),
        (fix(FixState::WontFix), S::NoFix, vec![R::WontFix]),
        (fix(FixState::EndOfLife), S::NoFix, vec![R::EndOfLife]),
        (fix(FixState::Subscription), S::NoFix, vec![R::Subscription]),
        (
            with(fix(FixState::Fixed), |f| f.findings[0].third_party = Some("Docker".into())),
            S::Unknown,
            vec![R::ThirdParty],
        ),
        (fix(FixState::Unknown), S::Unknown, vec![R::UnknownFix]),
        (
            on_disk(|h| h.old_code.push("nginx.service".into())),
            S::WaitingForRestart,
            vec![R::RestartServices],
        ),
        (on_disk(|h| h.reboot_required = true), S::WaitingForRestart, vec![R::RebootRequired]),
        (
            with(fix(FixState::WontFix), |f| {
                f.findings[0].suppressed = Some("not reachable".into());
            }),
            S::NoFix,
            vec![R::WontFix, R::Suppressed],
        ),
    ];
    let mut seen = BTreeSet::new();
    for (facts, state, reasons) in &cases {
        assert_eq!(codes(facts), (*state, reasons.clone()), "{facts:?}");
        seen.extend(reasons.iter().copied());
    }
    let missing: Vec<_> = ReasonCode::ALL.iter().filter(|code| !seen.contains(code)).collect();
    assert!(missing.is_empty(), "no case has the reason {missing:?}");
}

#[test]
fn every_reason_is_a_sentence_with_a_remedy() {
    let mut facts = pending();
    facts.host.quarantine = Some("its key was used twice".into());
    facts.host.exclude.push("openssl".parse().unwrap());
    facts.updates[0].blocked_by = Some(BlockedBy::Held);
    facts.failed = Some(FailedAttempt {
        batch: BatchId::new(Timestamp::UNIX_EPOCH, 7),
        name: "Nightly".into(),
        code: None,
        message: Some("dpkg was interrupted".into()),
    });
    for reason in explain(&facts).reasons {
        assert!(!reason.remedy.is_empty(), "{reason:?}");
        assert!(reason.remedy.ends_with(['.', '`']), "{reason:?}");
    }
}

#[test]
fn nothing_pending_is_up_to_date() {
    let facts = Facts { updates: Vec::new(), ..pending() };
    assert_eq!(codes(&facts), (PatchState::UpToDate, vec![]));
}

#[test]
fn stale_server_is_never_up_to_date() {
    let facts = with(Facts { updates: Vec::new(), ..pending() }, |f| {
        f.host.stale_since = Some(Timestamp::UNIX_EPOCH);
    });
    assert_eq!(codes(&facts), (PatchState::Unknown, vec![ReasonCode::StaleScan]));
}

#[test]
fn old_code_without_finding_waits_for_restart() {
    let facts = with(Facts { updates: Vec::new(), ..pending() }, |f| {
        f.host.old_code.push("ssh.service".into());
    });
    assert_eq!(codes(&facts), (PatchState::WaitingForRestart, vec![ReasonCode::RestartServices]));
}

#[test]
fn first_run_that_installs_it_is_next() {
    let facts = with(pending(), |f| {
        f.schedules.push(schedule(1, Effect::Excludes));
        f.schedules.push(schedule(2, Effect::Installs));
        let later = ScheduleFacts {
            next: Some(at("2026-11-20T03:00:00Z")),
            ..schedule(3, Effect::Installs)
        };
        f.schedules.push(later);
    });
    let answer = explain(&facts);
    assert_eq!(answer.state, PatchState::Scheduled);
    assert_eq!(answer.next.unwrap().name, "nightly 2");
    assert!(answer.reasons.is_empty(), "{:?}", answer.reasons);
}

/// A CVE in two packages: one update is scheduled, the other one is held.
#[test]
fn part_that_needs_most_attention_decides() {
    let facts = with(pending(), |f| {
        let held = UpdateFacts {
            package: "libssl3".into(),
            blocked_by: Some(BlockedBy::Held),
            ..update()
        };
        f.updates.push(held);
        f.schedules.push(ScheduleFacts {
            effects: vec![Effect::Installs, Effect::Blocked],
            ..schedule(1, Effect::Installs)
        });
    });
    let answer = explain(&facts);
    assert_eq!(answer.state, PatchState::Blocked);
    assert_eq!(answer.reasons[0].code, ReasonCode::Held);
    assert_eq!(answer.next, None, "the held part has no run that installs it");
}

#[test]
fn blocked_update_in_waiting_batch_is_blocked() {
    let facts = with(pending(), |f| {
        f.host.offline_since = Some(Timestamp::UNIX_EPOCH);
        f.tasks.push(task(Some("the server to come online")));
    });
    let answer = explain(&facts);
    assert_eq!(answer.state, PatchState::Blocked);
    assert!(answer.batch.is_some());
}

#[test]
fn many_schedules_are_not_all_named() {
    let facts = with(pending(), |f| {
        f.schedules = (0..100).map(|number| schedule(number, Effect::Excludes)).collect();
    });
    assert_eq!(explain(&facts).reasons.len(), SCHEDULES_MAX);
}
