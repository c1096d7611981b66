//! The capacity of the service, measured from outside: the real binary, real sockets, both
//! databases, fleets of 1,000 to 100,000 servers.
//!
//! `cargo xtask bench row6` runs the rows whose name contains the word. The rows are those of the
//! list of targets: 2 patching, 3 syncs, 4 inventories, 5 held agents, 6 lists, 7 feeds, 9 bytes,
//! 10 schedules, 11 dashboard pages, 12 events. Every row verifies that the work was done. Times depend on
//! this machine and its load, which is shown next to them. CPU seconds are those of the service
//! alone, without PostgreSQL's.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its results and may panic"
)]

mod client;
mod events;
mod feeds;
mod fleet;
mod held_syncs;
mod installation;
mod lists;
mod pages;
mod patching;
mod schedules;
mod syncs;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use installation::Engine;
use jiff::Timestamp;
use table::Table;

/// Fleet sizes.
const SIZES: [u64; 3] = [1_000, 10_000, 100_000];

/// The selected rows, the fleet sizes (`--smallest 10000 --largest 10000`), and the database engine
/// (`--engine postgres`).
struct BenchArgs {
    rows: Vec<String>,
    smallest: u64,
    largest: u64,
    engine: Option<Engine>,
}

impl BenchArgs {
    /// Parses the command line.
    fn parse(words: impl IntoIterator<Item = String>) -> Result<BenchArgs, String> {
        let mut args = BenchArgs { rows: Vec::new(), smallest: 0, largest: u64::MAX, engine: None };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => {}
                "--smallest" | "--largest" => {
                    let size = words.next().ok_or(format!("{word} needs a number of servers"))?;
                    let size = size.parse().map_err(|_| format!("`{size}` is not a number"))?;
                    match word.as_str() {
                        "--smallest" => args.smallest = size,
                        _ => args.largest = size,
                    }
                }
                "--engine" => {
                    args.engine = match words.next().as_deref() {
                        Some("sqlite") => Some(Engine::Sqlite),
                        Some("postgres") => Some(Engine::Postgres),
                        _ => return Err("--engine must be `sqlite` or `postgres`".to_owned()),
                    };
                }
                word if word.starts_with('-') => return Err(format!("unknown option {word}")),
                _ => args.rows.push(word),
            }
        }
        Ok(args)
    }

    /// The fleet sizes to measure.
    fn sizes(&self) -> impl Iterator<Item = u64> {
        SIZES.into_iter().filter(|size| (self.smallest..=self.largest).contains(size))
    }

    fn has(&self, row: u32) -> bool {
        let name = format!("row{row}");
        let named = |word: &String| {
            // `row1` selects only row 1, not row 10; `row` selects every row.
            match word.strip_prefix("row") {
                Some("") | None => name.contains(word.as_str()),
                Some(_) => *word == name,
            }
        };
        self.rows.is_empty() || self.rows.iter().any(named)
    }

    fn any(&self, rows: &[u32]) -> bool {
        rows.iter().any(|row| self.has(*row))
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` also runs this binary, and needs no measurements.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let args = match BenchArgs::parse(arguments) {
        Ok(asked) => asked,
        Err(wrong) => {
            println!("{wrong}");
            return ExitCode::from(2);
        }
    };
    if !args.any(&[2, 3, 4, 5, 6, 7, 9, 10, 11, 12]) {
        return ExitCode::SUCCESS;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    allow_files();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(run_rows(&args));
    ExitCode::SUCCESS
}

async fn run_rows(args: &BenchArgs) {
    let mut engines = vec![Engine::Sqlite];
    match std::env::var_os("FLEETMEND_TEST_POSTGRES") {
        Some(_) => engines.push(Engine::Postgres),
        None => println!("FLEETMEND_TEST_POSTGRES is not set: measuring SQLite only"),
    }
    engines.retain(|engine| args.engine.is_none_or(|wanted| wanted == *engine));
    let mut table = Table::default();
    for engine in &engines {
        if args.has(2) {
            patching::measure_patching(*engine, args, &mut table).await;
        }
        if args.any(&[3, 4, 6, 9]) {
            lists::measure_lists(*engine, args, &mut table).await;
        }
        if args.has(12) {
            events::measure_events(*engine, &mut table).await;
        }
        if args.has(5) {
            held_syncs::measure_held_syncs(*engine, &mut table).await;
        }
        if args.has(7) {
            feeds::measure_feeds(*engine, args, &mut table).await;
        }
        if args.has(10) {
            schedules::measure_schedules(*engine, &mut table).await;
        }
        if args.has(11) {
            pages::measure_pages(*engine, args, &mut table).await;
        }
    }
    table.print();
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn clock() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark creates new rows")]
fn now() -> Timestamp {
    Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap()
}

/// Raises the limit of open files: every agent has a connection, here and in the service.
fn allow_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(limit.maximum.unwrap_or(65_536).min(65_536));
    setrlimit(Resource::Nofile, limit).unwrap();
}
