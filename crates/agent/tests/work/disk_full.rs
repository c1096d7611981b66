//! Full disks: before an order, in the middle of it, and under the agent's own state directory.

use std::fs;
use std::io::Write as _;

use lab::apt::{Deb, Pocket, Repo, Server, native_arch};
use vocab::FailureCode;
use wire::agent::{OrderResult, Outcome, Work};

use crate::apt::{execute, format_moves, wait_for_result, worker};
use crate::fake_host::{install, order};
use crate::query_count::{record_calls, recorded_calls};

const MIB: u64 = 1024 * 1024;
const STATE_DIR: &str = "/var/lib/fleetmend";

fn disk_full_message(result: &OrderResult) -> String {
    let message = result.message.as_ref().map(ToString::to_string).unwrap_or_default();
    assert_eq!(result.failure_code, Some(FailureCode::DiskFull), "{result:?}");
    message
}

/// Fills the disk that a file is on.
fn fill(server: &Server, path: &str) {
    let mut file = fs::File::create(server.root.path(path)).unwrap();
    while file.write_all(&[b'x'; 512]).is_ok() {}
}

#[test]
fn order_is_rejected_before_install_if_the_disk_is_full() {
    let kernel = format!("linux-image-6.1.0-99-{}", native_arch());
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("huge", "1")),
        (Pocket::Updates, Deb::new("huge", "2").installed_kilobytes(4_000_000_000)),
        (Pocket::Stable, Deb::new("small", "1")),
        (Pocket::Updates, Deb::new("small", "2")),
        (Pocket::Stable, Deb::new(&kernel, "1")),
        (Pocket::Updates, Deb::new(&kernel, "2")),
    ]);
    let Some(repo) = repo else { return };
    for (package, disk, names) in [
        ("huge", None, "/ has "),
        ("small", Some("/var/cache"), "/var/cache has "),
        (kernel.as_str(), Some("/boot"), "/boot has "),
    ] {
        let Some(mut server) = Server::with_installed(&repo, &["huge", "small", &kernel]) else {
            return;
        };
        if let Some(disk) = disk {
            server.root.small_disk(disk, 8 * MIB);
            fs::create_dir_all(server.root.path("/var/cache/apt/archives/partial")).unwrap();
        }
        record_calls(&server);
        let before = server.packages();
        let result = execute(&server, Work::Install(install(&[package])));
        assert!(disk_full_message(&result).starts_with(names), "{result:?}");
        assert_eq!(server.packages(), before);
        let calls = recorded_calls(&server);
        let started =
            calls.iter().any(|call| call == "apt-get install" || call.contains("download"));
        assert!(!started, "{calls:?}");
    }
}

#[test]
fn disk_full_during_install_is_reported_without_damage() {
    let big = vec![b'x'; 3 * MIB as usize];
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("big", "1")),
        (Pocket::Updates, Deb::new("big", "2").file("/opt/big/data", &big)),
    ]);
    let Some(repo) = repo else { return };
    let Some(mut server) = Server::with_installed(&repo, &["big"]) else { return };
    server.root.small_disk("/opt/big", MIB);
    let before = server.packages();
    let result = execute(&server, Work::Install(install(&["big"])));
    assert!(disk_full_message(&result).contains("No space left on device"), "{result:?}");
    assert_eq!(format_moves(&result), [""; 0]);
    assert_eq!(server.packages(), before);
    assert_eq!(server.root.run("dpkg", &["--audit"]).text, "");
}

#[test]
fn order_that_cannot_be_stored_fails_and_the_next_runs() {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1")),
        (Pocket::Updates, Deb::new("hello", "2")),
    ]);
    let Some(repo) = repo else { return };
    let Some(mut server) = Server::with_installed(&repo, &["hello"]) else { return };
    server.root.small_disk(STATE_DIR, 2 * MIB);
    let worker = worker(server.root.dir());
    fill(&server, &format!("{STATE_DIR}/filler"));
    let orders = [1, 2].map(|number| order(number, Work::Install(install(&["hello"]))));
    worker.0.accept(orders[0].clone());
    let result = wait_for_result(&worker, orders[0].id);
    assert!(disk_full_message(&result).starts_with("cannot write the order to disk"), "{result:?}");
    worker.0.acknowledge(&[orders[0].id]);
    assert_eq!(worker.0.report().results, []);

    fs::remove_file(server.root.path(STATE_DIR).join("filler")).unwrap();
    worker.0.accept(orders[0].clone());
    assert_eq!(
        wait_for_result(&worker, orders[0].id),
        result,
        "the reported result does not change"
    );
    worker.0.accept(orders[1].clone());
    let result = wait_for_result(&worker, orders[1].id);
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(format_moves(&result), ["hello 1 > 2"]);
}

#[test]
fn update_that_fills_the_state_disk_is_still_reported() {
    let fills = format!("yes > {STATE_DIR}/filler || true");
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("greedy", "1")),
        (Pocket::Updates, Deb::new("greedy", "2").counts_runs().script(&fills)),
    ]);
    let Some(repo) = repo else { return };
    let Some(mut server) = Server::with_installed(&repo, &["greedy"]) else { return };
    server.root.small_disk(STATE_DIR, 3 * MIB);
    let result = execute(&server, Work::Install(install(&["greedy"])));
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    assert_eq!(format_moves(&result), ["greedy 1 > 2"]);
    assert_eq!(server.version("greedy").as_deref(), Some("2"));
    assert_eq!(server.runs("greedy"), ["2"]);
}
