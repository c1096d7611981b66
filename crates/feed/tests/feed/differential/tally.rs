//! Counts the results of a comparison and checks that only listed differences occurred.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

#[derive(Default)]
pub(crate) struct Tally {
    /// Number of (CVE, package) pairs compared.
    pub(crate) pairs: usize,
    /// Number of pairs that both report as vulnerable.
    pub(crate) found: usize,
    explained: BTreeMap<&'static str, usize>,
    pub(crate) unexplained: Vec<String>,
}

#[derive(Deserialize)]
struct DifferenceList {
    difference: Vec<Difference>,
}

#[derive(Deserialize)]
struct Difference {
    name: String,
    against: String,
    reason: String,
}

impl Tally {
    pub(crate) fn explain(&mut self, rule: &'static str) {
        *self.explained.entry(rule).or_default() += 1;
    }

    pub(crate) fn merge(mut self, other: Tally) -> Tally {
        self.pairs += other.pairs;
        self.found += other.found;
        self.unexplained.extend(other.unexplained);
        for (rule, count) in other.explained {
            *self.explained.entry(rule).or_default() += count;
        }
        self
    }

    /// Prints the counts. Fails on a difference without a rule, on a rule without a difference, and
    /// if the rules do not match the entries of `differences.toml`.
    pub(crate) fn check<'a>(&self, against: &str, rules: impl Iterator<Item = &'a str>) {
        let listed: DifferenceList = toml::from_str(include_str!("../differences.toml")).unwrap();
        let listed: Vec<_> =
            listed.difference.iter().filter(|entry| entry.against == against).collect();
        assert!(listed.iter().all(|entry| !entry.reason.is_empty()));
        let names: BTreeSet<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, rules.collect(), "differences.toml must list exactly the predicates");

        println!("{against}: {} pairs compared, both report {}", self.pairs, self.found);
        for name in &names {
            println!("  {}: {}", name, self.explained.get(name).unwrap_or(&0));
        }
        let shown = self.unexplained.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.unexplained.is_empty(), "{} unexplained:\n{shown}", self.unexplained.len());
        let idle: Vec<_> =
            names.iter().filter(|name| !self.explained.contains_key(*name)).collect();
        assert!(idle.is_empty(), "rules that explain nothing: {idle:?}");
        // A useless generator would produce only one of the two results.
        assert!(self.found * 10 > self.pairs, "{} of {} found", self.found, self.pairs);
        assert!(self.found * 10 < self.pairs * 9, "{} of {} found", self.found, self.pairs);
    }
}
