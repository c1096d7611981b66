//! `/install.sh` and the agents that a service carries.

use std::path::PathBuf;

use axum::http::Method;
use serde_json::{Value, json};
use server::app::Settings;
use service::agent_releases::AgentReleases;
use vocab::Role;

use crate::fleet::{Host, join};
use crate::support::{Service, TestRequest};

testkit::both!(crate::support: script_is_rendered_for_the_address_of_the_client,
    service_without_agents_says_so, upgrades_are_requested_once_for_outdated_agents);

/// A directory with a program that looks like an agent, removed on drop.
struct Agents(PathBuf);

impl Agents {
    fn new() -> Agents {
        let dir = std::env::temp_dir().join(format!(
            "fleetmend-http-agents-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir_all(&dir).unwrap();
        let mut program = b"\x7fELF\x02\x01".to_vec();
        program.resize(64, 0);
        program[18] = 62;
        program.extend(b"fleetmend-agent release 0.3.0 (end of release)");
        program.resize(300 * 1024, b'x');
        std::fs::write(dir.join("fleetmend-agent-x86_64"), program).unwrap();
        std::fs::write(dir.join("fleetmend-agent-x86_64.sig"), "c2lnbmVk").unwrap();
        Agents(dir)
    }

    fn settings(&self) -> Settings {
        Settings { agents: AgentReleases::load(&self.0), ..Settings::default() }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn script_is_rendered_for_the_address_of_the_client(service: &Service) {
    let agents = Agents::new();
    let (_, router) = service.again(agents.settings()).await;
    let script = |host: &'static str, proto: &'static str| {
        let request = TestRequest::get("/install.sh").with("host", host);
        request.with("x-forwarded-proto", proto).send(&router)
    };
    let response = script("fleet.example:8443", "https").await.is(200);
    let text = String::from_utf8(response.bytes).unwrap();
    assert!(text.contains("\nSERVER='https://fleet.example:8443'\n"), "{text}");
    assert!(text.contains("\nVERSION='0.3.0'\n") && text.contains("\nSHA256_AARCH64=''\n"));
    let names = ["SERVER", "VERSION", "SHA256", "VERIFY", "SYSTEMD", "OPENRC"];
    assert!(names.iter().all(|name| !text.contains(&format!("@{name}"))), "{text}");
    assert!(text.contains("ExecStart=/usr/local/bin/fleetmend-agent run\n"), "{text}");
    // The digest in the script is that of the download.
    let program = TestRequest::get("/agent/v1/releases/x86_64").send(&router).await.is(200);
    assert_eq!(program.bytes, std::fs::read(agents.0.join("fleetmend-agent-x86_64")).unwrap());
    let digest = ring::digest::digest(&ring::digest::SHA256, &program.bytes);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(text.contains(&format!("\nSHA256_X86_64='{hex}'\n")), "{text}");
    // The address becomes part of a shell script that root runs.
    for hostile in ["x'; reboot; '", "a b", "$(id)", "-x", "host/path", "ä.example"] {
        let refused = script(hostile, "https").await.is(400).json();
        assert_eq!(refused["code"], "malformed_request");
    }
    for missing in ["aarch64", "..%2fx"] {
        let path = format!("/agent/v1/releases/{missing}");
        TestRequest::get(&path).send(&router).await.is(404);
    }

    // Both places that show a token show the command.
    let create = TestRequest::post("/v1/enrollment-tokens", serde_json::json!({}));
    let create = create.with_key(&service.admin).with("host", "fleet.example");
    let made = create.with("x-forwarded-proto", "https").send(&router).await.is(201).json();
    let token = made["token"].as_str().unwrap();
    let command = format!("curl -fsSL https://fleet.example/install.sh | sudo sh -s -- {token}");
    assert_eq!(made["install_command"], command);
}

async fn upgrades_are_requested_once_for_outdated_agents(service: &Service) {
    let agents = Agents::new();
    let (_, router) = service.again(agents.settings()).await;
    let old = join(service, Host::new("old")).await;
    join(service, Host::new("staging").in_environment("staging")).await;
    service.by_hand("update servers set arch = 'x86_64'").await;
    service.by_hand("update servers set agent_version = '0.3.0' where hostname = 'staging'").await;
    let current = join(service, Host::new("arm")).await;
    service.by_hand(&format!("update servers set arch = 'armv7l' where id = '{current}'")).await;
    let call = async |method: Method, path: &str, body: Value, key: &str| {
        TestRequest::new(method, path).with_json(body).with_key(key).send(&router).await
    };
    let overview =
        async |key: &str| call(Method::GET, "/v1/agents", json!({}), key).await.is(200).json();
    let seen = overview(&service.viewer).await;
    assert_eq!((&seen["outdated"], &seen["upgrades_pending"]), (&json!(1), &json!(0)), "{seen}");
    assert_eq!(seen["releases"][0]["version"], "0.3.0");
    let all = json!({"targets": {"all": true}});
    let path = "/v1/agents/upgrade";
    call(Method::POST, path, all.clone(), &service.operator).await.is(403);
    for wrong in [json!({}), json!({"targets": {}}), json!({"targets": {"all": true}, "x": 1})] {
        call(Method::POST, path, wrong, &service.admin).await.is(422);
    }
    // A second request while the first is open changes nothing.
    for _ in 0..2 {
        let done = call(Method::POST, path, all.clone(), &service.admin).await.is(202).json();
        assert_eq!(done, json!({"requested": 1, "current": 1, "no_release": 1}));
    }
    assert_eq!(overview(&service.viewer).await["upgrades_pending"], 1);
    let server = format!("/v1/servers/{old}");
    let shown = call(Method::GET, &server, json!({}), &service.viewer).await.is(200).json();
    assert_eq!(shown["agent_upgrade"]["state"], "pending", "{shown}");
    assert_eq!(shown["agent_upgrade"]["version"], "0.3.0");
    // A scan can be requested meanwhile; it is another kind of request.
    let refresh = call(Method::POST, &format!("{server}/refresh"), json!({}), &service.admin).await;
    let refresh = refresh.is(202).json();
    assert_ne!(refresh["id"], Value::Null);
    // A key for other environments sees and upgrades nothing of it.
    let limited = service.key(Role::Admin, Some(&["staging"])).await;
    let seen = overview(&limited).await;
    assert_eq!((&seen["outdated"], &seen["upgrades_pending"]), (&json!(0), &json!(0)), "{seen}");
    let done = call(Method::POST, path, all, &limited).await.is(202).json();
    assert_eq!(done, json!({"requested": 0, "current": 1, "no_release": 0}));
    // The request is not sent if someone changes it in the database.
    service.by_hand("update refreshes set upgrade = replace(upgrade, '0.3.0', '6.6.6')").await;
    let open = store::refreshes::list_open(&mut service.app.db.read().await.unwrap()).await;
    let open = open.unwrap();
    let forged = open.iter().filter(|one| !service.app.db.is_authentic(*one)).count();
    assert_eq!((open.len(), forged), (2, 1));
}

async fn service_without_agents_says_so(service: &Service) {
    let script = TestRequest::get("/install.sh").with("host", "fleet.example");
    let script = script.send(&service.router).await.is(200);
    let text = String::from_utf8(script.bytes).unwrap();
    assert!(text.contains("\nSHA256_X86_64=''\n"), "{text}");
    service.get("/agent/v1/releases/x86_64").await.is(404);
    let made = service.post("/v1/enrollment-tokens", serde_json::json!({})).await.is(201).json();
    assert!(made.get("install_command").is_none(), "{made}");
}
