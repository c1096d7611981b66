//! Benchmark 11: the latency of every dashboard page, with fleets of any size.
//!
//! Each page has content: a feed with open findings, finished batches over the whole fleet and one
//! that is paused, schedules with a history, a month of daily statistics, and a server that was
//! part of all batches.

use std::time::Duration;

use domain::rollout::{EndedTask, Phase, RolloutOutcome, TaskOutcome, TaskStatus as Stand};
use serde_json::Value;
use server::app::{App, AppParts, Settings};
use service::PatchOptions;
use service::auth::users;
use service::clock::Clock;
use service::commands::batches as rollouts;
use service::commands::batches::{NewRollout, Origin};
use service::commands::webhooks::WebhookInput;
use service::webhooks::Format;
use store::daily_stats::{self, DailyStats};
use store::rollout_tasks::{self, StateChange};
use store::server_list::{self, Filter};
use store::webhooks::{Delivery, DeliveryState};
use vocab::{BatchId, DeliveryId, EventId, Role, WebhookId};

use crate::client::{Client, get};
use crate::feeds::import_feed;
use crate::fleet;
use crate::installation::{Engine, Installation, Service};
use crate::lists::{Figures, most_common_patch, time_request, wait_until_counted};
use crate::table::{Table, Target, p99};
use crate::{BenchArgs, clock, now};

/// Number of finished batches over the whole fleet.
const ENDED: usize = 4;
const SCHEDULES: usize = 50;
/// Number of deliveries in the log of a webhook.
const DELIVERIES: i64 = 20_000;

/// The minimum number of requests for each page; fast pages are requested more often.
const REQUESTS: usize = 100;
const REQUESTS_MAX: usize = 500;
const MEASURE_TIME: Duration = Duration::from_millis(1_500);

/// The pages; placeholders in braces are filled in.
const PAGES: [&str; 68] = [
    "/",
    "/servers",
    "/servers?status=online&sort=security_updates",
    "/servers?status=offline",
    "/servers?sort=last_seen",
    "/servers?reboot_required=true",
    "/servers?reboot_required=true&status=online",
    "/servers?reboot_required=true&q=web&sort=security_updates",
    "/servers?q=web",
    "/servers?q=web&status=online",
    "/servers?q=web&status=offline",
    "/servers?q=web&environment=staging",
    "/servers?q=web&sort=security_updates",
    "/servers?environment=staging",
    "/servers?environment=staging&status=online&sort=security_updates",
    "/servers?environment=staging&sort=last_seen",
    "/servers?environment=production&sort=newest",
    "/servers?os=debian&status=online",
    "/servers?tag=web",
    "/servers?tag=web&status=online",
    "/servers?tag=web&status=offline",
    "/servers?tag=web&environment=staging",
    "/servers?tag=web&q=web",
    "/servers?tag=web&sort=security_updates",
    "/servers?tag=web&q=web&reboot_required=true&status=online&sort=newest",
    "/servers?offset=99900",
    "/servers/{server}",
    "/servers/{server}/cves",
    "/servers/{server}/packages",
    "/servers/{server}/history",
    "/servers/{server}/edit",
    "/patches",
    "/patches?sort=affected_servers",
    "/patches?sort=first_seen",
    "/patches?severity=critical,high",
    "/patches/{patch}",
    "/cves",
    "/cves?kev=true",
    "/cves?q=2026",
    "/cves?sort=affected_servers",
    "/cves?sort=published",
    "/cves/{cve}",
    "/batches",
    "/batches?state=paused",
    "/batches/{ended}",
    "/batches/{open}",
    "/batches/{ended}?state=succeeded",
    "/schedules",
    "/freezes",
    "/compliance",
    "/schedules/{schedule}",
    "/schedules/{schedule}/edit",
    "POST /schedules/{schedule}/run",
    "/activity",
    "/activity?kind=batches",
    "/find?q=web",
    "/account",
    "/account/notifications",
    "/settings",
    "/settings/agents",
    "/settings/keys",
    "/settings/webhooks",
    "/settings/webhooks/{webhook}",
    "/settings/webhooks/{webhook}?state=failed",
    "/settings/people",
    "/settings/tokens",
    "/settings/feeds",
    "/settings/sign-in",
];

