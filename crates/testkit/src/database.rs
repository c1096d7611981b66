//! A fresh database for each test.
//!
//! PostgreSQL is the server that `FLEETMEND_TEST_POSTGRES` names, as a superuser. Without it, the
//! tests of that engine are skipped with a message. A failed test leaves its database behind for
//! inspection.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

/// The address of a test's database, and a directory of the same test. More than one replica may
/// open it.
#[derive(Debug, Clone)]
pub struct TestDatabase {
    pub url: String,
    pub dir: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl TestDatabase {
    pub fn sqlite() -> TestDatabase {
        TestDatabase::new(|_, dir| format!("sqlite:{}", dir.join("fleetmend.db").display()))
    }

    /// `None` if there is no PostgreSQL.
    pub async fn postgres() -> Option<TestDatabase> {
        TestDatabase::postgres_with("").await
    }

    /// `options` are added to `create database`.
    pub async fn postgres_with(options: &str) -> Option<TestDatabase> {
        let cluster = cluster()?;
        let mut name = String::new();
        let database = TestDatabase::new(|unique, _| {
            unique.clone_into(&mut name);
            database_url(&cluster, unique)
        });
        let mut admin = PgConnection::connect(&cluster).await.unwrap();
        run(&mut admin, format!("drop database if exists {name}")).await;
        run(&mut admin, format!("create database {name} {options}")).await;
        Some(database)
    }

    fn new(url: impl FnOnce(&str, &Path) -> String) -> TestDatabase {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleetmend_test_{}_{number}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        TestDatabase { url: url(&name, &dir), dir }
    }

    pub fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite")
    }

    /// Runs SQL directly, as someone who edits the database would. Returns the number of changed
    /// rows.
    pub async fn execute_sql(&self, sql: &str) -> u64 {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_sqlite() {
            let options = SqliteConnectOptions::from_str(&self.url).unwrap();
            let options = options.create_if_missing(true).foreign_keys(false);
            let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
            let changed = connection.execute(sql).await.unwrap().rows_affected();
            connection.close().await.unwrap();
            changed
        } else {
            let mut connection = PgConnection::connect(&self.url).await.unwrap();
            let changed = connection.execute(sql).await.unwrap().rows_affected();
            connection.close().await.unwrap();
            changed
        }
    }

    /// Deletes the database and the directory. Called only after a successful test.
    pub async fn remove(self) {
        if let (false, Some(cluster)) = (self.is_sqlite(), cluster()) {
            let options = PgConnectOptions::from_str(&self.url).unwrap();
            let name = options.get_database().unwrap();
            let mut admin = PgConnection::connect(&cluster).await.unwrap();
            run(&mut admin, format!("drop database {name} with (force)")).await;
        }
        std::fs::remove_dir_all(&self.dir).unwrap();
    }

    /// The name of a template database with this content, which `fill` creates if no test has done
    /// so before, in any process.
    pub async fn template(content: &str, fill: impl AsyncFnOnce(TestDatabase)) -> Option<String> {
        let cluster = cluster()?;
        let mut admin = PgConnection::connect(&cluster).await.unwrap();
        let name = format!("fleetmend_template_{content}");
        run(&mut admin, "select pg_advisory_lock(7130)".into()).await;
        let ready: Option<(bool,)> =
            sqlx::query_as("select datistemplate from pg_database where datname = $1")
                .bind(&name)
                .fetch_optional(&mut admin)
                .await
                .unwrap();
        if ready != Some((true,)) {
            run(&mut admin, format!("drop database if exists {name} with (force)")).await;
            run(&mut admin, format!("create database {name}")).await;
            let url = database_url(&cluster, &name);
            fill(TestDatabase { url, dir: PathBuf::new() }).await;
            run(&mut admin, format!("alter database {name} is_template true")).await;
        }
        run(&mut admin, "select pg_advisory_unlock(7130)".into()).await;
        Some(name)
    }
}

/// A connection to PostgreSQL as superuser.
pub async fn superuser() -> Option<PgConnection> {
    Some(PgConnection::connect(&cluster()?).await.unwrap())
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

/// How often a statement is tried again after a checkpoint failed.
const CHECKPOINT_TRIES: u32 = 5;

fn database_url(cluster: &str, database: &str) -> String {
    PgConnectOptions::from_str(cluster).unwrap().database(database).to_url_lossy().to_string()
}

/// Creating and dropping a database needs a checkpoint, which PostgreSQL refuses if the files of
/// another database vanish at the same moment, because another test drops it.
async fn run(admin: &mut PgConnection, sql: String) {
    for _ in 0..CHECKPOINT_TRIES {
        match admin.execute(AssertSqlSafe(sql.clone())).await {
            Err(sqlx::Error::Database(error))
                if error.message().contains("checkpoint request failed") => {}
            done => {
                done.unwrap();
                return;
            }
        }
    }
    admin.execute(AssertSqlSafe(sql)).await.unwrap();
}
