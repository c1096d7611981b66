//! Field names match the API contract exactly, and a misspelled field is never ignored.

use super::*;
use serde_json::{Value, json};

fn names(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn sorted(names: &str) -> Vec<&str> {
    let mut names: Vec<&str> = names.split_whitespace().collect();
    names.sort_unstable();
    names
}

#[test]
fn create_schedule_example_from_spec_is_accepted() {
    let body = json!({
        "name": "Weekly", "description": "Security updates", "cron": "0 3 * * 0",
        "timezone": "Europe/Berlin", "targets": {"environment": "production"},
        "options": {"security_only": true, "reboot": "if_required", "stagger_minutes": 10},
    });
    let read: ScheduleRequest = serde_json::from_value(body.clone()).unwrap();
    let options = read.options.as_ref().unwrap();
    assert_eq!((read.name.as_str(), read.enabled), ("Weekly", None));
    assert_eq!((options.security_only, options.stagger_minutes), (Some(true), Some(10)));
    assert_eq!(serde_json::to_value(&read).unwrap(), body);
}

#[test]
fn batch_and_patch_examples_from_spec_are_accepted() {
    let id = "srv_01jcqk3m8ye0fr5cq0k6s8v2xw";
    let batch: CreateBatch = serde_json::from_value(json!({
        "server_ids": [id], "packages": ["openssl"], "security_only": true, "reboot": "if_required",
    }))
    .unwrap();
    assert_eq!(batch.server_ids, [id]);
    assert_eq!(batch.options().packages.unwrap(), ["openssl"]);
    let patch: PatchServer =
        serde_json::from_value(json!({"packages": [], "canary": "10%", "max_failures": 2}))
            .unwrap();
    assert_eq!(patch.options().canary, Some("10%".parse().unwrap()));
}

#[test]
fn request_with_unknown_field_is_rejected_by_name() {
    let refusal =
        |body: Value| serde_json::from_value::<CreateBatch>(body).unwrap_err().to_string();
    assert!(refusal(json!({"server_ids": [], "securty_only": true})).contains("`securty_only`"));
    assert!(refusal(json!({"packages": []})).contains("`server_ids`"));
    let schedule =
        json!({"name": "x", "cron": "@daily", "targets": {}, "options": {"rebot": "never"}});
    let refusal = serde_json::from_value::<ScheduleRequest>(schedule).unwrap_err().to_string();
    assert!(refusal.contains("`rebot`"), "{refusal}");
}

fn options() -> Value {
    json!({"packages": ["bash"], "exclude": ["linux-*"], "security_only": false, "reboot": "never",
        "stagger_minutes": 0, "max_parallel": null, "canary": 0, "max_failures": "5%",
        "waves": [{"size": "10%", "soak_minutes": 60, "approval": false},
            {"size": null, "soak_minutes": 0, "approval": true}],
        "override_freeze": null, "pin_versions": true, "health": "gate", "max_unhealthy": "5%",
        "window_minutes": null, "dry_run": false})
}

fn progress() -> Value {
    let mut progress = json!({"total": 1, "percent": 100});
    for state in sorted(
        "pending waiting dispatched preflight downloading installing restarting_services rebooting \
         verifying succeeded no_change failed timed_out skipped canceled",
    ) {
        progress[state] = json!(u8::from(state == "failed"));
    }
    progress
}

/// Deserializes a body and serializes it again: the names and values must not change.
#[track_caller]
fn assert_round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(body: Value) {
    let read: T = serde_json::from_value(body.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), body);
}

