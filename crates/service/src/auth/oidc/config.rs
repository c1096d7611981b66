//! The settings of an identity provider.

use reqwest::Url;
use vocab::{OrgId, Role};

#[derive(Debug, Clone)]
pub struct Config {
    /// The issuer URL, under which the provider publishes its metadata.
    pub issuer: String,
    /// The provider's name on the sign-in page.
    pub name: String,
    pub client_id: String,
    /// The client secret. Without one, only PKCE protects the authorization code.
    pub client_secret: Option<Secret>,
    /// The requested OAuth scopes.
    pub scope: String,
    /// How to map claims to roles, if the provider decides on roles.
    pub roles: Option<RoleMapping>,
    /// The role of users to whom no other role is mapped; `None` refuses them.
    pub default_role: Option<Role>,
    /// The organization of users who sign in for the first time and were not invited.
    pub org: OrgId,
}

/// A text that is not shown in debug output.
#[derive(Clone)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// How claims are mapped to roles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleMapping {
    pub claim: String,
    /// Users with this claim value get this role.
    pub by_value: Vec<(Role, String)>,
}

/// The role that a user gets at sign-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleGrant {
    /// This role, regardless of the role that they had before.
    Role(Role),
    /// The role that they already have.
    Unchanged,
    /// None: the sign-in is rejected.
    Denied,
}

impl Config {
    /// The role for these claim values. `is_new`: the user signs in for the first time.
    pub fn grant_for(&self, values: &[String], is_new: bool) -> RoleGrant {
        let fallback = self.default_role.map_or(RoleGrant::Denied, RoleGrant::Role);
        let Some(roles) = &self.roles else {
            return if is_new { fallback } else { RoleGrant::Unchanged };
        };
        let theirs = roles.by_value.iter().filter(|(_, value)| values.contains(value));
        let greatest =
            theirs.map(|(role, _)| *role).reduce(|a, b| if a.includes(b) { a } else { b });
        greatest.map_or(fallback, RoleGrant::Role)
    }
}

/// Checks an issuer URL. It is kept unchanged, because providers compare it character by character.
pub fn parse_issuer(text: &str) -> Result<String, &'static str> {
    let url = Url::parse(text).map_err(|_| "not a valid URL")?;
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() {
        return Err("must not contain a username, a query or a fragment");
    }
    if !super::http::is_safe(&url) {
        return Err(
            "must begin with https:// (http:// is allowed only for a provider on this host)",
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(roles: Option<RoleMapping>, default_role: Option<Role>) -> Config {
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
    fn without_role_claim_users_keep_roles_and_new_users_get_default() {
        let strict = config(None, None);
        assert_eq!(strict.grant_for(&[], false), RoleGrant::Unchanged);
        assert_eq!(strict.grant_for(&[], true), RoleGrant::Denied);
        let open = config(None, Some(Role::Viewer));
        assert_eq!(open.grant_for(&[], false), RoleGrant::Unchanged);
        assert_eq!(open.grant_for(&[], true), RoleGrant::Role(Role::Viewer));
    }

    #[test]
    fn with_role_claim_highest_role_wins_and_unmapped_are_refused() {
        let by_value = vec![(Role::Viewer, "staff".into()), (Role::Admin, "ops".into())];
        let roles = Some(RoleMapping { claim: "groups".into(), by_value });
        let granted = |values: &[&str], default| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            config(roles.clone(), default).grant_for(&values, false)
        };
        assert_eq!(granted(&["staff", "ops"], None), RoleGrant::Role(Role::Admin));
        assert_eq!(granted(&["staff"], None), RoleGrant::Role(Role::Viewer));
        assert_eq!(granted(&["other"], None), RoleGrant::Denied);
        assert_eq!(granted(&[], Some(Role::Viewer)), RoleGrant::Role(Role::Viewer));
    }

    #[test]
    fn issuer_must_be_https_or_loopback() {
        for good in
            ["https://id.example.org", "https://id.example.org/realms/a/", "http://127.0.0.1:1"]
        {
            assert_eq!(parse_issuer(good).as_deref(), Ok(good));
        }
        for bad in
            ["http://id.example.org", "id.example.org", "https://id.example.org/?a=b", "file:///x"]
        {
            assert!(parse_issuer(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn client_secret_is_not_in_debug_output() {
        assert!(!format!("{:?}", config(None, None)).contains("hush"));
    }
}
