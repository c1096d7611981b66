//! Tests with the real pacman in its own roots.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use agent::backend::pacman::Pacman;
use agent::backend::{Backend as _, BackendError, Choice};
use agent::command::{Command, CommandOutput};
use agent::root::Root;
use lab::pacman::{Package, Repository, Server};
use vocab::listing::Pending;
use vocab::{BlockedBy, FailureCode};

const TIMEOUT: Duration = Duration::from_secs(60);

fn backend(server: &Server) -> Pacman {
    Pacman::new(Root::under(server.root().dir()))
}

/// Runs commands as the executor would, until one fails.
fn run_commands(commands: &[Command]) -> CommandOutput {
    let mut last = None;
    for command in commands {
        let output = command.query(TIMEOUT).expect("cannot start the program");
        let failed = output.exit != Some(0);
        last = Some(output);
        if failed {
            break;
        }
    }
    last.expect("there is at least one command")
}

#[track_caller]
fn run_successfully(commands: &[Command]) {
    let output = run_commands(commands);
    assert_eq!(output.exit, Some(0), "{}{}", output.stdout, output.stderr);
}

#[track_caller]
fn refresh_and_list_pending(pacman: &Pacman) -> Vec<Pending> {
    run_successfully(&pacman.refresh());
    let installed = pacman.installed().expect("the installed packages are listed");
    pacman.pending(&installed).expect("the pending updates are listed")
}

fn choose(pending: &[Pending], names: &[&str]) -> Vec<Choice> {
    let chosen = pending.iter().filter(|update| names.contains(&update.name.as_str()));
    let choice = |update: &Pending| Choice {
        name: update.name.clone(),
        arch: update.arch.clone(),
        from: update.installed.clone(),
        to: update.candidate.clone(),
    };
    chosen.map(choice).collect()
}

fn format_pending(pending: &[Pending]) -> Vec<String> {
    let blocked = |update: &Pending| update.blocked_by.map(|by| format!(" ({by})"));
    pending
        .iter()
        .map(|update| {
            let blocked = blocked(update).unwrap_or_default();
            format!("{} {} -> {}{blocked}", update.name, update.installed, update.candidate)
        })
        .collect()
}

/// From the query to the new versions, checking that pacman's own lists are not changed meanwhile.
#[test]
fn only_chosen_packages_are_upgraded_and_queries_change_nothing() {
    let first = [
        Package::new("app", "1.0-1").info_line("depend", "lib"),
        Package::new("lib", "1:1.0-1"),
        Package::new("other", "1.0rc1-1"),
    ];
    let Some(repository) = Repository::with(&first) else { return };
    let server = Server::with_installed(&repository, &["app", "other"]);
    let pacman = backend(&server);
    assert!(Pacman::manages(&Root::under(server.root().dir())));
    let unasked = pacman.pending(&pacman.installed().unwrap()).unwrap_err();
    assert!(
        matches!(unasked, BackendError::Failed { .. }),
        "a failed query is not an empty list: {unasked}"
    );
    assert!(refresh_and_list_pending(&pacman).is_empty(), "a fresh server has no updates");
    server.configure("NoSuchSetting = 1");
    assert!(refresh_and_list_pending(&pacman).is_empty(), "a warning is not a failure");
    server.configure("");

    repository.add(&[
        Package::new("app", "1.1-1").info_line("depend", "lib>=1:1.1").info_line("depend", "extra"),
        Package::new("lib", "1:1.1-1"),
        Package::new("other", "1.0-1"),
        Package::new("extra", "3-1"),
    ]);
    let pending = refresh_and_list_pending(&pacman);
    assert_eq!(
        format_pending(&pending),
        ["app 1.0-1 -> 1.1-1", "lib 1:1.0-1 -> 1:1.1-1", "other 1.0rc1-1 -> 1.0-1"]
    );
    assert!(pending.iter().all(|update| !update.security && update.arch == "any"));
    assert_eq!(server.root().run("pacman", &["-Qu"]).text, "", "pacman's own lists are unchanged");

    let chosen = choose(&pending, &["app"]);
    let transaction = pacman.resolve(&chosen).unwrap();
    let changes: Vec<_> = transaction
        .changes
        .iter()
        .map(|change| (change.name.as_str(), change.from.as_deref(), change.to.as_deref()))
        .collect();
    assert_eq!(
        changes,
        [
            ("app", Some("1.0-1"), Some("1.1-1")),
            ("extra", None, Some("3-1")),
            ("lib", Some("1:1.0-1"), Some("1:1.1-1")),
        ]
    );
    assert_eq!(transaction.disk_bytes, Some(1000), "one additional package of 1000 bytes");
    assert!(transaction.download_bytes.is_some_and(|bytes| bytes > 0));

    run_successfully(&pacman.download(&chosen));
    assert_eq!(
        pacman.resolve(&chosen).unwrap().download_bytes,
        Some(0),
        "everything is downloaded"
    );
    run_successfully(&pacman.install(&chosen));
    assert_eq!(server.installed(), ["app 1.1-1", "extra 3-1", "lib 1:1.1-1", "other 1.0rc1-1"]);
    // Dependencies are still marked as such.
    assert_eq!(server.root().run_successfully("pacman", &["-Qqd"]), "extra\nlib\n");
    let installed = pacman.installed().unwrap();
    assert_eq!((installed[0].source(), installed[0].version.as_str()), ("app-base", "1.1-1"));
    assert_eq!(installed[0].origin, None, "a packager is not a repository");
    assert!(pacman.damage().unwrap().is_empty());
}

