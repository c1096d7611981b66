//! What an operator may set of a provider.

use reqwest::Url;
use vocab::{OrgId, Role};

/// A provider, as an operator set it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who it is: the address under which it describes itself.
    pub issuer: String,
    /// What it is called on the page where one signs in.
    pub name: String,
    /// As what it knows this service.
    pub client_id: String,
    /// What this service shows it; without one, PKCE alone protects the code.
    pub client_secret: Option<Secret>,
    /// What is asked of it.
    pub scope: String,
    /// Who gets which role, if the provider decides that.
    pub roles: Option<Roles>,
    /// The role of whoever it vouches for and has no other; nothing, if such people stay out.
    pub default_role: Option<Role>,
    /// Where people go who come for the first time and were not invited.
    pub org: OrgId,
}

/// Something that is not shown.
#[derive(Clone)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// How the provider says what a person may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    /// The claim.
    pub claim: String,
    /// Who has this value of it has this role.
    pub by_value: Vec<(Role, String)>,
}

/// What the provider's word gives a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granted {
    /// This role, whatever they had.
    Role(Role),
    /// The role that they have; somebody new has none.
    Theirs,
    /// None: they stay out.
    Nothing,
}

impl Config {
    /// What somebody gets whose claim has these values, and whether they are new.
    pub fn granted(&self, values: &[String], is_new: bool) -> Granted {
        let fallback = self.default_role.map_or(Granted::Nothing, Granted::Role);
        let Some(roles) = &self.roles else {
            return if is_new { fallback } else { Granted::Theirs };
        };
        let theirs = roles.by_value.iter().filter(|(_, value)| values.contains(value));
        let greatest = theirs.map(|(role, _)| *role).reduce(|a, b| if a.may(b) { a } else { b });
        greatest.map_or(fallback, Granted::Role)
    }
}

/// An address that a provider may have. It is kept to the letter: providers compare it so.
pub fn issuer(text: &str) -> Result<String, &'static str> {
    let url = Url::parse(text).map_err(|_| "it is no address")?;
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() {
        return Err("it has more than a host and a path");
    }
    if !super::ask::is_safe(&url) {
        return Err("it does not begin with https:// (http:// is for a provider on this machine)");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(roles: Option<Roles>, default_role: Option<Role>) -> Config {
        Config {
            issuer: "https://id.example.org".into(),
            name: "Example".into(),
            client_id: "fleetmend".into(),
            client_secret: Some(Secret("hush".into())),
            scope: "openid email".into(),
            roles,
            default_role,
            org: OrgId::new(jiff::Timestamp::UNIX_EPOCH, 1),
        }
    }

    #[test]
    fn without_a_claim_people_keep_their_roles_and_strangers_get_the_default_or_nothing() {
        let strict = config(None, None);
        assert_eq!(strict.granted(&[], false), Granted::Theirs);
        assert_eq!(strict.granted(&[], true), Granted::Nothing);
        let open = config(None, Some(Role::Viewer));
        assert_eq!(open.granted(&[], false), Granted::Theirs);
        assert_eq!(open.granted(&[], true), Granted::Role(Role::Viewer));
    }

    #[test]
    fn with_a_claim_the_greatest_role_counts_and_who_has_none_is_out() {
        let by_value = vec![(Role::Viewer, "staff".into()), (Role::Admin, "ops".into())];
        let roles = Some(Roles { claim: "groups".into(), by_value });
        let granted = |values: &[&str], default| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            config(roles.clone(), default).granted(&values, false)
        };
        assert_eq!(granted(&["staff", "ops"], None), Granted::Role(Role::Admin));
        assert_eq!(granted(&["staff"], None), Granted::Role(Role::Viewer));
        assert_eq!(granted(&["other"], None), Granted::Nothing);
        assert_eq!(granted(&[], Some(Role::Viewer)), Granted::Role(Role::Viewer));
    }

    #[test]
    fn an_issuer_is_https_or_here() {
        for good in
            ["https://id.example.org", "https://id.example.org/realms/a/", "http://127.0.0.1:1"]
        {
            assert_eq!(issuer(good).as_deref(), Ok(good));
        }
        for bad in
            ["http://id.example.org", "id.example.org", "https://id.example.org/?a=b", "file:///x"]
        {
            assert!(issuer(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_not_written_into_logs() {
        assert!(!format!("{:?}", config(None, None)).contains("hush"));
    }
}
