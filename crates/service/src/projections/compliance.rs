//! Where each server stands with each policy, kept current in the background.
//!
//! A round finds the servers that have to be judged: those that changed since they were last
//! judged, whose findings changed, or whose time has come (`next_at`). For each it updates what the
//! server has to fix and since when (`domain::policy::advance`), judges it by every policy that
//! selects it, and writes only what is different, with the counts and the events in the same
//! transaction. A request therefore reads counts and indexes, and a policy over 100,000 servers
//! costs what changes.
//!
//! The clocks are kept also while no policy exists, because a policy that is created later judges
//! the time that has already passed. What is shared is computed and stored once: findings per
//! server kind, and obligations by content.
//!
//! A new or changed policy judges every server again, from the stored obligations. That writes no
//! events: the operator who changed the policy sees the numbers, and thousands of old breaches are
//! not news.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use domain::advisory::Ecosystem;
use domain::finding::RULES_VERSION;
use domain::policy::{Fix, Judgement, Knowledge, Obligation, Subject, advance, judge};
use domain::selector;
use domain::server::ServerFacts;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::compliance::{
    self, Bases, Candidate, CountKey, Day, JudgedServer, ServerState, Summary,
};
use store::findings::ServerKind;
use store::policies::{self, Policy};
use store::{Conn, Topic, Tx, advisories, feeds, organizations};
use tokio::task::JoinHandle;
use vocab::{ComplianceState, Digest, OrgId, PolicyId, ServerId, UnknownCompliance};

use super::daily_stats::utc_day;
use super::findings::{ActiveSuppressions, covered_bases, policy_fixes};
use crate::App;
use crate::clock::Stopwatch;
use crate::{EventKind, Result, ServiceError, emit, run_on_blocking_thread};

/// The number of servers that are read at once and written in one transaction, which keeps other
/// writers waiting for some ten milliseconds.
const SERVERS_PER_TRANSACTION: u32 = 1_000;
/// The interval at which changes without a notification are looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The minimum pause between two rounds, and the pause as a multiple of a round's duration: in a
/// busy fleet, changes arrive all the time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_FACTOR: f64 = 12.0;
/// The actor in events.
const ACTOR: &str = "engine";

/// Keeps the states of every organization current until it is aborted or the app drains.
pub fn spawn(app: App) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::select! {
            () = run(&app) => {}
            () = app.until_drain() => {}
        }
    })
}

async fn run(app: &App) {
    let mut servers = app.db.subscribe(Topic::Servers);
    let mut findings = app.db.subscribe(Topic::Findings);
    let mut policies = app.db.subscribe(Topic::Policies);
    loop {
        let watch = Stopwatch::start();
        let its_app = app.clone();
        let done = run_on_blocking_thread(async move { rebuild_all(&its_app).await });
        let next = match done.await.and_then(|done| done) {
            Ok(next) => next,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "judging by policies failed and will be retried");
                None
            }
        };
        let rest = Duration::from_secs_f64(watch.seconds() * PAUSE_FACTOR).max(PAUSE_MIN);
        tokio::select! {
            // A changed policy is judged at once: someone waits for the numbers.
            () = policies.notified() => continue,
            () = tokio::time::sleep(rest) => {}
        }
        let due = next.map_or(POLL_INTERVAL, |at| {
            Duration::try_from(at.duration_since(app.clock.now())).unwrap_or(Duration::ZERO)
        });
        tokio::select! {
            () = servers.notified() => {}
            () = findings.notified() => {}
            () = policies.notified() => {}
            () = tokio::time::sleep(due.min(POLL_INTERVAL)) => {}
        }
    }
}

/// Returns when some judgement changes next.
async fn rebuild_all(app: &App) -> Result<Option<Timestamp>> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    let mut next = None;
    for organization in all {
        rebuild(app, organization.id).await?;
        let mut reader = app.db.read().await?;
        let change = compliance::next_change(&mut reader, organization.id).await?;
        next = [next, change].into_iter().flatten().min();
    }
    Ok(next)
}

