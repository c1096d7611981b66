//! Settings for sign-in through an OpenID Connect identity provider.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use service::auth::oidc::{Config, RoleMapping, Secret, parse_issuer};
use store::organizations::Organization;
use vocab::{OrgId, Role};

use crate::settings::SettingsFile;

const SCOPE: &str = "openid email profile";

// Flags of `fleetmend server`.
#[derive(Args)]
#[command(next_help_heading = "Sign-in with OpenID Connect")]
pub(crate) struct Oidc {
    /// Issuer URL of the identity provider, exactly as its discovery document states it; enables
    /// sign-in
    #[arg(long, value_name = "URL", env = "FLEETMEND_OIDC_ISSUER")]
    oidc_issuer: Option<String>,
    /// Client ID of this service at the identity provider
    #[arg(long, value_name = "ID", env = "FLEETMEND_OIDC_CLIENT_ID")]
    oidc_client_id: Option<String>,
    /// File with the client secret; omit it for a public client
    #[arg(long, value_name = "F", env = "FLEETMEND_OIDC_CLIENT_SECRET_FILE")]
    oidc_client_secret_file: Option<PathBuf>,
    /// Name of the identity provider on the sign-in page [default: its host]
    #[arg(long, value_name = "NAME", env = "FLEETMEND_OIDC_NAME")]
    oidc_name: Option<String>,
    /// Scopes to request [default: openid email profile]
    #[arg(long, value_name = "WORDS", env = "FLEETMEND_OIDC_SCOPE")]
    oidc_scope: Option<String>,
    /// Claim that determines a user's role at every sign-in, with --oidc-role [default: groups]
    #[arg(long, value_name = "CLAIM", env = "FLEETMEND_OIDC_ROLE_CLAIM")]
    oidc_role_claim: Option<String>,
    /// Role for users whose claim has this value, such as admin=ops; repeatable
    #[arg(long, value_name = "ROLE=VALUE", env = "FLEETMEND_OIDC_ROLE", value_delimiter = ',')]
    oidc_role: Option<Vec<String>>,
    /// Role for users without any other role, invited or not; without it, such users cannot sign in
    #[arg(long, value_name = "ROLE", env = "FLEETMEND_OIDC_DEFAULT_ROLE")]
    oidc_default_role: Option<Role>,
    /// Organization for users who were not invited; required if there is more than one
    #[arg(long, value_name = "NAME", env = "FLEETMEND_OIDC_ORG")]
    oidc_org: Option<String>,
}

impl Oidc {
    /// The configured identity provider, if any.
    pub(crate) fn config(
        &self,
        file: &SettingsFile,
        organizations: &[Organization],
    ) -> anyhow::Result<Option<Config>> {
        fn flag_or_file<T: Clone>(flag: &Option<T>, file: &Option<T>) -> Option<T> {
            flag.as_ref().or(file.as_ref()).cloned()
        }
        let client_id = flag_or_file(&self.oidc_client_id, &file.oidc_client_id);
        let Some(named) = flag_or_file(&self.oidc_issuer, &file.oidc_issuer) else {
            if client_id.is_some() {
                bail!("--oidc-client-id needs --oidc-issuer");
            }
            return Ok(None);
        };
        let refused = |why| anyhow::anyhow!("invalid --oidc-issuer {named}: {why}");
        let issuer = parse_issuer(&named).map_err(refused)?;
        let client_id = client_id.context("--oidc-issuer needs --oidc-client-id")?;
        let secret = flag_or_file(&self.oidc_client_secret_file, &file.oidc_client_secret_file);
        let client_secret = secret.as_deref().map(read_secret).transpose()?;
        let by_value = flag_or_file(&self.oidc_role, &file.oidc_role).unwrap_or_default();
        let by_value: Vec<_> =
            by_value.iter().map(|text| parse_role(text)).collect::<Result<_, _>>()?;
        let claim = flag_or_file(&self.oidc_role_claim, &file.oidc_role_claim);
        if claim.is_some() && by_value.is_empty() {
            bail!("--oidc-role-claim needs at least one --oidc-role ROLE=VALUE");
        }
        let roles = (!by_value.is_empty())
            .then(|| RoleMapping { claim: claim.unwrap_or_else(|| "groups".into()), by_value });
        let default_role = flag_or_file(&self.oidc_default_role, &file.oidc_default_role);
        let org = flag_or_file(&self.oidc_org, &file.oidc_org);
        let org =
            organization(org.as_deref(), organizations, roles.is_some() || default_role.is_some())?;
        let host = || issuer.split('/').nth(2).unwrap_or("").to_owned();
        let name = flag_or_file(&self.oidc_name, &file.oidc_name).unwrap_or_else(host);
        let scope =
            flag_or_file(&self.oidc_scope, &file.oidc_scope).unwrap_or_else(|| SCOPE.into());
        if !scope.split(' ').any(|word| word == "openid") {
            bail!("--oidc-scope must contain `openid`");
        }
        Ok(Some(Config { issuer, name, client_id, client_secret, scope, roles, default_role, org }))
    }
}

