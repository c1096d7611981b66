//! Builds a transaction from the packages that a package manager would add and remove.

use super::nevra::Nevra;
use crate::backend::{BackendError, Change, Choice, Transaction};

/// The added and removed packages, without duplicates, in the order of the output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PackageMoves {
    pub(crate) added: Vec<Nevra>,
    pub(crate) removed: Vec<Nevra>,
}

impl PackageMoves {
    /// One change per package. A removal and an addition with the same name and architecture are
    /// one change: an upgrade, or the oldest kernel that is replaced by a new one according to the
    /// host's settings. A removal without an addition is a removal even if another package
    /// obsoletes it: nothing is left under that name.
    pub(crate) fn changes(mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for new in &self.added {
            let old = self
                .removed
                .iter()
                .position(|old| old.name == new.name && old.arch == new.arch)
                .or_else(|| self.single_removed(&new.name))
                .map(|at| self.removed.swap_remove(at));
            changes.push(Change {
                name: new.name.clone(),
                arch: new.arch.clone(),
                from: old.map(|old| old.evr),
                to: Some(new.evr.clone()),
            });
        }
        changes.extend(self.removed.into_iter().map(|old| Change {
            name: old.name,
            arch: old.arch,
            from: Some(old.evr),
            to: None,
        }));
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    /// A package may change its architecture, to `noarch` or from it.
    fn single_removed(&self, name: &str) -> Option<usize> {
        let comes = self.added.iter().filter(|new| new.name == name).count();
        let mut goes = self.removed.iter().enumerate().filter(|(_, old)| old.name == name);
        match (comes, goes.next(), goes.next()) {
            (1, Some((at, _)), None) => Some(at),
            _ => None,
        }
    }
}

/// Checks that a transaction contains every choice. A package manager may skip packages that it
/// does not find, and still succeed.
pub(crate) fn check_complete(
    transaction: Transaction,
    chosen: &[Choice],
) -> Result<Transaction, BackendError> {
    let comes = |choice: &Choice| {
        transaction.changes.iter().any(|change| {
            change.name == choice.name
                && change.arch == choice.arch
                && change.to.as_deref() == Some(&choice.to)
        })
    };
    match chosen.iter().find(|choice| !comes(choice)) {
        None => Ok(transaction),
        Some(Choice { name, arch, to, .. }) => {
            let text = format!(
                "{name}-{to}.{arch} is not available, or not as an update of the installed package"
            );
            Err(BackendError::Conflict(text.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(comes: &[&str], goes: &[&str]) -> Vec<String> {
        let read = |list: &[&str]| list.iter().map(|text| Nevra::parse(text).unwrap()).collect();
        let text = |side: Option<String>| side.unwrap_or_else(|| "nothing".to_owned());
        PackageMoves { added: read(comes), removed: read(goes) }
            .changes()
            .into_iter()
            .map(|c| format!("{}.{} {} to {}", c.name, c.arch, text(c.from), text(c.to)))
            .collect()
    }

    #[test]
    fn upgrade_is_one_change_and_obsoleted_package_a_removal() {
        assert_eq!(
            moves(
                &["eater-2-1.noarch", "extra-1-1.noarch", "zlib-2-1.x86_64", "zlib-2-1.i686"],
                &["victim-1-1.noarch", "zlib-1-1.i686", "eater-1-1.noarch", "zlib-1-1.x86_64"],
            ),
            [
                "eater.noarch 1-1 to 2-1",
                "extra.noarch nothing to 1-1",
                "victim.noarch 1-1 to nothing",
                "zlib.i686 1-1 to 2-1",
                "zlib.x86_64 1-1 to 2-1",
            ]
        );
    }

    #[test]
    fn oldest_kernel_is_replaced_and_architecture_may_change() {
        assert_eq!(
            moves(
                &["kernel-core-9-1.x86_64", "a-2-1.x86_64"],
                &["kernel-core-6-1.x86_64", "a-1-1.noarch"]
            ),
            ["a.x86_64 1-1 to 2-1", "kernel-core.x86_64 6-1 to 9-1"]
        );
    }

    #[test]
    fn transaction_without_a_choice_is_an_error() {
        let choice = Choice {
            name: "bash".to_owned(),
            arch: "noarch".to_owned(),
            from: "1-1".to_owned(),
            to: "2-1".to_owned(),
        };
        let error = check_complete(Transaction::default(), &[choice]).unwrap_err().to_string();
        assert!(error.starts_with("bash-2-1.noarch is not available"), "{error}");
        assert!(check_complete(Transaction::default(), &[]).is_ok());
    }
}
