//! A PostgreSQL database for one test.

use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A dedicated database on the server that `FLEETMEND_TEST_POSTGRES` names.
pub(crate) struct Database {
    cluster: String,
    name: String,
    pub(crate) url: String,
}

impl Database {
    pub(crate) async fn new() -> Option<Database> {
        let cluster = cluster_url()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleetmend_cli_{}_{number}", std::process::id());
        run(&cluster, format!("create database {name}")).await;
        let options = PgConnectOptions::from_str(&cluster).unwrap().database(&name);
        let url = sqlx::ConnectOptions::to_url_lossy(&options).to_string();
        Some(Database { cluster, name, url })
    }

    pub(crate) async fn remove(self) {
        run(&self.cluster, format!("drop database {} with (force)", self.name)).await;
    }
}

/// The address of the PostgreSQL for tests, as a superuser; none if the test is skipped.
#[expect(clippy::print_stdout, reason = "a skipped test must be visible")]
pub(crate) fn cluster_url() -> Option<String> {
    let Ok(cluster) = std::env::var("FLEETMEND_TEST_POSTGRES") else {
        let required = std::env::var("FLEETMEND_TEST_REQUIRE_TOOLS");
        assert!(required.is_err(), "FLEETMEND_TEST_POSTGRES is required but not set");
        println!(
            "skipped: FLEETMEND_TEST_POSTGRES is not set (cargo xtask test starts a PostgreSQL)"
        );
        return None;
    };
    Some(cluster)
}

async fn run(cluster: &str, sql: String) {
    let mut admin = PgConnection::connect(cluster).await.unwrap();
    admin.execute(AssertSqlSafe(sql)).await.unwrap();
}
