//! Queries of the back end, which change nothing.

use agent::backend::Backend as _;
use agent::backend::BackendError;
use lab::apt::{Deb, Pocket, Repo, Server};
use vocab::FailureCode;

use crate::{apt_backend, choices, find_package, format_pending, full_output, run_commands};

use Pocket::{Security, Stable, Updates};

#[test]
fn installed_packages_have_source_origin_and_hold() {
    let repo = Repo::with(&[
        (Stable, Deb::new("tool", "1:1.0-1").source("toolkit (3.0-1)")),
        (Stable, Deb::new("held", "1.0").arch("all")),
        (Stable, Deb::new("removed", "1.0").conffile("/etc/removed.conf", "a\n")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["tool", "held", "removed"]) else { return };
    server.hold("held");
    server.root.run_successfully("dpkg", &["--remove", "removed"]);
    let installed = apt_backend(&server).installed().unwrap();
    let tool = find_package(&installed, "tool");
    assert_eq!((tool.version.as_str(), tool.arch.as_str()), ("1:1.0-1", lab::apt::native_arch()));
    assert_eq!((tool.source(), tool.source_version()), ("toolkit", "3.0-1"));
    assert_eq!(tool.origin.as_deref(), Some("Debian"));
    assert!(!tool.held && find_package(&installed, "held").held);
    assert_eq!(find_package(&installed, "held").arch, "all");
    assert!(!installed.iter().any(|package| package.name == "removed"));
    // The base system's source is no longer configured.
    assert_eq!(find_package(&installed, "dpkg").origin, None);
}

#[test]
fn pending_updates_show_security_and_block_reason() {
    let repo = Repo::with(&[
        (Stable, Deb::new("plain", "1.0-1")),
        (Updates, Deb::new("plain", "1.0-2")),
        (Stable, Deb::new("security-tool", "1").arch("all")),
        (Updates, Deb::new("security-tool", "2").arch("all")),
        (Stable, Deb::new("overtaken", "1.0")),
        (Security, Deb::new("overtaken", "1.1")),
        (Updates, Deb::new("overtaken", "1.2")),
        (Stable, Deb::new("held", "1.0")),
        (Security, Deb::new("held", "1.1")),
        (Stable, Deb::new("pinned", "1.0")),
        (Security, Deb::new("pinned", "2.0")),
        (Stable, Deb::new("eater", "1.0")),
        (Stable, Deb::new("victim", "1.0")),
        (Updates, Deb::new("eater", "2.0").conflicts("victim")),
        (Stable, Deb::new("linux-image-lab", "6.1.1").meta("linux-image-6.1.1-lab")),
        (Stable, Deb::new("linux-image-6.1.1-lab", "6.1.1-1")),
        (Security, Deb::new("linux-image-lab", "6.1.2").meta("linux-image-6.1.2-lab")),
        (Security, Deb::new("linux-image-6.1.2-lab", "6.1.2-1")),
        (Stable, Deb::new("current", "1")),
    ]);
    let Some(repo) = repo else { return };
    let names = ["plain", "security-tool", "overtaken", "held", "pinned", "eater", "victim"];
    let names = [&names[..], &["linux-image-lab", "current"]].concat();
    let Some(server) = Server::with_installed(&repo, &names) else { return };
    server.hold("held");
    let pin = "Package: pinned\nPin: version 1.0\nPin-Priority: 1001\n";
    server.root.write("/etc/apt/preferences.d/pinned", pin);
    let apt = apt_backend(&server);
    let pending = apt.pending(&apt.installed().unwrap()).unwrap();
    assert_eq!(
        format_pending(&pending),
        [
            "eater 1.0 > 2.0 kept_back",
            "held 1.0 > 1.1 security held",
            "linux-image-lab 6.1.1 > 6.1.2 security",
            "overtaken 1.0 > 1.2 security",
            "pinned 1.0 > 2.0 security pinned",
            "plain 1.0-1 > 1.0-2",
            "security-tool 1 > 2",
        ]
    );
}

#[test]
fn second_architecture_and_changed_architectures_are_distinguished() {
    let both = |pocket, version: &str| {
        let deb = Deb::new("lib", version).field("Multi-Arch", "same");
        [(pocket, deb.clone()), (pocket, deb.arch("i386"))]
    };
    let moves = [
        (Stable, Deb::new("moves", "1").arch("all")),
        (Updates, Deb::new("moves", "2")),
        (Stable, Deb::new("empties", "1")),
        (Updates, Deb::new("empties", "2").arch("all")),
    ];
    let all = [&both(Stable, "1")[..], &both(Security, "2"), &moves].concat();
    let Some(repo) = Repo::with(&all) else { return };
    let Some(server) = Server::new(&repo) else { return };
    server.root.run_successfully("dpkg", &["--add-architecture", "i386"]);
    server.sources(&[Stable]);
    server.update();
    server.install(&["lib", "lib:i386", "moves", "empties"]);
    server.sources(&Pocket::ALL);
    server.update();
    let apt = apt_backend(&server);
    let pending = apt.pending(&apt.installed().unwrap()).unwrap();
    let native = lab::apt::native_arch();
    let archs: Vec<_> = pending.iter().map(|update| (&*update.name, &*update.arch)).collect();
    assert_eq!(archs, [("empties", native), ("lib", native), ("lib", "i386"), ("moves", "all")]);
    assert_eq!(
        format_pending(&pending),
        ["empties 1 > 2", "lib 1 > 2 security", "lib 1 > 2 security", "moves 1 > 2"]
    );
    // Selected by name alone there would be one `lib`; the second architecture is the last of the
    // two.
    let chosen = choices(&server, &["lib", "moves", "empties"]);
    assert_eq!(chosen[0].arch, "i386");
    let output = run_commands(&apt.install(&chosen));
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    let pending = apt.pending(&apt.installed().unwrap()).unwrap();
    assert_eq!(
        format_pending(&pending),
        [""; 0],
        "both architectures of a library are upgraded together"
    );
}

#[test]
fn name_that_is_also_a_pattern_matches_only_itself() {
    let names = ["ba.h", "ba-h", "ba.h+"];
    let debs = names.iter().flat_map(|name| {
        [(Stable, Deb::new(name, "1").arch("all")), (Updates, Deb::new(name, "2").arch("all"))]
    });
    let Some(repo) = Repo::with(&debs.collect::<Vec<_>>()) else { return };
    let Some(server) = Server::with_installed(&repo, &names) else { return };
    let apt = apt_backend(&server);
    for (place, name) in names.iter().enumerate() {
        let output = run_commands(&apt.install(&choices(&server, &[name])));
        assert_eq!(output.exit, Some(0), "{}", full_output(&output));
        for (other, versions) in names.iter().enumerate() {
            let expected = if other <= place { "2" } else { "1" };
            assert_eq!(server.version(versions).as_deref(), Some(expected));
        }
    }
}

#[test]
fn update_not_yet_phased_in_is_shown_as_phased() {
    let repo = Repo::with(&[
        (Stable, Deb::new("slow", "1")),
        (Updates, Deb::new("slow", "2").field("Phased-Update-Percentage", "0")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["slow"]) else { return };
    // In a chroot, apt installs every phased update unless configured otherwise.
    let never = "APT::Get::Never-Include-Phased-Updates \"true\";\n";
    server.root.write("/etc/apt/apt.conf.d/phases", never);
    let apt = apt_backend(&server);
    let pending = apt.pending(&apt.installed().unwrap()).unwrap();
    assert_eq!(format_pending(&pending), ["slow 1 > 2 phased"]);
}

#[test]
fn resolving_returns_all_changes_and_sizes() {
    let repo = Repo::with(&[
        (Stable, Deb::new("grows", "1").installed_kilobytes(100)),
        (Updates, Deb::new("grows", "2").depends("newdep").installed_kilobytes(2100)),
        (Updates, Deb::new("newdep", "7").installed_kilobytes(1000)),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["grows"]) else { return };
    let apt = apt_backend(&server);
    let transaction = apt.resolve(&choices(&server, &["grows"])).unwrap();
    let mut changes: Vec<_> = transaction
        .changes
        .iter()
        .map(|change| (change.name.as_str(), change.from.as_deref(), change.to.as_deref()))
        .collect();
    changes.sort_unstable();
    assert_eq!(changes, [("grows", Some("1"), Some("2")), ("newdep", None, Some("7"))]);
    let files = ["grows_2", "newdep_7"].map(|file| {
        let name = format!("{file}_{}.deb", lab::apt::native_arch());
        std::fs::metadata(repo.dir().join("pool/stable-updates").join(name)).unwrap().len()
    });
    assert_eq!(transaction.download_bytes, Some(files.iter().sum()));
    let disk = transaction.disk_bytes.unwrap();
    assert!((3_060_000..3_090_000).contains(&disk), "{disk}");
    assert_eq!(server.version("grows").as_deref(), Some("1"));
}

#[test]
fn unresolvable_order_is_a_conflict_in_apts_words() {
    let repo = Repo::with(&[
        (Stable, Deb::new("eater", "1.0")),
        (Stable, Deb::new("victim", "1.0")),
        (Updates, Deb::new("eater", "2.0").conflicts("victim")),
        (Stable, Deb::new("broken", "1.0")),
        (Updates, Deb::new("broken", "2.0").depends("nosuch (>= 4)")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["eater", "victim", "broken"]) else {
        return;
    };
    let apt = apt_backend(&server);
    let conflict = |name: &str| match apt.resolve(&choices(&server, &[name])) {
        Err(BackendError::Conflict(words)) => words.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(conflict("eater"), "the update would remove victim");
    assert_eq!(
        conflict("broken"),
        "unmet dependencies: broken : Depends: nosuch (>= 4) but it is not installable"
    );
    let mut absent = choices(&server, &["eater"]);
    "newcomer".clone_into(&mut absent[0].name);
    let error = apt.resolve(&absent).unwrap_err();
    assert_eq!(error.to_string(), "newcomer is not installed at version 1.0");
}

#[test]
fn refresh_finds_updates_and_reports_stale_archives() {
    let Some(repo) = Repo::with(&[(Stable, Deb::new("plain", "1"))]) else { return };
    let Some(server) = Server::with_installed(&repo, &["plain"]) else { return };
    let apt = apt_backend(&server);
    repo.add(&[(Security, Deb::new("plain", "2"))]);
    assert_eq!(apt.pending(&apt.installed().unwrap()).unwrap(), []);
    let output = run_commands(&apt.refresh());
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    let pending = apt.pending(&apt.installed().unwrap()).unwrap();
    assert_eq!(format_pending(&pending), ["plain 1 > 2 security"]);

    repo.publish_until(Security, Some("Thu, 01 Jan 2015 00:00:00 UTC"));
    let output = run_commands(&apt.refresh());
    let diagnosis = apt.diagnose(output.exit, &full_output(&output));
    assert_eq!((output.exit, diagnosis.code), (Some(100), FailureCode::RepoUnreachable));
    assert!(diagnosis.message.as_str().contains("is expired"), "{}", diagnosis.message);

    repo.publish(Security);
    std::fs::remove_dir_all(repo.dir().join("dists/stable-updates")).unwrap();
    let output = run_commands(&apt.refresh());
    let diagnosis = apt.diagnose(output.exit, &full_output(&output));
    assert_eq!((output.exit, diagnosis.code), (Some(100), FailureCode::RepoUnreachable));
}

#[test]
fn packages_that_require_a_reboot_are_listed_as_reasons() {
    let repo = Repo::with(&[(Stable, Deb::new("libc-lab", "1").requests_reboot())]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::new(&repo) else { return };
    let apt = apt_backend(&server);
    assert_eq!(apt.reboot_reasons("6.1.0-lab").unwrap(), []);
    server.sources(&[Stable]);
    server.update();
    server.install(&["libc-lab"]);
    let reasons = apt.reboot_reasons("6.1.0-lab").unwrap();
    assert_eq!(reasons, ["libc-lab requires a reboot".into()]);
    // An unreadable file is an error, and never a reason.
    std::fs::remove_file(server.root.path("/run/reboot-required.pkgs")).unwrap();
    std::fs::create_dir(server.root.path("/run/reboot-required.pkgs")).unwrap();
    assert!(matches!(apt.reboot_reasons("6.1.0-lab"), Err(BackendError::Unreadable { .. })));
}

/// `eater` cannot be installed, so it is no reason to block `victim`; `apt-get upgrade` keeps both
/// back.
#[test]
fn update_is_not_kept_back_by_a_blocked_one() {
    let repo = Repo::with(&[
        (Stable, Deb::new("eater", "1.0")),
        (Updates, Deb::new("eater", "2.0").conflicts("victim")),
        (Stable, Deb::new("plain", "1.0")),
        (Updates, Deb::new("plain", "1.1")),
        (Stable, Deb::new("victim", "1.0")),
        (Security, Deb::new("victim", "1.1")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["eater", "plain", "victim"]) else { return };
    let apt = apt_backend(&server);
    let pending = apt.pending(&apt.installed().unwrap()).unwrap();
    let blocked =
        |name: &str| pending.iter().find(|update| update.name == name).unwrap().blocked_by;
    assert_eq!(blocked("eater"), Some(vocab::BlockedBy::KeptBack));
    assert_eq!((blocked("plain"), blocked("victim")), (None, None));
}
