//! Which servers comply with which policy. Reads the rows that `projections::compliance` keeps
//! current: no query scans the fleet.

use async_recursion::async_recursion as boxed;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::policy::{Obligation, due_at};
use domain::selector;
use domain::server::ServerFacts;
use jiff::civil::Date;
use jiff::{Span, Timestamp};
use store::compliance::{self, CountKey, Filter, ServerState};
use store::policies::{self, Policy};
use store::servers::{self, Server};
use store::{Conn, Page, Paged, StoreError, freezes, organizations, suppressions};
use vocab::{ComplianceState, Environment, Line, PolicyId, ServerId};
use wire::v1::{
    Compliance, ComplianceDay, ComplianceReport, ExplainedPolicy, ReportedFigures, ReportedFreeze,
    ReportedPolicy, ReportedSuppression, ServerCompliance, SignedReport,
};

use super::Scope;
use super::policies::rule;
use super::summary::is_limited_to;
use crate::projections::daily_stats::utc_day;
use crate::projections::findings::ActiveSuppressions;
use crate::{App, Result, ServiceError};

/// The length of the trend.
pub const TREND_DAYS: u32 = 90;
/// The maximum number of servers in each list of a report.
const REPORTED_SERVERS_MAX: u32 = 100;
/// The maximum number of suppressions in a report.
const REPORTED_SUPPRESSIONS_MAX: u32 = 1_000;

/// What to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    pub policy: Option<PolicyId>,
    pub environment: Option<Environment>,
}

impl Wanted {
    fn includes(&self, scope: &Scope, key: &CountKey) -> bool {
        self.policy.is_none_or(|policy| policy == key.policy_id)
            && self.environment.as_ref().is_none_or(|one| key.environment.as_ref() == Some(one))
            && scope.includes(key.environment.as_ref())
    }
}

/// The counts per policy and environment, by the name of the policy. 404 for an unknown policy.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    wanted: &Wanted,
    page: Page,
) -> Result<Paged<Compliance>> {
    let mut reader = app.db.snapshot().await?;
    let (rows, policies) = figures(&mut reader, scope, wanted).await?;
    let Paged { items, total } = Paged::paginate(rows, page);
    let first = first_day(app.clock.now());
    let mut trends: BTreeMap<PolicyId, Vec<compliance::Day>> = BTreeMap::new();
    let mut found = Vec::with_capacity(items.len());
    for (policy_id, figures) in items {
        let days = match trends.entry(policy_id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(compliance::days(&mut reader, scope.org, policy_id, first).await?)
            }
        };
        let days = days.iter();
        let trend =
            days.filter(|day| day.environment == figures.environment).map(|day| ComplianceDay {
                day: day.day,
                compliant: day.compliant,
                due_soon: day.due_soon,
                breaching: day.breaching,
                unknown: day.unknown,
            });
        let policy = policies.iter().find(|policy| policy.id == policy_id);
        found.push(Compliance {
            policy_id,
            policy: policy.map(|policy| policy.name.clone()).unwrap_or_default(),
            trend: trend.collect(),
            environment: figures.environment,
            servers: figures.servers,
            compliant: figures.compliant,
            due_soon: figures.due_soon,
            breaching: figures.breaching,
            unknown: figures.unknown,
            oldest_breach_at: figures.oldest_breach_at,
        });
    }
    Ok(Paged { items: found, total })
}

fn first_day(now: Timestamp) -> Date {
    utc_day(now).saturating_sub(Span::new().days(i64::from(TREND_DAYS) - 1))
}

/// The figures by policy name and environment, and the policies. Servers without an environment
/// come last.
async fn figures(
    conn: &mut Conn,
    scope: &Scope,
    wanted: &Wanted,
) -> Result<(Vec<(PolicyId, ReportedFigures)>, Vec<Policy>)> {
    let policies = policies::list(conn, scope.org).await?;
    if let Some(id) = wanted.policy
        && !policies.iter().any(|policy| policy.id == id)
    {
        return Err(StoreError::not_found("policy", id).into());
    }
    let mut rows: BTreeMap<(usize, bool, Option<Environment>), ReportedFigures> = BTreeMap::new();
    for (key, servers) in compliance::counts(conn, scope.org).await? {
        let place = policies.iter().position(|policy| policy.id == key.policy_id);
        let Some(place) = place.filter(|_| wanted.includes(scope, &key)) else { continue };
        let environment = key.environment;
        let row = rows.entry((place, environment.is_none(), environment.clone())).or_insert(
            ReportedFigures {
                environment,
                servers: 0,
                compliant: 0,
                due_soon: 0,
                breaching: 0,
                unknown: 0,
                oldest_breach_at: None,
            },
        );
        row.servers += servers;
        *match key.state {
            ComplianceState::Compliant => &mut row.compliant,
            ComplianceState::DueSoon => &mut row.due_soon,
            ComplianceState::Breaching => &mut row.breaching,
            ComplianceState::Unknown => &mut row.unknown,
        } += servers;
    }
    let mut found = Vec::with_capacity(rows.len());
    for ((place, ..), mut row) in rows {
        let id = policies[place].id;
        if row.breaching > 0 {
            row.oldest_breach_at =
                compliance::oldest_breach(conn, scope.org, id, row.environment.as_ref()).await?;
        }
        found.push((id, row));
    }
    Ok((found, policies))
}

