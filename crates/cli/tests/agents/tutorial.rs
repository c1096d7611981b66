//! Runs the commands of `docs/tutorial.md` in a shell.

use std::path::Path;
use std::process::{Command, Stdio};

use lab::apt::{Deb, Pocket, Repo, Server};

use crate::service::Dir;
use crate::support::{agent_program, text};

/// Stops leftover processes if the script fails halfway, and makes every failure visible.
const PREAMBLE: &str = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";

/// Every command of the page, in order.
fn commands(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    blocks.filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn tutorial_commands_work() {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Stable, Deb::new("other", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs()),
        (Pocket::Updates, Deb::new("other", "1.1").counts_runs()),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other"]) else { return };
    server.root.write("/etc/hostname", "web-1\n");
    // The tutorial uses a fixed port, and this machine's own repositories must not be used.
    lab::network::isolate();
    let dir = Dir::new();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorial.md");
    let commands = commands(&std::fs::read_to_string(page).unwrap());
    assert!(commands.lines().count() > 20, "{commands}");
    // The page itself sets `WEB`; only the place of the second server differs.
    assert!(commands.starts_with("WEB=/srv/web-1\n"), "{commands}");
    let commands = commands.replace("/srv/web-1", server.root.dir().to_str().unwrap());
    let programs = agent_program().parent().unwrap().to_owned();
    let output = Command::new("bash")
        .args(["-c", &format!("{PREAMBLE}{commands}")])
        .current_dir(&dir.0)
        .env_clear()
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display()))
        .env("HOME", &dir.0)
        // Tests fetch nothing from publishers.
        .env("FLEETMEND_FEEDS", "manual")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = std::fs::read_to_string(dir.0.join("agent.log")).unwrap_or_default();
    let words = format!("{}\n{}\n{log}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{words}");
    // Each package was upgraded once: one by the order, the other by the schedule.
    for name in ["hello", "other"] {
        assert_eq!(server.version(name).as_deref(), Some("1.1"), "{words}");
        assert_eq!(server.runs(name), ["1.1"], "{words}");
    }
    // The page says that the security update is no longer pending after the first order.
    let pending: Vec<&str> = words.split("Pending updates\n").skip(1).collect();
    let pending = pending.iter().filter_map(|rest| rest.split("\nCVEs").next());
    let has_hello: Vec<bool> = pending.map(|rows| rows.contains("hello\t")).collect();
    assert_eq!(has_hello, [true, false], "{words}");
    for part in ["web-1", "hello\t", "nightly", "manual", "succeeded"] {
        assert!(words.contains(part), "{part}: {words}");
    }
}