/// What all servers of an organization are judged by.
struct Standards {
    policies: Vec<Policy>,
    suppressions: ActiveSuppressions,
    covered: BTreeSet<Ecosystem>,
    bases: Bases,
}

impl Standards {
    async fn read(conn: &mut Conn, org: OrgId, now: Timestamp) -> Result<Standards> {
        let policies = policies::list(conn, org).await?;
        let suppressions = ActiveSuppressions::read(conn, org, now).await?;
        let covered = covered_bases(conn, org).await?;
        let exploited = advisories::exploited_count(conn).await?;
        let incomplete = feeds::incomplete(conn).await?;
        let fixes = format!("{RULES_VERSION} {exploited} {incomplete:?} {covered:?}");
        let versions: Vec<String> =
            policies.iter().map(|policy| format!("{} {}", policy.id, policy.generation)).collect();
        let judgement = format!("{} {}", versions.join(","), suppressions.ids().join(","));
        let bases = Bases {
            fixes: Digest::compute(fixes.as_bytes()),
            judgement: Digest::compute(judgement.as_bytes()),
        };
        Ok(Standards { policies, suppressions, covered, bases })
    }
}

/// Judges the servers of an organization that have to be judged. Returns whether any was.
#[boxed]
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    match Round::start(app, org).await?.run(app).await {
        // Another replica wrote first. What it left is found in the next round.
        Err(ServiceError::Stale) => Ok(false),
        done => done,
    }
}

struct Round {
    org: OrgId,
    now: Timestamp,
    standards: Standards,
    summary: Summary,
    /// Whether servers are judged again because of what they are judged by, and not because
    /// something happened to them.
    rejudges: bool,
    /// The fixes of server kinds, by the digest of the kind and its update set.
    fixes: HashMap<Digest, Vec<Fix>>,
    wrote: bool,
}

impl Round {
    async fn start(app: &App, org: OrgId) -> Result<Round> {
        let now = app.clock.now();
        let mut reader = app.db.snapshot().await?;
        let standards = Standards::read(&mut reader, org, now).await?;
        let seen = compliance::summary(&mut reader, org).await?;
        let rejudges = seen.as_ref().is_none_or(|seen| seen.basis != standards.bases.judgement);
        let empty = Digest::compute(b"nothing yet");
        let summary = seen.unwrap_or(Summary {
            org_id: org,
            basis: empty,
            day: jiff::civil::Date::MIN,
            made_at: now,
            generation: 0,
        });
        let fixes = HashMap::new();
        Ok(Round { org, now, standards, summary, rejudges, fixes, wrote: false })
    }

    async fn run(mut self, app: &App) -> Result<bool> {
        let mut after = None;
        loop {
            let mut reader = app.db.snapshot().await?;
            let page = compliance::candidates(
                &mut reader,
                self.org,
                self.standards.bases,
                self.now,
                after,
                SERVERS_PER_TRANSACTION,
            )
            .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            let judged = self.judge_page(app, &mut reader, page).await?;
            drop(reader);
            if !judged.is_empty() {
                let mut tx = self.begin(app).await?;
                self.write(&mut tx, judged).await?;
                self.commit(tx).await?;
            }
        }
        self.remove_servers(app).await?;
        self.finish(app).await?;
        Ok(self.wrote)
    }

    /// A transaction in which no other process writes these rows.
    async fn begin(&self, app: &App) -> Result<Tx> {
        let mut tx = app.db.begin().await?;
        let next = Summary { made_at: self.now, ..self.summary.clone() };
        compliance::save_summary(&mut tx, &next).await?;
        Ok(tx)
    }

    async fn commit(&mut self, tx: Tx) -> Result<()> {
        tx.commit().await?;
        self.summary.generation += 1;
        self.wrote = true;
        Ok(())
    }

