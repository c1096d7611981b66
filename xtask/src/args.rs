//! The command line of `cargo xtask`. It parses arguments and runs nothing.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};

#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "Developer tasks for the workspace")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum Task {
    /// Run all checks: formatting, lints, tests on both databases, documentation, API contract
    ///
    /// The tests run on SQLite and on a private PostgreSQL that is removed afterwards. Missing
    /// tools are installed first, as by `cargo xtask setup`. The last line reads
    /// `N passed, N failed, N skipped`.
    Test(TestOptions),
    /// Run a command with a private PostgreSQL, or keep one running until Ctrl-C
    ///
    /// Starts PostgreSQL on a Unix socket, runs COMMAND with FLEETMEND_TEST_POSTGRES set (and with
    /// PGHOST, PGPORT, PGUSER and PGDATABASE, so that a plain `psql` connects), and stops
    /// PostgreSQL. Exits with the exit code of COMMAND. Without COMMAND it prints the variable and
    /// waits for Ctrl-C.
    Postgres {
        #[arg(trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// Run the rollout planner's simulation in release mode
    ///
    /// `--seeds N [--from S]` runs N seeds starting at S, `--seed S` only that one. All arguments
    /// are passed to the simulation unchanged.
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the benchmarks
    ///
    /// Runs the benchmarks of every crate that has any, on SQLite and on a private PostgreSQL with
    /// the durability settings of a production server.
    Bench {
        /// Run only benchmarks whose name contains FILTER
        filter: Option<String>,
    },
    /// Fuzz the parsers of untrusted input
    ///
    /// Runs libFuzzer on one target after another. Needs a C++ compiler. Inputs that make a target
    /// fail are written to target/fuzz/artifacts. An input that takes more than 5 seconds or 512
    /// MiB counts as a failure.
    Fuzz(FuzzOptions),
    /// Build .deb and .rpm packages of the agent and the server
    ///
    /// Builds the agent as a static program and the server as a normal one, creates both packages
    /// of each, and prints their paths.
    Package(PackageOptions),
    /// Create everything that is published with a release, in target/dist
    ///
    /// Builds the packages, the agents and the context of the container image, and adds the
    /// deployment examples, a software bill of materials of each program (CycloneDX 1.5) and
    /// SHA256SUMS. It publishes nothing. Files of an earlier release in target/dist are deleted.
    Release(ReleaseOptions),
    /// Install missing tools that the checks need
    ///
    /// On Debian, as root, it uses apt-get; elsewhere it prints what to install. It creates no
    /// PostgreSQL cluster and starts no service.
    Setup,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct TestOptions {
    /// Run only this check
    #[arg(long, value_name = "CHECK")]
    pub(crate) only: Option<Check>,
    /// Run only the tests of this crate (repeatable)
    #[arg(short = 'p', long = "package", value_name = "CRATE")]
    pub(crate) packages: Vec<String>,
    /// Keep PostgreSQL's directory, to inspect its log
    #[arg(long)]
    pub(crate) keep: bool,
    /// Arguments for `cargo test`, and after a second `--` for the test programs
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

impl TestOptions {
    /// Whether every test of the workspace runs.
    pub(crate) fn runs_every_test(&self) -> bool {
        self.packages.is_empty() && self.arguments.is_empty()
    }

    pub(crate) fn cargo_arguments(&self) -> &[String] {
        self.arguments.split(|word| word == "--").next().unwrap_or_default()
    }

    pub(crate) fn program_arguments(&self) -> &[String] {
        self.arguments.get(self.cargo_arguments().len() + 1..).unwrap_or_default()
    }
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct PackageOptions {
    /// Do not build; package DIR/fleetmend-agent and DIR/fleetmend
    #[arg(long, value_name = "DIR")]
    pub(crate) programs: Option<PathBuf>,
    /// Also include the agents of other architectures in this directory in the server's package
    /// (fleetmend-agent-aarch64, …)
    #[arg(long, value_name = "DIR")]
    pub(crate) agents: Option<PathBuf>,
    /// Sign the agents with the publisher's private key in this file, which is created if it does
    /// not exist. Agents accept upgrades only from the publisher that built them
    #[arg(long, value_name = "FILE", conflicts_with = "programs")]
    pub(crate) release_key: Option<PathBuf>,
    /// Build packages of this format only
    #[arg(long, value_enum)]
    pub(crate) format: Option<PackageFormat>,
    /// Do not compress .deb packages, which is much faster; for tests
    #[arg(long)]
    pub(crate) uncompressed: bool,
    /// Output directory [default: target/package/packages]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct ReleaseOptions {
    /// Do not build; use DIR/fleetmend-agent, DIR/fleetmend, and DIR/fleetmend-static for the
    /// container
    #[arg(long, value_name = "DIR")]
    pub(crate) programs: Option<PathBuf>,
    /// Also include the agents of other architectures in this directory (fleetmend-agent-aarch64, …)
    #[arg(long, value_name = "DIR")]
    pub(crate) agents: Option<PathBuf>,
    /// Sign the agents with the publisher's private key in this file, as `package` does
    #[arg(long, value_name = "FILE", conflicts_with = "programs")]
    pub(crate) release_key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PackageFormat {
    Deb,
    Rpm,
}

#[derive(Debug, PartialEq, Eq, Args)]
pub(crate) struct FuzzOptions {
    /// One target of crates/fuzz, or several in one run, separated by commas
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Run time of each target
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u64).range(1..=10_080))]
    pub(crate) minutes: u64,
}

/// The checks of `cargo xtask test`, in the order in which they run: the fastest to fail first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    Fmt,
    Clippy,
    Test,
    Doc,
    Contract,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Task, clap::Error> {
        let words = std::iter::once("xtask").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.task)
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_after_dashes_go_to_cargo_and_test_programs() {
        let parsed = parse("test -p store -p vocab --keep -- --lib stale -- --test-threads 1");
        let Task::Test(options) = parsed.unwrap() else { panic!("expected a test command") };
        assert_eq!(options.packages, ["store", "vocab"]);
        assert!(options.keep);
        assert_eq!(options.cargo_arguments(), ["--lib", "stale"]);
        assert_eq!(options.program_arguments(), ["--test-threads", "1"]);
        assert!(!options.runs_every_test());
        let Task::Test(options) = parse("test -- --lib").unwrap() else { panic!("not a test") };
        assert_eq!(options.cargo_arguments(), ["--lib"]);
        assert!(options.program_arguments().is_empty());
    }

    #[test]
    fn single_check_still_runs_every_test() {
        for (name, check) in [("clippy", Check::Clippy), ("test", Check::Test)] {
            let options = TestOptions { only: Some(check), ..TestOptions::default() };
            assert!(options.runs_every_test());
            assert!(options.cargo_arguments().is_empty());
            assert_eq!(parse(&format!("test --only {name}")).unwrap(), Task::Test(options));
        }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        let rejected = |line: &str| parse(line).unwrap_err().kind();
        assert_eq!(rejected("tset"), ErrorKind::InvalidSubcommand);
        assert_eq!(rejected("test --fast"), ErrorKind::UnknownArgument);
        assert_eq!(rejected("test --only lint"), ErrorKind::InvalidValue);
        assert_eq!(rejected("bench a b"), ErrorKind::UnknownArgument);
        assert_eq!(rejected("postgres --port 1"), ErrorKind::UnknownArgument);
        assert_eq!(rejected("fuzz --minutes 0"), ErrorKind::ValueValidation);
        assert_eq!(rejected("setup --yes"), ErrorKind::UnknownArgument);
        assert_eq!(rejected("package --sign"), ErrorKind::UnknownArgument);
        assert_eq!(rejected("package --format tar"), ErrorKind::InvalidValue);
        assert_eq!(rejected("release --programs p --release-key k"), ErrorKind::ArgumentConflict);
    }

    #[test]
    fn help_flag_after_dashes_belongs_to_the_command() {
        assert_eq!(parse("sim --help").unwrap_err().kind(), ErrorKind::DisplayHelp);
        let expected = Task::Postgres { command: words("psql --help") };
        assert_eq!(parse("postgres -- psql --help").unwrap(), expected);
    }

    #[test]
    fn simulation_arguments_are_passed_unchanged() {
        let expected = Task::Sim { arguments: words("--seeds 500 --from 7") };
        assert_eq!(parse("sim --seeds 500 --from 7").unwrap(), expected);
    }

    #[test]
    fn postgres_command_works_with_and_without_dashes() {
        let expected = Task::Postgres { command: words("cargo test -p store") };
        assert_eq!(parse("postgres -- cargo test -p store").unwrap(), expected);
        assert_eq!(parse("postgres cargo test -p store").unwrap(), expected);
        assert_eq!(parse("postgres").unwrap(), Task::Postgres { command: vec![] });
    }
}
