//! Checks the database: schema, integrity, root key, audit log, clocks, leader, feeds and agents.

use std::collections::BTreeMap;
use std::path::Path;

use engine::LEASE_TTL;
use feed::catalog::BuiltIn;
use jiff::SignedDuration;
use service::app::{FeedMode, FeedSettings};
use service::audit_anchor::Anchor;
use service::auth::root_keys;
use service::auth::root_keys::KeyMatch;
use service::commands::feeds::automatic;
use service::commands::setup;
use service::queries;
use service::secrets::Secrets;
use store::audit::{self, Seal};
use store::backup::check_integrity;
use store::organizations::Organization;
use store::{Conn, Db, SCHEMA_VERSION, StoreError, health, leases, organizations, restores};
use vocab::OrgId;
use wire::v1::{Feed, FeedState};

use super::Findings;
use crate::installation::{Installation, open_as_is};
use crate::settings;
use crate::settings::SettingsFile;

/// A larger difference between clocks makes leases and timestamps unreliable.
const CLOCK_SKEW_MAX: SignedDuration = SignedDuration::from_secs(5);
const OTHER_RELEASE_REMEDY: &str =
    "run the release that wrote this database, or restore a backup taken with this release";
/// A leaked old root key stays useful to an attacker until it is retired.
const ROTATION_DAYS_MAX: i64 = 30;
/// Feeds are published about once a day.
const FEED_AGE_MAX: SignedDuration = SignedDuration::from_hours(3 * 24);

pub(super) async fn check(
    installation: &Installation,
    file: &SettingsFile,
    serving: bool,
    findings: &mut Findings,
) {
    let Ok(secrets) = settings::load_secrets(&installation.data_dir) else { return };
    let db = match open_as_is(&installation.url(file), &secrets).await {
        Ok(db) => db,
        Err(error) => {
            let newer = matches!(error.downcast_ref(), Some(StoreError::NewerDatabase { .. }));
            let remedy = match newer {
                true => OTHER_RELEASE_REMEDY,
                false => {
                    "check that the database is running, that its address is right (--database, or `database` in the settings), and that this user may open it"
                }
            };
            return findings.problem("database", format!("{error:#}"), remedy);
        }
    };
    let data_dir = &installation.data_dir;
    if let Err(error) = check_schema(&db, data_dir, file, findings).await {
        findings.problem(
            "database",
            format!("{error:#}"),
            "try again; if the problem persists, restore a backup",
        );
    }
    db.close().await;
    if !serving {
        findings.note(
            "service",
            "no process is listening at the service's address",
            "start the service: systemctl start fleetmend",
        );
    }
}

async fn check_schema(
    db: &Db,
    data_dir: &Path,
    file: &SettingsFile,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let engine = db.engine();
    let pending = match db.pending_migrations().await {
        Ok(pending) => pending,
        Err(error) => {
            findings.problem("schema", error.to_string(), OTHER_RELEASE_REMEDY);
            return Ok(());
        }
    };
    let version = db.schema_version().await?;
    match pending.len() {
        0 => findings.ok("schema", format!("{engine}, schema {version}, up to date")),
        _ if version == 0 => {
            let remedy =
                "run `fleetmend init` with this database, or set the right one with --database";
            findings.problem("schema", "this database has no tables", remedy);
            return Ok(());
        }
        more => {
            let message = format!(
                "{engine}, schema {version}; this release needs {SCHEMA_VERSION} (pending migrations: {more})"
            );
            findings.note("schema", message, "take a backup, then run `fleetmend migrate`; the service also migrates automatically when it starts");
            return Ok(());
        }
    }
    let damage = check_integrity(db).await?;
    match damage.is_empty() {
        true => findings.ok("integrity", "no damage found"),
        false => findings.problem("integrity", damage.join("; "), "stop the service and restore the latest backup that passes `fleetmend restore --check`"),
    }
    // A snapshot, so that the audit log is consistent even while entries are being resealed.
    let mut reader = db.snapshot().await?;
    let Some(secrets) = check_root_key(&mut reader, data_dir, findings).await? else {
        return Ok(());
    };
    let seal = &setup::seal(&secrets);
    let all_organizations = organizations::list(&mut reader).await?;
    match all_organizations.len() {
        0 => findings.problem(
            "organizations",
            "none exists",
            "create one: fleetmend orgs create NAME",
        ),
        count => findings.ok("organizations", format!("{count}")),
    }
    let missing = match Anchor::load(&secrets, data_dir) {
        // Entries that were logged after the anchor was written must be in the snapshot.
        Ok(anchor) => anchor.unwrap_or_default().truncated_logs(&mut *db.snapshot().await?).await?,
        Err(error) => {
            let remedy = "see \"The audit log\" in docs/security.md";
            findings.problem("audit log", error.to_string(), remedy);
            BTreeMap::new()
        }
    };
    for organization in &all_organizations {
        check_audit_log(&mut reader, organization, seal, &missing, findings).await?;
    }
    drop(reader);
    let mut reader = db.read().await?;
    check_clocks(&mut reader, findings).await?;
    check_leader(&mut reader, findings).await?;
    check_feeds(&mut reader, file, findings).await?;
    check_agents(&mut reader, findings).await
}

