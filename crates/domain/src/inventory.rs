//! The installed packages of a server, and the difference between two scans.
//!
//! An inventory is identified by the digest of its canonical bytes, so that one which many servers
//! share is stored once. The difference of two inventories shows whether an order succeeded.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use vocab::listing::{self, ListingError};
use vocab::{Digest, Installed, PackageManager};

/// The packages of a server, sorted by name, architecture and version, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    packages: Vec<Installed>,
    bytes: Vec<u8>,
    digest: Digest,
}

impl Inventory {
    pub fn new(mut packages: Vec<Installed>) -> Inventory {
        listing::sort(&mut packages);
        let bytes = listing::encode(&packages);
        Inventory { digest: Digest::compute(&bytes), packages, bytes }
    }

    /// Decodes an inventory that an agent sent. The digest is that of the received bytes, because a
    /// newer agent may write fields that are unknown here, and identifies its list by that digest.
    pub fn decode(bytes: Vec<u8>) -> Result<Inventory, ListingError> {
        let mut packages: Vec<Installed> = listing::decode(&bytes)?;
        listing::sort(&mut packages);
        Ok(Inventory { digest: Digest::compute(&bytes), packages, bytes })
    }

    pub fn packages(&self) -> &[Installed] {
        &self.packages
    }

    /// The bytes that the digest is computed from.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// The change of one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub name: String,
    /// Architecture; the new one if an upgrade changed it.
    pub arch: String,
    pub kind: ChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// The package, or this version of it, was not installed before and is now.
    Installed { version: String },
    /// The package was installed before and no longer is.
    Removed { version: String },
    /// A newer version replaced an older one, or one that is spelled differently but compares
    /// equal: `1.0` and `1.00`.
    Upgraded { from: String, to: String },
    /// An older version replaced a newer one.
    Downgraded { from: String, to: String },
}

/// Returns the changes from `before` to `after`, sorted by name and architecture.
///
/// Packages are distinguished by name and architecture. If any version of a package stays, its
/// versions are installed side by side, like kernels on rpm systems, and none replaced another:
/// `{1, 2}` to `{2, 3}` means that 3 was installed and 1 removed. If no version stays, the newest
/// added version replaced the newest removed one. A package that only changed its architecture
/// (from `all` to `amd64`) counts as one package.
pub fn difference(before: &Inventory, after: &Inventory, manager: PackageManager) -> Vec<Change> {
    let mut names: BTreeMap<&str, VersionChanges<'_>> = BTreeMap::new();
    for package in before.packages() {
        names.entry(&package.name).or_default().versions_mut(package).0.push(&package.version);
    }
    for package in after.packages() {
        names.entry(&package.name).or_default().versions_mut(package).1.push(&package.version);
    }
    names.into_iter().flat_map(|(name, movement)| movement.changes(name, manager)).collect()
}

/// The versions of one package name before and after, by architecture.
#[derive(Default)]
struct VersionChanges<'a>(BTreeMap<&'a str, (Vec<&'a str>, Vec<&'a str>)>);

impl<'a> VersionChanges<'a> {
    fn versions_mut(&mut self, package: &'a Installed) -> &mut (Vec<&'a str>, Vec<&'a str>) {
        self.0.entry(&package.arch).or_default()
    }

    fn changes(self, name: &str, manager: PackageManager) -> Vec<Change> {
        let change =
            |arch: &str, kind| Change { name: name.to_owned(), arch: arch.to_owned(), kind };
        let mut changes = Vec::new();
        let mut any_stays = false;
        for (arch, (before, after)) in self.0 {
            let stays = before.iter().any(|version| after.contains(version));
            any_stays |= stays;
            let mut removed_versions: Vec<&str> =
                before.iter().copied().filter(|version| !after.contains(version)).collect();
            let mut added_versions: Vec<&str> =
                after.iter().copied().filter(|version| !before.contains(version)).collect();
            if !stays
                && let Some((from, to)) =
                    newest(&removed_versions, manager).zip(newest(&added_versions, manager))
            {
                removed_versions.retain(|version| *version != from);
                added_versions.retain(|version| *version != to);
                changes.push(change(arch, replacement_kind(from, to, manager)));
            }
            let removed = |version: &str| ChangeKind::Removed { version: version.to_owned() };
            let installed = |version: &str| ChangeKind::Installed { version: version.to_owned() };
            changes
                .extend(removed_versions.into_iter().map(|version| change(arch, removed(version))));
            changes
                .extend(added_versions.into_iter().map(|version| change(arch, installed(version))));
        }
        if !any_stays {
            join_architectures(&mut changes, manager);
        }
        changes
    }
}

