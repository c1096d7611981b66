//! Resolves names to the IDs that the API expects, if they are unambiguous.

use anyhow::bail;
use vocab::{FreezeId, KeyId, Line, PolicyId, ScheduleId, ServerId, TokenId, WebhookId, nearest};
use wire::v1::{ApiKey, EnrollmentToken, Freeze, List, Policy, Schedule, Server, Webhook};

use super::Session;
use super::api::Query;

impl Session {
    /// Resolves a server ID, hostname or display name.
    pub(super) async fn resolve_server(&self, id_or_name: &str) -> anyhow::Result<String> {
        if id_or_name.parse::<ServerId>().is_ok() || id_or_name.is_empty() {
            return Ok(id_or_name.to_owned());
        }
        let query = || Query::default().with("q", Some(id_or_name));
        let found: Vec<Server> = self.read_all(&["servers"], query).await?;
        let named = found.iter().flat_map(|server| {
            let names =
                [Some(server.hostname.as_str()), server.display_name.as_ref().map(Line::as_str)];
            names.into_iter().flatten().map(|name| (server.id.to_string(), name.to_owned()))
        });
        find_by_name("server", id_or_name, named.collect())
    }

    /// Resolves a schedule ID or name.
    pub(super) async fn resolve_schedule(&self, id_or_name: &str) -> anyhow::Result<String> {
        if id_or_name.parse::<ScheduleId>().is_ok() {
            return Ok(id_or_name.to_owned());
        }
        let all: Vec<Schedule> = self.read_all(&["schedules"], Query::default).await?;
        find_by_name(
            "schedule",
            id_or_name,
            all.into_iter().map(|s| (s.id.to_string(), s.name)).collect(),
        )
    }

    /// Resolves a freeze ID or name.
    pub(super) async fn resolve_freeze(&self, id_or_name: &str) -> anyhow::Result<String> {
        if id_or_name.parse::<FreezeId>().is_ok() {
            return Ok(id_or_name.to_owned());
        }
        let all: Vec<Freeze> = self.read_all(&["freezes"], Query::default).await?;
        find_by_name(
            "freeze",
            id_or_name,
            all.into_iter().map(|freeze| (freeze.id.to_string(), freeze.name)).collect(),
        )
    }

    /// Resolves a policy ID or name.
    pub(super) async fn resolve_policy(&self, id_or_name: &str) -> anyhow::Result<String> {
        if id_or_name.parse::<PolicyId>().is_ok() {
            return Ok(id_or_name.to_owned());
        }
        let all: Vec<Policy> = self.read_all(&["policies"], Query::default).await?;
        find_by_name(
            "policy",
            id_or_name,
            all.into_iter().map(|policy| (policy.id.to_string(), policy.name)).collect(),
        )
    }

    /// Resolves a key ID or name. Revoked keys can only be given by ID.
    pub(super) async fn resolve_key(&self, id_or_name: &str) -> anyhow::Result<String> {
        if id_or_name.parse::<KeyId>().is_ok() {
            return Ok(id_or_name.to_owned());
        }
        let all: Vec<ApiKey> = self.read_all(&["api-keys"], Query::default).await?;
        let valid = all.into_iter().filter(|key| key.revoked_at.is_none());
        find_by_name("key", id_or_name, valid.map(|key| (key.id.to_string(), key.name)).collect())
    }

    /// Resolves an enrollment token's ID or name. Revoked tokens can only be given by ID.
    pub(super) async fn resolve_token(&self, id_or_name: &str) -> anyhow::Result<String> {
        if id_or_name.parse::<TokenId>().is_ok() {
            return Ok(id_or_name.to_owned());
        }
        let all: Vec<EnrollmentToken> =
            self.read_all(&["enrollment-tokens"], Query::default).await?;
        let valid = all.into_iter().filter(|token| token.revoked_at.is_none());
        find_by_name(
            "token",
            id_or_name,
            valid.map(|token| (token.id.to_string(), token.name)).collect(),
        )
    }

    /// Resolves a webhook ID or name.
    pub(super) async fn resolve_webhook(&self, id_or_name: &str) -> anyhow::Result<String> {
        if id_or_name.parse::<WebhookId>().is_ok() {
            return Ok(id_or_name.to_owned());
        }
        let all: List<Webhook> = self.api.get(&["webhooks"]).await?.read()?;
        find_by_name(
            "webhook",
            id_or_name,
            all.data.into_iter().map(|webhook| (webhook.id.to_string(), webhook.name)).collect(),
        )
    }
}

/// The ID of the only item with this name: an exact match, otherwise ignoring case.
fn find_by_name(
    noun: &str,
    id_or_name: &str,
    all: Vec<(String, String)>,
) -> anyhow::Result<String> {
    let ids_matching = |same: &dyn Fn(&str) -> bool| -> Vec<&str> {
        all.iter().filter(|(_, name)| same(name)).map(|(id, _)| id.as_str()).collect()
    };
    let mut ids = ids_matching(&|name| name == id_or_name);
    if ids.is_empty() {
        ids = ids_matching(&|name| name.to_lowercase() == id_or_name.to_lowercase());
    }
    // A server may have the same display name and hostname.
    ids.dedup();
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => {
            let suggestion = nearest(id_or_name, all.iter().map(|(_, name)| name.as_str()));
            let hint =
                suggestion.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            bail!("no {noun} named `{id_or_name}`{hint}")
        }
        several => bail!(
            "`{id_or_name}` matches {} {noun}s: use the ID of one of them ({})",
            several.len(),
            several.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[(&str, &str)]) -> Vec<(String, String)> {
        names.iter().map(|(id, name)| ((*id).to_owned(), (*name).to_owned())).collect()
    }

    #[test]
    fn ambiguous_names_are_rejected() {
        let all =
            named(&[("srv_1", "web-1"), ("srv_2", "WEB-1"), ("srv_3", "db"), ("srv_4", "db")]);
        assert_eq!(find_by_name("server", "web-1", all.clone()).unwrap(), "srv_1");
        assert_eq!(find_by_name("server", "DB", named(&[("srv_3", "db")])).unwrap(), "srv_3");
        let error = find_by_name("server", "db", all.clone()).unwrap_err().to_string();
        assert_eq!(error, "`db` matches 2 servers: use the ID of one of them (srv_3, srv_4)");
        let error = find_by_name("server", "Web-1", all).unwrap_err().to_string();
        assert!(error.contains("(srv_1, srv_2)"), "{error}");
    }
}
