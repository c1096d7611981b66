//! What runs on a server that its list of packages does not tell: a kernel that is not its own, and code of packages that are no
//! longer on the disk.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use vocab::Digest;

/// What runs on a server beside what is installed there. Servers of which this is the same, and their lists and kernels too, have the
/// same flaws.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Runs {
    /// Whether its kernel belongs to the machine below.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign_kernel: bool,
    /// The list of packages from before the first change since which old code runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Digest>,
    /// The packages whose old code runs.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub old_code: BTreeSet<String>,
}

impl Runs {
    /// What runs on a server now: it tells which code is old and whether its kernel is foreign, had the list `was` and has the list `is`.
    ///
    /// A list that is replaced while old code runs is remembered, and only the first of several: what was started before the
    /// first change may be from there. Once no old code runs, nothing is left of it. An agent tells of old code before its
    /// new list is there, or with it. Old code from before any list that is known says nothing about flaws.
    #[must_use]
    pub fn next(
        &self,
        (old_code, foreign_kernel): (BTreeSet<String>, bool),
        was: Option<Digest>,
        is: Option<Digest>,
    ) -> Runs {
        let replaced = was.filter(|_| was != is);
        match self.since.or(replaced).filter(|_| !old_code.is_empty()) {
            Some(since) => Runs { foreign_kernel, since: Some(since), old_code },
            None => Runs { foreign_kernel, ..Runs::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn told(old: &[&str]) -> (BTreeSet<String>, bool) {
        (names(old), false)
    }

    fn lists() -> [Option<Digest>; 3] {
        [b"one", b"two", b"six"].map(|text| Some(Digest::of(text)))
    }

    #[test]
    fn the_list_from_before_old_code_ran_is_remembered_until_it_no_longer_runs() {
        let [one, two, three] = lists();
        let before = Runs::default().next(told(&[]), None, one);
        assert_eq!(before, Runs::default());
        // An update: the agent says which code is old, then its new list arrives.
        let early = before.next(told(&["libssl3"]), one, one);
        assert_eq!(early, Runs::default(), "nothing on the disk has changed yet");
        let updated = early.next(told(&["libssl3"]), one, two);
        assert_eq!((updated.since, &updated.old_code), (one, &names(&["libssl3"])));
        let again = updated.next(told(&["libssl3", "libc6"]), two, three);
        assert_eq!(again.since, one, "what runs may be from before the first update");
        let restarted = again.next(told(&[]), three, three);
        assert_eq!(restarted, Runs::default());
    }

    #[test]
    fn a_list_that_changes_while_nothing_old_runs_is_not_remembered() {
        let [one, two, _] = lists();
        assert_eq!(Runs::default().next(told(&[]), one, two).since, None);
        assert_eq!(Runs::default().next(told(&["curl"]), None, one).since, None, "its first list");
        let container = Runs::default().next((names(&["curl"]), true), one, two);
        assert_eq!((container.since, container.foreign_kernel), (one, true));
    }
}