/// Checks the root key against the one the database expects. Returns no secrets if it does not
/// match.
async fn check_root_key(
    conn: &mut Conn,
    data_dir: &Path,
    findings: &mut Findings,
) -> anyhow::Result<Option<Secrets>> {
    let secrets = settings::load_secrets(data_dir)?;
    let recorded = store::root_keys::get(conn).await?;
    let fit = match root_keys::compare_keys(recorded.as_ref(), &secrets) {
        Ok(fit) => fit,
        Err(unfit) => {
            let remedy =
                "see \"Keys\" in docs/security.md; the service does not start until this is fixed";
            findings.problem("root key", unfit.to_string(), remedy);
            return Ok(None);
        }
    };
    match fit {
        KeyMatch::Unrecorded | KeyMatch::Same => {}
        KeyMatch::Rotated => findings.note(
            "root key",
            "root.key was rotated, but no service has started with the new key yet",
            "restart the service, with the same key files on every replica",
        ),
        KeyMatch::Retired => findings.note(
            "root key",
            "root.old.key was retired and is no longer used",
            format!("rm {}", data_dir.join("root.old.key").display()),
        ),
    }
    if let Some(recorded) = recorded.filter(|recorded| recorded.old_id.is_some()) {
        let days = findings.now.duration_since(recorded.since).as_hours() / 24;
        let message = format!("root.key rotation in progress since {:.0}", recorded.since);
        match days > ROTATION_DAYS_MAX {
            true => findings.problem(
                "root key",
                format!("{message}: both keys have been valid for {days} days"),
                "`fleetmend secrets list` shows what still depends on the old key; then run `fleetmend secrets retire root`",
            ),
            false => findings.ok("root key", message),
        }
    }
    Ok(Some(root_keys::select_recorded(fit, secrets)))
}

/// Verifies an organization's audit log. An attacker with write access to the database can break
/// the hash chain but cannot repair it without the seal key.
async fn check_audit_log(
    conn: &mut Conn,
    organization: &Organization,
    seal: &Seal,
    missing: &BTreeMap<OrgId, i64>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let name = &organization.name;
    if let Some(seq) = missing.get(&organization.id) {
        findings.problem(
            "audit log",
            format!("{name}: entry {seq} existed earlier and is missing: the end of the log was deleted, or the database was replaced by an older copy"),
            "find out who can write to the database; then see \"The audit log\" in docs/security.md",
        );
        return Ok(());
    }
    match audit::first_broken(conn, organization.id, seal).await? {
        None => {
            let (entries, _) = audit::head(conn, organization.id).await?;
            findings.ok("audit log", format!("{name}: verified, {entries} entries"));
        }
        Some(place) => findings.problem(
            "audit log",
            format!("{name}: entry {place} was changed or removed, or was written with a different root.key"),
            "find out who can write to the database; an earlier backup contains the unmodified log",
        ),
    }
    Ok(())
}

async fn check_clocks(conn: &mut Conn, findings: &mut Findings) -> anyhow::Result<()> {
    let remedy =
        "synchronize the clocks with NTP: systemctl enable --now systemd-timesyncd, or chrony";
    if let Some(theirs) = health::clock(conn).await? {
        let difference = theirs.duration_since(service::clock::Clock::system().now()).abs();
        if difference > CLOCK_SKEW_MAX {
            let message = format!(
                "the clocks of this machine and of the database differ by {} s",
                difference.as_secs()
            );
            findings.problem("clock", message, remedy);
            return Ok(());
        }
    }
    match health::last_seen(conn).await? {
        Some(last_contact) if last_contact.duration_since(findings.now) > CLOCK_SKEW_MAX => {
            let message = format!(
                "an agent last reported at {last_contact:.0}, which is in the future: the clock was set back"
            );
            findings.problem("clock", message, remedy);
        }
        _ => findings.ok("clock", format!("{:.0}", findings.now)),
    }
    Ok(())
}

async fn check_leader(conn: &mut Conn, findings: &mut Findings) -> anyhow::Result<()> {
    match leases::get(conn, "engine").await? {
        Some(lease) if lease.until.duration_since(findings.now) > 2 * LEASE_TTL => {
            findings.problem(
                "leader",
                format!(
                    "the lease of {} expires at {:.0}, later than any leader would set it: a clock was wrong",
                    lease.holder, lease.until
                ),
                "synchronize the clock with NTP; a running service then becomes leader within seconds",
            );
        }
        Some(lease) if lease.until > findings.now => {
            let message =
                format!("{}, lease until {:.0}, renewed continuously", lease.holder, lease.until);
            findings.ok("leader", message);
        }
        _ => findings.note(
            "leader",
            "there is no leader: no batch starts, neither manual nor scheduled",
            "start a service; if one is running, its log says why it is not the leader",
        ),
    }
    let epoch = restores::epoch(conn).await?;
    if epoch > 0 {
        findings.ok("epoch", format!("backups restored: {epoch}; see the audit log for the times"));
    }
    Ok(())
}

