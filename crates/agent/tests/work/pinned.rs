//! Orders for exact versions, with the real package managers: a newer version appears after the
//! first host was updated, and the next host still gets the version of the first one.

use std::path::Path;
use std::sync::Arc;

use agent::backend::Backend;
use agent::backend::apt::Apt;
use agent::backend::dnf::Dnf;
use agent::backend::pacman::Pacman;
use agent::backend::zypper::Zypper;
use agent::root::Root;
use lab::apt::{Deb, Pocket};
use lab::rpm::{Manager, Package};
use lab::{apt, pacman, rpm};
use vocab::FailureCode;
use wire::agent::{InstallVersions, OrderResult, Outcome, PackageVersion, Work};

use crate::apt::{format_moves, wait_for_result, worker_with};
use crate::fake_host::{install, order};

/// A host with its package manager.
struct PinnedHost<'a> {
    root: &'a Path,
    backend: fn(Root) -> Arc<dyn Backend>,
}

impl PinnedHost<'_> {
    fn execute(&self, number: u128, work: Work) -> OrderResult {
        let worker = worker_with(self.root, (self.backend)(Root::under(self.root)));
        let order = order(number, work);
        worker.0.accept(order.clone());
        wait_for_result(&worker, order.id)
    }

    /// Installs all updates, and returns the installed versions as an order for other hosts.
    fn install_first(&self) -> InstallVersions {
        let result = self.execute(1, Work::Install(install(&[])));
        assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
        assert!(result.newer_available.is_empty());
        let version = |change: &wire::agent::PackageMove| PackageVersion {
            name: change.name.as_str().parse().unwrap(),
            arch: change.arch.clone(),
            version: change.to.clone().unwrap(),
        };
        let versions = result.packages.iter().map(version).collect();
        InstallVersions { install: install(&[]), versions }
    }

    /// Executes an order for exact versions, of which a newer one of `app` is available.
    fn install_pinned(&self, pins: &InstallVersions, pinned: &str, available: &str) {
        let work = || Work::InstallVersions(pins.clone());
        let result = self.execute(2, work());
        assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
        assert_eq!(format_moves(&result), [format!("app 1-1 > {pinned}")], "{result:?}");
        let newer = |result: &OrderResult| -> Vec<String> {
            let newer = result.newer_available.iter();
            newer.map(|n| format!("{} {} < {}", n.name, n.pinned, n.available)).collect()
        };
        assert_eq!(newer(&result), [format!("app {pinned} < {available}")]);
        let note = format!("app: {pinned} was ordered, and {available} is available");
        assert!(result.notes.iter().any(|line| line.as_str() == note), "{:?}", result.notes);
        let again = self.execute(3, work());
        assert_eq!((again.outcome, again.failure_code), (Outcome::NoChange, None), "{again:?}");
        assert_eq!(newer(&again), [format!("app {pinned} < {available}")]);
    }

    /// Executes an order for versions that the repository no longer has.
    fn expect_version_gone(&self, pins: &InstallVersions, pinned: &str, available: &str) {
        let result = self.execute(4, Work::InstallVersions(pins.clone()));
        assert_eq!(result.outcome, Outcome::Skipped, "{result:?}");
        assert_eq!(result.failure_code, Some(FailureCode::VersionGone));
        let start = format!("app was skipped: version {pinned} is not available ({available} is)");
        let message = result.message.unwrap();
        assert!(message.as_str().starts_with(&start), "{message}");
        assert!(result.packages.is_empty());
    }
}

#[test]
fn apt_installs_the_ordered_version_although_a_newer_one_is_available() {
    let Some(repo) = apt::Repo::with(&[
        (Pocket::Stable, Deb::new("app", "1-1")),
        (Pocket::Stable, Deb::new("other", "1-1")),
        (Pocket::Updates, Deb::new("app", "1-2")),
    ]) else {
        return;
    };
    let server = || apt::Server::with_installed(&repo, &["app=1-1", "other=1-1"]);
    let (Some(first), Some(next), Some(last)) = (server(), server(), server()) else { return };
    let backend = |root| -> Arc<dyn Backend> { Arc::new(Apt::new(root)) };
    let host = |server| PinnedHost { root: apt_dir(server), backend };
    let pins = host(&first).install_first();
    repo.add(&[
        (Pocket::Updates, Deb::new("app", "1-3")),
        (Pocket::Updates, Deb::new("other", "1-2")),
    ]);
    host(&next).install_pinned(&pins, "1-2", "1-3");
    assert_eq!(next.version("other").unwrap(), "1-1", "the order does not name it");
    repo.withdraw(Pocket::Updates, "app", "1-2");
    host(&last).expect_version_gone(&pins, "1-2", "1-3");
}

