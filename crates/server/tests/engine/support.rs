//! Test support: a fresh installation on either database for each test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use server::app::{App, AppParts, Settings};
use server::background::{self, Background, Intervals};
use service::app::FeedSettings;
use service::auth::enrollment_tokens as tokens;
use service::auth::root_keys;
use service::auth::root_keys::OpenError;
use service::clock::{Clock, Reading, random_u128};
use service::commands::batches::{NewRollout, Origin};
use service::secrets::Secrets;
use service::{Actor, PatchOptions};
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use store::enrollment_tokens::EnrollmentToken;
use store::{Db, Options};
use testkit::TestDatabase;
pub(crate) use testkit::at;
use vocab::{OrgId, Role, ServerId, TokenId};

/// The installation of a test: a data directory, a database, a clock.
pub(crate) struct World {
    database: TestDatabase,
    now: Arc<Mutex<TestTime>>,
    pub(crate) org: OrgId,
}

/// The real time, and how far the clock is ahead of it.
#[derive(Clone, Copy)]
struct TestTime {
    real: Timestamp,
    ahead: SignedDuration,
}

impl TestTime {
    fn wall(self) -> Timestamp {
        self.real + self.ahead
    }
}

/// Short intervals, so that no test waits for a timer.
pub(crate) const INTERVALS: Intervals = Intervals {
    lease: Duration::from_millis(20),
    poll: Duration::from_millis(20),
    heartbeats: Duration::from_millis(20),
    sweep: Duration::from_millis(50),
};

impl World {
    async fn new(database: TestDatabase) -> World {
        let now = Arc::new(Mutex::new(TestTime { real: at(0), ahead: SignedDuration::ZERO }));
        let world = World { database, now, org: OrgId::new(at(0), 1) };
        let db = world.open().await;
        let mut tx = db.begin().await.unwrap();
        store::organizations::create(&mut tx, world.org, "Acme", at(0)).await.unwrap();
        tx.commit().await.unwrap();
        db.close().await;
        world
    }

    async fn open(&self) -> Db {
        self.open_with(&Secrets::create(&self.database.dir).unwrap()).await.unwrap()
    }

    async fn open_with(&self, secrets: &Secrets) -> store::Result<Db> {
        let mut options = Options::new(&self.database.url, service::commands::setup::seal(secrets));
        options.timeout = Duration::from_secs(30);
        Db::open(&options).await
    }

    /// A replica of the service.
    pub(crate) async fn app(&self, replica: &str) -> App {
        self.app_with_clock(replica, self.clock()).await
    }

    fn clock(&self) -> Clock {
        let now = self.now.clone();
        Clock::from_readings(move || {
            let hour = *now.lock().unwrap();
            Reading { wall: hour.wall(), steady: hour.real.duration_since(at(0)) }
        })
    }

    /// A replica of the service with its own clock.
    pub(crate) async fn app_with_clock(&self, replica: &str, clock: Clock) -> App {
        self.try_app(replica, clock).await.unwrap()
    }

    /// A replica with its own clock. Fails if its keys are not those of the database.
    pub(crate) async fn try_app(&self, replica: &str, clock: Clock) -> Result<App, OpenError> {
        self.open_app(replica, clock, FeedSettings::default()).await
    }

    async fn open_app(
        &self,
        replica: &str,
        clock: Clock,
        feeds: FeedSettings,
    ) -> Result<App, OpenError> {
        let secrets = Secrets::create(&self.database.dir).unwrap();
        let open = async |secrets: &Secrets| self.open_with(secrets).await;
        let (db, secrets) = root_keys::open_database(secrets, self.now(), open).await?;
        let settings = Settings { replica: replica.into(), feeds, ..Settings::default() };
        Ok(App::new(AppParts { db, clock, secrets, settings }))
    }

    /// A replica that gets its feeds with these settings.
    pub(crate) async fn app_with_feeds(&self, replica: &str, feeds: FeedSettings) -> App {
        self.open_app(replica, self.clock(), feeds).await.unwrap()
    }

    /// A replica with its engine, as leader.
    pub(crate) async fn leader(&self, replica: &str) -> (App, Background) {
        self.lead(self.app(replica).await).await
    }

    /// Starts the engine of a replica and waits until it leads.
    pub(crate) async fn lead(&self, app: App) -> (App, Background) {
        let engine = background::spawn_with(&app, INTERVALS);
        eventually("the replica leads", async || engine.is_leader()).await;
        (app, engine)
    }

    /// Runs SQL like an attacker with access to the database but without the keys. Returns the
    /// number of changed rows.
    pub(crate) async fn execute_sql(&self, sql: &str) -> u64 {
        self.database.execute_sql(sql).await
    }

    /// A database connection that bypasses the service.
    pub(crate) async fn postgres_connection(&self) -> PgConnection {
        PgConnection::connect(&self.database.url).await.unwrap()
    }

    /// The directory with the keys.
    pub(crate) fn data_dir(&self) -> &std::path::Path {
        &self.database.dir
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now.lock().unwrap().wall()
    }

    /// Advances the clock to this time.
    pub(crate) fn advance_to(&self, to: Timestamp) {
        let mut hour = self.now.lock().unwrap();
        hour.real = to - hour.ahead;
    }

    /// Advances the clock by this duration.
    pub(crate) fn advance(&self, by: SignedDuration) {
        self.now.lock().unwrap().real += by;
    }

    /// Sets the clock without time passing.
    pub(crate) fn set_clock(&self, by: SignedDuration) {
        self.now.lock().unwrap().ahead += by;
    }

    pub(crate) fn minutes(&self, minutes: i64) {
        self.advance(SignedDuration::from_mins(minutes));
    }

    pub(crate) fn admin(&self) -> Actor {
        Actor { org: self.org, id: "key_test".into(), role: Role::Admin }
    }

    /// An enrollment token.
    pub(crate) async fn token(&self, app: &App) -> String {
        self.token_with(app, |token| token).await
    }

    pub(crate) async fn token_with(
        &self,
        app: &App,
        change: impl FnOnce(EnrollmentToken) -> EnrollmentToken,
    ) -> String {
        let (text, hash) = tokens::mint(&app.secrets, None);
        let token = EnrollmentToken {
            id: TokenId::new(self.now(), random_u128()),
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
    pub(crate) fn new_rollout(
        &self,
        servers: Vec<ServerId>,
        options: serde_json::Value,
    ) -> NewRollout {
        NewRollout {
            org: self.org,
            options: PatchOptions::from_json(&options).unwrap(),
            servers,
            starts_at: self.now(),
            origin: Origin::Api,
            started_by: "key_test".into(),
            run_id: None,
            retry_of: None,
            name: None,
        }
    }
}

/// Waits until a condition holds. The limit is only for a condition that never will: other tests run
/// at the same time, and may leave this one without processor time for many seconds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..12_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("condition not met within a minute: {what}");
}

/// Runs a test on SQLite.
pub(crate) async fn sqlite(test: impl AsyncFnOnce(&World)) {
    run_on(TestDatabase::sqlite(), test).await;
}

/// Runs a test on PostgreSQL, if there is one.
pub(crate) async fn postgres(test: impl AsyncFnOnce(&World)) {
    if let Some(database) = TestDatabase::postgres().await {
        run_on(database, test).await;
    }
}

async fn run_on(database: TestDatabase, test: impl AsyncFnOnce(&World)) {
    let world = World::new(database).await;
    test(&world).await;
    world.database.remove().await;
}
