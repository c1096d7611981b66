//! What the health of servers means for a batch, in words: which unit failed on which server, after
//! which update.

use domain::rollout::{HaltReason, HealthProblem, Phase, TaskHealth};
use store::rollout_tasks::{self, TaskResult};
use store::{Conn, rollouts};
use vocab::{HealthProblemKind, ServerId};
use wire::agent::PackageMove;

use crate::commands::server_health::packages;

/// Maximum number of unhealthy servers that are read for a reason; one of them is named.
const SERVERS_MAX: u32 = 200;

/// A problem in words: `nginx.service failed`.
pub fn describe_problem(problem: &HealthProblem) -> String {
    describe(problem.kind, problem.name.as_str())
}

/// A problem in words, from its kind and its name.
pub fn describe(kind: HealthProblemKind, name: &str) -> String {
    match kind {
        HealthProblemKind::UnitFailed => format!("{name} failed"),
        HealthProblemKind::UnitInactive => format!("{name} stopped"),
        HealthProblemKind::SocketLost => format!("nothing listens on {name}"),
        HealthProblemKind::HookFailed => format!("health hook {name} failed"),
        HealthProblemKind::BootIncomplete => "the boot is not complete".to_owned(),
        HealthProblemKind::Other => name.to_owned(),
    }
}

/// Why a batch halted because of the health of its servers; `None` if it did not.
pub async fn halt_reason(
    conn: &mut Conn,
    row: &rollouts::Rollout,
) -> store::Result<Option<String>> {
    let wave = match row.head.phase {
        Phase::Halted(HaltReason::HealthUnknown { wave }) => {
            let why = match row.head.waves.ended_at {
                Some(_) => "too few of its servers reported at the end of the soak",
                None => "no server of it could be measured",
            };
            return Ok(Some(format!("health of wave {wave} is unknown: {why}")));
        }
        Phase::Halted(
            HaltReason::HealthDegraded { wave } | HaltReason::FleetWideDegradation { wave },
        ) => wave,
        _ => return Ok(None),
    };
    let degraded = rollout_tasks::degraded(conn, row.id, SERVERS_MAX).await?;
    let degraded: Vec<TaskResult> =
        degraded.into_iter().filter(|task| task.target.wave() == wave).collect();
    let is_fleet_wide =
        matches!(row.head.phase, Phase::Halted(HaltReason::FleetWideDegradation { .. }));
    let Some((task, health)) = degraded.iter().find_map(|task| Some((task, task.health.as_ref()?)))
    else {
        return Ok(Some(format!("health of wave {wave}: its servers have recovered since")));
    };
    let mut text = match is_fleet_wide {
        true => "fleet_wide_degradation: ".to_owned(),
        false => format!("health of wave {wave}: "),
    };
    text += &problems(health);
    text += &format!(" on {}", server_name(conn, row, task.server_id).await?);
    match is_fleet_wide {
        true => text += ", and on servers that this batch has not changed",
        false => text += &after_packages(health, &packages(task.result.as_ref())),
    }
    let others = degraded.len() - 1;
    if others > 0 {
        text += &format!("; {others} more {} unhealthy", if others == 1 { "is" } else { "are" });
    }
    Ok(Some(text))
}

fn problems(health: &TaskHealth) -> String {
    let mut text = health.problems.first().map(describe_problem).unwrap_or_default();
    let others = health.problems.len().saturating_sub(1);
    if others > 0 {
        text += &format!(" ({others} more {})", if others == 1 { "problem" } else { "problems" });
    }
    text
}

/// ` after openssl 3.0.2 → 3.0.3 and 2 more packages`. A package that is named like the problem
/// comes first.
fn after_packages(health: &TaskHealth, packages: &[PackageMove]) -> String {
    let named = |change: &&PackageMove| {
        let name = change.name.as_str();
        health.problems.iter().any(|problem| problem.name.as_str().starts_with(name))
    };
    let Some(change) = packages.iter().find(named).or_else(|| packages.first()) else {
        return String::new();
    };
    let mut text = format!(" after {}", change.name);
    match (&change.from, &change.to) {
        (Some(from), Some(to)) => text += &format!(" {from} → {to}"),
        (None, Some(to)) => text += &format!(" {to} (new)"),
        (Some(from), None) => text += &format!(" {from} (removed)"),
        (None, None) => {}
    }
    match packages.len() - 1 {
        0 => {}
        1 => text += " and 1 more package",
        others => text += &format!(" and {others} more packages"),
    }
    text
}

async fn server_name(
    conn: &mut Conn,
    row: &rollouts::Rollout,
    server: ServerId,
) -> store::Result<String> {
    let names = store::batches::names(conn, row.org_id, &[server]).await?;
    let Some(named) = names.get(&server) else { return Ok(server.to_string()) };
    Ok(named.display_name.clone().unwrap_or_else(|| named.hostname.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::Line;

    #[test]
    fn reason_names_unit_and_package() {
        let problem = |name: &str| HealthProblem {
            kind: HealthProblemKind::UnitFailed,
            name: Line::sanitize(name),
        };
        let change = |name: &str| PackageMove {
            name: name.into(),
            arch: "amd64".into(),
            from: Some("3.0.2".into()),
            to: Some("3.0.3".into()),
        };
        let now = "2026-11-15T00:00:00Z".parse().unwrap();
        let measured = |names: &[&str]| {
            let problems = names.iter().map(|name| problem(name)).collect();
            let measurement = domain::rollout::HealthMeasurement {
                problems,
                not_measured: None,
                baseline_at: now,
            };
            TaskHealth::from_result(measurement, now)
        };
        let health = measured(&["nginx.service"]);
        assert_eq!(problems(&health), "nginx.service failed");
        assert_eq!(after_packages(&health, &[change("openssl")]), " after openssl 3.0.2 → 3.0.3");
        assert_eq!(
            after_packages(&health, &[change("bash"), change("nginx")]),
            " after nginx 3.0.2 → 3.0.3 and 1 more package"
        );
        let health = measured(&["a.service", "b.service", "c.service"]);
        assert_eq!(problems(&health), "a.service failed (2 more problems)");
        assert_eq!(after_packages(&health, &[]), "");
    }
}
