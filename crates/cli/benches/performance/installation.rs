//! A separate installation for each measurement, on either database engine, and the real binary
//! that serves it.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;

use service::secrets::Secrets;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};
use vocab::OrgId;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Sqlite => "sqlite",
            Engine::Postgres => "postgres",
        }
    }
}

/// A read-only database connection.
pub(crate) enum ReadConnection {
    Sqlite(sqlx::SqliteConnection),
    Postgres(PgConnection),
}

impl ReadConnection {
    pub(crate) async fn number(&mut self, sql: &'static str) -> i64 {
        match self {
            ReadConnection::Sqlite(hand) => sqlx::query_scalar(sql).fetch_one(hand).await.unwrap(),
            ReadConnection::Postgres(hand) => {
                sqlx::query_scalar(sql).fetch_one(hand).await.unwrap()
            }
        }
    }
}

/// A data directory, a database, an organization and its key.
pub(crate) struct Installation {
    pub(crate) engine: Engine,
    pub(crate) key: String,
    pub(crate) org: OrgId,
    dir: PathBuf,
    url: String,
}

fn cluster() -> String {
    std::env::var("FLEETMEND_TEST_POSTGRES").unwrap()
}

impl Installation {
    pub(crate) async fn new(engine: Engine, name: &str) -> Installation {
        let name = format!("fleetmend_bench_{}_{name}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_dir_all(&dir);
        let url = match engine {
            Engine::Sqlite => format!("sqlite:{}", dir.join("fleetmend.db").display()),
            Engine::Postgres => {
                let mut admin = PgConnection::connect(&cluster()).await.unwrap();
                admin.execute(AssertSqlSafe(format!("create database {name}"))).await.unwrap();
                let options = PgConnectOptions::from_str(&cluster()).unwrap().database(&name);
                options.to_url_lossy().to_string()
            }
        };
        let created = fleetmend()
            .args(["init", "--org", "Acme", "--json", "--database", &url, "--data-dir"])
            .arg(&dir)
            .output()
            .unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        let created: serde_json::Value = serde_json::from_slice(&created.stdout).unwrap();
        let key = created["api_key"].as_str().unwrap().to_owned();
        let org = created["organization"]["id"].as_str().unwrap().parse().unwrap();
        Installation { engine, key, org, dir, url }
    }

    /// A path in the data directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A `fleetmend` command for this installation.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = fleetmend();
        command.args(words).args(["--database", &self.url, "--data-dir"]).arg(&self.dir);
        command
    }

    pub(crate) fn secrets(&self) -> Secrets {
        Secrets::load(&self.dir).unwrap()
    }

    /// Opens the database, to fill it or to read its content.
    pub(crate) async fn db(&self) -> store::Db {
        let seal = service::commands::setup::seal(&self.secrets());
        let mut options = store::Options::new(&self.url, seal);
        options.timeout = std::time::Duration::from_secs(60);
        store::Db::open(&options).await.unwrap()
    }

    pub(crate) fn serve(&self) -> Service {
        self.serve_at("127.0.0.1:0")
    }

    /// Starts the service with more arguments.
    pub(crate) fn serve_with(&self, more: &[&str]) -> Service {
        self.start("127.0.0.1:0", more)
    }

    pub(crate) fn serve_at(&self, listen: &str) -> Service {
        self.start(listen, &[])
    }

    fn start(&self, listen: &str, more: &[&str]) -> Service {
        let mut child = fleetmend()
            .args(["server", "--listen", listen, "--database", &self.url, "--log", "error"])
            .args(["--requests-per-second", "1000000", "--requests-burst", "1000000"])
            .args(more)
            .arg("--data-dir")
            .arg(&self.dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("fleetmend is listening on http://").unwrap().to_owned();
        Service { child, address }
    }

    /// Reads one number from the database, without the store.
    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        self.read_connection().await.number(sql).await
    }

    /// For repeated queries, keep the connection: each new one costs PostgreSQL a process.
    pub(crate) async fn read_connection(&self) -> ReadConnection {
        match self.engine {
            Engine::Sqlite => {
                ReadConnection::Sqlite(sqlx::SqliteConnection::connect(&self.url).await.unwrap())
            }
            Engine::Postgres => {
                ReadConnection::Postgres(PgConnection::connect(&self.url).await.unwrap())
            }
        }
    }

    /// What autovacuum does after a minute, and SQLite when it is closed.
    pub(crate) async fn analyze(&self) {
        if self.engine == Engine::Postgres {
            let mut hand = PgConnection::connect(&self.url).await.unwrap();
            hand.execute("vacuum analyze").await.unwrap();
        }
    }

    /// The size of the database in bytes.
    pub(crate) async fn bytes(&self) -> i64 {
        match self.engine {
            Engine::Sqlite => {
                let pages = self.number("select page_count from pragma_page_count").await;
                pages * self.number("select page_size from pragma_page_size").await
            }
            Engine::Postgres => self.number("select pg_database_size(current_database())").await,
        }
    }

    pub(crate) async fn remove(self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
        if self.engine == Engine::Postgres {
            let options = PgConnectOptions::from_str(&self.url).unwrap();
            let drop = format!("drop database {} with (force)", options.get_database().unwrap());
            let mut admin = PgConnection::connect(&cluster()).await.unwrap();
            admin.execute(AssertSqlSafe(drop)).await.unwrap();
        }
    }
}

fn fleetmend() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetmend"));
    command.env_clear().env("FLEETMEND_FEEDS", "manual");
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    command
}

/// The unit of CPU time that Linux reports to programs, whatever its internal clock rate is.
const TICKS_PER_SECOND: f64 = 100.0;

/// The running service.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: String,
}

impl Service {
    /// CPU time of the process in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The process name in parentheses may contain anything; the numbers follow it.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: f64 = [11, 12].iter().map(|place| fields[*place].parse::<f64>().unwrap()).sum();
        ticks / TICKS_PER_SECOND
    }

    /// Waits until the startup work is done: two seconds with less than a twentieth of a core.
    pub(crate) async fn wait_until_idle(&self) {
        const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_secs(2);
        for _ in 0..120 {
            let before = self.cpu_seconds();
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.cpu_seconds() - before < POLL_INTERVAL.as_secs_f64() / 20.0 {
                return;
            }
        }
        panic!("the service was busy for four minutes without any requests");
    }

    /// Resident memory in bytes.
    pub(crate) fn memory_bytes(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
    }

    /// Kills the service without a shutdown, like a power failure. Returns its address.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.address.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
