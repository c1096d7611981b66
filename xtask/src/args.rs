//! The command line, and the text that explains it.
//!
//! Reads words and returns what they mean; it runs nothing.

use std::fmt;
use std::path::PathBuf;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help(&'static str),
    Setup,
    Test(TestOptions),
    /// The command to run beside the database; none to wait for Ctrl-C.
    Postgres(Vec<String>),
    /// The arguments of the simulation, untouched.
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
    /// The crates whose tests run; none for all.
    pub(crate) packages: Vec<String>,
    /// Leave the database's directory behind.
    pub(crate) keep: bool,
    /// More arguments of `cargo test`.
    pub(crate) cargo: Vec<String>,
    /// More arguments of the test programs.
    pub(crate) programs: Vec<String>,
}

impl TestOptions {
    /// Whether every test of the workspace is meant to run.
    pub(crate) fn runs_every_test(&self) -> bool {
        self.packages.is_empty() && self.cargo.is_empty() && self.programs.is_empty()
    }
}

/// The options of `cargo xtask package`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PackageOptions {
    /// A folder with programs that are built already.
    pub(crate) programs: Option<PathBuf>,
    /// Where the packages go.
    pub(crate) out: Option<PathBuf>,
}

/// The options of `cargo xtask fuzz`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    /// One target instead of all; several at once, divided by commas.
    pub(crate) target: Option<String>,
    /// For how long each runs.
    pub(crate) minutes: u64,
}

/// The checks that `cargo xtask test` is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Fmt,
    Clippy,
    Test,
    Doc,
    Contract,
}

impl Check {
    /// In the order in which they run: what fails fastest comes first.
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

/// Words that mean nothing.
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
            Misuse::NoSuchCommand(word) => write!(f, "there is no command `{word}`"),
            Misuse::NoSuchOption { command, option } => {
                write!(f, "`{command}` has no option `{option}`")
            }
            Misuse::NoValue { option } => write!(f, "`{option}` needs a value"),
            Misuse::NoSuchCheck(word) => {
                write!(f, "there is no check `{word}`, only fmt, clippy, test, doc and contract")
            }
            Misuse::NotMinutes(word) => {
                write!(f, "`--minutes` must be a whole number from 1 to 10080 (got `{word}`)")
            }
            Misuse::TooMany { command, word } => {
                write!(f, "`{command}` does not know what to do with `{word}`")
            }
        }
    }
}

/// Reads the words after `cargo xtask`.
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

  test       run every check: formatting, lints, tests on both databases, documentation, the contract
  postgres   run a command beside a private PostgreSQL, or keep one until Ctrl-C
  sim        run the simulation of the rollout planner
  bench      run the benchmarks
  fuzz       fuzz the parsers of outside bytes
  package    make .deb and .rpm of the agent and of the server
  setup      install what the checks need and this machine lacks
  help       show this, or `help COMMAND`";

const SETUP: &str = "\
cargo xtask setup

Installs what the checks need and this machine lacks. On Debian as root it does so with apt-get;
elsewhere it says what to install. It creates no PostgreSQL cluster and starts no service.";

const TEST: &str = "\
cargo xtask test [--only CHECK] [-p CRATE]… [--keep] [-- CARGO-ARGS… [-- TEST-ARGS…]]

Runs every check, on SQLite and on a private PostgreSQL that is gone afterwards. What is missing
is installed first, as by `cargo xtask setup`. The last line reads `N passed, N failed, N skipped`.

  --only CHECK   fmt, clippy, test, doc or contract alone
  -p CRATE       only the tests of this crate (can be given again)
  --keep         leave PostgreSQL's directory behind, for a look at its log
  -- …           more arguments of `cargo test`, and after a second `--` of the test programs";

const POSTGRES: &str = "\
cargo xtask postgres [-- COMMAND…]

Starts a private PostgreSQL on a socket, runs COMMAND with FLEETMEND_TEST_POSTGRES set (and PGHOST
and its like, so that a bare `psql` connects), and stops it. Ends as COMMAND ended. Without a
COMMAND it prints the variable and waits for Ctrl-C.";

const SIM: &str = "\
cargo xtask sim --seeds N [--from S]
cargo xtask sim --seed S

Runs the simulation of the rollout planner, in release mode: N seeds, counted from S, or the one
seed S again. All arguments go to the simulation as they are.";

const BENCH: &str = "\
cargo xtask bench [FILTER]

Runs the benchmarks of every crate that has some, on SQLite and on a private PostgreSQL that
waits for the disk as a real one does. FILTER limits them to those whose name contains it.";

const FUZZ: &str = "\
cargo xtask fuzz [--target TARGET] [--minutes N]

Fuzzes the parsers of outside bytes with libFuzzer, one target after the other, each for N minutes
[default: 10]. It needs a C++ compiler. Inputs that break something are left in
target/fuzz/artifacts; an input that takes more than 5 seconds or 512 MiB counts as well.

  --target TARGET   one target of crates/fuzz, or several at once, divided by commas
  --minutes N       for how long each runs";

const PACKAGE: &str = "\
cargo xtask package [--programs DIR] [--out DIR]

Builds the agent as one static program and the server as usual, and makes a .deb and an .rpm of
each. Their names are printed.

  --programs DIR   do not build: pack DIR/fleetmend-agent and DIR/fleetmend
  --out DIR        where the packages go [default: target/package/packages]";

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
    fn what_follows_the_first_dashes_is_cargos_and_the_second_the_test_programs() {
        let Ok(Task::Test(options)) =
            read("test -p store -p vocab --keep -- --lib stale -- --test-threads 1")
        else {
            panic!("it reads as a test run")
        };
        assert_eq!(options.packages, ["store", "vocab"]);
        assert!(options.keep);
        assert_eq!(options.cargo, ["--lib", "stale"]);
        assert_eq!(options.programs, ["--test-threads", "1"]);
        assert!(!options.runs_every_test());
    }

    #[test]
    fn one_check_still_counts_as_every_test() {
        let only = |check| {
            let options = TestOptions { only: Some(check), ..TestOptions::default() };
            assert!(options.runs_every_test());
            Ok(Task::Test(options))
        };
        assert_eq!(read("test --only clippy"), only(Check::Clippy));
        assert_eq!(read("test --only test"), only(Check::Test));
    }

    #[test]
    fn words_that_mean_nothing_are_named() {
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
    fn help_is_ours_before_the_dashes_and_the_commands_behind_them() {
        assert_eq!(read(""), Ok(Task::Help(HELP)));
        assert_eq!(read("--help"), Ok(Task::Help(HELP)));
        assert_eq!(read("sim --help"), Ok(Task::Help(SIM)));
        assert_eq!(read("help bench"), Ok(Task::Help(BENCH)));
        assert_eq!(read("postgres -- psql --help"), Ok(Task::Postgres(words("psql --help"))));
    }

    #[test]
    fn the_simulation_gets_its_arguments_untouched() {
        assert_eq!(read("sim --seeds 500 --from 7"), Ok(Task::Sim(words("--seeds 500 --from 7"))));
    }

    #[test]
    fn a_command_runs_beside_postgres_with_or_without_dashes() {
        let expected = Ok(Task::Postgres(words("cargo test -p store")));
        assert_eq!(read("postgres -- cargo test -p store"), expected);
        assert_eq!(read("postgres cargo test -p store"), expected);
        assert_eq!(read("postgres"), Ok(Task::Postgres(vec![])));
    }
}
