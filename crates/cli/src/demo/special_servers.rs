//! Servers in states that the simulated agents never reach: one that was never scanned, one whose
//! system no feed covers, and one in quarantine. They have no agent, so they are offline.

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use server::app::App;
use service::clock::random_u128;
use store::package_sets::{self, PackedSet, SetKind};
use store::server_list::{self, Filter};
use store::servers::{self, Server};
use vocab::{Installed, OrgId, Os, PackageManager, ServerId};

/// The environment of these servers: one without an enabled schedule.
const ENVIRONMENT: &str = "testing";
/// How many servers there are in addition to the simulated ones.
pub(super) const COUNT: u64 = 3;

/// Adds the servers. `now` is the present.
pub(super) async fn write(app: &App, org: OrgId, now: Timestamp) -> anyhow::Result<()> {
    let mut tx = app.db.begin().await?;
    let ids = server_list::ids(&mut tx, org, &Filter::default()).await?;
    let mut fleet = servers::get_all(&mut tx, &ids).await?;
    fleet.sort_by(|a, b| a.hostname.as_str().cmp(b.hostname.as_str()));
    let template = fleet.into_iter().next().context("the fleet is empty")?;
    let build = ["bash 5.2.37-1.fc42", "curl 8.11.1-5.fc42", "kernel-core 6.14.0-63.fc42"];
    let build: Vec<Installed> = build
        .iter()
        .filter_map(|text| text.split_once(' '))
        .map(|(name, version)| Installed::new(name, version, "x86_64"))
        .collect();
    let packages = PackedSet::new(u32::try_from(build.len())?, &vocab::listing::encode(&build));
    let nothing = PackedSet::new(0, &vocab::listing::encode::<vocab::Pending>(&[]));
    package_sets::store(&mut tx, org, SetKind::Packages, &packages, now).await?;
    package_sets::store(&mut tx, org, SetKind::Updates, &nothing, now).await?;

    let hours_ago = |hours| now - SignedDuration::from_hours(hours);
    let server = |hostname: &str, last_seen_at: Timestamp| -> anyhow::Result<Server> {
        Ok(Server {
            id: ServerId::new(last_seen_at, random_u128()),
            hostname: hostname.parse()?,
            environment: Some(ENVIRONMENT.parse()?),
            tags: Vec::new(),
            public_key: random_u128().to_be_bytes().repeat(2),
            enrolled_at: last_seen_at,
            last_seen_at,
            reboot_required: false,
            reboot_reasons: Vec::new(),
            facts: json!({}),
            runs: String::new(),
            activity: "idle".to_owned(),
            counter: 1,
            ..template.clone()
        })
    };
    let not_scanned = Server {
        last_scan_at: None,
        package_set: None,
        update_set: None,
        packages: 0,
        updates: 0,
        security_updates: 0,
        ..server("test-new-01", hours_ago(2))?
    };
    let uncovered = Server {
        os: Os::new("fedora", "42", "Fedora Linux 42 (Server Edition)")?,
        package_manager: Some(PackageManager::Dnf),
        kernel: "6.14.0-63.fc42.x86_64".to_owned(),
        last_scan_at: Some(hours_ago(26)),
        package_set: Some(packages.digest()),
        update_set: Some(nothing.digest()),
        packages: u32::try_from(build.len())?,
        updates: 0,
        security_updates: 0,
        ..server("test-fedora-01", hours_ago(26))?
    };
    let quarantined = Server {
        last_scan_at: Some(hours_ago(50)),
        quarantine: Some("two hosts use the identity of this server (demo)".to_owned()),
        ..server("test-cloned-01", hours_ago(50))?
    };
    servers::enroll_all(&mut tx, &[not_scanned, uncovered, quarantined]).await?;
    Ok(tx.commit().await?)
}
