//! Parses the command line, and contains the help texts. It runs nothing.

use std::fmt;
use std::path::PathBuf;

/// A parsed command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help(&'static str),
    Setup,
    Test(TestOptions),
    /// The command to run with the database available; empty to wait for Ctrl-C.
    Postgres(Vec<String>),
    /// The arguments of the simulation, unchanged.
    Sim(Vec<String>),
    Bench(Option<String>),
    Fuzz(FuzzOptions),
    Package(PackageOptions),
}

/// The options of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// One check instead of all.
    pub(crate) only: Option<Check>,
    /// The crates whose tests run; empty for all.
    pub(crate) packages: Vec<String>,
    /// Keep the database's directory.
    pub(crate) keep: bool,
    /// Additional arguments for `cargo test`.
    pub(crate) cargo: Vec<String>,
    /// Additional arguments for the test programs.
    pub(crate) programs: Vec<String>,
}

impl TestOptions {
    /// Whether the run is supposed to include every test of the workspace.
    pub(crate) fn runs_every_test(&self) -> bool {
        self.packages.is_empty() && self.cargo.is_empty() && self.programs.is_empty()
    }
}

/// The options of `cargo xtask package`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PackageOptions {
    /// A directory with programs that are already built.
    pub(crate) programs: Option<PathBuf>,
    /// The output directory.
    pub(crate) out: Option<PathBuf>,
}

/// The options of `cargo xtask fuzz`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    /// One target instead of all; several targets are separated by commas.
    pub(crate) target: Option<String>,
    /// Run time of each target.
    pub(crate) minutes: u64,
}

/// The checks of `cargo xtask test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Fmt,
    Clippy,
    Test,
    Doc,
    Contract,
}

impl Check {
    /// In execution order: the checks that fail fastest come first.
    pub(crate) const ALL: [Check; 5] =
        [Check::Fmt, Check::Clippy, Check::Test, Check::Doc, Check::Contract];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Check::Fmt => "fmt",
            Check::Clippy => "clippy",
            Check::Test => "test",
            Check::Doc => "doc",
            Check::Contract => "contract",
        }
    }
}

/// An error in the command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    NoSuchCommand(String),
    NoSuchOption { command: &'static str, option: String },
    NoValue { option: &'static str },
    NoSuchCheck(String),
    NotMinutes(String),
    TooMany { command: &'static str, word: String },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::NoSuchCommand(word) => write!(f, "unknown command `{word}`"),
            Misuse::NoSuchOption { command, option } => {
                write!(f, "unknown option `{option}` for `{command}`")
            }
            Misuse::NoValue { option } => write!(f, "`{option}` needs a value"),
            Misuse::NoSuchCheck(word) => {
                write!(f, "unknown check `{word}`; use fmt, clippy, test, doc or contract")
            }
            Misuse::NotMinutes(word) => {
                write!(f, "`--minutes` must be a whole number from 1 to 10080 (got `{word}`)")
            }
            Misuse::TooMany { command, word } => {
                write!(f, "unexpected argument `{word}` for `{command}`")
            }
        }
    }
}

/// Parses the arguments after `cargo xtask`.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Task, Misuse> {
    let mut words = words.into_iter();
    let Some(command) = words.next() else { return Ok(Task::Help(HELP)) };
    let rest: Vec<String> = words.collect();
    let asks_help = rest.iter().take_while(|word| *word != "--").any(|word| is_help(word));
    match command.as_str() {
        "help" => help(rest.first().map(String::as_str)),
        word if is_help(word) => Ok(Task::Help(HELP)),
        "setup" | "test" | "postgres" | "sim" | "bench" | "fuzz" | "package" if asks_help => {
            help(Some(&command))
        }
        "setup" => nothing_after("setup", &rest).map(|()| Task::Setup),
        "test" => test(rest).map(Task::Test),
        "postgres" => postgres(rest),
        "sim" => Ok(Task::Sim(rest)),
        "bench" => bench(rest),
        "fuzz" => fuzz(rest),
        "package" => package(rest),
        _ => Err(Misuse::NoSuchCommand(command)),
    }
}

fn is_help(word: &str) -> bool {
    matches!(word, "--help" | "-h")
}

fn help(command: Option<&str>) -> Result<Task, Misuse> {
    Ok(Task::Help(match command {
        None => HELP,
        Some("setup") => SETUP,
        Some("test") => TEST,
        Some("postgres") => POSTGRES,
        Some("sim") => SIM,
        Some("bench") => BENCH,
        Some("fuzz") => FUZZ,
        Some("package") => PACKAGE,
        Some(word) => return Err(Misuse::NoSuchCommand(word.to_owned())),
    }))
}

