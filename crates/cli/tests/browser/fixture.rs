//! Test fixture: a service with a fleet, and an administrator signed in to the dashboard.

use std::path::Path;

use swarm::behavior::Behavior;
use swarm::{Config, Swarm};
use testkit::mail::MailServer;

use crate::driver::Tab;
use crate::operator::Operator;
use crate::support::{Dir, Running, first_key, fleetmend};

pub(crate) const PASSWORD: &str = "correct horse battery";

/// Agents that need about a second per order, so that tests can watch them.
fn with_slow_agents(config: Config) -> Config {
    let behavior = Behavior { seed: 11, fail: 0.0, crash: 0.0, offline: 0.0, speed: 50.0 };
    Config { behavior, ..config }
}

/// Invites an administrator. Returns the link.
pub(crate) fn invite(data: &Path, url: &str, name: &str) -> String {
    let data = data.to_str().unwrap();
    let args = ["users", "create", name, "--data-dir", data, "--url", url, "--json"];
    let created = fleetmend(&args).output().unwrap();
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let created: serde_json::Value = serde_json::from_slice(&created.stdout).unwrap();
    created["link"].as_str().unwrap().to_owned()
}

/// Sets the password and signs in.
pub(crate) fn set_password(tab: &Tab, link: &str) {
    tab.go(link);
    tab.fill("input[name=password]", PASSWORD);
    tab.fill("input[name=again]", PASSWORD);
    tab.click("button.main");
    tab.until_shown("Overview");
}

pub(crate) struct Fixture {
    pub(crate) tab: Tab,
    pub(crate) operator: Operator,
    pub(crate) fleet: Swarm,
    pub(crate) url: String,
    /// An API key with the role `admin`.
    pub(crate) key: String,
    pub(crate) service: Running,
    pub(crate) dir: Dir,
    /// The mail server of the service.
    pub(crate) mail: MailServer,
}

impl Fixture {
    /// Starts a fleet with this many servers, and signs in an administrator.
    pub(crate) async fn new(servers: u64) -> Option<Fixture> {
        let tab = Tab::open()?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = Dir::new();
        let key = first_key(&dir.data());
        let mail = MailServer::start(&dir.data(), None);
        let (smtp, public) = (mail.url(), "https://fleet.example");
        let service = Running::start(&dir.data(), &["--smtp", &smtp, "--public-url", public]);
        let url = service.address.clone();
        let operator = Operator::new(&url, &key);
        let fleet = operator.fleet(servers, with_slow_agents).await;
        set_password(&tab, &invite(&dir.data(), &url, "ann"));
        Some(Fixture { tab, operator, fleet, url, key, service, dir, mail })
    }

    pub(crate) fn go(&self, path: &str) {
        self.tab.go(&format!("{}{path}", self.url));
    }

    /// Asserts that the browser reported no problems, and stops the fleet.
    pub(crate) async fn end(self) {
        assert_eq!(self.tab.console_problems(), Vec::<String>::new());
        self.fleet.stop().await;
    }
}
