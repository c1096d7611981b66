//! Names where the API wants ids, as long as they mean one thing.

use anyhow::bail;
use vocab::{KeyId, ScheduleId, ServerId, TokenId, nearest};
use wire::v1::{ApiKey, EnrollmentToken, Schedule, Server};

use super::Session;
use super::api::Query;

impl Session {
    /// The id of a server that was named by its id or by its hostname.
    pub(super) async fn server(&self, said: &str) -> anyhow::Result<String> {
        if said.parse::<ServerId>().is_ok() || said.is_empty() {
            return Ok(said.to_owned());
        }
        let query = || Query::default().with("q", Some(said));
        let found: Vec<Server> = self.all(&["servers"], query).await?;
        let named = found.iter().map(|server| (server.id.to_string(), server.hostname.to_string()));
        one("server", said, named.collect())
    }

    /// The id of a schedule that was named by its id or by its name.
    pub(super) async fn schedule(&self, said: &str) -> anyhow::Result<String> {
        if said.parse::<ScheduleId>().is_ok() {
            return Ok(said.to_owned());
        }
        let all: Vec<Schedule> = self.all(&["schedules"], Query::default).await?;
        one("schedule", said, all.into_iter().map(|s| (s.id.to_string(), s.name)).collect())
    }

    /// The id of a key. One that was revoked is not meant by its name.
    pub(super) async fn key(&self, said: &str) -> anyhow::Result<String> {
        if said.parse::<KeyId>().is_ok() {
            return Ok(said.to_owned());
        }
        let all: Vec<ApiKey> = self.all(&["api-keys"], Query::default).await?;
        let valid = all.into_iter().filter(|key| key.revoked_at.is_none());
        one("key", said, valid.map(|key| (key.id.to_string(), key.name)).collect())
    }

    /// The id of an enrolment token. One that was revoked is not meant by its name.
    pub(super) async fn token(&self, said: &str) -> anyhow::Result<String> {
        if said.parse::<TokenId>().is_ok() {
            return Ok(said.to_owned());
        }
        let all: Vec<EnrollmentToken> = self.all(&["enrollment-tokens"], Query::default).await?;
        let valid = all.into_iter().filter(|token| token.revoked_at.is_none());
        one("token", said, valid.map(|token| (token.id.to_string(), token.name)).collect())
    }
}

/// The only one of that name: exactly so, or else without regard to case.
fn one(noun: &str, said: &str, all: Vec<(String, String)>) -> anyhow::Result<String> {
    let of = |same: &dyn Fn(&str) -> bool| -> Vec<&str> {
        all.iter().filter(|(_, name)| same(name)).map(|(id, _)| id.as_str()).collect()
    };
    let mut ids = of(&|name| name == said);
    if ids.is_empty() {
        ids = of(&|name| name.to_lowercase() == said.to_lowercase());
    }
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => {
            let meant = nearest(said, all.iter().map(|(_, name)| name.as_str()));
            let meant = meant.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            bail!("there is no {noun} `{said}`{meant}")
        }
        several => bail!(
            "`{said}` is the name of {} {noun}s: say which by its id ({})",
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
    fn a_name_counts_only_if_it_means_one_thing() {
        let all =
            named(&[("srv_1", "web-1"), ("srv_2", "WEB-1"), ("srv_3", "db"), ("srv_4", "db")]);
        assert_eq!(one("server", "web-1", all.clone()).unwrap(), "srv_1");
        assert_eq!(one("server", "DB", named(&[("srv_3", "db")])).unwrap(), "srv_3");
        let error = one("server", "db", all.clone()).unwrap_err().to_string();
        assert_eq!(error, "`db` is the name of 2 servers: say which by its id (srv_3, srv_4)");
        let error = one("server", "Web-1", all).unwrap_err().to_string();
        assert!(error.contains("(srv_1, srv_2)"), "{error}");
    }
}
