//! A receiver of webhooks that accepts every request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

/// Runs until the test program ends.
pub(crate) struct Receiver {
    pub(crate) url: String,
    /// The bytes of each request.
    pub(crate) requests: mpsc::Receiver<Vec<u8>>,
}

impl Receiver {
    pub(crate) fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let request = read_request(&mut stream);
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
                stream.get_mut().write_all(format!("{head}ok").as_bytes()).unwrap();
                // A test may ignore the requests.
                let _ = sender.send(request);
            }
        });
        Receiver { url, requests }
    }
}

fn read_request(stream: &mut BufReader<TcpStream>) -> Vec<u8> {
    let (mut request, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        request.extend_from_slice(line.as_bytes());
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    [request, body].concat()
}
