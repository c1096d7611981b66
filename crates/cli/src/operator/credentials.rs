//! Where operator commands find the service and their API key: flags, then environment variables,
//! then a credentials file.
//!
//! A key from the file is sent only to the address in the same file: to use another address, also
//! set a key for it.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::UsageError;
use super::api::Api;
use crate::listen;

/// Flags of every operator command.
#[derive(Args, Clone)]
pub(crate) struct Connection {
    /// Address of the service
    #[arg(long, global = true, value_name = "URL", env = "FLEETMEND_URL", help_heading = HEADING)]
    url: Option<String>,
    /// API key; prefer the environment variable, which does not appear in process lists
    #[arg(long, global = true, value_name = "KEY", env = "FLEETMEND_API_KEY", hide_env_values = true, help_heading = HEADING)]
    api_key: Option<String>,
    /// TOML file with `url` and `api_key` [default: ~/.config/fleetmend/credentials.toml, or the
    /// file written by `fleetmend dev`]
    #[arg(long, global = true, value_name = "FILE", env = "FLEETMEND_CREDENTIALS", help_heading = HEADING)]
    credentials: Option<PathBuf>,
    /// Certificate to trust (PEM), for a service with a self-signed certificate
    #[arg(long, global = true, value_name = "FILE", env = "FLEETMEND_CA_CERT", help_heading = HEADING)]
    ca_cert: Option<PathBuf>,
    /// Print the API response as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

const HEADING: &str = "Connection";

/// The credentials file.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    pub(crate) url: Option<String>,
    pub(crate) api_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca_cert: Option<PathBuf>,
}

/// Name of the credentials file, in the data directory of `dev` and in the configuration directory.
pub(crate) const FILE: &str = "credentials.toml";

impl Connection {
    /// Opens a client for the selected service.
    pub(super) fn open(&self) -> anyhow::Result<Api> {
        let Credentials { url, api_key, ca_cert } = self.resolve(self.file()?)?;
        let url = url.unwrap_or_else(|| format!("http://{}", listen::DEFAULT));
        let Some(api_key) = api_key else {
            return Err(UsageError(format!(
                "no API key for {url}: set FLEETMEND_API_KEY, or write `url` and `api_key` to \
                 ~/.config/fleetmend/{FILE}, or start `fleetmend dev`, which creates a service and a key"
            ))
            .into());
        };
        Api::new(&url, &api_key, ca_cert.as_deref())
    }

    fn resolve(&self, file: Credentials) -> anyhow::Result<Credentials> {
        let bare = |url: &String| url.trim_end_matches('/').to_owned();
        let same = self.url.is_none() || self.url.as_ref().map(bare) == file.url.as_ref().map(bare);
        let (api_key, ca_cert) = if same { (file.api_key, file.ca_cert) } else { (None, None) };
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        Ok(Credentials {
            url: given(&self.url).or(file.url),
            api_key: given(&self.api_key).or(api_key),
            ca_cert: self.ca_cert.clone().or(ca_cert),
        })
    }

    fn file(&self) -> anyhow::Result<Credentials> {
        if let Some(named) = &self.credentials {
            return Credentials::read(named);
        }
        let usual = [config_home().map(|dir| dir.join(FILE)), dev_dir().map(|dir| dir.join(FILE))];
        match usual.into_iter().flatten().find(|path| path.exists()) {
            Some(path) => Credentials::read(&path),
            None => Ok(Credentials::default()),
        }
    }
}

impl Credentials {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Credentials> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the credentials in {}", path.display()))?;
        toml::from_str(&text)
            .with_context(|| format!("cannot use the credentials in {}", path.display()))
    }

    /// Writes the file atomically; only its owner can read it.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}", path.display());
        let temporary = path.with_extension("new");
        let _ = std::fs::remove_file(&temporary);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .with_context(failed)?;
        // JSON strings are valid TOML strings.
        for (name, value) in [("url", &self.url), ("api_key", &self.api_key)] {
            let Some(value) = value else { continue };
            writeln!(file, "{name} = {}", serde_json::to_string(value)?).with_context(failed)?;
        }
        file.sync_all().with_context(failed)?;
        std::fs::rename(&temporary, path).with_context(failed)
    }
}

/// Default data directory of `fleetmend dev`.
pub(crate) fn dev_dir() -> Option<PathBuf> {
    home("XDG_DATA_HOME", ".local/share").map(|dir| dir.join("fleetmend/dev"))
}

/// Default data directory of `fleetmend demo`.
#[cfg(feature = "demo")]
pub(crate) fn demo_dir() -> Option<PathBuf> {
    home("XDG_DATA_HOME", ".local/share").map(|dir| dir.join("fleetmend/demo"))
}

fn config_home() -> Option<PathBuf> {
    home("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("fleetmend"))
}

fn home(variable: &str, usual: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let absolute = set(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(usual)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(url: Option<&str>, api_key: Option<&str>) -> Connection {
        let text = |value: Option<&str>| value.map(str::to_owned);
        let (url, api_key) = (text(url), text(api_key));
        Connection { url, api_key, credentials: None, ca_cert: None, json: false }
    }

    fn file() -> Credentials {
        Credentials { url: Some("http://a:1".into()), api_key: Some("fmk_a".into()), ca_cert: None }
    }

    #[test]
    fn key_from_file_is_never_sent_to_another_address() {
        let other = flags(Some("http://b:1"), None).resolve(file()).unwrap();
        assert_eq!((other.url.as_deref(), other.api_key), (Some("http://b:1"), None));
        let same = flags(Some("http://a:1/"), None).resolve(file()).unwrap();
        assert_eq!(same.api_key.as_deref(), Some("fmk_a"));
        let named = flags(Some("http://b:1"), Some("fmk_b")).resolve(file()).unwrap();
        assert_eq!(named.api_key.as_deref(), Some("fmk_b"));
    }

    #[test]
    fn empty_variable_counts_as_unset() {
        let resolved = flags(None, Some("")).resolve(file()).unwrap();
        assert_eq!(resolved, file());
    }
}
