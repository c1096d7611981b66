//! The program `swarm`: runs simulated agents until Ctrl-C.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use agent_client::Token;
use anyhow::Context as _;
use clap::Parser;
use swarm::behavior::Behavior;
use swarm::{Config, Counts, SavedAgents, Swarm, SyncMode};

/// Simulated agents over the real protocol with real signatures
#[derive(Parser)]
#[command(
    version,
    after_help = "Example: swarm --servers 250 --url http://127.0.0.1:7600 --token fme_… --speed 10"
)]
struct Args {
    /// Number of servers to simulate
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    servers: u64,
    /// URL of the Fleetmend server
    #[arg(long, env = "FLEETMEND_URL")]
    url: String,
    /// Enrollment token
    #[arg(long, env = "FLEETMEND_ENROLLMENT_TOKEN", hide_env_values = true)]
    token: Token,
    /// Seed for the random hosts and failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Speed-up compared to real hosts
    #[arg(long, default_value_t = 1.0, value_parser = parse_speed)]
    speed: f64,
    /// Share of installations that fail
    #[arg(long, default_value = "2%", value_parser = parse_share)]
    fail: f64,
    /// Share of time that a host is disconnected
    #[arg(long, default_value = "1%", value_parser = parse_share)]
    offline: f64,
    /// Share of orders during which the agent crashes and restarts
    #[arg(long, default_value = "0.5%", value_parser = parse_share)]
    crash: f64,
    /// Sync at this interval in milliseconds instead of long polling; 0 syncs as fast as possible
    #[arg(long, value_name = "MS")]
    every_ms: Option<u64>,
    /// File in which identities are kept between runs
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("must be a percentage such as 2%")?;
    let percent: f64 = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err("must be from 0% to 100%".to_owned())
    }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.001..=1_000_000.0).contains(&speed) {
        Ok(speed)
    } else {
        Err("must be from 0.001 to 1000000".to_owned())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")
        .and_then(|runtime| runtime.block_on(run(args)));
    match ended {
        Ok(code) => code,
        Err(error) => {
            print_line(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<ExitCode> {
    raise_file_limit(args.servers)?;
    let mut config = Config::new(&args.url, args.token, args.servers);
    let Args { seed, fail, crash, offline, speed, .. } = args;
    config.behavior = Behavior { seed, fail, crash, offline, speed };
    if let Some(every) = args.every_ms {
        config.sync_mode = SyncMode::Interval(Duration::from_millis(every));
    }
    if let Some(path) = &args.state {
        config.saved = SavedAgents::read(path)?;
    }
    let swarm = Swarm::start(config)?;
    if let Some(path) = &args.state {
        SavedAgents::mark_taken(path)?;
    }
    show_progress(&swarm).await?;
    let violations = swarm.ledger().violations();
    let refusal = swarm.refusal();
    let saved = swarm.stop().await;
    if let Some(path) = &args.state {
        saved.write(path)?;
    }
    if let Some(refusal) = refusal {
        print_line(&format!("a request was refused: {refusal}"));
    }
    for violation in &violations {
        print_line(&format!("violation: {violation}"));
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows the counters until Ctrl-C or SIGTERM: one updating line on a terminal, otherwise one line
/// every ten seconds.
async fn show_progress(swarm: &Swarm) -> anyhow::Result<()> {
    let live = std::io::stderr().is_terminal();
    let mut tick =
        tokio::time::interval(if live { Duration::from_secs(1) } else { Duration::from_secs(10) });
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let seconds = tick.period().as_secs();
    let mut before = Counts::default();
    loop {
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                break;
            }
            _ = terminated.recv() => break,
            _ = tick.tick() => {
                let now = swarm.counts();
                let line = status_line(swarm.len(), &before, &now, seconds);
                let mut err = std::io::stderr().lock();
                let _ = match live {
                    true => write!(err, "\r\x1b[K{line}").and_then(|()| err.flush()),
                    false => writeln!(err, "{line}"),
                };
                before = now;
            }
        }
    }
    if live {
        print_line("");
    }
    Ok(())
}

fn status_line(servers: usize, before: &Counts, now: &Counts, seconds: u64) -> String {
    let Counts { enrolled, orders, results, removed, refused, failed, .. } = now;
    let pace = (now.syncs - before.syncs) / seconds.max(1);
    format!(
        "{enrolled}/{servers} enrolled, {pace} syncs/s, {orders} orders, {results} results, \
         {failed} retries, {refused} refused, {removed} removed"
    )
}

/// Raises the limit of open files, because every agent has its own connection.
fn raise_file_limit(servers: u64) -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let wanted = servers + 1_000;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|max| max < wanted) {
        limit.maximum = Some(wanted);
    }
    limit.current = Some(wanted);
    setrlimit(Resource::Nofile, limit)
        .with_context(|| format!("{servers} agents need {wanted} open files; raise `ulimit -n`"))
}

fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
