//! A feed publisher: a local HTTP server that sends the responses that a test defines, one per
//! request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The next response.
#[allow(dead_code, reason = "not every story has someone wait")]
pub(crate) enum Say {
    /// Sends this and closes the connection.
    This(Vec<u8>),
    /// Sends this and then nothing more.
    AndWait(Vec<u8>),
}

pub(crate) struct Publisher {
    address: String,
    answers: Arc<Mutex<VecDeque<Say>>>,
    heard: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

/// A response with a body and headers.
pub(crate) fn ok(headers: &str, body: impl AsRef<[u8]>) -> Say {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    Say::This([head.as_bytes(), body].concat())
}

/// A response with a status and headers, each with its line end.
pub(crate) fn status(line: &str, headers: &str) -> Say {
    Say::This(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n{headers}\r\n").into_bytes())
}

impl Publisher {
    pub(crate) async fn new() -> Publisher {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = Arc::new(Mutex::new(VecDeque::new()));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (next, ears) = (answers.clone(), heard.clone());
        let task = tokio::spawn(async move {
            let mut waiting = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let head = head(&mut stream).await;
                ears.lock().unwrap().push(head);
                let say = next.lock().unwrap().pop_front();
                let say = say.unwrap_or_else(|| status("500 Nothing Prepared", ""));
                let (Say::This(bytes) | Say::AndWait(bytes)) = &say;
                // The client may hang up early.
                let _ = stream.write_all(bytes).await;
                match say {
                    Say::This(_) => drop(stream.shutdown().await),
                    Say::AndWait(_) => waiting.push(stream),
                }
            }
        });
        Publisher { address, answers, heard, task }
    }

    pub(crate) fn says(&self, answers: impl IntoIterator<Item = Say>) {
        self.answers.lock().unwrap().extend(answers);
    }

    /// Drops the remaining responses and sends these.
    #[allow(dead_code, reason = "not every story changes its mind")]
    pub(crate) fn answers_anew(&self, answers: impl IntoIterator<Item = Say>) {
        self.answers.lock().unwrap().clear();
        self.says(answers);
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// The heads of all requests so far, in lower case.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).to_lowercase()
}
