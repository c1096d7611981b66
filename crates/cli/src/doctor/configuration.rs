//! Finds the settings that the service runs with: flags and variables of `doctor`, then the flags of
//! the running service, then the environment file of the systemd unit, then the settings file.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum as _};

use super::Findings;
use super::process::ServiceProcess;
use crate::installation::Installation;
use crate::settings::{FeedArgs, Feeds, MailArgs, SettingsFile};

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
    #[command(flatten)]
    feeds: FeedArgs,
    #[command(flatten)]
    mail: MailArgs,
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
        process: &ServiceProcess,
        findings: &mut Findings,
    ) -> SettingsFile {
        let data_dir = &installation.data_dir;
        let (env_file, variables) = self.read_env_file(data_dir, findings);
        let (process_id, running) = match process {
            ServiceProcess::Found { id, flags } => (*id, Some(flags)),
            ServiceProcess::Unreadable { .. } | ServiceProcess::NotFound => (0, None),
        };
        let config = self.config.clone();
        let config = config.or_else(|| running.and_then(|flags| flags.config.clone()));
        let config = config.or_else(|| variables.get("FLEETMEND_CONFIG").map(PathBuf::from));
        let loaded = SettingsFile::load(config.as_deref(), data_dir);
        if let Err(error) = &loaded {
            let remedy = "fix the file named above; docs/install.md lists every setting";
            findings.problem("settings", format!("{error:#}"), remedy);
        }
        let is_complete = loaded.is_ok();
        let file = loaded.unwrap_or_default();
        let config = config.unwrap_or_else(|| data_dir.join("fleetmend.toml"));
        let mut sources = Sources { env_file, variables, process_id, config, all: Vec::new() };
        let feeds = running.map(|flags| &flags.feeds);
        let database = Given {
            to_doctor: installation.database.clone(),
            to_service: running.and_then(|flags| flags.database.clone()),
        };
        let listen = Given {
            to_doctor: self.listen.clone(),
            // Port 0 lets the system choose one, so the flag does not say which.
            to_service: running
                .and_then(|flags| flags.listen.clone())
                .filter(|address| !address.ends_with(":0")),
        };
        let tls_cert = Given {
            to_doctor: self.tls_cert.clone(),
            to_service: running.and_then(|flags| flags.tls_cert.clone()),
        };
        let tls_key = Given {
            to_doctor: self.tls_key.clone(),
            to_service: running.and_then(|flags| flags.tls_key.clone()),
        };
        let mode =
            Given { to_doctor: self.feeds.feeds, to_service: feeds.and_then(|flags| flags.feeds) };
        let mirror = Given {
            to_doctor: self.feeds.feed_mirror.clone(),
            to_service: feeds.and_then(|flags| flags.feed_mirror.clone()),
        };
        // A switch, which no other place can turn off.
        let offline = Given {
            to_doctor: self.feeds.offline.then_some(true),
            to_service: feeds.and_then(|flags| flags.offline.then_some(true)),
        };
        let mail = running.map(|flags| &flags.mail);
        let public_url = Given {
            to_doctor: self.mail.public_url.clone(),
            to_service: mail.and_then(|flags| flags.public_url.clone()),
        };
        let smtp = Given {
            to_doctor: self.mail.smtp.clone(),
            to_service: mail.and_then(|flags| flags.smtp.clone()),
        };
        let smtp_from = Given {
            to_doctor: self.mail.smtp_from.clone(),
            to_service: mail.and_then(|flags| flags.smtp_from.clone()),
        };
        let is_offline = file.offline.filter(|set| *set);
        let settings = SettingsFile {
            database: sources.choose("database", database, file.database, any_text),
            listen: sources.choose("listen", listen, file.listen, any_text),
            tls_cert: sources.choose("tls_cert", tls_cert, file.tls_cert, any_text),
            tls_key: sources.choose("tls_key", tls_key, file.tls_key, any_text),
            feeds: sources.choose("feeds", mode, file.feeds, parse_feeds),
            feed_mirror: sources.choose("feed_mirror", mirror, file.feed_mirror, any_text),
            offline: sources.choose("offline", offline, is_offline, parse_switch),
            public_url: sources.choose("public_url", public_url, file.public_url, any_text),
            smtp: sources.choose("smtp", smtp, file.smtp, any_text),
            smtp_from: sources.choose("smtp_from", smtp_from, file.smtp_from, any_text),
            ..file
        };
        sources.check_feeds(findings);
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

/// The values of a setting in flags.
struct Given<T> {
    /// To `doctor`, also in its environment.
    to_doctor: Option<T>,
    /// To the running service.
    to_service: Option<T>,
}

struct Sources {
    env_file: PathBuf,
    variables: BTreeMap<String, String>,
    /// The process of the running service.
    process_id: u32,
    config: PathBuf,
    /// Where each setting comes from. Not its value, which may contain a password.
    all: Vec<String>,
}

impl Sources {
    /// The value with the highest precedence. `parse` returns `None` for text that sets nothing.
    fn choose<T>(
        &mut self,
        name: &str,
        given: Given<T>,
        in_file: Option<T>,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let variable = format!("FLEETMEND_{}", name.to_uppercase());
        let in_env_file = self.variables.get(&variable).and_then(|text| parse(text));
        let source = if given.to_doctor.is_some() {
            format!("--{} or {variable}", name.replace('_', "-"))
        } else if given.to_service.is_some() {
            format!("flags of the running service (process {})", self.process_id)
        } else if in_env_file.is_some() {
            self.env_file.display().to_string()
        } else if in_file.is_some() {
            self.config.display().to_string()
        } else {
            "not set".to_owned()
        };
        self.all.push(format!("{name}: {source}"));
        given.to_doctor.or(given.to_service).or(in_env_file).or(in_file)
    }

    /// Reports a value that the service does not accept.
    fn check_feeds(&self, findings: &mut Findings) {
        let value = self.variables.get("FLEETMEND_FEEDS");
        if let Some(value) = value.filter(|value| parse_feeds(value).is_none()) {
            let file = self.env_file.display();
            findings.problem(
                "settings",
                format!("FLEETMEND_FEEDS in {file} must be auto or manual (got {value:?})"),
                "fix the file: the service does not start with this value",
            );
        }
    }
}

fn any_text<T: From<String>>(text: &str) -> Option<T> {
    Some(T::from(text.to_owned()))
}

fn parse_feeds(text: &str) -> Option<Feeds> {
    Feeds::from_str(text, false).ok()
}

/// A switch that is on, in the words that the service accepts.
fn parse_switch(text: &str) -> Option<bool> {
    let words = ["y", "yes", "t", "true", "on", "1"];
    words.contains(&text.to_lowercase().as_str()).then_some(true)
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

    #[test]
    fn values_are_read_as_the_service_reads_them() {
        assert_eq!(parse_feeds("manual"), Some(Feeds::Manual));
        assert_eq!(parse_feeds("Manual"), None);
        assert_eq!(["1", "TRUE", "yes"].map(parse_switch), [Some(true); 3]);
        assert_eq!(["0", "false", ""].map(parse_switch), [None; 3]);
    }
}
