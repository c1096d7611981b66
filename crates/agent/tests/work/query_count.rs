//! The number of dpkg and apt calls: one query costs as much as a tenth of a small order.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use lab::apt::{Deb, Pocket, Repo, Server};
use wire::agent::{Outcome, Work};

use crate::apt::{execute, format_moves, two_scans};
use crate::fake_host::install;

/// Records all calls of these programs on the host, from now on.
pub(crate) fn record_calls(server: &Server) {
    for program in ["apt-get", "apt-cache", "dpkg", "dpkg-query", "apt-mark", "apt-config"] {
        let path = format!("/usr/local/sbin/{program}");
        let script =
            format!("#!/bin/sh\necho {program} \"$@\" >> /asked\nexec /usr/bin/{program} \"$@\"\n");
        server.root.write(&path, &script);
        fs::set_permissions(server.root.path(&path), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// The calls since the last check, shortened to program and verb.
pub(crate) fn recorded_calls(server: &Server) -> Vec<String> {
    let path = server.root.path("/asked");
    let output = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    let verbs = ["--print-uris", "-s", "--download-only", "update", "install", "policy"];
    let short = |line: &str| {
        let mut words = line.split(' ');
        let program = words.next().unwrap();
        let words: Vec<&str> = words.collect();
        let verb = verbs.iter().find(|verb| words.contains(verb)).unwrap_or(&"?");
        format!("{program} {verb}")
    };
    output.lines().map(short).collect()
}

fn repo() -> Option<Repo> {
    Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1")),
        (Pocket::Stable, Deb::new("other", "1")),
        (Pocket::Security, Deb::new("hello", "2")),
        (Pocket::Updates, Deb::new("other", "2")),
    ])
}

#[test]
fn order_with_names_runs_one_query_besides_update_and_install() {
    let Some(repo) = repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other"]) else { return };
    record_calls(&server);
    let result = execute(&server, Work::Install(install(&["hello"])));
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(format_moves(&result), ["hello 1 > 2"]);
    let calls = recorded_calls(&server);
    // The scan that follows an order may have started.
    assert_eq!(calls[..3], ["apt-get update", "apt-get --print-uris", "apt-get install"]);
    let looks = ["apt-cache policy", "apt-get -s"];
    assert!(calls[3..].iter().all(|call| looks.contains(&call.as_str())), "{calls:?}");
}

#[test]
fn repeated_scan_runs_no_query_if_nothing_changed() {
    let Some(repo) = repo() else { return };
    let Some(server) = Server::with_installed(&repo, &["hello", "other"]) else { return };
    record_calls(&server);
    let [first, second] = two_scans(&server, 1, || recorded_calls(&server));
    let looks = ["apt-get update", "apt-cache policy", "apt-cache policy", "apt-get -s"];
    assert_eq!(first.1, looks);
    assert_eq!(second.1, ["apt-get update"]);
    assert_eq!(first.0, second.0);
    // Nor does a restarted agent, until something changes.
    let [third, fourth] = two_scans(&server, 3, || {
        let calls = recorded_calls(&server);
        server.hold("hello");
        calls
    });
    assert_eq!(third.1, ["apt-get update"]);
    assert_eq!(first.0, third.0);
    assert_eq!(fourth.1, ["apt-get update", "apt-get -s"], "a hold changes dpkg's status file");
    assert_ne!(third.0.pending, fourth.0.pending);
}