    /// Judges servers. Those whose findings are not matched yet keep their last judgement for now:
    /// every scan would otherwise make a server unknown for some seconds.
    async fn judge_page(
        &mut self,
        app: &App,
        conn: &mut Conn,
        page: Vec<Candidate>,
    ) -> Result<Vec<Judged>> {
        let known: BTreeSet<Digest> = page.iter().filter_map(|one| one.obligations).collect();
        let known = compliance::obligations(conn, self.org, &known).await?;
        let mut judged = Vec::with_capacity(page.len());
        for server in page {
            let before = server.obligations.and_then(|digest| known.get(&digest));
            let knowledge = self.knowledge(app, &server);
            let is_pending = knowledge == Knowledge::Unknown(UnknownCompliance::NotScanned)
                && server.package_set.is_some();
            if is_pending && server.seen_generation.is_some() && before.is_some() {
                continue;
            }
            let obligations = match (knowledge, before) {
                (Knowledge::Unknown(_), before) => before.cloned(),
                (Knowledge::Until(_), Some(before)) if self.has_same_fixes(&server) => {
                    Some(before.clone())
                }
                (Knowledge::Until(_), before) => {
                    let fixes = self.fixes_of(conn, &server).await?;
                    let before = before.map_or(&[][..], Vec::as_slice);
                    Some(advance(before, fixes, self.now))
                }
            };
            judged.push(self.judge(server, knowledge, obligations));
        }
        Ok(judged)
    }

    /// Whether what is known of the server suffices to judge it.
    fn knowledge(&self, app: &App, server: &Candidate) -> Knowledge {
        let (Some(_), Some(scanned_at)) = (server.package_set, server.last_scan_at) else {
            return Knowledge::Unknown(UnknownCompliance::NotScanned);
        };
        let Some(base) = Ecosystem::for_os(&server.os) else {
            return Knowledge::Unknown(UnknownCompliance::NoFeed);
        };
        if server.findings_revision < 0 {
            return Knowledge::Unknown(UnknownCompliance::NotScanned);
        }
        if !self.standards.covered.contains(&base) {
            return Knowledge::Unknown(UnknownCompliance::NoFeed);
        }
        let fresh = SignedDuration::from_hours(24 * i64::from(app.settings.stale_after_days));
        let until = scanned_at.checked_add(fresh).unwrap_or(Timestamp::MAX);
        // An old scan decides nothing, also not what is fixed: the clocks stay as they are.
        Knowledge::Until(until).at(self.now)
    }

    /// Whether the server has the fixes that it had when it was last judged.
    fn has_same_fixes(&self, server: &Candidate) -> bool {
        server.seen_generation == Some(server.generation)
            && server.seen_revision == Some(server.findings_revision)
            && server.seen_fixes_basis == Some(self.standards.bases.fixes)
    }

    async fn fixes_of(&mut self, conn: &mut Conn, server: &Candidate) -> Result<Vec<Fix>> {
        let Some(package_set) = server.package_set else { return Ok(Vec::new()) };
        let kind = ServerKind {
            package_set,
            update_set: server.update_set,
            os_release: server.os_release.clone(),
            kernel: server.kernel.clone(),
            runs: server.runs.clone(),
            os: server.os.clone(),
            environment: None,
            servers: 1,
        };
        let key = kind.count_key();
        if let Some(known) = self.fixes.get(&key) {
            return Ok(known.clone());
        }
        let fixes = policy_fixes(conn, self.org, &kind).await?;
        self.fixes.insert(key, fixes.clone());
        Ok(fixes)
    }

