//! A fresh database of either engine for each test, and helpers to fill it.
//!
//! PostgreSQL: the server named by `FLEETMEND_TEST_POSTGRES`, a superuser's address. Each test gets
//! a separate database, copied from a template that was migrated once; a failed test leaves its
//! database behind for inspection.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::{SignedDuration, Timestamp};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};
use store::audit::Seal;
use store::{Db, Options};

/// The address of a test's database. More than one replica may open it.
#[derive(Clone)]
pub(crate) struct TestDatabase {
    pub(crate) url: String,
}

impl TestDatabase {
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new(&self.url, seal());
        // The machine may be busy. Timeouts have their own tests.
        options.timeout = std::time::Duration::from_secs(30);
        options
    }

    pub(crate) async fn open(&self) -> Db {
        Db::open(&self.options()).await.unwrap()
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        !self.url.starts_with("postgres")
    }

    /// Runs SQL directly, as someone who edits the database by hand would.
    pub(crate) async fn execute_sql(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_sqlite() {
            let options =
                SqliteConnectOptions::from_str(&self.url).unwrap().create_if_missing(true);
            let mut hand = SqliteConnection::connect_with(&options).await.unwrap();
            hand.execute(sql).await.unwrap();
            hand.close().await.unwrap();
        } else {
            let mut hand = PgConnection::connect(&self.url).await.unwrap();
            hand.execute(sql).await.unwrap();
            hand.close().await.unwrap();
        }
    }
}

/// The address of an empty database, for tests that create the tables themselves.
pub(crate) struct EmptyDatabase(pub(crate) TestDatabase);

/// The argument of a test: a database, or the address of one.
pub(crate) trait TestInput {
    const MIGRATED: bool = true;
    async fn prepare(place: &TestDatabase) -> Self;
}

impl TestInput for TestDatabase {
    async fn prepare(place: &TestDatabase) -> Self {
        place.clone()
    }
}

impl TestInput for EmptyDatabase {
    const MIGRATED: bool = false;
    async fn prepare(place: &TestDatabase) -> Self {
        EmptyDatabase(place.clone())
    }
}

impl TestInput for Db {
    async fn prepare(place: &TestDatabase) -> Self {
        place.open().await
    }
}

/// Runs one test on both engines: `…::sqlite` and `…::postgres`.
macro_rules! both {
    ($($(#[$meta:meta])* async fn $name:ident($given:ident: $kind:ty) $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[$meta])*
            async fn test_body($given: $kind) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                let place = crate::support::sqlite_database();
                test_body(<$kind as crate::support::TestInput>::prepare(&place).await).await;
                crate::support::remove_sqlite(&place);
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let Some(place) = crate::support::postgres_database::<$kind>().await else { return };
                test_body(<$kind as crate::support::TestInput>::prepare(&place).await).await;
                crate::support::remove_postgres(&place).await;
            }
        }
    )*};
}
pub(crate) use both;

static NEXT: AtomicU32 = AtomicU32::new(0);

fn name() -> String {
    format!("fleetmend_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn sqlite_database() -> TestDatabase {
    let folder = std::env::temp_dir().join(name());
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    TestDatabase { url: format!("sqlite:{}", folder.join("fleetmend.db").display()) }
}

pub(crate) fn remove_sqlite(place: &TestDatabase) {
    let file = PathBuf::from(place.url.trim_start_matches("sqlite:"));
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

fn cluster() -> Option<String> {
    if let Ok(url) = std::env::var("FLEETMEND_TEST_POSTGRES") {
        return Some(url);
    }
    let required = std::env::var("FLEETMEND_TEST_REQUIRE_TOOLS").is_ok_and(|value| value == "1");
    assert!(!required, "FLEETMEND_TEST_POSTGRES is not set, and FLEETMEND_TEST_REQUIRE_TOOLS=1 is");
    println!("skipped: FLEETMEND_TEST_POSTGRES is not set (cargo xtask test starts a PostgreSQL)");
    None
}

/// Creates a copy of the template, or an empty database for [`EmptyDatabase`].
pub(crate) async fn postgres_database<G: TestInput>() -> Option<TestDatabase> {
    let cluster = cluster()?;
    let mut admin = PgConnection::connect(&cluster).await.unwrap();
    let source = match G::MIGRATED {
        true => template(&mut admin, &cluster).await,
        false => "template0".to_owned(),
    };
    let name = name();
    run(&mut admin, format!("drop database if exists {name}")).await;
    run(&mut admin, format!("create database {name} template {source}")).await;
    Some(TestDatabase { url: address(&cluster, &name) })
}

pub(crate) async fn remove_postgres(place: &TestDatabase) {
    let Some(cluster) = cluster() else { return };
    let options = PgConnectOptions::from_str(&place.url).unwrap();
    let name = options.get_database().unwrap();
    let mut admin = PgConnection::connect(&cluster).await.unwrap();
    run(&mut admin, format!("drop database {name} with (force)")).await;
}

fn address(cluster: &str, database: &str) -> String {
    let options = PgConnectOptions::from_str(cluster).unwrap().database(database);
    sqlx::ConnectOptions::to_url_lossy(&options).to_string()
}

async fn run(admin: &mut PgConnection, sql: String) {
    admin.execute(AssertSqlSafe(sql)).await.unwrap();
}

/// Creates the template database once per version of the migrations, even if many test processes
/// start at once.
async fn template(admin: &mut PgConnection, cluster: &str) -> String {
    let texts = include_str!("../../migrations/0001_baseline.sql");
    let name = format!(
        "fleetmend_template_{}",
        &vocab::Digest::compute(texts.as_bytes()).to_string()[..16]
    );
    run(admin, "select pg_advisory_lock(7130)".into()).await;
    let ready: Option<(bool,)> =
        sqlx::query_as("select datistemplate from pg_database where datname = $1")
            .bind(&name)
            .fetch_optional(&mut *admin)
            .await
            .unwrap();
    if ready != Some((true,)) {
        run(admin, format!("drop database if exists {name} with (force)")).await;
        run(admin, format!("create database {name}")).await;
        TestDatabase { url: address(cluster, &name) }.open().await.close().await;
        run(admin, format!("alter database {name} is_template true")).await;
    }
    run(admin, "select pg_advisory_unlock(7130)".into()).await;
    name
}

/// A stand-in for the keyed hash: these tests only check who calls it with what.
pub(crate) fn seal() -> Seal {
    Seal::new(|previous, seq, entry| {
        let mut bytes = previous.to_vec();
        bytes.extend(format!("{seq}{entry:?}").bytes());
        vocab::Digest::compute(&bytes).as_bytes().to_vec()
    })
}

/// A Sunday in November, plus some seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(seconds)
}

/// The nth id of a type.
macro_rules! nth {
    ($kind:ident, $n:expr) => {
        vocab::$kind::new($crate::support::at(0), u128::from($n))
    };
}
pub(crate) use nth;

/// Creates an organization.
pub(crate) async fn org(db: &Db) -> vocab::OrgId {
    let id = nth!(OrgId, 1_u32);
    let mut tx = db.begin().await.unwrap();
    store::organizations::create(&mut tx, id, "Acme", at(0)).await.unwrap();
    tx.commit().await.unwrap();
    id
}

/// Creates another organization, which must never see the data of the first.
pub(crate) async fn other_org(db: &Db) -> vocab::OrgId {
    let id = nth!(OrgId, 2_u32);
    let mut tx = db.begin().await.unwrap();
    store::organizations::create(&mut tx, id, "Umbrella", at(0)).await.unwrap();
    tx.commit().await.unwrap();
    id
}
