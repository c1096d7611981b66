//! The test programs that cargo built, from its JSON messages.
//!
//! Text in, commands out: `steps` builds the programs and runs them with `jobs`, because cargo
//! runs one after another and leaves the cores idle while a program waits.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::workspace::Workspace;

/// The programs that take longest, by their names: they start first, so that no long one runs alone
/// at the end. Programs that wait for other processes come before those that compute, so that
/// the two that run at a time complement each other.
const LONG: [&str; 6] = ["fleetmend", "agents", "browser", "engine", "http", "end_to_end"];

/// The module of the tests that need the whole machine, in the programs that have it.
const WHOLE_MACHINE: &str = "whole_machine::";
const WITH_WHOLE_MACHINE: [&str; 1] = ["fleetmend"];

/// Which tests of a program run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// Those that need the whole machine.
    WholeMachine,
    Others,
}

impl Part {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Part::All => &[],
            Part::WholeMachine => &[WHOLE_MACHINE],
            Part::Others => &["--skip", WHOLE_MACHINE],
        }
    }
}

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProgram {
    executable: PathBuf,
    /// The directory of the crate.
    directory: PathBuf,
    /// The source file of the program, relative to that directory.
    source: PathBuf,
    name: String,
    /// `lib`, `bin`, `test` or similar.
    kind: String,
}

impl TestProgram {
    /// The program that a line of `cargo test --message-format json` describes, if it does.
    pub(crate) fn from_message(line: &str) -> Option<TestProgram> {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
        let target = &message["target"];
        let source = Path::new(target["src_path"].as_str()?);
        Some(TestProgram {
            executable: message["executable"].as_str()?.into(),
            source: source.strip_prefix(directory).unwrap_or(source).to_owned(),
            directory: directory.to_owned(),
            name: target["name"].as_str()?.to_owned(),
            kind: target["kind"][0].as_str()?.to_owned(),
        })
    }

    pub(crate) fn is_library(&self) -> bool {
        self.kind == "lib"
    }

    /// The line that cargo prints before it runs the program.
    pub(crate) fn running_line(&self) -> String {
        let unit = if self.kind == "test" { "" } else { "unittests " };
        let (source, program) = (self.source.display(), self.executable.display());
        format!("     Running {unit}{source} ({program})")
    }

    /// The line that cargo prints after a program that failed. The directory of a crate has the
    /// name of the crate.
    pub(crate) fn failed_line(&self) -> String {
        let package = self.directory.file_name().unwrap_or_default().display();
        let target = match self.is_library() {
            true => "--lib".to_owned(),
            false => format!("--{} {}", self.kind, self.name),
        };
        format!("error: test failed, to rerun pass `-p {package} {target}`")
    }

    /// The parts in which the program runs: those that need the whole machine separately.
    pub(crate) fn parts(&self) -> &'static [Part] {
        let split = self.kind == "test" && WITH_WHOLE_MACHINE.contains(&self.name.as_str());
        if split { &[Part::WholeMachine, Part::Others] } else { &[Part::All] }
    }

    /// The command that runs the tests, in the environment in which cargo would run it.
    pub(crate) fn command(&self, workspace: &Workspace, part: Part) -> Command {
        let mut command = workspace.test_program(&self.executable);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command.args(part.arguments());
        command
    }
}

/// Sorts the programs into the order in which they start.
pub(crate) fn sort(programs: &mut [TestProgram]) {
    programs.sort_by_key(|program| {
        let long = LONG.iter().position(|name| program.kind == "test" && *name == program.name);
        (long.unwrap_or(LONG.len()), program.directory.clone(), program.source.clone())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, source: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/src/crates/store/Cargo.toml",
            "target": {"kind": [kind], "name": name, "src_path": format!("/src/crates/store/{source}")},
            "profile": {"test": true},
            "executable": format!("/target/debug/deps/{name}-1a2b"),
        })
        .to_string()
    }

    fn program(kind: &str, name: &str, source: &str) -> TestProgram {
        TestProgram::from_message(&message(kind, name, source)).unwrap()
    }

    #[test]
    fn program_is_announced_like_cargo_does() {
        let unit = program("lib", "store", "src/lib.rs");
        assert_eq!(
            unit.running_line(),
            "     Running unittests src/lib.rs (/target/debug/deps/store-1a2b)"
        );
        assert_eq!(unit.failed_line(), "error: test failed, to rerun pass `-p store --lib`");
        let test = program("test", "plans", "tests/plans/main.rs");
        assert_eq!(
            test.running_line(),
            "     Running tests/plans/main.rs (/target/debug/deps/plans-1a2b)"
        );
        assert_eq!(test.failed_line(), "error: test failed, to rerun pass `-p store --test plans`");
    }

    /// Together, the parts of a program run each of its tests once.
    #[test]
    fn tests_that_need_the_whole_machine_are_a_part_of_their_own() {
        let split = program("test", "fleetmend", "tests/fleetmend/main.rs");
        let arguments: Vec<_> = split.parts().iter().map(|part| part.arguments()).collect();
        assert_eq!(arguments, [&["whole_machine::"][..], &["--skip", "whole_machine::"]]);
        assert_eq!(program("bin", "fleetmend", "src/main.rs").parts(), [Part::All]);
    }

    #[test]
    fn messages_about_anything_else_are_ignored() {
        assert_eq!(
            TestProgram::from_message("   Compiling store v0.1.0 (/src/crates/store)"),
            None
        );
        assert_eq!(
            TestProgram::from_message(r#"{"reason":"build-finished","success":true}"#),
            None
        );
        // A program that tests start is no test program.
        let built = message("bin", "fleetmend", "src/main.rs").replace("true", "false");
        assert_eq!(TestProgram::from_message(&built), None);
    }

    #[test]
    fn long_programs_start_first() {
        let mut programs = [
            program("lib", "store", "src/lib.rs"),
            program("bin", "agents", "src/main.rs"),
            program("test", "agents", "tests/agents/main.rs"),
            program("test", "fleetmend", "tests/fleetmend/main.rs"),
        ];
        sort(&mut programs);
        let order = programs.map(|program| program.source.display().to_string());
        assert_eq!(
            order,
            ["tests/fleetmend/main.rs", "tests/agents/main.rs", "src/lib.rs", "src/main.rs"]
        );
    }

    #[test]
    fn long_programs_exist() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        for name in LONG {
            let exists = crate::workspace::directory_entries(&crates)
                .iter()
                .any(|directory| directory.join(format!("tests/{name}/main.rs")).is_file());
            assert!(exists, "{name}");
        }
    }
}
