//! Every function that writes to the database writes to the audit log, too, or says why not.
//!
//! `crates/server/tests/http` sends a request for every operation of the API and every form of the
//! dashboard, and checks that the audit log has an entry for it. This test finds the rest in the
//! source: what local commands, the engine and the gateway do on their own.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates that change data. `store` opens no transactions.
const CRATES: [&str; 8] =
    ["service", "engine", "gateway", "cli", "api", "dashboard", "httpkit", "server"];

/// Functions that call another one, which writes the entry: `a>b` if it calls `a`, which calls `b`.
const DELEGATED: &[(&str, &str, &str)] = &[
    ("cli/src/backup/restore.rs", "prepare_database", "prepare_for_service"),
    ("engine/src/schedules.rs", "claim_instants", "start_and_skip_runs>skip"),
    ("engine/src/schedules.rs", "create_batches", "create_batches"),
    ("engine/src/webhooks.rs", "store", "disable"),
    ("gateway/src/ingest.rs", "write_parts", "write_report>store_result>save_event"),
    ("service/src/auth/two_factor.rs", "turn_on", "save"),
    ("service/src/auth/two_factor.rs", "turn_off", "save"),
    ("service/src/auth/two_factor.rs", "renew_recovery_codes", "save"),
    ("service/src/commands/batches.rs", "create", "create_in>create_all_in"),
    ("service/src/commands/refreshes.rs", "request", "request_in"),
    ("service/src/commands/servers.rs", "edit", "save_edits"),
    ("service/src/commands/servers.rs", "edit_all_once", "save_edits"),
    ("service/src/requests/batches.rs", "create", "create_in>create_all_in"),
];

const BOOKKEEPING: &str = "bookkeeping of the service, which no user sees";
const FROM_ELSEWHERE: &str = "data that agents or publishers report, and what is computed from it";
const FEED_IMPORT: &str = "the data of a feed; `record_import` and `record_update` write the entry of a command, and the engine's updates follow from `feed.add`";

/// Functions that write no entry, and why.
const UNAUDITED: &[(&str, &str, &str)] = &[
    ("cli/src/demo/daily_stats.rs", "write", "invented history of a demonstration"),
    ("cli/src/demo/history.rs", "write", "invented history of a demonstration"),
    ("cli/src/demo/history.rs", "write_manual_batches", "invented history of a demonstration"),
    ("cli/src/demo/special_servers.rs", "write", "invented servers of a demonstration"),
    ("engine/src/daily_stats.rs", "write_changed", FROM_ELSEWHERE),
    ("engine/src/leader.rs", "acquire_or_renew", BOOKKEEPING),
    ("engine/src/leader.rs", "release", BOOKKEEPING),
    ("engine/src/presence.rs", "announce", "an event; nothing was changed by anyone"),
    ("engine/src/retention.rs", "delete_once", "deletes what is older than documented"),
    (
        "engine/src/schedules.rs",
        "reset_after_clock_change",
        "corrects the times of the next runs; the schedules stay as they are",
    ),
    ("gateway/src/registry.rs", "claim", BOOKKEEPING),
    ("gateway/src/registry.rs", "session_conflict", BOOKKEEPING),
    ("gateway/src/registry.rs", "write_heartbeats", FROM_ELSEWHERE),
    ("gateway/src/sync.rs", "record_root_key", BOOKKEEPING),
    ("service/src/auth/api_keys.rs", "flush_uses", "when a key was last used"),
    (
        "service/src/auth/root_keys.rs",
        "check_and_record",
        "`secrets rotate` wrote the entry when it created the key",
    ),
    ("service/src/auth/root_keys.rs", "run_step", "a part of a rotation that has an entry"),
    ("service/src/auth/sessions.rs", "touch", "when a session was last used"),
    ("service/src/idempotency.rs", "claim", BOOKKEEPING),
    ("service/src/idempotency.rs", "finish", BOOKKEEPING),
    ("service/src/idempotency.rs", "release_abandoned", BOOKKEEPING),
    ("service/src/projections/compliance.rs", "begin", FROM_ELSEWHERE),
    ("service/src/projections/findings/changeset.rs", "tx", FROM_ELSEWHERE),
    ("service/src/projections/patches/mod.rs", "rebuild_from", FROM_ELSEWHERE),
    ("service/src/projections/patches/mod.rs", "correct_security_counts", FROM_ELSEWHERE),
    ("service/src/commands/feeds/bundle.rs", "import", FEED_IMPORT),
    (
        "service/src/commands/feeds/manage.rs",
        "delete_data",
        "the data of a feed whose removal has an entry",
    ),
    ("service/src/commands/feeds/mod.rs", "allow_again", FEED_IMPORT),
    ("service/src/commands/feeds/mod.rs", "begin", "opens the transaction for its caller"),
    ("service/src/commands/feeds/mod.rs", "import", FEED_IMPORT),
    ("service/src/commands/feeds/progress.rs", "store_step", BOOKKEEPING),
    ("service/src/commands/feeds/record_writer.rs", "write_records", FEED_IMPORT),
    ("service/src/commands/feeds/remote.rs", "import_url", FEED_IMPORT),
    ("service/src/commands/feeds/remote.rs", "note_failure", BOOKKEEPING),
    ("service/src/commands/feeds/remote.rs", "update", FEED_IMPORT),
];