    fn judge(
        &self,
        server: Candidate,
        knowledge: Knowledge,
        obligations: Option<Vec<Obligation>>,
    ) -> Judged {
        let facts = ServerFacts {
            id: server.id,
            environment: server.environment.clone(),
            tags: server.tags.iter().cloned().collect(),
            os: Some(server.os.clone()),
        };
        let environment = server.environment.as_ref();
        let suppressed = |subject: &Subject| {
            self.standards
                .suppressions
                .covering(environment, &subject.cve, &subject.package)
                .is_some()
        };
        let known = obligations.as_deref().unwrap_or_default();
        let mut next_at = match knowledge {
            Knowledge::Until(until) => Some(until),
            Knowledge::Unknown(_) => None,
        };
        let mut states = Vec::new();
        for policy in &self.standards.policies {
            if selector::matches(&policy.targets, &facts) {
                let judgement = judge(&policy.rules, knowledge, known, suppressed, self.now);
                // An unknown server stays unknown, whatever falls due meanwhile.
                if let Knowledge::Until(_) = knowledge {
                    next_at = [next_at, judgement.changes_at].into_iter().flatten().min();
                }
                states.push((policy.id, judgement));
            }
        }
        Judged { server, obligations, next_at, states }
    }

    async fn write(&self, tx: &mut Tx, judged: Vec<Judged>) -> Result<()> {
        let ids: Vec<ServerId> = judged.iter().map(|one| one.server.id).collect();
        let mut before: BTreeMap<(ServerId, PolicyId), ServerState> = BTreeMap::new();
        for state in compliance::states_of(tx, self.org, &ids).await? {
            before.insert((state.server_id, state.policy_id), state);
        }
        let mut sets: BTreeMap<Digest, &Vec<Obligation>> = BTreeMap::new();
        let (mut servers, mut changed) = (Vec::new(), Vec::new());
        let mut counts = Counts::default();
        for one in &judged {
            let digest = one.obligations.as_ref().map(|obligations| {
                let digest = compliance::obligations_digest(obligations);
                sets.insert(digest, obligations);
                digest
            });
            servers.push(JudgedServer {
                id: one.server.id,
                generation: one.server.generation,
                findings_revision: one.server.findings_revision,
                obligations: digest,
                next_at: one.next_at,
            });
            for (policy, judgement) in &one.states {
                let was = before.remove(&(one.server.id, *policy));
                let next = next_state(&one.server, *policy, judgement, was.as_ref());
                if was.as_ref() == Some(&next) {
                    continue;
                }
                if !self.rejudges {
                    self.emit_transition(tx, &next, was.as_ref());
                }
                counts.replace(was.as_ref(), Some(&next));
                changed.push(next);
            }
        }
        // What is left belongs to policies that do not select the server any more.
        let mut removed: BTreeMap<PolicyId, Vec<ServerId>> = BTreeMap::new();
        for ((server, policy), was) in &before {
            counts.replace(Some(was), None);
            removed.entry(*policy).or_default().push(*server);
        }
        let sets: Vec<(Digest, &Vec<Obligation>)> = sets.into_iter().collect();
        compliance::put_obligations(tx, self.org, &sets).await?;
        compliance::put_servers(tx, self.org, self.standards.bases, &servers).await?;
        compliance::delete_states(tx, self.org, &removed).await?;
        compliance::put_states(tx, self.org, &changed).await?;
        Ok(compliance::add_counts(tx, self.org, &counts.0).await?)
    }

    fn emit_transition(&self, tx: &mut Tx, next: &ServerState, was: Option<&ServerState>) {
        let kind = match (was.is_some_and(|was| was.breached), next.breached) {
            (false, true) => EventKind::PolicyBreached,
            (true, false) => EventKind::PolicySatisfied,
            _ => return,
        };
        let policy = self.standards.policies.iter().find(|policy| policy.id == next.policy_id);
        let data = json!({"policy_id": next.policy_id, "policy": policy.map(|policy| &policy.name),
            "state": next.state.as_str(), "due_at": next.due_at, "open": next.open,
            "overdue": next.overdue});
        emit(tx, self.org, self.now, ACTOR, kind, next.server_id, data);
    }

