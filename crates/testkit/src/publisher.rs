//! A feed publisher: a local HTTP server that sends the responses that a test defines: one per
//! request, in order, or by path.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The next response.
#[derive(Clone)]
pub enum Reply {
    /// Sends this and closes the connection.
    Close(Vec<u8>),
    /// Sends this and then nothing more.
    Hang(Vec<u8>),
}

pub struct Publisher {
    address: String,
    answers: Arc<Mutex<Answers>>,
    heard: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Answers {
    /// For every path without its own responses.
    queue: VecDeque<Reply>,
    /// By the end of the path, in lower case.
    by_path: Vec<(String, PathAnswers)>,
}

#[derive(Default)]
struct PathAnswers {
    queue: VecDeque<Reply>,
    /// Sent whenever the queue is empty.
    last: Option<Reply>,
}

impl Answers {
    fn next(&mut self, head: &str) -> Reply {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let own = self.by_path.iter_mut().find(|(end, _)| path.ends_with(end.as_str()));
        let reply = match own {
            Some((_, answers)) => answers.queue.pop_front().or_else(|| answers.last.clone()),
            None => self.queue.pop_front(),
        };
        reply.unwrap_or_else(|| status("500 Nothing Prepared", ""))
    }

    fn at(&mut self, path_end: &str) -> &mut PathAnswers {
        let end = path_end.to_lowercase();
        let known = self.by_path.iter().position(|(known, _)| *known == end);
        let place = known.unwrap_or_else(|| {
            self.by_path.push((end, PathAnswers::default()));
            self.by_path.len() - 1
        });
        &mut self.by_path[place].1
    }
}

/// A response with a body and headers.
pub fn ok(headers: &str, body: impl AsRef<[u8]>) -> Reply {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    Reply::Close([head.as_bytes(), body].concat())
}

/// A response with a status and headers, each with its line end.
pub fn status(line: &str, headers: &str) -> Reply {
    Reply::Close(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n{headers}\r\n").into_bytes())
}

/// The index of a repository of rpm packages (`repomd.xml`) whose advisories are these bytes, at
/// this path below the repository.
pub fn repository_index(path: &str, updateinfo: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, updateinfo);
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <repomd xmlns=\"http://linux.duke.edu/metadata/repo\"><revision>1</revision>\
         <data type=\"primary\"><location href=\"repodata/primary.xml.gz\"/></data>\
         <data type=\"updateinfo\"><checksum type=\"sha256\">{digits}</checksum>\
         <location href=\"{path}\"/><size>{}</size></data></repomd>\n",
        updateinfo.len()
    )
}

impl Publisher {
    /// Serves a repository of rpm packages with these advisories, below paths that end like this.
    pub fn serve_repository(&self, path_end: &str, updateinfo: impl AsRef<[u8]>) {
        let (path, bytes) = ("repodata/updateinfo.xml", updateinfo.as_ref());
        let index = repository_index(path, bytes);
        self.serve(&format!("{path_end}/repodata/repomd.xml"), ok("", index));
        self.serve(&format!("{path_end}/{path}"), ok("", bytes));
    }

    pub async fn new() -> Publisher {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = Arc::new(Mutex::new(Answers::default()));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (next, log) = (answers.clone(), heard.clone());
        let task = tokio::spawn(async move {
            let mut waiting = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let head = head(&mut stream).await;
                let reply = next.lock().unwrap().next(&head);
                log.lock().unwrap().push(head);
                let (Reply::Close(bytes) | Reply::Hang(bytes)) = &reply;
                // The client may hang up early.
                let _ = stream.write_all(bytes).await;
                match reply {
                    Reply::Close(_) => drop(stream.shutdown().await),
                    Reply::Hang(_) => waiting.push(stream),
                }
            }
        });
        Publisher { address, answers, heard, task }
    }

    pub fn enqueue(&self, answers: impl IntoIterator<Item = Reply>) {
        self.answers.lock().unwrap().queue.extend(answers);
    }

    /// Drops the remaining responses and sends these.
    #[allow(dead_code, reason = "not every test crate uses it")]
    pub fn replace_queue(&self, answers: impl IntoIterator<Item = Reply>) {
        self.answers.lock().unwrap().queue.clear();
        self.enqueue(answers);
    }

    /// Sends these for paths that end like this, one per request.
    pub fn enqueue_at(&self, path_end: &str, answers: impl IntoIterator<Item = Reply>) {
        self.answers.lock().unwrap().at(path_end).queue.extend(answers);
    }

    /// Sends this for paths that end like this, whenever nothing else is prepared.
    pub fn serve(&self, path_end: &str, answer: Reply) {
        self.answers.lock().unwrap().at(path_end).last = Some(answer);
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// The heads of all requests so far, in lower case.
    pub fn request_heads(&self) -> Vec<String> {
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
