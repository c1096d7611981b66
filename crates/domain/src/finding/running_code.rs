//! Code that runs on a server but does not appear in its package set: the kernel of the machine
//! that a container runs on, and old code of packages that is no longer on disk.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use vocab::Digest;

/// What runs on a server in addition to its installed packages. Servers with the same value, the
/// same package set and the same kernel have the same findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunningCode {
    /// Whether the kernel belongs to the machine that runs the server, as in a container.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign_kernel: bool,
    /// The package set from before the first change since which old code has been running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Digest>,
    /// The packages whose old code is running.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub old_code: BTreeSet<String>,
}

impl RunningCode {
    /// Returns the new state after a report: the agent reports which code is old and whether the
    /// kernel is foreign; the package set was `was` and is now `is`.
    ///
    /// A package set that is replaced while old code is running is remembered, and only the first
    /// of several, because a process may have been started before the first change. Once no old
    /// code is running, it is forgotten. An agent reports old code before its new package set
    /// arrives, or together with it. Old code from before the first known package set says nothing
    /// about findings.
    #[must_use]
    pub fn after_report(
        &self,
        (old_code, foreign_kernel): (BTreeSet<String>, bool),
        was: Option<Digest>,
        is: Option<Digest>,
    ) -> RunningCode {
        let replaced = was.filter(|_| was != is);
        match self.since.or(replaced).filter(|_| !old_code.is_empty()) {
            Some(since) => RunningCode { foreign_kernel, since: Some(since), old_code },
            None => RunningCode { foreign_kernel, ..RunningCode::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn report(old: &[&str]) -> (BTreeSet<String>, bool) {
        (names(old), false)
    }

    fn lists() -> [Option<Digest>; 3] {
        [b"one", b"two", b"six"].map(|text| Some(Digest::compute(text)))
    }

    #[test]
    fn old_package_set_is_kept_while_old_code_runs() {
        let [one, two, three] = lists();
        let before = RunningCode::default().after_report(report(&[]), None, one);
        assert_eq!(before, RunningCode::default());
        // An update: the agent reports which code is old, then its new package set arrives.
        let early = before.after_report(report(&["libssl3"]), one, one);
        assert_eq!(early, RunningCode::default(), "nothing on disk has changed yet");
        let updated = early.after_report(report(&["libssl3"]), one, two);
        assert_eq!((updated.since, &updated.old_code), (one, &names(&["libssl3"])));
        let again = updated.after_report(report(&["libssl3", "libc6"]), two, three);
        assert_eq!(again.since, one, "old code may be from before the first update");
        let restarted = again.after_report(report(&[]), three, three);
        assert_eq!(restarted, RunningCode::default());
    }

    #[test]
    fn package_set_is_not_kept_without_old_code() {
        let [one, two, _] = lists();
        assert_eq!(RunningCode::default().after_report(report(&[]), one, two).since, None);
        assert_eq!(
            RunningCode::default().after_report(report(&["curl"]), None, one).since,
            None,
            "this is its first package set"
        );
        let container = RunningCode::default().after_report((names(&["curl"]), true), one, two);
        assert_eq!((container.since, container.foreign_kernel), (one, true));
    }
}