async fn check_feeds(
    conn: &mut Conn,
    file: &SettingsFile,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    // An invalid mirror is reported by the service, which does not start with it.
    let settings = file.feed_settings().unwrap_or_default();
    let systems = automatic::systems(conn).await?;
    let all = queries::feeds::read(conn, &settings, findings.now).await?;
    if all.is_empty() {
        match settings.mode {
            FeedMode::Auto if systems.is_empty() && !settings.offline => {
                findings.ok("feeds", "the service imports them when the first server enrolls");
            }
            FeedMode::Auto | FeedMode::Manual => {
                let remedy = "run `fleetmend feeds import` (see docs/feeds.md); until then no CVEs are matched, and severities come from the package repositories";
                findings.note("feeds", "no feed has been imported", remedy);
            }
        }
    }
    for feed in &all {
        check_feed(feed, findings);
    }
    check_coverage(conn, &settings, &all, findings).await
}

fn check_feed(feed: &Feed, findings: &mut Findings) {
    let name = &feed.name;
    let update = format!("run `fleetmend feeds update {name}`, or import it from a file");
    if let Some(error) = &feed.last_error {
        findings.problem("feeds", format!("{name}: the last update failed: {error}"), update);
        return;
    }
    match feed.state {
        FeedState::Unused => return findings.ok("feeds", format!("{name}: no server needs it")),
        FeedState::Waiting | FeedState::Importing => {
            return findings.ok("feeds", format!("{name}: is being imported"));
        }
        FeedState::Current | FeedState::Failed | FeedState::Offline | FeedState::Manual => {}
    }
    let known = feed.checked_at.or(feed.imported_at);
    match known.filter(|at| findings.now.duration_since(*at) <= FEED_AGE_MAX) {
        Some(at) => findings.ok("feeds", format!("{name}: up to date as of {at:.0}")),
        None => findings.problem(
            "feeds",
            format!(
                "{name}: last updated {}",
                known.map_or("never".to_owned(), |at| format!("at {at:.0}"))
            ),
            format!("run `fleetmend feeds update {name}`, or import a newer copy"),
        ),
    }
}

/// Finds systems of servers that no imported feed covers. That is a problem only where the service
/// should have imported one on its own.
async fn check_coverage(
    conn: &mut Conn,
    settings: &FeedSettings,
    all: &[Feed],
    findings: &mut Findings,
) -> anyhow::Result<()> {
    for (os, built_in) in queries::feeds::uncovered_systems(conn).await? {
        let message = format!("no imported feed covers {os}: the CVEs of its servers are unknown");
        let Some(BuiltIn { name, license, opt_in, .. }) = built_in else {
            let remedy = "none is built in: see \"What is covered\" in docs/cves.md";
            findings.note("feeds", message, remedy);
            continue;
        };
        let state = all.iter().find(|feed| feed.name == *name).map(|feed| feed.state);
        let add = format!("fleetmend feeds add '{name}'");
        if let Some(reason) = opt_in {
            let remedy =
                format!("{name} is optional: {reason} ({license}). To use it, run `{add}`");
            findings.note("feeds", message, remedy);
        } else if settings.offline {
            let remedy = "the service is offline: run `fleetmend feeds import` with a file or a \
                          bundle (docs/feeds.md)";
            findings.note("feeds", message, remedy);
        } else if matches!(state, Some(FeedState::Waiting | FeedState::Importing)) {
            findings.note("feeds", message, format!("wait for the import of {name}"));
        } else if settings.mode == FeedMode::Manual {
            let remedy = format!("feeds are set to manual: run `{add}`, or import a file");
            findings.note("feeds", message, remedy);
        } else {
            let remedy = format!("wait for the import of {name}, or run `{add}`");
            findings.problem("feeds", message, remedy);
        }
    }
    Ok(())
}

async fn check_agents(conn: &mut Conn, findings: &mut Findings) -> anyhow::Result<()> {
    let ours = env!("CARGO_PKG_VERSION");
    let versions = health::agent_versions(conn).await?;
    let others: Vec<_> = versions.iter().filter(|(version, _)| *version != ours).collect();
    let all: u64 = versions.values().sum();
    match others.is_empty() {
        true if all == 0 => findings.ok("agents", "none has enrolled yet"),
        true => findings.ok("agents", format!("{all}, all running version {ours}")),
        false => {
            let messages: Vec<_> =
                others.iter().map(|(version, count)| format!("{count} on {version}")).collect();
            findings.note(
                "agents",
                format!("{all}; not on version {ours}: {}", messages.join(", ")),
                "upgrade the agent package there; agents one version apart still work",
            );
        }
    }
    let quarantined = health::quarantined(conn).await?;
    if quarantined > 0 {
        let remedy = "`fleetmend servers list` shows them; once the duplicate is gone, run `fleetmend servers release NAME`";
        findings.problem(
            "quarantine",
            format!("quarantined servers, which receive no orders: {quarantined}"),
            remedy,
        );
    }
    Ok(())
}