struct Function {
    /// Below `crates`.
    file: String,
    name: String,
    /// Without white space.
    body: String,
}

impl Function {
    fn opens_transaction(&self) -> bool {
        self.body.contains(".begin()")
    }

    /// Whether it passes a transaction to a function of `service` whose name starts with `record`.
    /// Functions of `store` are called with the name of their module.
    fn records(&self) -> bool {
        self.body.match_indices("record").any(|(at, _)| {
            let before = &self.body[..at];
            let other = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            if before.ends_with(other) && !before.ends_with("audit::") {
                return false;
            }
            let rest = self.body[at + "record".len()..]
                .trim_start_matches(|c: char| c.is_ascii_lowercase() || c == '_');
            let Some(arguments) = rest.strip_prefix('(') else { return false };
            let arguments = arguments.strip_prefix("app,").unwrap_or(arguments);
            arguments.starts_with("&muttx,") || arguments.starts_with("tx,")
        })
    }

    fn calls(&self, name: &str) -> bool {
        self.body.contains(&format!("{name}("))
    }
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                found.push(path);
            }
            false => {}
        }
    }
}

/// The name of the function that starts in this line.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let before = words.by_ref().take_while(|word| *word != "fn");
    let modifiers = ["pub", "pub(crate)", "pub(super)", "async", "const", "unsafe"];
    let mut is_function = true;
    before.for_each(|word| is_function &= modifiers.contains(&word));
    let name = words.next().filter(|_| is_function)?;
    name.split(['(', '<']).next()
}

fn functions_in(file: &str, text: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        if let Some(name) = function_name(line) {
            let (file, name) = (file.to_owned(), name.to_owned());
            functions.push(Function { file, name, body: String::new() });
            continue;
        }
        if let Some(function) = functions.last_mut() {
            function.body.extend(line.chars().filter(|c| !c.is_whitespace()));
        }
    }
    functions
}

fn functions() -> Vec<Function> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates");
    let mut files = Vec::new();
    for name in CRATES {
        sources(&crates.join(name).join("src"), &mut files);
    }
    let one = |path: PathBuf| {
        let file = path.strip_prefix(&crates).unwrap().to_string_lossy().into_owned();
        functions_in(&file, &fs::read_to_string(&path).unwrap())
    };
    files.into_iter().flat_map(one).collect()
}

#[test]
fn every_write_is_in_the_audit_log_or_says_why_not() {
    let functions = functions();
    let writers: Vec<&Function> = functions.iter().filter(|one| one.opens_transaction()).collect();
    assert!(writers.len() > 80, "{}", writers.len());
    let is_in = |list: &[(&str, &str, &str)], one: &Function| {
        list.iter().any(|(file, name, _)| *file == one.file && *name == one.name)
    };
    let missing: Vec<String> = writers
        .iter()
        .filter(|one| !one.records() && !is_in(DELEGATED, one) && !is_in(UNAUDITED, one))
        .map(|one| format!("{}::{}", one.file, one.name))
        .collect();
    assert_eq!(missing, [""; 0], "write an audit entry, or add the function to a list here");
    let outdated: Vec<_> = (DELEGATED.iter().chain(UNAUDITED))
        .filter(|(file, name, _)| {
            let listed = |one: &&&Function| one.file == *file && one.name == *name;
            !writers.iter().any(|one| listed(&one))
                || writers.iter().filter(listed).all(|one| one.records())
        })
        .map(|(file, name, _)| format!("{file}::{name}"))
        .collect();
    assert_eq!(outdated, [""; 0], "these are listed here, but need not be");
}

#[test]
fn delegates_write_the_entry() {
    let functions = functions();
    let recording: BTreeSet<&str> =
        functions.iter().filter(|one| one.records()).map(|one| one.name.as_str()).collect();
    for (file, name, delegate) in DELEGATED {
        let mut callers: Vec<&Function> =
            functions.iter().filter(|one| one.file == *file && one.name == *name).collect();
        for step in delegate.split('>') {
            assert!(
                callers.iter().any(|one| one.calls(step)),
                "{file}::{name} does not call {step}"
            );
            callers = functions.iter().filter(|one| one.name == step).collect();
        }
        let last = delegate.rsplit('>').next().unwrap();
        assert!(recording.contains(last), "{last} writes no entry");
    }
}

#[test]
fn functions_are_found_in_a_source() {
    let text = "async fn one() {\n    let mut tx = db\n        .begin()\n        .await;\n}\n\n    pub(crate) fn two<T>() {\n        record(\n            &mut tx,\n            1,\n        );\n        audit::record_all(app, &mut tx, 1);\n    }\n#[cfg(test)]\nmod tests {\n    fn three() {}\n}\n";
    let found = functions_in("a.rs", text);
    let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    assert!(found[0].opens_transaction() && !found[0].records());
    assert!(!found[1].opens_transaction() && found[1].records());
}