fn nothing_after(command: &'static str, rest: &[String]) -> Result<(), Misuse> {
    match rest.first() {
        None => Ok(()),
        Some(word) => Err(unknown(command, word)),
    }
}

fn unknown(command: &'static str, word: &str) -> Misuse {
    if word.starts_with('-') {
        Misuse::NoSuchOption { command, option: word.to_owned() }
    } else {
        Misuse::TooMany { command, word: word.to_owned() }
    }
}

fn test(words: Vec<String>) -> Result<TestOptions, Misuse> {
    let mut options = TestOptions::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--keep" => options.keep = true,
            "--only" => {
                let name = words.next().ok_or(Misuse::NoValue { option: "--only" })?;
                let check = Check::ALL.into_iter().find(|check| check.name() == name);
                options.only = Some(check.ok_or(Misuse::NoSuchCheck(name))?);
            }
            "-p" | "--package" => {
                options.packages.push(words.next().ok_or(Misuse::NoValue { option: "-p" })?);
            }
            "--" => break,
            word => return Err(unknown("test", word)),
        }
    }
    options.cargo = words.by_ref().take_while(|word| word != "--").collect();
    options.programs = words.collect();
    Ok(options)
}

fn postgres(mut words: Vec<String>) -> Result<Task, Misuse> {
    match words.first().map(String::as_str) {
        None => {}
        Some("--") => {
            words.remove(0);
        }
        Some(option) if option.starts_with('-') => return Err(unknown("postgres", option)),
        Some(_) => {}
    }
    Ok(Task::Postgres(words))
}

fn bench(words: Vec<String>) -> Result<Task, Misuse> {
    let mut words = words.into_iter();
    let filter = words.next();
    match (&filter, words.next()) {
        (Some(option), _) if option.starts_with('-') => Err(unknown("bench", option)),
        (_, Some(word)) => Err(unknown("bench", &word)),
        (_, None) => Ok(Task::Bench(filter)),
    }
}

fn fuzz(words: Vec<String>) -> Result<Task, Misuse> {
    let mut options = FuzzOptions { target: None, minutes: 10 };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--target" => {
                options.target = Some(words.next().ok_or(Misuse::NoValue { option: "--target" })?);
            }
            "--minutes" => {
                let value = words.next().ok_or(Misuse::NoValue { option: "--minutes" })?;
                let minutes = value.parse().ok().filter(|minutes| (1..=10_080).contains(minutes));
                options.minutes = minutes.ok_or(Misuse::NotMinutes(value))?;
            }
            word => return Err(unknown("fuzz", word)),
        }
    }
    Ok(Task::Fuzz(options))
}

fn package(words: Vec<String>) -> Result<Task, Misuse> {
    let mut options = PackageOptions::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (option, place) = match word.as_str() {
            "--programs" => ("--programs", &mut options.programs),
            "--out" => ("--out", &mut options.out),
            word => return Err(unknown("package", word)),
        };
        *place = Some(words.next().ok_or(Misuse::NoValue { option })?.into());
    }
    Ok(Task::Package(options))
}

const HELP: &str = "\
cargo xtask COMMAND

  test       run all checks: formatting, lints, tests on both databases, documentation, API contract
  postgres   run a command with a private PostgreSQL, or keep one running until Ctrl-C
  sim        run the rollout planner's simulation
  bench      run the benchmarks
  fuzz       fuzz the parsers of untrusted input
  package    build .deb and .rpm packages of the agent and the server
  setup      install missing tools that the checks need
  help       show this help, or the help of a command";

const SETUP: &str = "\
cargo xtask setup

Installs the tools that the checks need and that are missing on this machine. On Debian, as root, it
uses apt-get; elsewhere it prints what to install. It creates no PostgreSQL cluster and starts no
service.";

const TEST: &str = "\
cargo xtask test [--only CHECK] [-p CRATE]… [--keep] [-- CARGO-ARGS… [-- TEST-ARGS…]]

Runs all checks, on SQLite and on a private PostgreSQL that is removed afterwards. Missing tools
are installed first, as by `cargo xtask setup`. The last line reads `N passed, N failed, N skipped`.

  --only CHECK   run only fmt, clippy, test, doc or contract
  -p CRATE       run only the tests of this crate (repeatable)
  --keep         keep PostgreSQL's directory, to inspect its log
  -- …           arguments for `cargo test`, and after a second `--` for the test programs";

const POSTGRES: &str = "\
cargo xtask postgres [-- COMMAND…]

Starts a private PostgreSQL on a Unix socket, runs COMMAND with FLEETMEND_TEST_POSTGRES set (and
with PGHOST, PGPORT, PGUSER and PGDATABASE, so that a plain `psql` connects), and stops PostgreSQL.
Exits with the exit code of COMMAND. Without COMMAND it prints the variable and waits for Ctrl-C.";