#[test]
fn schedule_and_run_match_api_field_names() {
    let schedule = json!({"id": "sch_01jcqk3m8ye0fr5cq0k6s8v2xw", "name": "Weekly", "description": "",
        "enabled": true, "cron": "0 3 * * 0", "timezone": "UTC", "targets": {"all": true},
        "options": options(), "next_runs": ["2026-11-22T03:00:00Z"], "last_run": null,
        "created_at": "2026-11-15T04:00:00Z", "updated_at": "2026-11-15T04:00:00Z"});
    assert_eq!(
        names(&schedule["options"]),
        sorted(
            "packages exclude security_only reboot stagger_minutes max_parallel canary waves max_failures window_minutes override_freeze pin_versions health max_unhealthy dry_run"
        )
    );
    assert_round_trip::<Schedule>(schedule);
    let run = json!({"id": "run_01jcqk3m8ye0fr5cq0k6s8v2xw", "schedule_id": "sch_01jcqk3m8ye0fr5cq0k6s8v2xw",
        "trigger": "cron", "state": "skipped", "skip_reason": "overlap",
        "scheduled_for": "2026-11-22T03:00:00Z", "started_at": null, "finished_at": null,
        "batch_id": null, "progress": null, "options": options(), "targets": {"environment": "production"}});
    assert_round_trip::<Run>(run);
}

#[test]
fn batch_matches_api_field_names() {
    let health = json!({"state": "degraded", "problems": [{"kind": "unit_failed",
        "name": "nginx.service", "description": "nginx.service failed"}], "not_measured": null,
        "after_change": true, "after_soak": false, "reported_at": "2026-11-15T04:00:00Z"});
    let wave = json!({"number": 1, "size": 1, "state": "soaking", "soak_minutes": 60,
            "soak_until": "2026-11-15T05:00:00Z", "approval": true, "approved_by": "usr_1",
            "approved_at": "2026-11-15T04:00:00Z", "comment": "ok", "servers": {"in_progress": 0,
                "succeeded": 0, "no_change": 0, "failed": 1, "skipped": 0},
            "health": {"healthy": 0, "degraded": 1, "not_measured": 0, "unknown": 0},
            "max_unhealthy": 0});
    let result = json!({"packages": [{"name": "bash", "from": "5.1", "to": "5.2"}],
                "reboot": {"needed": true, "done": false, "seconds": null}, "duration": 12, "exit": 100,
                "failure_code": "pkg_lock_timeout", "message": "held by unattended-upgrades",
                "set_aside": ["/etc/bash.bashrc.dpkg-dist"], "restarted": [], "notes": [],
                "newer_available": [{"name": "bash", "pinned": "5.2", "available": "5.3"}],
                "log": "/v1/batches/bat_01jcqk3m8ye0fr5cq0k6s8v2xw/tasks/tsk_01jcqk3m8ye0fr5cq0k6s8v2xw/log"});
    let batch = json!({"id": "bat_01jcqk3m8ye0fr5cq0k6s8v2xw", "state": "completed_with_errors",
        "name": "Security updates · production", "halt_reason": null, "halt_code": "health_degraded", "origin": "api", "started_by": "key_01jcqk3m8ye0fr5cq0k6s8v2xw",
        "schedule_id": null, "run_id": null, "options": options(), "progress": progress(),
        "waves": [wave],
        "created_at": "2026-11-15T04:00:00Z", "started_at": null, "finished_at": null,
        "results": [{"id": "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw", "server_id": "srv_01jcqk3m8ye0fr5cq0k6s8v2xw",
            "hostname": "web-1", "display_name": null, "state": "failed", "waiting_for": null, "wave": 1, "deadline_at": null,
            "health": health,
            "started_at": null, "finished_at": null,
            "result": result}]});
    assert_round_trip::<Batch>(batch);
}