pub(crate) async fn measure_pages(engine: Engine, args: &BenchArgs, table: &mut Table) {
    let mut figures = Figures::new(engine, ", p99");
    for size in args.sizes() {
        let installation = Installation::new(engine, &format!("pages_{size}")).await;
        fleet::fill_with_shared_sets(&installation, size).await;
        import_feed(&installation, size);
        let (session, batches, webhook) = create_history(&installation).await;
        installation.analyze().await;
        // Servers that go offline and come back meanwhile would be a hundred thousand events.
        fleet::mark_all_seen(&installation, size).await;
        let service = installation.serve();
        wait_until_counted(&installation, &service, size).await;
        let known = Placeholders::find(&installation, &service, (batches, webhook)).await;
        fleet::mark_all_seen(&installation, size).await;
        service.wait_until_idle().await;
        let mut heard = clock();
        for page in PAGES {
            // Keep all servers online while pages are measured.
            if heard.elapsed() > fleet::CONTACT_AHEAD.unsigned_abs() {
                fleet::mark_all_seen(&installation, size).await;
                heard = clock();
            }
            let path = known.fill(page);
            let request = match path.strip_prefix("POST ") {
                Some(path) => preview(&service, path, &session).await,
                None => request(&path, &session),
            };
            let measured = measure(&service, &path, request.as_bytes()).await;
            println!(
                "     {:>69}  p50 {:.1} ms, service CPU {:.1} ms",
                "", measured.p50, measured.cpu_ms
            );
            figures.add(page, size, (measured.p99, "ms"));
        }
        drop(service);
        installation.remove().await;
    }
    for page in PAGES {
        figures.line(table, 11, (page, "ms", Target::Most(100.0)));
    }
}

/// The latencies of a page in milliseconds, and the CPU time of the service per request.
struct Measured {
    p50: f64,
    p99: f64,
    cpu_ms: f64,
}

/// Requests a page again and again on one connection.
async fn measure(service: &Service, path: &str, request: &[u8]) -> Measured {
    let mut client = Client::connect(&service.address).await.unwrap();
    // The first request after a change reads what later ones find in memory.
    time_request(&mut client, path, request).await;
    let mut millis = Vec::with_capacity(REQUESTS_MAX);
    let (first, cpu) = (clock(), service.cpu_seconds());
    while millis.len() < REQUESTS || (millis.len() < REQUESTS_MAX && first.elapsed() < MEASURE_TIME)
    {
        millis.push(time_request(&mut client, path, request).await);
    }
    let cpu_ms = (service.cpu_seconds() - cpu) * 1e3 / millis.len() as f64;
    millis.sort_unstable_by(f64::total_cmp);
    Measured { p50: millis[millis.len() / 2], p99: p99(millis), cpu_ms }
}

fn request(path: &str, session: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\ncookie: fleetmend_session={session}\r\n\r\n")
}