const SIM: &str = "\
cargo xtask sim --seeds N [--from S]
cargo xtask sim --seed S

Runs the rollout planner's simulation in release mode: N seeds starting at S, or only the seed S.
All arguments are passed to the simulation unchanged.";

const BENCH: &str = "\
cargo xtask bench [FILTER]

Runs the benchmarks of every crate that has any, on SQLite and on a private PostgreSQL with the
durability settings of a production server. FILTER selects benchmarks whose name contains it.";

const FUZZ: &str = "\
cargo xtask fuzz [--target TARGET] [--minutes N]

Fuzzes the parsers of untrusted input with libFuzzer, one target after another, each for N minutes
[default: 10]. Needs a C++ compiler. Inputs that make a target fail are written to
target/fuzz/artifacts. An input that takes more than 5 seconds or 512 MiB counts as a failure.

  --target TARGET   one target of crates/fuzz, or several in one run, separated by commas
  --minutes N       run time of each target";

const PACKAGE: &str = "\
cargo xtask package [--programs DIR] [--out DIR]

Builds the agent as a static program and the server as a normal one, and creates a .deb and an
.rpm package of each. Prints the paths of the packages.

  --programs DIR   do not build; package DIR/fleetmend-agent and DIR/fleetmend
  --out DIR        output directory [default: target/package/packages]";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Task, Misuse> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments_after_dashes_go_to_cargo_and_test_programs() {
        let Ok(Task::Test(options)) =
            read("test -p store -p vocab --keep -- --lib stale -- --test-threads 1")
        else {
            panic!("expected a test command")
        };
        assert_eq!(options.packages, ["store", "vocab"]);
        assert!(options.keep);
        assert_eq!(options.cargo, ["--lib", "stale"]);
        assert_eq!(options.programs, ["--test-threads", "1"]);
        assert!(!options.runs_every_test());
    }

    #[test]
    fn single_check_still_runs_every_test() {
        let only = |check| {
            let options = TestOptions { only: Some(check), ..TestOptions::default() };
            assert!(options.runs_every_test());
            Ok(Task::Test(options))
        };
        assert_eq!(read("test --only clippy"), only(Check::Clippy));
        assert_eq!(read("test --only test"), only(Check::Test));
    }

    #[test]
    fn errors_name_the_invalid_argument() {
        let option = |command, word: &str| Misuse::NoSuchOption { command, option: word.into() };
        assert_eq!(read("tset"), Err(Misuse::NoSuchCommand("tset".into())));
        assert_eq!(read("test --fast"), Err(option("test", "--fast")));
        assert_eq!(read("test --only lint"), Err(Misuse::NoSuchCheck("lint".into())));
        assert_eq!(read("test -p"), Err(Misuse::NoValue { option: "-p" }));
        assert_eq!(read("bench a b"), Err(Misuse::TooMany { command: "bench", word: "b".into() }));
        assert_eq!(read("postgres --port 1"), Err(option("postgres", "--port")));
        assert_eq!(read("fuzz --minutes 0"), Err(Misuse::NotMinutes("0".into())));
        assert_eq!(read("fuzz --target"), Err(Misuse::NoValue { option: "--target" }));
        assert_eq!(read("setup --yes"), Err(option("setup", "--yes")));
        assert_eq!(read("package --sign"), Err(option("package", "--sign")));
        assert_eq!(read("package --out"), Err(Misuse::NoValue { option: "--out" }));
        assert_eq!(read("help tset"), Err(Misuse::NoSuchCommand("tset".into())));
    }

    #[test]
    fn help_flag_after_dashes_belongs_to_the_command() {
        assert_eq!(read(""), Ok(Task::Help(HELP)));
        assert_eq!(read("--help"), Ok(Task::Help(HELP)));
        assert_eq!(read("sim --help"), Ok(Task::Help(SIM)));
        assert_eq!(read("help bench"), Ok(Task::Help(BENCH)));
        assert_eq!(read("postgres -- psql --help"), Ok(Task::Postgres(words("psql --help"))));
    }

    #[test]
    fn simulation_arguments_are_passed_unchanged() {
        assert_eq!(read("sim --seeds 500 --from 7"), Ok(Task::Sim(words("--seeds 500 --from 7"))));
    }

    #[test]
    fn postgres_command_works_with_and_without_dashes() {
        let expected = Ok(Task::Postgres(words("cargo test -p store")));
        assert_eq!(read("postgres -- cargo test -p store"), expected);
        assert_eq!(read("postgres cargo test -p store"), expected);
        assert_eq!(read("postgres"), Ok(Task::Postgres(vec![])));
    }
}
