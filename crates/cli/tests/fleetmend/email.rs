//! Email through a mail server that requires STARTTLS and a sign-in, with the real programs.

use std::path::Path;

use serde_json::Value;
use testkit::mail::{MailServer, Secured};

use crate::support::{Dir, Running, first_key, fleetmend};

/// A mail server whose certificate only clients with `authority.pem` trust.
fn mail_server(dir: &Path) -> MailServer {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("authority.pem"), dir.join("mail.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let secured =
        Secured { certificate: &certificate, key: &key, user: "fleet@end", password: "p:w+d" };
    MailServer::start(dir, Some(secured))
}

/// What doctor says about email.
fn doctor(data: &Path, authority: Option<&Path>) -> Value {
    let mut command = fleetmend(&["doctor", "--json", "--data-dir", data.to_str().unwrap()]);
    if let Some(authority) = authority {
        command.env("SSL_CERT_FILE", authority);
    }
    let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["check"] == "email");
    found.unwrap_or_else(|| panic!("{report}")).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_encrypted_and_the_server_is_verified() {
    let dir = Dir::new();
    let data = dir.data();
    let key = first_key(&data);
    let mail = mail_server(&data);
    let authority = data.join("authority.pem");
    let settings = |password: &str| {
        let port = mail.port;
        let text = format!(
            "public_url = \"https://fleet.example\"\n\
             smtp = \"smtp://fleet%40end:{password}@localhost:{port}\"\n\
             smtp_from = \"Fleetmend <fleet@example.org>\"\n"
        );
        std::fs::write(data.join("fleetmend.toml"), text).unwrap();
    };
    settings("p%3Aw%2Bd");
    let good = doctor(&data, Some(&authority));
    assert_eq!(good["state"], "ok", "{good}");
    let untrusted = doctor(&data, None);
    assert_eq!(untrusted["state"], "problem", "{untrusted}");
    assert!(untrusted["detail"].as_str().unwrap().contains("certificate"), "{untrusted}");
    settings("wrong-secret");
    let refused = doctor(&data, Some(&authority));
    assert_eq!(refused["state"], "problem", "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("535"), "{refused}");
    assert!(!refused.to_string().contains("wrong-secret"), "{refused}");

    settings("p%3Aw%2Bd");
    let service = Running::with("127.0.0.1:0", &data, &[], |command| {
        command.env("SSL_CERT_FILE", &authority);
    });
    let test = ["notifications", "test", "ann@example.org"];
    let mut command = fleetmend(&test);
    command.env("FLEETMEND_URL", &service.address).env("FLEETMEND_API_KEY", &key);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let message = mail.messages().pop().unwrap();
    assert_eq!((&message["encrypted"], &message["user"]), (&true.into(), &"fleet@end".into()));
    assert_eq!(message["headers"]["from"], "Fleetmend <fleet@example.org>");
    assert_eq!(mail.messages().len(), 1, "doctor sends nothing");
    drop(service);
}