/// The name of a policy whose figures a reader may see. 404 for an unknown policy.
#[boxed]
pub async fn policy_name(app: &App, scope: &Scope, id: PolicyId) -> Result<String> {
    Ok(policies::get(&mut *app.db.read().await?, scope.org, id).await?.name)
}

/// The servers behind a number: those of a policy, the earliest due date first. 404 for an unknown
/// policy.
#[boxed]
pub async fn servers(
    app: &App,
    scope: &Scope,
    policy: PolicyId,
    environment: Option<Environment>,
    state: Option<ComplianceState>,
    page: Page,
) -> Result<Paged<ServerCompliance>> {
    let mut reader = app.db.snapshot().await?;
    let policy = policies::get(&mut reader, scope.org, policy).await?;
    servers_in(&mut reader, scope, &policy, environment, state, page).await
}

async fn servers_in(
    conn: &mut Conn,
    scope: &Scope,
    policy: &Policy,
    environment: Option<Environment>,
    state: Option<ComplianceState>,
    page: Page,
) -> Result<Paged<ServerCompliance>> {
    let environments = match (environment, scope.environments.as_deref()) {
        (Some(one), _) if scope.includes(Some(&one)) => Some(vec![Some(one)]),
        (Some(_), _) => Some(Vec::new()),
        (None, Some(some)) => Some(some.iter().cloned().map(Some).collect()),
        (None, None) => None,
    };
    let filter = Filter { environments, state };
    let Paged { items, total } =
        compliance::list(conn, scope.org, policy.id, &filter, page).await?;
    let ids: Vec<ServerId> = items.iter().map(|state| state.server_id).collect();
    let known: BTreeMap<ServerId, Server> =
        servers::get_all(conn, &ids).await?.into_iter().map(|one| (one.id, one)).collect();
    let shown = |state: ServerState| Some(to_wire(known.get(&state.server_id)?, policy, state));
    Ok(Paged { items: items.into_iter().filter_map(shown).collect(), total })
}

fn to_wire(server: &Server, policy: &Policy, state: ServerState) -> ServerCompliance {
    ServerCompliance {
        server_id: server.id,
        hostname: server.hostname.clone(),
        display_name: server.display_name.as_deref().map(Line::sanitize),
        environment: state.environment,
        policy_id: policy.id,
        policy: policy.name.clone(),
        state: state.state,
        unknown_reason: state.unknown,
        due_at: state.due_at,
        open: state.open,
        overdue: state.overdue,
    }
}

/// Where a server stands with each policy that applies to it, by the name of the policy.
#[boxed]
pub async fn of_server(app: &App, scope: &Scope, id: ServerId) -> Result<Vec<ServerCompliance>> {
    let mut reader = app.db.snapshot().await?;
    let server = super::servers::find_in(&mut reader, scope, id).await?;
    let mut states = compliance::states_of(&mut reader, scope.org, &[id]).await?;
    let policies = policies::list(&mut reader, scope.org).await?;
    let mut found = Vec::new();
    for policy in &policies {
        let place = states.iter().position(|state| state.policy_id == policy.id);
        found.extend(place.map(|place| to_wire(&server, policy, states.swap_remove(place))));
    }
    Ok(found)
}

/// The earliest due date of those obligations of a server that `concerns` selects.
pub(super) async fn explained(
    conn: &mut Conn,
    server: &Server,
    suppressions: &ActiveSuppressions,
    concerns: impl Fn(&Obligation) -> bool,
    now: Timestamp,
) -> Result<Option<ExplainedPolicy>> {
    let policies = policies::list(conn, server.org_id).await?;
    if policies.is_empty() {
        return Ok(None);
    }
    let Some(obligations) = compliance::obligations_of(conn, server.org_id, server.id).await?
    else {
        return Ok(None);
    };
    let facts = ServerFacts {
        id: server.id,
        environment: server.environment.clone(),
        tags: server.tags.iter().cloned().collect(),
        os: Some(server.os.clone()),
    };
    let environment = server.environment.as_ref();
    let counting: Vec<&Obligation> = obligations
        .iter()
        .filter(|one| concerns(one))
        .filter(|one| {
            let subject = &one.subject;
            suppressions.covering(environment, &subject.cve, &subject.package).is_none()
        })
        .collect();
    let selecting = policies.iter().filter(|policy| selector::matches(&policy.targets, &facts));
    let due = selecting.flat_map(|policy| {
        counting
            .iter()
            .filter_map(move |one| Some((due_at(&policy.rules, one)?, policy, one.since)))
    });
    let earliest = due.min_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
    Ok(earliest.map(|(due_at, policy, available_since)| ExplainedPolicy {
        policy_id: policy.id,
        policy: policy.name.clone(),
        available_since,
        due_at,
        breach: due_at <= now,
    }))
}