#[test]
fn server_matches_api_field_names() {
    let row = json!({"id": "srv_01jcqk3m8ye0fr5cq0k6s8v2xw", "hostname": "web-1", "display_name": "Shop", "notes": "Owned by Ops", "status": "online",
        "environment": "production", "tags": ["web"],
        "os": {"id": "debian", "version": "12", "name": "Debian GNU/Linux 12 (bookworm)"},
        "kernel": "6.1.0-18-amd64", "arch": "x86_64", "package_manager": "apt", "agent_version": "0.1.0",
        "agent_outdated": true, "last_seen_at": "2026-11-15T04:00:00Z", "enrolled_at": "2026-11-15T04:00:00Z", "last_scan_at": null,
        "stale": false, "assessment": "partial", "reboot_required": true, "reboot_reasons": ["linux-image-amd64"], "activity": "idle", "quarantine": null,
        "other_updaters": ["unattended-upgrades"],
        "limits": {"frozen": false, "never_reboot": true, "security_only": false, "exclude": ["linux-*"],
            "max_packages": 200, "allowed_hours": ["Sat 22:00-05:00 (UTC)"]},
        "summary": {"packages": 600, "updates": 3, "security_updates": 1,
            "cves": {"critical": 0, "high": 1, "medium": 0, "low": 0, "unknown": 0}, "unassessed": 1}});
    assert_round_trip::<Server>(row.clone());
    let mut full = row;
    full["packages"] = json!([{"name": "bash", "version": "5.1", "arch": "amd64", "source": "bash",
        "available_version": "5.2", "security": true, "held": true, "blocked_by": "held"}]);
    full["cves"] = json!([{"id": "CVE-2026-1", "aliases": ["GHSA-1"], "severity": "high", "severity_source": "debian",
        "cvss": 7.5, "package": "bash", "installed_version": "5.1", "fixed_version": null,
        "state": "fixed_on_disk", "fix": "affected", "found": "DSA-1 names bash", "kev": false,
        "epss": 0.1, "published": null, "suppressed": {"suppression_id":
        "sup_01jcqk3m8ye0fr5cq0k6s8v2xw", "reason": "not built", "until": null}}]);
    full["suppressed_cves"] = json!(1);
    full["cves_checked"] = json!(true);
    full["unassessed"] = json!([{"package": "docker-ce", "version": "27.0", "reason": "third_party",
        "detail": "comes from Docker"}]);
    full["coverage"] = json!({"ecosystem": "Ubuntu:22.04:LTS", "lists_unfixed": true, "derived_from": "Ubuntu 22.04"});
    full["agent_upgrade"] = json!({"version": "0.2.0", "state": "failed", "requested_at": "2026-11-15T04:00:00Z",
        "completed_at": "2026-11-15T04:02:00Z", "message": "0.1.0 was restored"});
    full["old_code"] = json!([{"package": "libssl3", "unit": "ssh.service", "process": "sshd"}]);
    assert_round_trip::<ServerDetail>(full);
}

#[test]
fn patch_page_and_problem_match_api_field_names() {
    let patch = json!({"package_name": "openssl", "severity": "critical", "severity_source": "debian",
        "type": "security", "versions": [{"os": "debian 12", "from": "3.0.11", "to": "3.0.13"}],
        "affected_servers": 40, "cves": ["CVE-2026-1"], "kev": true, "first_seen_at": "2026-11-15T04:00:00Z"});
    assert_round_trip::<List<Patch>>(
        json!({"data": [patch], "meta": {"total": 1, "limit": 50, "offset": 0},
        "links": {"self": "/v1/patches", "next": null, "prev": null}}),
    );
    assert_round_trip::<Problem>(
        json!({"type": "about:blank", "title": "Invalid", "status": 422, "detail": "…",
        "code": "invalid_body", "request_id": "01jcqk3m8y",
        "errors": [{"pointer": "/cron", "code": "invalid_cron", "detail": "minute: 75 is not between 0 and 59"}]}),
    );
}

#[test]
fn client_ignores_fields_added_by_newer_server() {
    let page = json!({"data": [], "meta": {"total": 0, "limit": 50, "offset": 0, "cursor": "x"},
        "links": {"self": "/v1/servers", "next": null, "prev": null}, "facets": {}});
    assert!(serde_json::from_value::<List<Server>>(page).is_ok());
}