#[test]
fn ignored_package_is_held() {
    let Some(repository) = Repository::with(&[
        Package::new("app", "1-1"),
        Package::new("kernel-a", "1-1").info_line("group", "kernels"),
        Package::new("kernel-b", "1-1"),
    ]) else {
        return;
    };
    let server = Server::with_installed(&repository, &["app", "kernel-a", "kernel-b"]);
    server.configure("IgnorePkg = *-b\nIgnoreGroup = kernels");
    repository.add(&[
        Package::new("app", "2-1"),
        Package::new("kernel-a", "2-1").info_line("group", "kernels"),
        Package::new("kernel-b", "2-1"),
    ]);
    let pacman = backend(&server);
    let pending = refresh_and_list_pending(&pacman);
    let held: Vec<_> =
        pending.iter().filter(|update| update.blocked_by == Some(BlockedBy::Held)).collect();
    assert_eq!(
        held.iter().map(|update| &update.name).collect::<Vec<_>>(),
        ["kernel-a", "kernel-b"]
    );
    let installed = pacman.installed().unwrap();
    let held: Vec<bool> = installed.iter().map(|package| package.held).collect();
    assert_eq!(held, [false, true, true]);
}

#[test]
fn breaking_or_removing_another_package_is_rejected() {
    let Some(repository) = Repository::with(&[
        Package::new("app", "1-1").info_line("depend", "lib=1"),
        Package::new("lib", "1-1"),
        Package::new("tool", "1-1"),
    ]) else {
        return;
    };
    let server = Server::with_installed(&repository, &["app", "tool"]);
    repository.add(&[
        Package::new("lib", "2-1"),
        Package::new("tool", "2-1").info_line("conflict", "app"),
    ]);
    let pacman = backend(&server);
    let pending = refresh_and_list_pending(&pacman);
    for (name, why) in [("lib", "breaks dependency 'lib=1' required by app"), ("tool", "conflict")]
    {
        let chosen = choose(&pending, &[name]);
        let error = pacman.resolve(&chosen).unwrap_err();
        let BackendError::Conflict(message) = &error else { panic!("{name}: {error}") };
        assert!(message.as_str().contains(why), "{name}: {message}");
        let output = run_commands(&pacman.install(&chosen));
        let diagnosis =
            pacman.diagnose(output.exit, &format!("{}{}", output.stdout, output.stderr));
        assert_eq!(diagnosis.code, FailureCode::DependencyConflict, "{}", diagnosis.message);
    }
    assert_eq!(server.installed(), ["app 1-1", "lib 1-1", "tool 1-1"], "nothing was changed");
}

