//! Runs the commands of `docs/postgres.md` and the receiver of `docs/webhooks.md`. The commands of
//! `docs/tutorial.md` are tested with the agent.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use service::EventKind;
use sqlx::postgres::PgConnectOptions;

use crate::database::cluster_url;
use crate::operator::POLL_INTERVAL;
use crate::receiver::Receiver;
use crate::support::{Dir, Running, first_key};
use crate::terminal::Cli;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Every command of the page, in order.
fn commands(page: &str) -> Vec<String> {
    let text = self::page(page);
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn postgres_page_commands_work_in_order() {
    let Some(cluster) = cluster_url() else { return };
    let options: PgConnectOptions = cluster.parse().unwrap();
    let dir = Dir::new();
    let data = dir.data();
    let mut commands = commands("postgres.md");
    let last = commands.pop().unwrap();
    assert_eq!(last, "fleetmend server --data-dir /var/lib/fleetmend");
    assert!(commands.len() > 5, "{commands:?}");
    let host = cluster.split_once('@').and_then(|(_, rest)| rest.split_once('/')).unwrap().0;
    let script = commands.join("\n");
    let script = script.replace("/var/lib/fleetmend", data.to_str().unwrap());
    let script = script.replace("db.example.org", host);

    let superuser = |script: &str| {
        let programs = Path::new(env!("CARGO_BIN_EXE_fleetmend")).parent().unwrap();
        let host = options.get_socket().map_or(Path::new(options.get_host()), |path| path);
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
            .env("PGHOST", host)
            .env("PGPORT", options.get_port().to_string())
            .env("PGUSER", options.get_username())
            .env("PGDATABASE", "postgres")
            .output()
            .unwrap()
    };
    // Left behind if an earlier run was interrupted.
    const REMOVE: &str = "dropdb --if-exists --force fleetmend; dropuser --if-exists fleetmend";
    superuser(REMOVE);
    let output = superuser(&script);
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    let service = Running::start(&data, &[]);
    assert!(service.address.starts_with("http://"));
    drop(service);
    assert!(!data.join("fleetmend.db").exists());
    assert!(superuser(REMOVE).status.success());
}

#[test]
fn webhooks_page_lists_every_type_of_event() {
    let row = |kind: &EventKind| {
        let subject = kind.subject().as_str();
        format!("| `{}` | {} | `{subject}` |", kind.as_str(), kind.description())
    };
    let expected: Vec<String> = EventKind::ALL.iter().map(row).collect();
    let text = page("webhooks.md");
    let listed = text.lines().skip_while(|line| !line.starts_with("| Type | When |")).skip(2);
    let listed: Vec<&str> = listed.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(listed, expected);
}

/// The receiver in the page accepts what the service sends, and nothing else.
#[tokio::test]
async fn webhooks_page_receiver_accepts_only_genuine_requests() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let service = Running::start(&dir.data(), &["--webhook-allow-local"]);
    let cli = Cli { url: service.address.clone(), key };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let url = format!("http://127.0.0.1:{port}/");
    let secret = cli.run_ok(&["webhooks", "create", "local", "--to", &url, "--type", "user.*"]);
    let text = page("webhooks.md");
    let program = text.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let mut python = Command::new("python3")
        .args(["-c", &program.replace("8000", &port)])
        .env("WEBHOOK_SECRET", secret.trim())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let address = format!("127.0.0.1:{port}");
    while TcpStream::connect(&address).is_err() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let status_of = |request: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(request).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status_of(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"), "401");
    cli.run_ok(&["webhooks", "test", "local"]);
    // The bytes of a genuine request, unchanged and changed.
    let recorder = Receiver::start();
    cli.run_ok(&["webhooks", "edit", "local", "--to", &recorder.url]);
    cli.run_ok(&["webhooks", "test", "local"]);
    let request = recorder.requests.recv().unwrap();
    assert_eq!(status_of(&request), "204");
    let text = String::from_utf8(request).unwrap();
    for (from, to) in [
        ("This is a test.", "This is a fake."),
        ("webhook-id: evt_", "webhook-id: evt-"),
        ("webhook-timestamp: 1", "webhook-timestamp: 2"),
        ("webhook-signature: v1,", "webhook-signature: v2,"),
    ] {
        assert!(text.contains(from), "{text}");
        assert_eq!(status_of(text.replace(from, to).as_bytes()), "401", "{to}");
    }
    python.kill().unwrap();
    let printed = std::io::read_to_string(python.stdout.take().unwrap()).unwrap();
    python.wait().unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 2, "{printed}");
    assert!(lines[0].starts_with("webhook.test local "), "{printed}");
}
