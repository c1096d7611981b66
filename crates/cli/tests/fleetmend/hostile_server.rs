//! A malicious server: it sends an endless response, or redirects the client elsewhere.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;

use crate::terminal::Cli;

/// Responds to one request with this head and a body of `mib` MiB.
fn server(head: String, mib: usize) -> Cli {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4_096]).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        // The client closes the connection once it has read enough.
        let _ = (0..mib).try_for_each(|_| stream.write_all(&[b' '; 1 << 20]));
    });
    Cli { url, key: "fmk_x".to_owned() }
}

#[test]
fn endless_response_is_rejected_at_64_mib() {
    let endless = server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned(), 10_000);
    let output = endless.run_piped(&["keys", "list"]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("exceeds the limit of 64 MiB"), "{}", output.err);
}

#[test]
fn redirect_is_reported_and_the_key_is_not_sent() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}/v1/api-keys", elsewhere.local_addr().unwrap());
    for status in ["301 Moved Permanently", "303 See Other", "307 Temporary Redirect"] {
        // The replay header does not make another origin trustworthy.
        let head = format!(
            "HTTP/1.1 {status}\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\
             Idempotent-Replayed: true\r\n\r\n"
        );
        for args in [&["keys", "list"][..], &["keys", "create", "--name", "x", "--role", "viewer"]]
        {
            let output = server(head.clone(), 0).run_piped(args);
            assert_eq!(output.code, 1, "{args:?}");
            let expected = format!("redirects to {to}: the address is probably wrong");
            assert!(output.err.contains(&expected), "{status} {args:?}: {}", output.err);
        }
    }
    elsewhere.set_nonblocking(true).unwrap();
    assert_eq!(elsewhere.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn created_resource_is_shown_after_a_lost_response() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let handle = std::thread::spawn(move || {
        let made =
            "HTTP/1.1 303 See Other\r\nLocation: /v1/api-keys/key_x\r\nIdempotent-Replayed: true";
        let answers = [(made, ""), ("HTTP/1.1 200 OK", "{\"id\":\"key_x\"}")];
        let heard = answers.map(|(head, body)| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4_096];
            let length = stream.read(&mut request).unwrap();
            let head = format!("{head}\r\nContent-Length: {}\r\nConnection: close", body.len());
            write!(stream, "{head}\r\n\r\n{body}").unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        heard.map(|request| request.lines().next().unwrap_or_default().to_owned())
    });
    let cli = Cli { url, key: "fmk_x".to_owned() };
    let args = ["keys", "create", "--name", "x", "--role", "viewer", "--json"];
    assert!(cli.run_ok(&args).contains("key_x"));
    let expected = ["POST /v1/api-keys HTTP/1.1", "GET /v1/api-keys/key_x HTTP/1.1"];
    assert_eq!(handle.join().unwrap(), expected);
}