/// Joins a version removed from one architecture and a version added to another into one change.
fn join_architectures(changes: &mut Vec<Change>, manager: PackageManager) {
    let joined = match changes.as_slice() {
        [
            Change { kind: ChangeKind::Removed { version: from }, .. },
            Change { kind: ChangeKind::Installed { version: to }, arch, name },
        ]
        | [
            Change { kind: ChangeKind::Installed { version: to }, arch, name },
            Change { kind: ChangeKind::Removed { version: from }, .. },
        ] if from != to => Change {
            name: name.clone(),
            arch: arch.clone(),
            kind: replacement_kind(from, to, manager),
        },
        _ => return,
    };
    *changes = vec![joined];
}

fn replacement_kind(from: &str, to: &str, manager: PackageManager) -> ChangeKind {
    let (older, from, to) = (manager.scheme().compare(to, from), from.to_owned(), to.to_owned());
    match older {
        Ordering::Less => ChangeKind::Downgraded { from, to },
        Ordering::Equal | Ordering::Greater => ChangeKind::Upgraded { from, to },
    }
}

fn newest<'a>(versions: &[&'a str], manager: PackageManager) -> Option<&'a str> {
    versions.iter().copied().max_by(|a, b| manager.scheme().compare(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One package per entry: `"bash 5.1 amd64"`.
    fn inventory(packages: &[&str]) -> Inventory {
        let read = |text: &&str| match text.split(' ').collect::<Vec<_>>()[..] {
            [name, version, arch] => Installed::new(name, version, arch),
            _ => panic!("{text}"),
        };
        Inventory::new(packages.iter().map(read).collect())
    }

    fn describe_changes(manager: PackageManager, before: &[&str], after: &[&str]) -> Vec<String> {
        let show = |change: Change| {
            let Change { name, arch, kind } = change;
            match kind {
                ChangeKind::Installed { version } => format!("{name}:{arch} +{version}"),
                ChangeKind::Removed { version } => format!("{name}:{arch} -{version}"),
                ChangeKind::Upgraded { from, to } => format!("{name}:{arch} {from} up to {to}"),
                ChangeKind::Downgraded { from, to } => format!("{name}:{arch} {from} down to {to}"),
            }
        };
        difference(&inventory(before), &inventory(after), manager).into_iter().map(show).collect()
    }

    use PackageManager::{Apt, Dnf};

    #[test]
    fn each_change_has_its_own_kind() {
        assert_eq!(
            describe_changes(
                Apt,
                &["bash 5.1-2 amd64", "curl 7.88-1 amd64", "gone 1 all", "same 1 all"],
                &["bash 5.1-10 amd64", "curl 7.74-1 amd64", "new 1 all", "same 1 all"],
            ),
            [
                "bash:amd64 5.1-2 up to 5.1-10",
                "curl:amd64 7.88-1 down to 7.74-1",
                "gone:all -1",
                "new:all +1",
            ]
        );
    }

    #[test]
    fn versions_are_compared_with_the_managers_scheme() {
        assert_eq!(
            describe_changes(Apt, &["x 1.0 all"], &["x 1.0~rc1 all"]),
            ["x:all 1.0 down to 1.0~rc1"]
        );
        assert_eq!(
            describe_changes(Dnf, &["x 9-1 noarch"], &["x 1:1-1 noarch"]),
            ["x:noarch 9-1 up to 1:1-1"]
        );
    }

    #[test]
    fn parallel_kernel_versions_are_not_upgrades() {
        assert_eq!(
            describe_changes(Dnf, &["kernel 1 x86_64"], &["kernel 1 x86_64", "kernel 2 x86_64"]),
            ["kernel:x86_64 +2"]
        );
        assert_eq!(
            describe_changes(
                Dnf,
                &["kernel 1 x86_64", "kernel 2 x86_64"],
                &["kernel 2 x86_64", "kernel 3 x86_64"]
            ),
            ["kernel:x86_64 -1", "kernel:x86_64 +3"]
        );
        assert_eq!(
            describe_changes(Dnf, &["kernel 2 x86_64", "kernel 10 x86_64"], &["kernel 11 x86_64"]),
            ["kernel:x86_64 10 up to 11", "kernel:x86_64 -2"]
        );
    }

    #[test]
    fn architectures_of_a_name_are_separate_packages() {
        assert_eq!(
            describe_changes(
                Apt,
                &["libc6 1 amd64", "libc6 1 i386"],
                &["libc6 2 amd64", "libc6 2 i386"]
            ),
            ["libc6:amd64 1 up to 2", "libc6:i386 1 up to 2"]
        );
        assert_eq!(
            describe_changes(Apt, &["libc6 1 amd64", "libc6 1 i386"], &["libc6 1 amd64"]),
            ["libc6:i386 -1"]
        );
    }

    #[test]
    fn changed_architecture_is_an_upgrade() {
        assert_eq!(
            describe_changes(Apt, &["tool 1 all"], &["tool 2 amd64"]),
            ["tool:amd64 1 up to 2"]
        );
        assert_eq!(
            describe_changes(Apt, &["tool 1 amd64"], &["tool 2 all"]),
            ["tool:all 1 up to 2"]
        );
    }

    #[test]
    fn received_inventory_keeps_the_agents_digest() {
        let bytes = b"{\"n\":\"bash\",\"v\":\"5\",\"later\":1}\n".to_vec();
        let received = Inventory::decode(bytes.clone()).unwrap();
        assert_eq!(received.digest(), Digest::compute(&bytes));
        assert_eq!(received.packages(), [Installed::new("bash", "5", "")]);
        let made = inventory(&["b 1 all", "a 1 all"]);
        assert_eq!(Inventory::decode(made.bytes().to_vec()).unwrap(), made);
    }

    fn packages() -> impl Strategy<Value = Vec<Installed>> {
        let package = ("[ab]", "[1-4]", "all|amd64")
            .prop_map(|(name, version, arch)| Installed::new(&name, &version, &arch));
        proptest::collection::vec(package, 0..8)
    }

    proptest! {
        /// A difference accounts for every version that was added or removed, whatever kind of
        /// change it reports.
        #[test]
        fn difference_accounts_for_every_added_and_removed_version(a in packages(), b in packages()) {
            let (a, b) = (Inventory::new(a), Inventory::new(b));
            let mut names: Vec<(String, String)> = Vec::new();
            let mut came_and_went: Vec<(String, String)> = Vec::new();
            for change in difference(&a, &b, Apt) {
                let note = |list: &mut Vec<_>, mark: &str, version: &str| {
                    list.push((change.name.clone(), format!("{mark}{version}")));
                };
                match &change.kind {
                    ChangeKind::Installed { version } => note(&mut came_and_went, "+", version),
                    ChangeKind::Removed { version } => note(&mut came_and_went, "-", version),
                    ChangeKind::Upgraded { from, to } | ChangeKind::Downgraded { from, to } => {
                        note(&mut came_and_went, "-", from);
                        note(&mut came_and_went, "+", to);
                    }
                }
            }
            for (these, others, mark) in [(&a, &b, "-"), (&b, &a, "+")] {
                for package in these.packages().iter().filter(|p| !others.packages().contains(p)) {
                    names.push((package.name.clone(), format!("{mark}{}", package.version)));
                }
            }
            names.sort();
            came_and_went.sort();
            prop_assert_eq!(came_and_went, names);
        }

        #[test]
        fn inventory_does_not_differ_from_itself(a in packages()) {
            let a = Inventory::new(a);
            prop_assert_eq!(difference(&a, &a, Apt), []);
        }
    }
}
