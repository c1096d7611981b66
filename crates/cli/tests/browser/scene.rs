//! A service with a fleet, and somebody in front of a browser.

use swarm::behave::Nature;
use swarm::{Config, Swarm};

use crate::driver::Tab;
use crate::operator::Operator;
use crate::support::{Dir, Running, first_key, fleetmend};

pub(crate) const PASSWORD: &str = "correct horse battery";

/// Agents that are at work for a second or so, and can be watched.
fn unhurried(config: Config) -> Config {
    let nature = Nature { seed: 11, fail: 0.0, crash: 0.0, offline: 0.0, speed: 50.0 };
    Config { nature, ..config }
}

/// Everything that a story needs.
pub(crate) struct Scene {
    pub(crate) tab: Tab,
    pub(crate) operator: Operator,
    pub(crate) fleet: Swarm,
    pub(crate) url: String,
    pub(crate) service: Running,
    pub(crate) dir: Dir,
}

impl Scene {
    /// A fleet of so many, and an administrator who has just set a password.
    pub(crate) async fn of(servers: u64) -> Option<Scene> {
        let tab = Tab::open()?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = Dir::new();
        let key = first_key(&dir.data());
        let service = Running::start(&dir.data(), &[]);
        let url = service.address.clone();
        let data = dir.data();
        let data = data.to_str().unwrap();
        let made =
            fleetmend(&["users", "create", "ann", "--data-dir", data, "--url", &url, "--json"])
                .output()
                .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
        let operator = Operator::new(&url, &key);
        let fleet = operator.fleet(servers, unhurried).await;
        tab.go(made["link"].as_str().unwrap());
        tab.fill("input[name=password]", PASSWORD);
        tab.fill("input[name=again]", PASSWORD);
        tab.click("button.main");
        tab.until_shown("Overview");
        Some(Scene { tab, operator, fleet, url, service, dir })
    }

    pub(crate) fn go(&self, path: &str) {
        self.tab.go(&format!("{}{path}", self.url));
    }

    /// Ends it, if the browser had nothing to complain about.
    pub(crate) async fn end(self) {
        assert_eq!(self.tab.complaints(), Vec::<String>::new());
        self.fleet.stop().await;
    }
}
