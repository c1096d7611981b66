//! Memory use of idle agents.

use super::*;
use crate::behavior::Behavior;
use crate::fleet::Fleet;
use agent_client::{ConnectOptions, Pin};

/// Fifty thousand agents and their connections must fit on one machine next to the service.
#[test]
fn waiting_agent_task_is_small() {
    let token = format!("fme_{}.plain", "A".repeat(43)).parse().unwrap();
    let url = "http://127.0.0.1:9";
    let (_, stop) = watch::channel(false);
    let start = AgentStart {
        host: Fleet::new(1, 1).host(0),
        clients: [AgentClient::new(ConnectOptions { url, pin: Pin::Plain, from: None }).unwrap()]
            .into(),
        shared: Arc::new(SharedState::new(token, Behavior::default())),
        handle: Arc::default(),
        stop,
        saved: None,
        delay: Duration::ZERO,
    };
    let bytes = std::mem::size_of_val(&Agent::run(start));
    assert!(bytes < 8 * 1024, "{bytes} bytes");
}
