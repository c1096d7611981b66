//! The database, and what it tells of clocks, leaders, feeds and agents.

use std::collections::BTreeMap;
use std::path::Path;

use engine::LEASE_TTL;
use jiff::SignedDuration;
use service::audit_anchor::Anchor;
use service::auth::root_keys;
use service::auth::root_keys::Fit;
use service::commands::setup;
use service::secrets::Secrets;
use store::audit::{self, Seal};
use store::backup::damage;
use store::organizations::Organization;
use store::{Conn, Db, SCHEMA_VERSION, StoreError, feeds, health, leases, organizations, restores};

use vocab::OrgId;

use super::Findings;
use crate::installation::{Installation, open_as_is};
use crate::settings;
use crate::settings::File;

/// Clocks that differ by more make leases and times unreliable.
const CLOCK_MAX: SignedDuration = SignedDuration::from_secs(5);
const OTHER_RELEASE: &str =
    "run the release that wrote it, or restore a backup that this release made";
/// A key that leaked is worth something until it is retired.
const ROTATION_DAYS_MAX: i64 = 30;
/// Feeds are published every day or so.
const FEED_AGE_MAX: SignedDuration = SignedDuration::from_hours(3 * 24);

pub(super) async fn look(
    installation: &Installation,
    file: &File,
    serving: bool,
    findings: &mut Findings,
) {
    let Ok(secrets) = settings::existing(&installation.data_dir) else { return };
    let db = match open_as_is(&installation.url(file), &secrets).await {
        Ok(db) => db,
        Err(error) => {
            let newer = matches!(error.downcast_ref(), Some(StoreError::NewerDatabase { .. }));
            let remedy = match newer {
                true => OTHER_RELEASE,
                false => {
                    "see that it runs, that its address (--database, or `database` in the settings) is right, and that this user may open it"
                }
            };
            return findings.problem("database", format!("{error:#}"), remedy);
        }
    };
    let data_dir = &installation.data_dir;
    if let Err(error) = schema(&db, data_dir, findings).await {
        findings.problem(
            "database",
            format!("{error:#}"),
            "try again; if it stays so, restore a backup",
        );
    }
    db.close().await;
    if !serving {
        findings.note(
            "service",
            "nothing listens at its address",
            "start it: systemctl start fleetmend",
        );
    }
}

async fn schema(db: &Db, data_dir: &Path, findings: &mut Findings) -> anyhow::Result<()> {
    let engine = db.engine();
    let pending = match db.pending_migrations().await {
        Ok(pending) => pending,
        Err(error) => {
            findings.problem("schema", error.to_string(), OTHER_RELEASE);
            return Ok(());
        }
    };
    let version = db.schema_version().await?;
    match pending.len() {
        0 => findings.ok("schema", format!("{engine} at {version}, as this release wants it")),
        _ if version == 0 => {
            let remedy =
                "run `fleetmend init` with this database, or name the right one with --database";
            findings.problem("schema", "there are no tables in this database", remedy);
            return Ok(());
        }
        more => {
            let told = format!(
                "{engine} at {version}; this release wants {SCHEMA_VERSION}, {more} migrations more"
            );
            findings.note("schema", told, "take a backup, then `fleetmend migrate`; the service does it by itself when it starts");
            return Ok(());
        }
    }
    let damage = damage(db).await?;
    match damage.is_empty() {
        true => findings.ok("integrity", "nothing is damaged"),
        false => findings.problem("integrity", damage.join("; "), "stop the service and restore the last backup that `fleetmend restore --check` finds whole"),
    }
    // One state of the audit log, also while it is sealed again.
    let mut reader = db.snapshot().await?;
    let Some(secrets) = root_key(&mut reader, data_dir, findings).await? else { return Ok(()) };
    let seal = &setup::seal(&secrets);
    let there = organizations::list(&mut reader).await?;
    match there.len() {
        0 => findings.problem("organizations", "there is none", "fleetmend orgs create NAME"),
        count => findings.ok("organizations", format!("{count}")),
    }
    let missing = match Anchor::load(&secrets, data_dir) {
        Ok(anchor) => anchor.unwrap_or_default().missing(&mut reader).await?,
        Err(error) => {
            let remedy = "see \"The audit log\" in docs/security.md";
            findings.problem("audit log", error.to_string(), remedy);
            BTreeMap::new()
        }
    };
    for organization in &there {
        chain(&mut reader, organization, seal, &missing, findings).await?;
    }
    drop(reader);
    let mut reader = db.read().await?;
    clocks(&mut reader, findings).await?;
    leader(&mut reader, findings).await?;
    published(&mut reader, findings).await?;
    agents(&mut reader, findings).await
}

/// The keys that the database expects; nothing if they are not there.
async fn root_key(
    conn: &mut Conn,
    data_dir: &Path,
    findings: &mut Findings,
) -> anyhow::Result<Option<Secrets>> {
    let secrets = settings::existing(data_dir)?;
    let recorded = store::root_keys::recorded(conn).await?;
    let fit = match root_keys::fit(recorded.as_ref(), &secrets) {
        Ok(fit) => fit,
        Err(unfit) => {
            let remedy = "see \"Keys\" in docs/security.md; the service does not start like this";
            findings.problem("root key", unfit.to_string(), remedy);
            return Ok(None);
        }
    };
    match fit {
        Fit::First | Fit::Same => {}
        Fit::Rotated => findings.note(
            "root key",
            "root.key was rotated, and no service was started with the new one",
            "restart the service, with the same key files on every replica",
        ),
        Fit::Retired => findings.note(
            "root key",
            "root.old.key was retired, and is not used any more",
            format!("rm {}", data_dir.join("root.old.key").display()),
        ),
    }
    if let Some(recorded) = recorded.filter(|recorded| recorded.old_id.is_some()) {
        let days = findings.now.duration_since(recorded.since).as_hours() / 24;
        let told = format!("root.key is being rotated since {:.0}", recorded.since);
        match days > ROTATION_DAYS_MAX {
            true => findings.problem(
                "root key",
                format!("{told}: both keys are valid for {days} days now"),
                "`fleetmend secrets list` shows what depends on the old one; then `fleetmend secrets retire root`",
            ),
            false => findings.ok("root key", told),
        }
    }
    Ok(Some(root_keys::as_recorded(fit, secrets)))
}