#[test]
fn edited_configuration_is_kept_and_pacnew_reported() {
    let with = |version: &str| {
        Package::new("app", version).configuration("etc/app.conf", &format!("from {version}\n"))
    };
    let Some(repository) = Repository::with(&[with("1-1")]) else { return };
    let server = Server::with_installed(&repository, &["app"]);
    server.root().write("/etc/app.conf", "edited\n");
    repository.add(&[with("2-1").after_upgrade("exit 1")]);
    let pacman = backend(&server);
    let pending = refresh_and_list_pending(&pacman);
    assert!(pacman.new_config_files().unwrap().is_empty());
    run_commands(&pacman.install(&choose(&pending, &["app"])));
    assert_eq!(server.installed(), ["app 2-1"], "a failing script does not undo the upgrade");
    assert_eq!(server.root().read("/etc/app.conf"), "edited\n");
    assert_eq!(pacman.new_config_files().unwrap(), [PathBuf::from("/etc/app.conf.pacnew")]);
}

#[test]
fn changed_or_incomplete_mirror_installs_nothing() {
    let Some(repository) = Repository::with(&[Package::new("app", "1-1")]) else { return };
    let server = Server::with_installed(&repository, &["app"]);
    let pacman = backend(&server);
    repository.add(&[Package::new("app", "2-1")]);
    let chosen = choose(&refresh_and_list_pending(&pacman), &["app"]);
    repository.add(&[Package::new("app", "3-1")]);
    let fails = |commands: &[Command]| {
        let output = run_commands(commands);
        assert_ne!(output.exit, Some(0), "{}{}", output.stdout, output.stderr);
        pacman.diagnose(output.exit, &format!("{}{}", output.stdout, output.stderr))
    };
    let moved = fails(&pacman.install(&chosen));
    assert_eq!(moved.code, FailureCode::RepoUnreachable);
    assert_eq!(moved.message.as_str(), "pacman: target not found: app=2-1");
    let chosen = choose(&refresh_and_list_pending(&pacman), &["app"]);
    repository.remove_package_file("app", "3-1");
    assert_eq!(fails(&pacman.download(&chosen)).code, FailureCode::RepoUnreachable);
    assert_eq!(fails(&pacman.install(&chosen)).code, FailureCode::RepoUnreachable);
    assert_eq!(server.installed(), ["app 1-1"]);
    assert!(pacman.lock_holder().unwrap().is_none(), "a failure leaves no lock behind");
}

/// The lock is a file that pacman does not remove when it is killed.
#[test]
fn lock_is_reported_with_its_holder_or_as_stale() {
    let Some(repository) = Repository::with(&[Package::new("app", "1-1")]) else { return };
    let server = Server::with_installed(&repository, &["app"]);
    let pacman = backend(&server);
    // A script that waits for data in a pipe keeps pacman running in the middle of an upgrade.
    server.root().run_successfully("mkfifo", &["/run/gate"]);
    repository.add(&[Package::new("app", "2-1").after_upgrade("read line < /run/gate")]);
    let chosen = choose(&refresh_and_list_pending(&pacman), &["app"]);
    let mut install = pacman.install(&chosen)[0].to_std_command();
    let mut child = install.stdout(Stdio::null()).spawn().unwrap();
    // Opening the pipe blocks until the script has opened it.
    let gate =
        std::fs::OpenOptions::new().write(true).open(server.root().path("/run/gate")).unwrap();
    let holder = pacman.lock_holder().unwrap().unwrap();
    assert_eq!(
        holder.pid,
        i32::try_from(child.id()).ok(),
        "chroot executes pacman in the same process"
    );
    assert_eq!(holder.name.as_str(), format!("pacman (pid {})", child.id()));
    assert_eq!(refresh_and_list_pending(&pacman).len(), 0, "queries do not wait for the lock");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(gate);

    let holder = pacman.lock_holder().unwrap().unwrap();
    assert_eq!(holder.pid, None);
    assert!(
        holder.name.as_str().starts_with("a stale lock file (/var/lib/pacman/db.lck, left by"),
        "{}",
        holder.name
    );
    let output = run_commands(&pacman.install(&chosen));
    let diagnosis = pacman.diagnose(output.exit, &output.stderr);
    assert_eq!(diagnosis.code, FailureCode::PkgLockTimeout);
    assert!(Path::new(&server.root().path("/var/lib/pacman/db.lck")).exists());
}
