//! Test support: a fresh installation on either database for each test.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use server::app::{App, Parts, Settings};
use server::background::{self, Background, Pulse};
use service::auth::enrollment_tokens as tokens;
use service::auth::root_keys;
use service::auth::root_keys::OpenError;
use service::clock::{Clock, Reading, dice};
use service::commands::batches::{NewRollout, Origin};
use service::secrets::Secrets;
use service::{Actor, PatchOptions};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use store::enrollment_tokens::Token;
use store::{Db, Options};
use vocab::{OrgId, Role, ServerId, TokenId};

/// The installation of a test: a data directory, a database, a clock.
pub(crate) struct World {
    folder: PathBuf,
    url: String,
    now: Arc<Mutex<Hour>>,
    pub(crate) org: OrgId,
}

/// The real time, and how far the clock is ahead of it.
#[derive(Clone, Copy)]
struct Hour {
    really: Timestamp,
    ahead: SignedDuration,
}

impl Hour {
    fn wall(self) -> Timestamp {
        self.really + self.ahead
    }
}

/// Short intervals, so that no test waits for a timer.
pub(crate) const PULSE: Pulse = Pulse {
    lead: Duration::from_millis(20),
    look: Duration::from_millis(20),
    beats: Duration::from_millis(20),
    sweep: Duration::from_millis(50),
};

/// A Sunday in November, plus some seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(seconds)
}

impl World {
    async fn new(url: Option<String>) -> World {
        let folder = std::env::temp_dir().join(name());
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let url =
            url.unwrap_or_else(|| format!("sqlite:{}", folder.join("fleetmend.db").display()));
        let now = Arc::new(Mutex::new(Hour { really: at(0), ahead: SignedDuration::ZERO }));
        let world = World { folder, url, now, org: OrgId::new(at(0), 1) };
        let db = world.open().await;
        let mut tx = db.begin().await.unwrap();
        store::organizations::create(&mut tx, world.org, "Acme", at(0)).await.unwrap();
        tx.commit().await.unwrap();
        db.close().await;
        world
    }

    async fn open(&self) -> Db {
        self.open_with(&Secrets::create(&self.folder).unwrap()).await.unwrap()
    }

    async fn open_with(&self, secrets: &Secrets) -> store::Result<Db> {
        let mut options = Options::new(&self.url, service::commands::setup::seal(secrets));
        options.patience = Duration::from_secs(30);
        Db::open(&options).await
    }

    /// A replica of the service.
    pub(crate) async fn app(&self, replica: &str) -> App {
        let now = self.now.clone();
        let clock = Clock::read_by(move || {
            let hour = *now.lock().unwrap();
            Reading { wall: hour.wall(), steady: hour.really.duration_since(at(0)) }
        });
        self.app_with_clock(replica, clock).await
    }

    /// A replica of the service with its own clock.
    pub(crate) async fn app_with_clock(&self, replica: &str, clock: Clock) -> App {
        self.try_app(replica, clock).await.unwrap()
    }

    /// The same, if its keys are those of the database.
    pub(crate) async fn try_app(&self, replica: &str, clock: Clock) -> Result<App, OpenError> {
        let secrets = Secrets::create(&self.folder).unwrap();
        let open = async |secrets: &Secrets| self.open_with(secrets).await;
        let (db, secrets) = root_keys::open_service(secrets, self.now(), open).await?;
        let settings = Settings { replica: replica.into(), ..Settings::default() };
        Ok(App::new(Parts { db, clock, secrets, settings }))
    }

    /// A replica with its engine, as leader.
    pub(crate) async fn leading(&self, replica: &str) -> (App, Background) {
        let app = self.app(replica).await;
        let engine = background::spawn_with(&app, PULSE);
        eventually("the replica leads", async || engine.leads()).await;
        (app, engine)
    }

