//! The text that `fleetmend dev` prints at startup and after the first package scan.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::installation::shell_quote;
use crate::operator::api::Api;
use crate::operator::credentials;
use crate::operator::credentials::FILE;

const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) struct Banner<'a> {
    pub(super) dir: &'a Path,
    pub(super) url: &'a str,
    pub(super) key: &'a str,
    /// The link for setting the first password; none once any user has a password.
    pub(super) link: Option<&'a str>,
    pub(super) allow_install: bool,
}

impl Banner<'_> {
    /// Prints where everything is and which commands to try.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let Banner { dir, url, key, .. } = self;
        let installs = match self.allow_install {
            true => "Orders may change this machine, within /etc/fleetmend/limits.toml.",
            false => {
                "No updates are installed on this machine unless you start with --allow-install."
            }
        };
        let [servers, patches, summary] =
            ["servers list", "patches list", "summary"].map(|words| command_line(dir, words));
        let file = dir.join(FILE);
        let user = match rustix::process::geteuid().is_root() {
            true => "",
            false => {
                "\nNot running as root: package lists are read but not refreshed. Start with sudo to refresh them."
            }
        };
        let (dashboard, once) = dashboard_link(self.link, url);
        crate::print_line(&format!(
            "Fleetmend is running at {url}\n\n  \
               dashboard      {dashboard}\n  \
               API reference  {url}/docs\n  \
               admin key      {key}\n  \
               saved in       {}\n\n\
             {once}{installs}{user}\n\n\
             Try, in another terminal:\n\n  \
               {servers}\n  \
               {patches}\n  \
               {summary}\n\n\
             Press Ctrl-C to stop. The next start keeps all data.\n",
            file.display()
        ))
    }

    /// Waits for the first scan of this machine's packages, and prints a summary.
    pub(super) async fn wait_for_first_scan(&self, server: &str) -> anyhow::Result<()> {
        let api = Api::new(self.url, self.key, None)?;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let Ok(body) = api.get(&["servers", server]).await else { continue };
            let seen: Value = body.read()?;
            if seen["last_scan_at"].is_null() || seen["summary"]["packages"] == 0 {
                continue;
            }
            let count = |name: &str| seen["summary"][name].as_u64().unwrap_or_default();
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return crate::print_line(&format!(
                "{} ({}): {} packages, {} pending updates, {} of them security updates",
                word(&seen["hostname"]),
                word(&seen["os"]["name"]),
                count("packages"),
                count("updates"),
                count("security_updates"),
            ));
        }
    }
}

/// A command line for this binary, relative to the user's current directory, with the credentials
/// of this installation.
pub(crate) fn command_line(dir: &Path, words: &str) -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("fleetmend"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).any(|place| {
        let candidate = place.join("fleetmend");
        candidate.canonicalize().is_ok_and(|found| found == program)
    });
    let here = std::env::current_dir().unwrap_or_default();
    let shown = match program.strip_prefix(&here) {
        _ if on_path => "fleetmend".to_owned(),
        Ok(below) => format!("./{}", below.display()),
        Err(_) => program.display().to_string(),
    };
    // Files created under sudo can only be read with sudo.
    let sudo = if std::env::var_os("SUDO_USER").is_some() { "sudo " } else { "" };
    let mut command = format!("{sudo}{} {words}", shell_quote(&shown));
    let usual = credentials::dev_dir().and_then(|dir| dir.canonicalize().ok());
    if usual.as_deref() != Some(dir) {
        let file = dir.join(FILE).display().to_string();
        command += &format!(" --credentials {}", shell_quote(&file));
    }
    command
}

/// The dashboard's address to print, and a note about it.
pub(crate) fn dashboard_link(link: Option<&str>, url: &str) -> (String, &'static str) {
    match link {
        Some(link) => {
            (link.to_owned(), "The dashboard link works once: it sets the password for `admin`.\n")
        }
        None => (format!("{url}/"), ""),
    }
}
