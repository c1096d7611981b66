//! The arguments that select servers for a command.

use clap::Args;
use serde_json::{Map, Value, json};

use super::Session;

#[derive(Args)]
#[group(id = "selection", required = true, multiple = true)]
pub(super) struct SelectionArgs {
    /// Server IDs or names
    #[arg(value_name = "SERVER", group = "selection")]
    pub(super) servers: Vec<String>,
    /// All servers
    #[arg(long, group = "selection", conflicts_with_all = ["servers", "in_environment", "with_tag"])]
    all: bool,
    /// The servers of this environment
    #[arg(long, value_name = "ENVIRONMENT", group = "selection")]
    in_environment: Option<String>,
    /// The servers with this tag; if repeated, servers must have all tags
    #[arg(long, value_name = "TAG", group = "selection")]
    with_tag: Vec<String>,
}

impl SelectionArgs {
    /// The server, if exactly one is named and nothing else is selected.
    pub(super) fn single(&self) -> Option<&str> {
        let criteria = self.all || self.in_environment.is_some() || !self.with_tag.is_empty();
        match self.servers.as_slice() {
            [server] if !criteria => Some(server),
            _ => None,
        }
    }

    /// The selector for the API, and a description of it.
    pub(super) async fn targets(&self, session: &Session) -> anyhow::Result<(Value, String)> {
        if self.all {
            return Ok((json!({"all": true}), "all servers".to_owned()));
        }
        let mut targets = Map::new();
        let mut criteria = Vec::new();
        if !self.servers.is_empty() {
            let mut ids = Vec::new();
            for name in &self.servers {
                ids.push(session.resolve_server(name).await?);
            }
            targets.insert("server_ids".to_owned(), json!(ids));
        }
        if let Some(environment) = &self.in_environment {
            targets.insert("environment".to_owned(), json!(environment));
            criteria.push(format!("in {environment}"));
        }
        if !self.with_tag.is_empty() {
            targets.insert("tags".to_owned(), json!(self.with_tag));
            let noun = if self.with_tag.len() == 1 { "tag" } else { "tags" };
            criteria.push(format!("with the {noun} {}", self.with_tag.join(" and ")));
        }
        let servers = match self.servers.is_empty() {
            true => "the servers".to_owned(),
            false => self.servers.join(", "),
        };
        let shown = [servers, criteria.join(" and ")].join(" ");
        Ok((Value::Object(targets), shown.trim_end().to_owned()))
    }
}

/// The selector for the API from separate flags; none if no flag was given.
pub(super) async fn selector(
    session: &Session,
    environment: Option<&String>,
    os: Option<&String>,
    tags: &[String],
    servers: &[String],
) -> anyhow::Result<Option<Value>> {
    let mut targets = Map::new();
    for (name, value) in [("environment", environment), ("os", os)] {
        if let Some(value) = value {
            targets.insert(name.to_owned(), json!(value));
        }
    }
    if !tags.is_empty() {
        targets.insert("tags".to_owned(), json!(tags));
    }
    let mut ids = Vec::new();
    for id_or_name in servers {
        ids.push(session.resolve_server(id_or_name).await?);
    }
    if !ids.is_empty() {
        targets.insert("server_ids".to_owned(), json!(ids));
    }
    Ok((!targets.is_empty()).then_some(Value::Object(targets)))
}