/// A report of everything that this reader may see, signed with the installation's key.
#[boxed]
pub async fn report(app: &App, scope: &Scope, wanted: &Wanted) -> Result<SignedReport> {
    let report = unsigned_report(app, scope, wanted).await?;
    let text =
        serde_json::to_string(&report).map_err(|error| ServiceError::Internal(error.into()))?;
    let key = app.secrets.report_key();
    let signature = STANDARD.encode(key.sign(&wire::v1::report_signing_text(&text)));
    Ok(SignedReport { report: text, key: key.public_key(), signature })
}

/// The content of a report.
#[boxed]
pub async fn unsigned_report(
    app: &App,
    scope: &Scope,
    wanted: &Wanted,
) -> Result<ComplianceReport> {
    let now = app.clock.now();
    let mut reader = app.db.snapshot().await?;
    let (rows, all) = figures(&mut reader, scope, wanted).await?;
    let shown: BTreeSet<PolicyId> = rows.iter().map(|(id, _)| *id).collect();
    let visible = scope.environments.as_deref();
    let in_report = |policy: &&Policy| {
        wanted.policy.is_none_or(|id| id == policy.id)
            && (shown.contains(&policy.id) || is_limited_to(visible, &policy.targets))
    };
    let page = Page { limit: REPORTED_SERVERS_MAX, offset: 0 };
    let mut policies = Vec::new();
    for policy in all.iter().filter(in_report) {
        let mut lists = Vec::new();
        for state in [ComplianceState::Breaching, ComplianceState::Unknown] {
            let environment = wanted.environment.clone();
            let found =
                servers_in(&mut reader, scope, policy, environment, Some(state), page).await?;
            lists.push(found.items);
        }
        let unknown = lists.pop().unwrap_or_default();
        policies.push(ReportedPolicy {
            id: policy.id,
            name: policy.name.clone(),
            description: policy.description.clone(),
            targets: policy.targets.clone(),
            rules: policy.rules.iter().map(rule).collect(),
            figures: rows
                .iter()
                .filter(|(id, _)| *id == policy.id)
                .map(|(_, row)| row.clone())
                .collect(),
            breaches: lists.pop().unwrap_or_default(),
            unknown,
        });
    }
    let environments = match &wanted.environment {
        Some(one) => Some(vec![one.clone()]),
        None => visible.map(<[Environment]>::to_vec),
    };
    let organization = organizations::get(&mut reader, scope.org).await?;
    Ok(ComplianceReport {
        organization: organization.name,
        created_at: now,
        suppressions: reported_suppressions(&mut reader, scope, environments.clone(), now).await?,
        freezes: reported_freezes(&mut reader, scope, now).await?,
        environments,
        policies,
    })
}

async fn reported_suppressions(
    conn: &mut Conn,
    scope: &Scope,
    environments: Option<Vec<Environment>>,
    now: Timestamp,
) -> Result<Vec<ReportedSuppression>> {
    let filter = suppressions::Filter { cve: None, environments };
    let page = Page { limit: REPORTED_SUPPRESSIONS_MAX, offset: 0 };
    let found = suppressions::list(conn, scope.org, &filter, page).await?.items;
    let active = found.into_iter().filter(|one| one.expires_at.is_none_or(|until| now < until));
    Ok(active
        .map(|one| ReportedSuppression {
            cve: one.cve,
            package: one.package,
            environment: one.environment,
            reason: one.reason,
            expires_at: one.expires_at,
            created_at: one.created_at,
        })
        .collect())
}

async fn reported_freezes(
    conn: &mut Conn,
    scope: &Scope,
    now: Timestamp,
) -> Result<Vec<ReportedFreeze>> {
    let found = freezes::list_current(conn, scope.org, now).await?;
    let visible = found
        .into_iter()
        .filter(|one| is_limited_to(scope.environments.as_deref(), &one.rule.targets));
    Ok(visible
        .map(|one| ReportedFreeze {
            active: one.rule.active_period(now).is_some(),
            name: one.name,
            reason: one.reason,
            targets: one.rule.targets,
        })
        .collect())
}