    /// Runs SQL like an attacker with access to the database but without the keys. Returns the
    /// number of changed rows.
    pub(crate) async fn by_hand(&self, sql: &str) -> u64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match self.url.strip_prefix("sqlite:") {
            Some(path) => {
                let options = SqliteConnectOptions::new().filename(path).foreign_keys(false);
                let mut conn = SqliteConnection::connect_with(&options).await.unwrap();
                let done = conn.execute(sql).await.unwrap().rows_affected();
                conn.close().await.unwrap();
                done
            }
            None => {
                let mut conn = PgConnection::connect(&self.url).await.unwrap();
                let done = conn.execute(sql).await.unwrap().rows_affected();
                conn.close().await.unwrap();
                done
            }
        }
    }

    /// A database connection that bypasses the service.
    pub(crate) async fn postgres_connection(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// The directory with the keys.
    pub(crate) fn data_dir(&self) -> &std::path::Path {
        &self.folder
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now.lock().unwrap().wall()
    }

    /// Lets time pass until the clock shows this.
    pub(crate) fn set(&self, to: Timestamp) {
        let mut hour = self.now.lock().unwrap();
        hour.really = to - hour.ahead;
    }

    /// Lets time pass.
    pub(crate) fn turn(&self, by: SignedDuration) {
        self.now.lock().unwrap().really += by;
    }

    /// Sets the clock without time passing.
    pub(crate) fn sets_the_clock(&self, by: SignedDuration) {
        self.now.lock().unwrap().ahead += by;
    }

    pub(crate) fn minutes(&self, minutes: i64) {
        self.turn(SignedDuration::from_mins(minutes));
    }

    pub(crate) fn admin(&self) -> Actor {
        Actor { org: self.org, who: "key_test".into(), role: Role::Admin }
    }

    /// An enrollment token.
    pub(crate) async fn token(&self, app: &App) -> String {
        self.token_with(app, |token| token).await
    }

    pub(crate) async fn token_with(
        &self,
        app: &App,
        change: impl FnOnce(Token) -> Token,
    ) -> String {
        let (text, hash) = tokens::mint(&app.secrets, None);
        let token = Token {
            id: TokenId::new(self.now(), dice()),
            org_id: self.org,
            name: "tests".into(),
            hash,
            environment: None,
            tags: Vec::new(),
            uses: 0,
            uses_max: None,
            created_at: self.now(),
            created_by: "key_test".into(),
            expires_at: None,
            revoked_at: None,
        };
        let mut tx = app.db.begin().await.unwrap();
        store::enrollment_tokens::create(&mut tx, &change(token)).await.unwrap();
        tx.commit().await.unwrap();
        text
    }

    /// A batch for these servers that starts now.
    pub(crate) fn order(&self, servers: Vec<ServerId>, options: serde_json::Value) -> NewRollout {
        NewRollout {
            org: self.org,
            options: PatchOptions::from_json(&options).unwrap(),
            servers,
            starts_at: self.now(),
            origin: Origin::Api,
            started_by: "key_test".into(),
            run_id: None,
            retry_of: None,
        }
    }
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("condition not met within ten seconds: {what}");
}

/// Runs one test on both databases, as `…::sqlite` and `…::postgres`.
macro_rules! both {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident: World) $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[$meta])*
            async fn test($world: &crate::support::World) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                let world = crate::support::sqlite().await;
                test(&world).await;
                crate::support::tidy(world).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let Some(world) = crate::support::postgres().await else { return };
                test(&world).await;
                crate::support::tidy(world).await;
            }
        }
    )*};
}
pub(crate) use both;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test has, in any process.
pub(crate) fn name() -> String {
    format!("fleetmend_engine_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn sqlite() -> World {
    World::new(None).await
}

/// A separate database on the server that `FLEETMEND_TEST_POSTGRES` names.
pub(crate) async fn postgres() -> Option<World> {
    let cluster = cluster()?;
    let name = name();
    let mut admin = PgConnection::connect(&cluster).await.unwrap();
    run(&mut admin, format!("drop database if exists {name}")).await;
    run(&mut admin, format!("create database {name}")).await;
    let options = PgConnectOptions::from_str(&cluster).unwrap().database(&name);
    Some(World::new(Some(sqlx::ConnectOptions::to_url_lossy(&options).to_string())).await)
}

fn cluster() -> Option<String> {
    if let Ok(url) = std::env::var("FLEETMEND_TEST_POSTGRES") {
        return Some(url);
    }
    let required = std::env::var("FLEETMEND_TEST_REQUIRE_TOOLS").is_ok_and(|value| value == "1");
    assert!(!required, "FLEETMEND_TEST_POSTGRES is not set, but FLEETMEND_TEST_REQUIRE_TOOLS=1 is");
    println!("skipped: FLEETMEND_TEST_POSTGRES is not set (cargo xtask test starts a PostgreSQL)");
    None
}

/// Removes the installation after a successful test. After a failure it stays for inspection.
pub(crate) async fn tidy(world: World) {
    if let (true, Some(cluster)) = (world.url.starts_with("postgres"), cluster()) {
        let options = PgConnectOptions::from_str(&world.url).unwrap();
        let mut admin = PgConnection::connect(&cluster).await.unwrap();
        let name = options.get_database().unwrap();
        run(&mut admin, format!("drop database {name} with (force)")).await;
    }
    let _ = std::fs::remove_dir_all(&world.folder);
}

async fn run(admin: &mut PgConnection, sql: String) {
    admin.execute(AssertSqlSafe(sql)).await.unwrap();
}
