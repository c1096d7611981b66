//! Effects of the commands that the back end describes.

use std::process::Stdio;

use agent::backend::Backend as _;
use lab::apt::{Deb, Pocket, Repo, Server};
use vocab::{FailureCode, Line};

use crate::{apt_backend, choices, full_output, run_commands};

use Pocket::{Stable, Updates};

fn lines(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(Line::as_str).collect()
}

#[test]
fn only_chosen_updates_are_installed_and_auto_marks_kept() {
    let repo = Repo::with(&[
        (Stable, Deb::new("chosen", "1")),
        (Updates, Deb::new("chosen", "2").counts_runs()),
        (Stable, Deb::new("library", "1").arch("all")),
        (Updates, Deb::new("library", "2").arch("all").depends("newdep")),
        (Updates, Deb::new("newdep", "1").field("Recommends", "extra")),
        (Updates, Deb::new("extra", "1")),
        (Stable, Deb::new("other", "1")),
        (Updates, Deb::new("other", "2")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["chosen", "library", "other"]) else {
        return;
    };
    server.root.run_successfully("apt-mark", &["auto", "library"]);
    let apt = apt_backend(&server);
    let chosen = choices(&server, &["chosen", "library"]);

    let output = run_commands(&apt.download(&chosen));
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    let fetched = server.root.path("/var/cache/apt/archives/library_2_all.deb");
    assert!(fetched.is_file() && server.version("chosen").as_deref() == Some("1"));

    let output = run_commands(&apt.install(&chosen));
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    let version = |name: &str| server.version(name);
    assert_eq!(version("chosen").as_deref(), Some("2"));
    assert_eq!(version("library").as_deref(), Some("2"));
    assert_eq!(version("newdep").as_deref(), Some("1"));
    assert_eq!((version("other").as_deref(), version("extra")), (Some("1"), None));
    assert_eq!(server.runs("chosen"), ["2"]);
    let mut auto: Vec<String> = server
        .root
        .run_successfully("apt-mark", &["showauto"])
        .lines()
        .map(str::to_owned)
        .collect();
    auto.retain(|name| ["chosen", "library", "newdep", "other"].contains(&name.as_str()));
    assert_eq!(auto, ["library", "newdep"]);
}

#[test]
fn auto_marks_are_kept_if_a_script_fails() {
    let repo = Repo::with(&[
        (Stable, Deb::new("library", "1")),
        (Updates, Deb::new("library", "2").fails_always()),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["library"]) else { return };
    server.root.run_successfully("apt-mark", &["auto", "library"]);
    let output = run_commands(&apt_backend(&server).install(&choices(&server, &["library"])));
    assert_eq!(output.exit, Some(100), "{}", full_output(&output));
    assert_eq!(server.version("library").as_deref(), Some("2 (iF)"));
    assert!(server.root.run_successfully("apt-mark", &["showauto"]).contains("library"));
}

#[test]
fn installation_never_prompts_and_keeps_edited_configuration() {
    let repo = Repo::with(&[
        (Stable, Deb::new("service", "1").conffile("/etc/service/main.conf", "workers=1\n")),
        (
            Updates,
            Deb::new("service", "2").conffile("/etc/service/main.conf", "workers=2\n").prompts(),
        ),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["service"]) else { return };
    server.root.write("/etc/service/main.conf", "workers=64\n");
    let apt = apt_backend(&server);
    assert_eq!(apt.new_config_files().unwrap(), Vec::<std::path::PathBuf>::new());
    let output = run_commands(&apt.install(&choices(&server, &["service"])));
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    assert_eq!(server.version("service").as_deref(), Some("2"));
    assert_eq!(server.root.read("/etc/service/main.conf"), "workers=64\n");
    assert_eq!(server.root.read("/var/lib/service.answer"), "none\n");
    let config_file = std::path::PathBuf::from("/etc/service/main.conf.dpkg-dist");
    assert_eq!(apt.new_config_files().unwrap(), [config_file]);
}

#[test]
fn failed_script_is_named_and_its_damage_repaired() {
    let conf = "/etc/moody.conf";
    let repo = Repo::with(&[
        (Stable, Deb::new("moody", "1").conffile(conf, "a\n")),
        (Updates, Deb::new("moody", "2").conffile(conf, "b\n").fails_while_exists("/etc/wall")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["moody"]) else { return };
    server.root.write(conf, "edited\n");
    server.root.write("/etc/wall", "");
    let apt = apt_backend(&server);
    assert_eq!(lines(&apt.damage().unwrap()), [""; 0]);
    let output = run_commands(&apt.install(&choices(&server, &["moody"])));
    let diagnosis = apt.diagnose(output.exit, &full_output(&output));
    assert_eq!(diagnosis.code, FailureCode::InstallFailed);
    assert_eq!(
        diagnosis.message.as_str(),
        "moody: installed moody package post-installation script subprocess returned error exit status 3"
    );
    assert_eq!(lines(&apt.damage().unwrap()), ["moody: half configured"]);
    assert!(apt.installed().unwrap().iter().any(|p| p.name == "moody" && p.version == "2"));

    server.root.run_successfully("rm", &["/etc/wall"]);
    let output = run_commands(&apt.repair());
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    assert_eq!(lines(&apt.damage().unwrap()), [""; 0]);
    assert_eq!(server.root.read(conf), "edited\n");
}

#[test]
fn repair_keeps_edited_configuration_without_prompting() {
    let conf = "/etc/service.conf";
    let repo = Repo::with(&[
        (Stable, Deb::new("service", "1").conffile(conf, "a\n")),
        (Updates, Deb::new("service", "2").conffile(conf, "b\n")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["service"]) else { return };
    server.root.write(conf, "edited\n");
    let arch = lab::apt::native_arch();
    let file = format!("/repo/pool/stable-updates/service_2_{arch}.deb");
    server.root.run_successfully("dpkg", &["--unpack", &file]);
    let apt = apt_backend(&server);
    assert_eq!(lines(&apt.damage().unwrap()), ["service: unpacked, not configured"]);
    let output = run_commands(&apt.repair());
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    assert_eq!(server.version("service").as_deref(), Some("2"));
    assert_eq!(server.root.read(conf), "edited\n");
}

#[test]
fn repair_removes_nothing() {
    let repo = Repo::with(&[(Stable, Deb::new("orphan", "1").depends("nosuch"))]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::new(&repo) else { return };
    let file = format!("/repo/pool/stable/orphan_1_{}.deb", lab::apt::native_arch());
    server.root.run_successfully("dpkg", &["--unpack", &file]);
    let apt = apt_backend(&server);
    let [configure, fix] = &apt.repair()[..] else { panic!("expected two commands") };
    assert_eq!(run_commands(std::slice::from_ref(configure)).exit, Some(1));
    assert_eq!(run_commands(std::slice::from_ref(fix)).exit, Some(100));
    assert_eq!(server.version("orphan").as_deref(), Some("1 (iU)"));
    assert_eq!(lines(&apt.damage().unwrap()), ["orphan: unpacked, not configured"]);
}

#[test]
fn background_child_of_a_script_does_not_delay_the_command() {
    let repo = Repo::with(&[
        (Stable, Deb::new("daemon", "1")),
        (Updates, Deb::new("daemon", "2").script("sleep 600 & echo $! > /run/daemon.pid")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["daemon"]) else { return };
    let output = run_commands(&apt_backend(&server).install(&choices(&server, &["daemon"])));
    assert_eq!(output.exit, Some(0), "{}", full_output(&output));
    assert_eq!(server.version("daemon").as_deref(), Some("2"));
    let child = server.root.read("/run/daemon.pid");
    server.root.run_successfully("sh", &["-c", &format!("kill {}", child.trim())]);
}

#[test]
fn missing_package_file_is_an_unreachable_repository() {
    let repo = Repo::with(&[(Stable, Deb::new("lost", "1")), (Updates, Deb::new("lost", "1:2"))]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["lost"]) else { return };
    repo.remove_package_file(Updates, "lost", "2");
    let apt = apt_backend(&server);
    let output = run_commands(&apt.download(&choices(&server, &["lost"])));
    let diagnosis = apt.diagnose(output.exit, &full_output(&output));
    assert_eq!((output.exit, diagnosis.code), (Some(100), FailureCode::RepoUnreachable));
    assert_eq!(server.version("lost").as_deref(), Some("1"));
}

#[test]
fn full_disk_for_the_download_installs_nothing() {
    let repo = Repo::with(&[(Stable, Deb::new("big", "1")), (Updates, Deb::new("big", "2"))]);
    let Some(repo) = repo else { return };
    let Some(mut server) = Server::with_installed(&repo, &["big"]) else { return };
    let chosen = choices(&server, &["big"]);
    server.root.small_disk("/var/cache/apt/archives", 8 * 1024);
    let apt = apt_backend(&server);
    let output = run_commands(&apt.install(&chosen));
    let diagnosis = apt.diagnose(output.exit, &full_output(&output));
    assert_eq!(diagnosis.code, FailureCode::DiskFull, "{}", full_output(&output));
    assert_eq!(server.version("big").as_deref(), Some("1"));
}

#[test]
fn held_packages_and_removals_are_not_installed() {
    let repo = Repo::with(&[
        (Stable, Deb::new("held", "1")),
        (Updates, Deb::new("held", "2")),
        (Stable, Deb::new("eater", "1")),
        (Stable, Deb::new("victim", "1")),
        (Updates, Deb::new("eater", "2").breaks("victim")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["held", "eater", "victim"]) else { return };
    server.hold("held");
    let apt = apt_backend(&server);
    let before = server.packages();
    for (name, words_of_it) in [
        ("held", "the update would change held, which is held"),
        ("eater", "the update would remove victim"),
    ] {
        let output = run_commands(&apt.install(&choices(&server, &[name])));
        let diagnosis = apt.diagnose(output.exit, &full_output(&output));
        assert_eq!(diagnosis.code, FailureCode::DependencyConflict);
        assert_eq!(diagnosis.message.as_str(), words_of_it);
    }
    assert_eq!(server.packages(), before);
}

#[test]
fn lock_holder_is_named() {
    let repo = Repo::with(&[
        (Stable, Deb::new("busy", "1")),
        (Updates, Deb::new("busy", "2").waits_for_file("/run/busy.started", "/run/busy.go")),
    ]);
    let Some(repo) = repo else { return };
    let Some(server) = Server::with_installed(&repo, &["busy"]) else { return };
    let apt = apt_backend(&server);
    assert_eq!(apt.lock_holder().unwrap(), None);
    let mut apt_get = server.command("apt-get");
    apt_get.args(["-qq", "--yes", "-o", "Dpkg::Use-Pty=0", "upgrade"]);
    let mut apt_get = apt_get.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    server.wait_for("/run/busy.started");
    let holder = apt.lock_holder().unwrap().expect("the lock is held");
    let pid = i32::try_from(apt_get.id()).unwrap();
    assert_eq!((holder.pid, holder.name.as_str()), (Some(pid), &*format!("apt-get (pid {pid})")));

    // A second installation waits for the lock, and then reports who holds it.
    let output =
        server.root.run("apt-get", &["-y", "-o", "DPkg::Lock::Timeout=1", "-f", "install"]);
    let diagnosis = apt.diagnose(output.exit, &output.text);
    assert_eq!(diagnosis.code, FailureCode::PkgLockTimeout);
    let named = format!("process {pid} (apt-get)");
    assert!(diagnosis.message.as_str().contains(&named), "{}", output.text);

    server.root.write("/run/busy.go", "");
    assert!(apt_get.wait().unwrap().success());
    assert_eq!(apt.lock_holder().unwrap(), None);
    assert_eq!(server.version("busy").as_deref(), Some("2"));
}