/// The request for a preview of a schedule's run, with the CSRF token from one of the user's pages.
async fn preview(service: &Service, path: &str, session: &str) -> String {
    let mut client = Client::connect(&service.address).await.unwrap();
    let page = client.request(request("/schedules", session).as_bytes()).await.unwrap();
    let page = String::from_utf8(page).unwrap();
    let word = page.split("name=\"csrf\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
    let body = format!("csrf={}", word.expect("a form on the page"));
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\norigin: http://bench\r\ncookie: fleetmend_session={session}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// The resources for the placeholders in [`PAGES`].
struct Placeholders([(&'static str, String); 7]);

impl Placeholders {
    async fn find(
        installation: &Installation,
        service: &Service,
        ([ended, open], webhook): ([BatchId; 2], WebhookId),
    ) -> Placeholders {
        let mut client = Client::connect(&service.address).await.unwrap();
        let patch = most_common_patch(installation, &mut client).await;
        let mut first = async |path: &str| -> Value {
            for _ in 0..1_200 {
                let body = client.request(&get(&installation.key, path)).await.unwrap();
                let seen: Value = serde_json::from_slice(&body).unwrap();
                if seen["meta"]["total"].as_u64() > Some(0) {
                    return seen["data"][0]["id"].clone();
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            panic!("{path} stayed empty");
        };
        let cve = first("/v1/cves").await.as_str().unwrap().to_owned();
        let schedule = first("/v1/schedules?limit=1").await.as_str().unwrap().to_owned();
        Placeholders([
            ("{server}", fleet::id(0).to_string()),
            ("{patch}", patch),
            ("{cve}", cve),
            ("{ended}", ended.to_string()),
            ("{open}", open.to_string()),
            ("{schedule}", schedule),
            ("{webhook}", webhook.to_string()),
        ])
    }

    fn fill(&self, page: &str) -> String {
        self.0.iter().fold(page.to_owned(), |path, (word, id)| path.replace(word, id))
    }
}

/// Creates the history and a user. Returns the user's session, a finished batch and an open one, and
/// a webhook.
async fn create_history(installation: &Installation) -> (String, [BatchId; 2], WebhookId) {
    let settings = Settings::default();
    let (db, secrets) = (installation.db().await, installation.secrets());
    let app = App::new(AppParts { db, clock: Clock::system(), secrets, settings });
    let mut ended = Vec::new();
    for _ in 0..ENDED {
        ended.push(create_batch(&app, installation, Phase::Ended(RolloutOutcome::Succeeded)).await);
    }
    let open = create_batch(&app, installation, Phase::Paused).await;
    for nth in 0..SCHEDULES {
        make_schedule(&app, installation, nth).await;
    }
    let mut tx = app.db.begin().await.unwrap();
    let mut day = service::projections::daily_stats::utc_day(now());
    for nth in 0..30 {
        let row = DailyStats {
            day,
            servers: 1_000,
            up_to_date: 20 * nth,
            critical: nth,
            high: 40,
            medium: 90,
            low: 9,
            unknown: 1,
            exploited: 2,
        };
        daily_stats::write(&mut tx, installation.org, &row).await.unwrap();
        day = day.yesterday().unwrap();
    }
    tx.commit().await.unwrap();
    let actor = users::local_actor(installation.org);
    let (_, link) = users::invite(&app, &actor, "ann", Role::Admin).await.unwrap();
    let client = service::auth::sessions::Client::default();
    let accepted = users::accept_invitation(&app, &link, "correct horse battery", &client);
    let accepted = accepted.await.unwrap();
    let session = accepted.unwrap().1.to_string();
    let webhook = make_webhook(&app, installation).await;
    app.db.close().await;
    (session, [ended[0], open], webhook)
}

/// A webhook with a long log, to which no event is sent.
async fn make_webhook(app: &App, installation: &Installation) -> WebhookId {
    let input = WebhookInput {
        name: "Tickets".into(),
        url: "https://tickets.example.com/".into(),
        types: vec!["webhook.disabled".into()],
        targets: None,
        format: Format::Standard,
        enabled: true,
    };
    let actor = users::local_actor(installation.org);
    let (webhook, _) = service::commands::webhooks::create(app, &actor, input).await.unwrap();
    let delivery = |sequence: i64| Delivery {
        webhook_id: webhook.id,
        sequence,
        id: DeliveryId::new(now(), sequence.unsigned_abs().into()),
        event_id: EventId::new(now(), sequence.unsigned_abs().into()),
        kind: "task.failed".into(),
        subject_id: fleet::id(sequence.unsigned_abs()).to_string(),
        subject_name: format!("web-{sequence}"),
        state: if sequence % 10 == 0 { DeliveryState::Failed } else { DeliveryState::Delivered },
        attempts: 1,
        next_at: None,
        created_at: now(),
        tried_at: Some(now()),
        duration_ms: Some(20),
        status: Some(200),
        response: Some("ok".repeat(200)),
        error: None,
    };
    let rows: Vec<Delivery> = (1..=DELIVERIES).map(delivery).collect();
    let mut tx = app.db.begin().await.unwrap();
    store::webhooks::insert_deliveries(&mut tx, &rows).await.unwrap();
    tx.commit().await.unwrap();
    webhook.id
}

async fn make_schedule(app: &App, installation: &Installation, nth: usize) {
    let input = service::commands::schedules::ScheduleInput {
        name: format!("Nightly {nth}"),
        description: String::new(),
        enabled: true,
        cron: format!("{nth} 3 * * *").parse().unwrap(),
        timezone: "Europe/Berlin".parse().unwrap(),
        targets: vocab::Selector::All,
        options: PatchOptions::default(),
    };
    let actor = users::local_actor(installation.org);
    service::commands::schedules::create(app, &actor, input).await.unwrap();
}

/// A batch over the whole fleet in this phase; all its tasks are done if it has ended.
async fn create_batch(app: &App, installation: &Installation, phase: Phase) -> BatchId {
    let at = now();
    let mut reader = app.db.read().await.unwrap();
    let servers =
        server_list::ids(&mut reader, installation.org, &Filter::default()).await.unwrap();
    drop(reader);
    let new = NewRollout {
        org: installation.org,
        options: PatchOptions::default(),
        servers,
        starts_at: at,
        origin: Origin::Api,
        started_by: "bench".into(),
        run_id: None,
        retry_of: None,
        name: None,
    };
    let created = rollouts::create(app, new).await.unwrap();
    let mut tx = app.db.begin().await.unwrap();
    let is_ended = matches!(phase, Phase::Ended(_));
    if is_ended {
        let done = EndedTask { outcome: TaskOutcome::Succeeded, started_at: Some(at), at, wave: 1 };
        let rows = rollout_tasks::all(&mut tx, created.id).await.unwrap();
        let next = |row: &rollout_tasks::TaskRow| StateChange {
            server_id: row.server_id,
            from: row.target,
            seen: row.generation,
            next: Stand::Done(done),
            result: None,
            health: None,
        };
        let changes: Vec<StateChange> = rows.iter().map(next).collect();
        rollout_tasks::save(&mut tx, created.id, &changes).await.unwrap();
    }
    let seen = store::rollouts::load(&mut tx, created.id).await.unwrap();
    let mut head = seen.head.clone();
    head.phase = phase;
    store::rollouts::save_head(&mut tx, &seen, &head, is_ended.then_some(at)).await.unwrap();
    tx.commit().await.unwrap();
    created.id
}
