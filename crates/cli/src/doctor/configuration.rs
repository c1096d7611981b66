//! Finds the settings that the service runs with: flags and variables of `doctor`, then the
//! environment file of the systemd unit, then the settings file.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Findings;
use crate::installation::Installation;
use crate::settings::SettingsFile;

/// The data directory and the environment file of the packaged unit,
/// `packaging/systemd/fleetmend.service`.
const PACKAGED_DATA_DIR: &str = "/var/lib/fleetmend";
pub(crate) const PACKAGED_ENV_FILE: &str = "/etc/fleetmend/server.env";

/// The variables of the packaged unit, if this is its data directory and the file can be read.
pub(crate) fn packaged_variables(data_dir: &Path) -> BTreeMap<String, String> {
    let text = match data_dir == Path::new(PACKAGED_DATA_DIR) {
        true => std::fs::read_to_string(PACKAGED_ENV_FILE).unwrap_or_default(),
        false => String::new(),
    };
    parse_variables(&text)
}

/// Settings of the service that `doctor` checks, with the names that `fleetmend server` uses.
#[derive(Args)]
pub(crate) struct ServiceArgs {
    /// Address and port that the service listens on [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDRESS", env = "FLEETMEND_LISTEN")]
    listen: Option<String>,
    /// TLS certificate chain of the service
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(long, value_name = "F", env = "FLEETMEND_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Settings file of the service [default: fleetmend.toml in the data directory]
    #[arg(long, value_name = "F", env = "FLEETMEND_CONFIG")]
    config: Option<PathBuf>,
    /// File with the service's FLEETMEND_* variables, as in the systemd unit [default:
    /// /etc/fleetmend/server.env if the data directory is /var/lib/fleetmend]
    #[arg(long, value_name = "F")]
    env_file: Option<PathBuf>,
}

impl ServiceArgs {
    /// The settings file, with every setting replaced that has a higher precedence elsewhere. Adds
    /// a finding that says where each setting comes from.
    pub(super) fn resolve(
        &self,
        installation: &Installation,
        findings: &mut Findings,
    ) -> SettingsFile {
        let data_dir = &installation.data_dir;
        let (env_file, variables) = self.read_env_file(data_dir, findings);
        let config = self.config.clone();
        let config = config.or_else(|| variables.get("FLEETMEND_CONFIG").map(PathBuf::from));
        let loaded = SettingsFile::load(config.as_deref(), data_dir);
        if let Err(error) = &loaded {
            let remedy = "fix the file named above; docs/install.md lists every setting";
            findings.problem("settings", format!("{error:#}"), remedy);
        }
        let is_complete = loaded.is_ok();
        let file = loaded.unwrap_or_default();
        let config = config.unwrap_or_else(|| data_dir.join("fleetmend.toml"));
        let mut sources = Sources { env_file, variables, config, all: Vec::new() };
        let database = installation.database.clone();
        let settings = SettingsFile {
            database: sources.choose("database", database, file.database),
            listen: sources.choose("listen", self.listen.clone(), file.listen),
            tls_cert: sources.choose("tls_cert", self.tls_cert.clone(), file.tls_cert),
            tls_key: sources.choose("tls_key", self.tls_key.clone(), file.tls_key),
            offline: file.offline.or_else(|| sources.is_set("FLEETMEND_OFFLINE")),
            ..file
        };
        if is_complete {
            findings.ok("settings", sources.all.join(", "));
        }
        settings
    }

    /// The environment file, if there is one, and its variables.
    fn read_env_file(
        &self,
        data_dir: &Path,
        findings: &mut Findings,
    ) -> (PathBuf, BTreeMap<String, String>) {
        let path = match &self.env_file {
            Some(path) => path.clone(),
            None if data_dir == Path::new(PACKAGED_DATA_DIR) => PACKAGED_ENV_FILE.into(),
            None => return Default::default(),
        };
        let variables = match std::fs::read_to_string(&path) {
            Ok(text) => parse_variables(&text),
            // The unit does not require the file either.
            Err(error) if self.env_file.is_none() && error.kind() == ErrorKind::NotFound => {
                BTreeMap::new()
            }
            Err(error) => {
                findings.problem(
                    "settings",
                    format!("cannot read {}: {error}", path.display()),
                    "run `fleetmend doctor` as a user who can read the file, or name another one with --env-file",
                );
                BTreeMap::new()
            }
        };
        (path, variables)
    }
}

struct Sources {
    env_file: PathBuf,
    variables: BTreeMap<String, String>,
    config: PathBuf,
    /// Where each setting comes from. Not its value, which may contain a password.
    all: Vec<String>,
}

impl Sources {
    /// Whether a switch is on, from its variable or from the environment file.
    fn is_set(&self, variable: &str) -> Option<bool> {
        let value = std::env::var(variable).ok().or_else(|| self.variables.get(variable).cloned());
        value.map(|value| matches!(value.as_str(), "1" | "true" | "yes" | "on"))
    }

    fn choose<T: From<String>>(
        &mut self,
        name: &str,
        given: Option<T>,
        in_file: Option<T>,
    ) -> Option<T> {
        let variable = format!("FLEETMEND_{}", name.to_uppercase());
        let in_env_file = self.variables.get(&variable).cloned().map(T::from);
        let source = if given.is_some() {
            format!("--{} or {variable}", name.replace('_', "-"))
        } else if in_env_file.is_some() {
            self.env_file.display().to_string()
        } else if in_file.is_some() {
            self.config.display().to_string()
        } else {
            "not set".to_owned()
        };
        self.all.push(format!("{name}: {source}"));
        given.or(in_env_file).or(in_file)
    }
}

/// Reads the format of systemd's `EnvironmentFile`: assignments, comments and quotes.
fn parse_variables(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let assignments = lines.filter_map(|line| line.split_once('='));
    assignments.map(|(name, value)| (name.trim().to_owned(), unquote(value.trim()))).collect()
}

fn unquote(value: &str) -> String {
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    quoted('"').or_else(|| quoted('\'')).unwrap_or(value).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_file_is_read_as_systemd_reads_it() {
        let text = "# FLEETMEND_LISTEN=1\n; x=y\n\n A = b=c \nQ=\"one two\"\nS='x'\nnothing\nE=\n";
        let variables = parse_variables(text);
        let pairs: Vec<_> = variables.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("A", "b=c"), ("E", ""), ("Q", "one two"), ("S", "x")]);
    }
}
