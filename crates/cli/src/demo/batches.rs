//! Keeps a batch in progress, so that a visitor sees one whenever they look.
//!
//! The first batch is a canary rollout over production. Afterwards, each batch installs one pending
//! patch on a few servers, slowly. The number of batches is bounded: if a batch ends at once because
//! nothing is left to install, the pause before the next one doubles.

use std::time::Duration;

use domain::rollout::Pace;
use jiff::SignedDuration;
use server::app::App;
use service::commands::batches as rollouts;
use service::commands::batches::{NewRollout, Origin};
use service::{OrderOptions, PatchOptions};
use store::Page;
use store::server_list::{self, Filter};
use vocab::{OrgId, Portion, RebootPolicy, ServerId};

use super::{history, organization};

/// The pause before the next batch, and between two looks at the current one.
const PAUSE_MIN: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(5 * 60);
/// The servers of a batch for one patch.
const SERVERS_MAX: u32 = 30;
/// After this time, servers that are offline are skipped and the batch ends.
const WINDOW_MINUTES: u32 = 15;
/// A server without contact for this long is switched off.
const OFFLINE_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// Starts a batch for production, unless one is in progress.
pub(super) async fn start_first(app: &App) -> anyhow::Result<()> {
    let org = organization(app).await?;
    let mut reader = app.db.read().await?;
    if !store::rollouts::list_open(&mut reader).await?.is_empty() {
        return Ok(());
    }
    let production = history::environment("production")?;
    let servers = server_list::ids(&mut reader, org, &Filter::from(&production)).await?;
    drop(reader);
    let options = PatchOptions {
        order: OrderOptions {
            security_only: true,
            reboot: RebootPolicy::IfRequired,
            ..OrderOptions::default()
        },
        pace: Pace {
            max_parallel: Some(4),
            canary: Some(Portion::Count(5)),
            max_failures: Some(Portion::Count(20)),
            window_minutes: Some(WINDOW_MINUTES),
            ..Pace::default()
        },
    };
    start(app, org, options, servers).await
}

/// Starts another batch whenever none is running. Never returns.
pub(super) async fn keep_running(app: App) {
    let mut pause = PAUSE_MIN;
    for turn in 0.. {
        loop {
            tokio::time::sleep(pause).await;
            match is_running(&app).await {
                Ok(true) => pause = PAUSE_MIN,
                Ok(false) => break,
                Err(error) => tracing::warn!(%error, "cannot read the batches of the demo"),
            }
        }
        if let Err(error) = start_for_patch(&app, turn).await {
            tracing::warn!(%error, "cannot start a batch of the demo");
        }
        pause = next_pause(pause);
    }
}

/// The pause after a batch was started. It is reset as soon as that batch is seen running.
fn next_pause(pause: Duration) -> Duration {
    (pause * 2).min(PAUSE_MAX)
}

async fn is_running(app: &App) -> anyhow::Result<bool> {
    let org = organization(app).await?;
    let open = store::rollouts::open_counts(&mut *app.db.read().await?, org).await?;
    Ok(open.get("running").is_some_and(|count| *count > 0))
}

/// Starts a batch for one of the pending patches, if there are any.
async fn start_for_patch(app: &App, turn: usize) -> anyhow::Result<()> {
    let org = organization(app).await?;
    let mut reader = app.db.read().await?;
    let patches = store::patches::all(&mut reader, org).await?;
    let Some(patch) = patches.get(turn * 7 % patches.len().max(1)) else { return Ok(()) };
    let all = server_list::ids(&mut reader, org, &Filter::default()).await?.len() as u64;
    let page = Page { limit: SERVERS_MAX, offset: 0 };
    let found = store::patches::servers(&mut reader, org, patch, all, None, page).await?;
    drop(reader);
    let since = app.clock.now() - OFFLINE_AFTER;
    let online = found.into_iter().filter(|server| server.last_seen_at > since);
    let servers: Vec<ServerId> = online.map(|server| server.id).collect();
    if servers.is_empty() {
        return Ok(());
    }
    let options = PatchOptions {
        order: OrderOptions {
            packages: vec![patch.package_name.parse()?],
            reboot: RebootPolicy::IfRequired,
            ..OrderOptions::default()
        },
        pace: Pace {
            max_parallel: Some(2),
            window_minutes: Some(WINDOW_MINUTES),
            ..Pace::default()
        },
    };
    start(app, org, options, servers).await
}

async fn start(
    app: &App,
    org: OrgId,
    options: PatchOptions,
    servers: Vec<ServerId>,
) -> anyhow::Result<()> {
    let new = NewRollout {
        org,
        options,
        servers,
        starts_at: app.clock.now(),
        origin: Origin::Api,
        started_by: "demo".into(),
        run_id: None,
        retry_of: None,
        name: None,
    };
    rollouts::create(app, new).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_with_nothing_to_install_starts_few_batches() {
        let mut pause = PAUSE_MIN;
        let mut passed = Duration::ZERO;
        let mut batches = 0;
        while passed < Duration::from_secs(24 * 3_600) {
            passed += pause;
            pause = next_pause(pause);
            batches += 1;
        }
        assert!(batches < 300, "{batches} batches a day");
    }
}
