//! `fleetmend policies`: manages by when fixes must be installed.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use wire::v1::{Policy, PolicyMatchRequest, PolicyRequest, PolicyRule, PolicyRuleRequest};

use super::api::{ApiResponse, Query};
use super::credentials::Connection;
use super::list::{ListView, PageArgs};
use super::patch_request::confirm;
use super::selection::selector;
use super::table::{
    Cell, Column, Screen, Tone, empty_cell, escape_cell, full_column, optional_column,
    truncated_column,
};
use super::{Session, UsageError, print_message};

/// By when fixes must be installed.
#[derive(Args)]
pub(crate) struct Policies {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List policies
    #[command(after_help = "Example:\n  fleetmend policies list")]
    List(PageArgs),
    /// Show a policy and its rules
    #[command(after_help = "Example:\n  fleetmend policies show 'Critical within a week'")]
    Show {
        /// Policy ID or name
        policy: String,
    },
    /// Create a policy; it also judges the time that has already passed
    #[command(after_help = "\
Examples:
  fleetmend policies create --name 'Critical within a week' --environment production \\
    --rule kev=2 --rule critical=7
  fleetmend policies create --name Baseline --all --rule security=30

A rule is what it matches, and the number of days: kev (CVEs that are known to be exploited),
critical, high, medium or low (CVEs of at least this severity), or security (all security updates).")]
    Create(PolicyArgs),
    /// Change the given properties of a policy and keep the others
    #[command(
        after_help = "Example:\n  fleetmend policies update Baseline --rule security=14 --rule kev=2"
    )]
    Update {
        /// Policy ID or name
        policy: String,
        #[command(flatten)]
        content: PolicyArgs,
    },
    /// Delete a policy and its trend
    #[command(after_help = "Example:\n  fleetmend policies delete Baseline")]
    Delete {
        /// Policy ID or name
        policy: String,
        /// Skip the confirmation prompt
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Args)]
struct PolicyArgs {
    /// Name of the policy
    #[arg(long)]
    name: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What must be installed within how many days, such as critical=7; repeatable
    #[arg(long, value_name = "MATCH=DAYS", value_parser = parse_rule)]
    rule: Vec<PolicyRuleRequest>,
    /// Apply to servers in this environment
    #[arg(long)]
    environment: Option<String>,
    /// Apply to servers with this operating system, such as debian or "debian 12"
    #[arg(long)]
    os: Option<String>,
    /// Apply to servers with this tag; if repeated, servers must have all tags
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Apply to this server, by ID or name; repeatable
    #[arg(long, value_name = "SERVER")]
    server: Vec<String>,
    /// Apply to every server of the organization
    #[arg(long, conflicts_with_all = ["environment", "os", "tag", "server"])]
    all: bool,
}

/// Parses `kev=2`, `critical=7` or `security=30`. The service checks the severity and the number.
fn parse_rule(text: &str) -> Result<PolicyRuleRequest, String> {
    let wrong = || "must be MATCH=DAYS, such as kev=2, critical=7 or security=30".to_owned();
    let (what, days) = text.split_once('=').ok_or_else(wrong)?;
    let within_days = days.parse().map_err(|_| wrong())?;
    let mut matches = PolicyMatchRequest::default();
    match what {
        "" => return Err(wrong()),
        "kev" => matches.kev = Some(true),
        "security" => matches.security = Some(true),
        severity => matches.severity = Some(severity.to_owned()),
    }
    Ok(PolicyRuleRequest { matches, within_days })
}

const COLUMNS: [Column; 5] = [
    truncated_column("NAME"),
    truncated_column("RULES"),
    truncated_column("TARGETS"),
    full_column("SERVERS").align_right(),
    optional_column("ID"),
];