/// Whoever can write to the database can break the chain, and cannot mend it.
async fn chain(
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
            format!("{name}: entry {seq} was there once and is missing: the end of the log was cut off, or the database was replaced by an older copy"),
            "find out who can write to the database; \"The audit log\" in docs/security.md says what to do",
        );
        return Ok(());
    }
    match audit::broken_at(conn, organization.id, seal).await? {
        None => {
            let (entries, _) = audit::head(conn, organization.id).await?;
            findings.ok("audit log", format!("{name}: none of its entries was changed ({entries})"));
        }
        Some(place) => findings.problem(
            "audit log",
            format!("{name}: entry {place} was changed or removed, or root.key is not the one it was written with"),
            "find out who can write to the database; a backup from before has the log as it was",
        ),
    }
    Ok(())
}

async fn clocks(conn: &mut Conn, findings: &mut Findings) -> anyhow::Result<()> {
    let remedy = "let NTP keep the clocks: systemctl enable --now systemd-timesyncd, or chrony";
    if let Some(theirs) = health::clock(conn).await? {
        let apart = theirs.duration_since(service::clock::Clock::system().now()).abs();
        if apart > CLOCK_MAX {
            let told = format!("this machine's and the database's differ by {} s", apart.as_secs());
            findings.problem("clock", told, remedy);
            return Ok(());
        }
    }
    match health::last_heard(conn).await? {
        Some(heard) if heard.duration_since(findings.now) > CLOCK_MAX => {
            let told = format!(
                "an agent was heard at {heard:.0}, which is yet to come: the clock was set back"
            );
            findings.problem("clock", told, remedy);
        }
        _ => findings.ok("clock", format!("it is {:.0}", findings.now)),
    }
    Ok(())
}

async fn leader(conn: &mut Conn, findings: &mut Findings) -> anyhow::Result<()> {
    match leases::get(conn, "engine").await? {
        Some(lease) if lease.until.duration_since(findings.now) > 2 * LEASE_TTL => {
            findings.problem(
                "leader",
                format!(
                    "the lease of {} ends at {:.0}, later than any leader sets it: a clock was wrong",
                    lease.holder, lease.until
                ),
                "set the clock with NTP; a running service then leads again within seconds",
            );
        }
        Some(lease) if lease.until > findings.now => {
            let told = format!("{} leads until {:.0}, again and again", lease.holder, lease.until);
            findings.ok("leader", told);
        }
        _ => findings.note(
            "leader",
            "no service leads: nothing is started, by hand or by the calendar",
            "start a service; if one runs, its log says why it does not lead",
        ),
    }
    let epoch = restores::epoch(conn).await?;
    if epoch > 0 {
        findings
            .ok("epoch", format!("a backup was restored {epoch} times; the audit log says when"));
    }
    Ok(())
}

async fn published(conn: &mut Conn, findings: &mut Findings) -> anyhow::Result<()> {
    let all = feeds::list(conn).await?;
    if all.is_empty() {
        let remedy = "fleetmend feeds import (docs/feeds.md): until then no CVE is known and severities are the repositories' own";
        findings.note("feeds", "none was imported", remedy);
    }
    for feed in all {
        let name = &feed.name;
        if let Some(error) = &feed.last_error {
            let remedy = format!("fleetmend feeds update {name}, or import it from a file");
            findings.problem("feeds", format!("{name}: the last try failed: {error}"), remedy);
            continue;
        }
        let known = feed.checked_at.or(feed.imported_at);
        match known.filter(|at| findings.now.duration_since(*at) <= FEED_AGE_MAX) {
            Some(at) => findings.ok("feeds", format!("{name} is as of {at:.0}")),
            None => findings.problem(
                "feeds",
                format!(
                    "{name} was last known to be up to date {}",
                    known.map_or("never".to_owned(), |at| format!("at {at:.0}"))
                ),
                format!("fleetmend feeds update {name}, or import a newer copy"),
            ),
        }
    }
    Ok(())
}

async fn agents(conn: &mut Conn, findings: &mut Findings) -> anyhow::Result<()> {
    let ours = env!("CARGO_PKG_VERSION");
    let versions = health::agent_versions(conn).await?;
    let others: Vec<_> = versions.iter().filter(|(version, _)| *version != ours).collect();
    let all: u64 = versions.values().sum();
    match others.is_empty() {
        true if all == 0 => findings.ok("agents", "none has joined yet"),
        true => findings.ok("agents", format!("{all}, all of version {ours}")),
        false => {
            let told: Vec<_> =
                others.iter().map(|(version, count)| format!("{count} of {version}")).collect();
            findings.note(
                "agents",
                format!("{all}; not of version {ours}: {}", told.join(", ")),
                "install the agent's newer package there; one version apart works",
            );
        }
    }
    let quarantined = health::quarantined(conn).await?;
    if quarantined > 0 {
        let remedy = "fleetmend servers list shows which; when the copy is gone, fleetmend servers release NAME";
        findings.problem("quarantine", format!("{quarantined} servers get no orders"), remedy);
    }
    Ok(())
}
