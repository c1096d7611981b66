//! Memory use of idle agents.

use super::*;
use crate::behave::Nature;
use crate::fleet::Fleet;
use agent_client::{Connect, Pin};

/// Fifty thousand agents and their connections must fit on one machine next to the server.
#[test]
fn waiting_agent_task_is_small() {
    let token = format!("fme_{}.plain", "A".repeat(43)).parse().unwrap();
    let url = "http://127.0.0.1:9";
    let (_, stop) = watch::channel(false);
    let start = Start {
        host: Fleet::new(1, 1).host(0),
        ways: [AgentClient::new(Connect { url, pin: Pin::Plain, from: None }).unwrap()].into(),
        shared: Arc::new(Shared::new(token, Nature::default())),
        handle: Arc::default(),
        stop,
        saved: None,
        delay: Duration::ZERO,
    };
    let bytes = std::mem::size_of_val(&Agent::run(start));
    assert!(bytes < 8 * 1024, "{bytes} bytes");
}
