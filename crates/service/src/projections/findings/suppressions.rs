//! The suppressions of an organization that are active at one time.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

use domain::finding::Suppression as Rule;
use jiff::Timestamp;
use store::suppressions::{self, Suppression};
use store::{Conn, Result};
use vocab::{Environment, OrgId};

/// An organization's suppressions that are active now.
#[derive(Debug, Clone)]
pub struct ActiveSuppressions {
    now: Timestamp,
    rules: Vec<(Suppression, Rule)>,
    environments: Vec<Environment>,
}

impl ActiveSuppressions {
    #[boxed]
    pub async fn read(conn: &mut Conn, org: OrgId, now: Timestamp) -> Result<ActiveSuppressions> {
        let mut found = suppressions::active(conn, org, now).await?;
        // If several suppressions cover a finding, the one that lasts longest is shown. Sorted by
        // CVE, for the binary search in `covering`.
        found.sort_by(|a, b| {
            let lasts = |one: &Suppression| one.expires_at.unwrap_or(Timestamp::MAX);
            a.cve.cmp(&b.cve).then(lasts(b).cmp(&lasts(a))).then(a.id.cmp(&b.id))
        });
        let environments: BTreeSet<Environment> =
            found.iter().filter_map(|one| one.environment.clone()).collect();
        let rule = |row: Suppression| {
            let rule = Rule {
                cve: row.cve.clone(),
                source: row.package.clone(),
                reason: row.reason.clone(),
                until: row.expires_at,
            };
            (row, rule)
        };
        let rules = found.into_iter().map(rule).collect();
        Ok(ActiveSuppressions { now, rules, environments: environments.into_iter().collect() })
    }

    /// The environments to which any suppression is limited.
    pub fn environments(&self) -> &[Environment] {
        &self.environments
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Identifies this set of suppressions.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.rules.iter().map(|(row, _)| row.id.to_string()).collect()
    }

    /// The suppression that hides this CVE of this source package on servers in an environment.
    pub fn covering(
        &self,
        environment: Option<&Environment>,
        cve: &str,
        source: &str,
    ) -> Option<&Suppression> {
        let first = self.rules.partition_point(|(row, _)| row.cve.as_str() < cve);
        let same = self.rules[first..].iter().take_while(|(row, _)| row.cve == cve);
        let mut holds = same.filter(|(row, rule)| {
            row.environment.as_ref().is_none_or(|only| Some(only) == environment)
                && rule.covers_cve(cve, source, self.now)
        });
        holds.next().map(|(row, _)| row)
    }
}