fn read_secret(path: &std::path::Path) -> anyhow::Result<Secret> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read --oidc-client-secret-file {}", path.display()))?;
    let text = text.trim();
    if text.is_empty() {
        bail!("the file {} is empty: it must contain the client secret", path.display());
    }
    Ok(Secret(text.to_owned()))
}

fn parse_role(text: &str) -> anyhow::Result<(Role, String)> {
    let (role, value) =
        text.split_once('=').filter(|(_, value)| !value.is_empty()).with_context(|| {
            format!("invalid --oidc-role {text}: write ROLE=VALUE, such as admin=ops")
        })?;
    let role =
        role.parse().map_err(|error| anyhow::anyhow!("invalid --oidc-role {text}: {error}"))?;
    Ok((role, value.to_owned()))
}

/// The organization for users who were not invited. Any organization will do if such users are not
/// let in.
fn organization(
    named: Option<&str>,
    all: &[Organization],
    newcomers: bool,
) -> anyhow::Result<OrgId> {
    let names = || all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
    match (named, all) {
        (Some(name), all) => {
            let found = all.iter().find(|one| one.name == name);
            Ok(found.with_context(|| format!("--oidc-org must be one of: {}", names()))?.id)
        }
        (None, [_, _, ..]) if newcomers => {
            bail!(
                "set --oidc-org to the organization for users who were not invited, one of: {}",
                names()
            )
        }
        (None, [first, ..]) => Ok(first.id),
        (None, []) => bail!("no organization exists"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        oidc: Oidc,
    }

    fn organization(n: u128, name: &str) -> Organization {
        let now = jiff::Timestamp::UNIX_EPOCH;
        Organization {
            id: OrgId::new(now, n),
            name: name.into(),
            created_at: now,
            removed_at: None,
            generation: 1,
        }
    }

    /// The configuration that results from these flags and the two required ones.
    fn config(words: &str, organizations: &[&str]) -> Result<Config, String> {
        let both = "x --oidc-issuer https://id.example.org/a --oidc-client-id fleetmend";
        let given = TestArgs::parse_from(format!("{both} {words}").split_whitespace());
        let all: Vec<_> = (1..).zip(organizations).map(|(n, name)| organization(n, name)).collect();
        let made = given.oidc.config(&SettingsFile::default(), &all);
        made.map(Option::unwrap).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn issuer_and_client_id_alone_admit_invited_users() {
        let made = config("", &["Acme", "Umbrella"]).unwrap();
        assert_eq!((made.name.as_str(), made.scope.as_str()), ("id.example.org", SCOPE));
        assert!(
            made.roles.is_none() && made.default_role.is_none() && made.client_secret.is_none()
        );
        let none = TestArgs::parse_from(["x"]).oidc.config(&SettingsFile::default(), &[]).unwrap();
        assert!(none.is_none());
    }

    #[test]
    fn role_mapping_is_read_from_flags_and_file() {
        let made = config("--oidc-role admin=ops,viewer=staff --oidc-org Acme", &["Acme"]).unwrap();
        let by_value = vec![(Role::Admin, "ops".into()), (Role::Viewer, "staff".into())];
        assert_eq!(made.roles, Some(RoleMapping { claim: "groups".into(), by_value }));
        let text = "oidc_issuer = \"http://127.0.0.1:9\"\noidc_client_id = \"f\"\noidc_role_claim = \"team\"\n\
                    oidc_role = [\"operator=a,b\"]\n";
        let file: SettingsFile = toml::from_str(text).unwrap();
        let none = TestArgs::parse_from(["x"]).oidc;
        let made = none.config(&file, &[organization(1, "Acme")]).unwrap().unwrap();
        let by_value = vec![(Role::Operator, "a,b".into())];
        assert_eq!(made.roles, Some(RoleMapping { claim: "team".into(), by_value }));
    }

    #[test]
    fn invalid_settings_are_rejected_with_advice() {
        for (words, told) in [
            ("--oidc-role-claim groups", "needs at least one --oidc-role"),
            ("--oidc-role admin", "write ROLE=VALUE"),
            ("--oidc-role emperor=ops", "emperor"),
            ("--oidc-default-role viewer", "--oidc-org"),
            ("--oidc-org Nobody", "Acme, Umbrella"),
            ("--oidc-scope email", "openid"),
            ("--oidc-client-secret-file /nowhere/at/all", "/nowhere/at/all"),
        ] {
            let refused = config(words, &["Acme", "Umbrella"]).unwrap_err();
            assert!(refused.contains(told), "{words}: {refused}");
        }
        for (words, told) in [
            ("x --oidc-client-id fleetmend", "--oidc-issuer"),
            ("x --oidc-issuer https://id.example.org", "--oidc-client-id"),
            ("x --oidc-issuer http://id.example.org --oidc-client-id f", "https://"),
        ] {
            let given = TestArgs::parse_from(words.split_whitespace());
            let refused = given.oidc.config(&SettingsFile::default(), &[]).unwrap_err().to_string();
            assert!(refused.contains(told), "{words}: {refused}");
        }
    }
}