fn apt_dir(server: &apt::Server) -> &Path {
    server.root.dir()
}

fn rpm_installs_the_ordered_version(manager: Manager, backend: fn(Root) -> Arc<dyn Backend>) {
    let package = |name: &str, version: &str| Package::new(name, version);
    let old = [package("app", "1-1"), package("other", "1-1")];
    let Some(repo) = rpm::Repo::with(&old, &[]) else { return };
    let server = || rpm::Server::with_installed(manager, &repo, &old);
    let (Some(first), Some(next), Some(last)) = (server(), server(), server()) else { return };
    repo.publish(&[package("app", "1:1-2")], &[]);
    let host = |server| PinnedHost { root: rpm_dir(server), backend };
    let pins = host(&first).install_first();
    repo.publish(&[package("app", "1:1-3"), package("other", "1-2")], &[]);
    host(&next).install_pinned(&pins, "1:1-2", "1:1-3");
    assert!(next.database().contains(&"other 1-1 noarch".to_owned()), "the order does not name it");
    repo.withdraw(&package("app", "1:1-2"));
    host(&last).expect_version_gone(&pins, "1:1-2", "1:1-3");
}

fn rpm_dir(server: &rpm::Server) -> &Path {
    server.dir()
}

#[test]
fn dnf_installs_the_ordered_version_although_a_newer_one_is_available() {
    rpm_installs_the_ordered_version(Manager::Dnf, |root| Arc::new(Dnf::new(root)));
}

#[test]
fn zypper_installs_the_ordered_version_although_a_newer_one_is_available() {
    rpm_installs_the_ordered_version(Manager::Zypper, |root| Arc::new(Zypper::new(root)));
}

/// pacman's lists contain one version of a package; older ones come from its cache.
#[test]
fn pacman_installs_the_ordered_version_from_its_cache() {
    let package = |name: &str, version: &str| pacman::Package::new(name, version);
    let old = [package("app", "1-1"), package("other", "1-1")];
    let Some(repository) = pacman::Repository::with(&old) else { return };
    let server = || pacman::Server::with_installed(&repository, &["app", "other"]);
    let (first, next, last) = (server(), server(), server());
    repository.add(&[package("app", "1-2")]);
    let backend = |root| -> Arc<dyn Backend> { Arc::new(Pacman::new(root)) };
    let pinned = |root| PinnedHost { root, backend };
    let pins = pinned(first.root().dir()).install_first();
    next.download("app");
    repository.add(&[package("app", "1-3"), package("other", "1-2")]);
    pinned(next.root().dir()).install_pinned(&pins, "1-2", "1-3");
    assert_eq!(next.installed(), ["app 1-2", "other 1-1"], "the order does not name `other`");
    pinned(last.root().dir()).expect_version_gone(&pins, "1-2", "1-3");

    // Where signatures are required, a cached file without one is not used.
    last.download("app");
    repository.add(&[package("app", "1-4")]);
    let strict = InstallVersions {
        versions: pins
            .versions
            .iter()
            .map(|v| PackageVersion { version: "1-3".into(), ..v.clone() })
            .collect(),
        ..pins
    };
    last.configure(
        "LocalFileSigLevel = Never\n[other]\nSigLevel = Required\nServer = file:///srv/lab",
    );
    let offered =
        backend(Root::under(last.root().dir())).offered_versions(&[], &["app"].into()).unwrap();
    // The lists do not name an architecture.
    assert!(offered.iter().all(|offer| offer.arch.is_empty()), "{offered:?}");
    last.configure("");
    let result = pinned(last.root().dir()).execute(5, Work::InstallVersions(strict));
    assert_eq!(format_moves(&result), ["app 1-1 > 1-3"], "{result:?}");
}
