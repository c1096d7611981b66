//! What `fleetmend dev` tells whoever started it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::operator::api::Api;
use crate::operator::credentials;
use crate::operator::credentials::FILE;

const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) struct Banner<'a> {
    pub(super) dir: &'a Path,
    pub(super) url: &'a str,
    pub(super) key: &'a str,
    /// Where the first person sets a password; nothing once somebody has.
    pub(super) link: Option<&'a str>,
    pub(super) allow_install: bool,
}

impl Banner<'_> {
    /// Where everything is, and what to try.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let Banner { dir, url, key, .. } = self;
        let installs = match self.allow_install {
            true => "Orders may change this machine, within /etc/fleetmend/limits.toml.",
            false => "Nothing is installed on this machine; --allow-install changes that.",
        };
        let [servers, patches, summary] =
            ["servers list", "patches list", "summary"].map(|words| command(dir, words));
        let file = dir.join(FILE);
        let user = match rustix::process::geteuid().is_root() {
            true => "",
            false => {
                "\nNot root: the lists of updates are read as they are and not fetched anew; start it with sudo to change that."
            }
        };
        let (dashboard, once) = door(self.link, url);
        crate::say(&format!(
            "Fleetmend serves on {url}\n\n  \
               dashboard      {dashboard}\n  \
               API reference  {url}/docs\n  \
               admin key      {key}\n  \
               kept in        {}\n\n\
             {once}{installs}{user}\n\n\
             Try, in another terminal:\n\n  \
               {servers}\n  \
               {patches}\n  \
               {summary}\n\n\
             Ctrl-C ends it; the next start goes on from here.\n",
            file.display()
        ))
    }

    /// Waits for the first look at this machine's packages, and tells of it.
    pub(super) async fn first_look(&self, server: &str) -> anyhow::Result<()> {
        let api = Api::new(self.url, self.key, None)?;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Ok(body) = api.get(&["servers", server]).await else { continue };
            let seen: Value = body.read()?;
            if seen["last_scan_at"].is_null() || seen["summary"]["packages"] == 0 {
                continue;
            }
            let count = |name: &str| seen["summary"][name].as_u64().unwrap_or_default();
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return crate::say(&format!(
                "{} ({}): {} packages, {} updates pending, {} of them for security",
                word(&seen["hostname"]),
                word(&seen["os"]["name"]),
                count("packages"),
                count("updates"),
                count("security_updates"),
            ));
        }
    }
}

/// A command of this binary, as it is called from where the user stands, with this key.
pub(crate) fn command(dir: &Path, words: &str) -> String {
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
    // Who started it with sudo reads its files with sudo.
    let sudo = if std::env::var_os("SUDO_USER").is_some() { "sudo " } else { "" };
    let mut command = format!("{sudo}{} {words}", quoted(&shown));
    let usual = credentials::dev_dir().and_then(|dir| dir.canonicalize().ok());
    if usual.as_deref() != Some(dir) {
        let file = dir.join(FILE).display().to_string();
        command += &format!(" --credentials {}", quoted(&file));
    }
    command
}

/// As a shell takes it.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The way into the dashboard, and what there is to say of it.
pub(crate) fn door(link: Option<&str>, url: &str) -> (String, &'static str) {
    match link {
        Some(link) => (
            link.to_owned(),
            "The link to the dashboard works once: it sets the password of `admin`.\n",
        ),
        None => (format!("{url}/"), ""),
    }
}