    /// Deletes the rows of servers that were removed.
    async fn remove_servers(&mut self, app: &App) -> Result<()> {
        loop {
            let mut reader = app.db.read().await?;
            let gone =
                compliance::removed_servers(&mut reader, self.org, SERVERS_PER_TRANSACTION).await?;
            drop(reader);
            if gone.is_empty() {
                return Ok(());
            }
            let mut tx = self.begin(app).await?;
            let mut counts = Counts::default();
            let mut removed: BTreeMap<PolicyId, Vec<ServerId>> = BTreeMap::new();
            for was in compliance::states_of(&mut tx, self.org, &gone).await? {
                counts.replace(Some(&was), None);
                removed.entry(was.policy_id).or_default().push(was.server_id);
            }
            compliance::delete_states(&mut tx, self.org, &removed).await?;
            compliance::delete_servers(&mut tx, self.org, &gone).await?;
            compliance::add_counts(&mut tx, self.org, &counts.0).await?;
            self.commit(tx).await?;
        }
    }

    /// Writes the counts of the day and the new summary, if something changed or a day began.
    async fn finish(&mut self, app: &App) -> Result<()> {
        let day = utc_day(self.now);
        let basis = self.standards.bases.judgement;
        if !self.wrote && self.summary.day == day && self.summary.basis == basis {
            return Ok(());
        }
        let mut tx = self.begin(app).await?;
        let counts = compliance::counts(&mut tx, self.org).await?;
        let known: BTreeSet<PolicyId> =
            self.standards.policies.iter().map(|policy| policy.id).collect();
        let mut rows: BTreeMap<(PolicyId, Option<vocab::Environment>), Day> = BTreeMap::new();
        for (key, servers) in counts.into_iter().filter(|(key, _)| known.contains(&key.policy_id)) {
            let CountKey { policy_id, environment, state } = key;
            let row = rows.entry((policy_id, environment.clone())).or_insert(Day {
                policy_id,
                environment,
                day,
                compliant: 0,
                due_soon: 0,
                breaching: 0,
                unknown: 0,
            });
            *match state {
                ComplianceState::Compliant => &mut row.compliant,
                ComplianceState::DueSoon => &mut row.due_soon,
                ComplianceState::Breaching => &mut row.breaching,
                ComplianceState::Unknown => &mut row.unknown,
            } += servers;
        }
        let rows: Vec<Day> = rows.into_values().collect();
        compliance::write_day(&mut tx, self.org, day, &rows).await?;
        compliance::delete_unused_obligations(&mut tx, self.org).await?;
        let next = Summary {
            basis,
            day,
            made_at: self.now,
            generation: self.summary.generation + 1,
            ..self.summary.clone()
        };
        compliance::save_summary(&mut tx, &next).await?;
        self.commit(tx).await
    }
}

/// A server with its judgements.
struct Judged {
    server: Candidate,
    obligations: Option<Vec<Obligation>>,
    next_at: Option<Timestamp>,
    states: Vec<(PolicyId, Judgement)>,
}

fn next_state(
    server: &Candidate,
    policy_id: PolicyId,
    judgement: &Judgement,
    was: Option<&ServerState>,
) -> ServerState {
    let breached = match judgement.state {
        ComplianceState::Breaching => true,
        ComplianceState::Compliant | ComplianceState::DueSoon => false,
        // Whether a server that cannot be judged satisfies the policy again is not known.
        ComplianceState::Unknown => was.is_some_and(|was| was.breached),
    };
    ServerState {
        policy_id,
        server_id: server.id,
        environment: server.environment.clone(),
        state: judgement.state,
        unknown: judgement.unknown,
        due_at: judgement.due_at,
        open: judgement.open,
        overdue: judgement.overdue,
        breached,
    }
}

/// Changes of the numbers of servers.
#[derive(Default)]
struct Counts(BTreeMap<CountKey, i64>);

impl Counts {
    fn replace(&mut self, was: Option<&ServerState>, next: Option<&ServerState>) {
        for (state, more) in [(was, -1), (next, 1)] {
            let Some(state) = state else { continue };
            let key = CountKey {
                policy_id: state.policy_id,
                environment: state.environment.clone(),
                state: state.state,
            };
            *self.0.entry(key).or_insert(0) += more;
        }
    }
}