impl Policies {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::List(part) => {
                let listing = ListView { path: &["policies"], noun: "policies", columns: &COLUMNS };
                session.list(listing, &part, Query::default, row).await
            }
            Command::Show { policy } => {
                let id = session.resolve_policy(&policy).await?;
                show_policy(&session, &session.api.get(&["policies", &id]).await?)
            }
            Command::Create(content) => {
                let request = content.request(&session, None).await?;
                show_policy(&session, &session.api.post(&["policies"], Some(&request)).await?)
            }
            Command::Update { policy, content } => {
                let id = session.resolve_policy(&policy).await?;
                let seen = session.api.get(&["policies", &id]).await?;
                let request = content.request(&session, Some(seen.read()?)).await?;
                let path = ["policies", &*id];
                let saved = session.api.put(&path, seen.etag.as_deref(), &request).await?;
                show_policy(&session, &saved)
            }
            Command::Delete { policy, yes } => {
                let id = session.resolve_policy(&policy).await?;
                let seen = session.api.get(&["policies", &id]).await?;
                let name = escape_cell(seen.read::<Policy>()?.name);
                confirm(&format!("Delete the policy `{name}` and its trend?"), yes)?;
                session.api.delete(&["policies", &id], seen.etag.as_deref()).await?;
                print_message(&format!("Deleted the policy `{name}`."))
            }
        }
    }
}

impl PolicyArgs {
    /// The complete request: the given flags applied to the existing policy, if any.
    async fn request(
        &self,
        session: &Session,
        seen: Option<Policy>,
    ) -> anyhow::Result<PolicyRequest> {
        let mut request = match seen {
            Some(seen) => PolicyRequest {
                name: seen.name,
                description: seen.description,
                targets: serde_json::to_value(seen.targets)?,
                rules: serde_json::from_value(serde_json::to_value(seen.rules)?)?,
            },
            None => {
                let (Some(name), false) = (self.name.clone(), self.rule.is_empty()) else {
                    return Err(UsageError("a policy needs --name and --rule".to_owned()).into());
                };
                let targets = Value::Object(Map::new());
                PolicyRequest { name, description: String::new(), targets, rules: Vec::new() }
            }
        };
        request.name = self.name.clone().unwrap_or(request.name);
        request.description = self.description.clone().unwrap_or(request.description);
        if !self.rule.is_empty() {
            request.rules.clone_from(&self.rule);
        }
        let targets = match self.all {
            true => Some(json!({"all": true})),
            false => {
                let (environment, os) = (self.environment.as_ref(), self.os.as_ref());
                selector(session, environment, os, &self.tag, &self.server).await?
            }
        };
        request.targets = targets.unwrap_or(request.targets);
        Ok(request)
    }
}

fn show_policy(session: &Session, body: &ApiResponse) -> anyhow::Result<()> {
    session.show(body, |screen| Ok(format_policy(&body.read()?, screen)))
}

/// A rule in words: "critical within 7 days".
pub(super) fn describe_rule(rule: &PolicyRule) -> String {
    let days = if rule.within_days == 1 { "day" } else { "days" };
    format!("{} within {} {days}", rule.matches.description(), rule.within_days)
}

fn describe_rules(rules: &[PolicyRule]) -> String {
    rules.iter().map(describe_rule).collect::<Vec<_>>().join(", ")
}

fn row(policy: &Policy) -> Vec<Cell> {
    vec![
        (&policy.name).into(),
        describe_rules(&policy.rules).into(),
        (&policy.targets).into(),
        policy.servers.into(),
        policy.id.into(),
    ]
}

fn format_policy(policy: &Policy, screen: &Screen) -> String {
    let servers = match policy.servers {
        0 => empty_cell(),
        servers => servers.into(),
    };
    let mut properties: Vec<(&str, Cell)> =
        vec![("policy", (&policy.name).into()), ("id", policy.id.into())];
    if !policy.description.is_empty() {
        properties.push(("description", (&policy.description).into()));
    }
    properties.push(("rules", describe_rules(&policy.rules).into()));
    properties.push(("targets", (&policy.targets).into()));
    properties.push(("servers", servers));
    let mut text = screen.properties(&properties);
    for warning in &policy.warnings {
        text += &format!("{}\n", screen.paint(&format!("Warning: {warning}"), Tone::Warning));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_a_match_and_days() {
        let parsed = |text: &str| serde_json::to_value(parse_rule(text).unwrap()).unwrap();
        assert_eq!(parsed("kev=2"), json!({"match": {"kev": true}, "within_days": 2}));
        assert_eq!(
            parsed("critical=7"),
            json!({"match": {"severity": "critical"}, "within_days": 7})
        );
        assert_eq!(parsed("security=0"), json!({"match": {"security": true}, "within_days": 0}));
        for wrong in ["", "kev", "kev=", "=7", "kev=soon", "kev=1.5"] {
            assert!(parse_rule(wrong).is_err(), "{wrong}");
        }
    }
}
