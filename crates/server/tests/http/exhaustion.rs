//! Clients that try to exhaust the memory of the service over real connections: heads and bodies
//! that never end, and responses that no client reads.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use server::{Budgets, ResponseBudget};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{Service, TestRequest};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A router behind the real accept loop, until dropped.
struct TestServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(service: &Service, router: Router) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = server::serve(service.app.clone(), router, listener, None, std::future::pending());
    TestServer { address, task: tokio::spawn(serve) }
}

impl TestServer {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends raw bytes on a new connection and returns the status of the response.
    async fn status(&self, request: &str) -> u16 {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        status(&mut stream).await
    }
}

/// The status of the next response; the rest of it is not read.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    tokio::time::timeout(TIMEOUT, stream.read_exact(&mut line)).await.unwrap().unwrap();
    let line = std::str::from_utf8(&line).unwrap();
    line.strip_prefix("HTTP/1.1 ").unwrap().parse().unwrap()
}

/// The head of a POST with a body of this many bytes.
fn post(path: &str, key: &str, bytes: usize, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {bytes}\r\n{more}\r\n"
    )
}

/// A JSON body of exactly this many bytes. The service reads all of it before it rejects the field.
fn padded_body(bytes: usize) -> String {
    format!("{{{}\"nothing\":1}}", " ".repeat(bytes - 13))
}

async fn endless_head_is_rejected_at_32_kib(service: &Service) {
    let listening = listen(service, service.router.clone()).await;
    let head = |bytes| format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {}", "a".repeat(bytes));
    let mut stream = listening.connect().await;
    // The service may reject it before all of it is sent.
    let _ = stream.write_all(head(40 * 1024).as_bytes()).await;
    let mut response = Vec::new();
    let end = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut response));
    let end = end.await.expect("the connection is closed and not kept until the head ends");
    let response = String::from_utf8_lossy(&response);
    assert!(
        response.starts_with("HTTP/1.1 431 ") || (end.is_err() && response.is_empty()),
        "{response}"
    );

    assert_eq!(listening.status(&(head(24 * 1024) + "\r\n\r\n")).await, 200);
    let megabyte = 1 << 20;
    let request = post("/v1/preview", &service.viewer, megabyte, "") + &padded_body(megabyte);
    assert_eq!(listening.status(&request).await, 422, "a large body is read completely");
}

async fn incomplete_bodies_are_rejected_beyond_the_budget(service: &Service) {
    let listening = listen(service, service.router.clone()).await;
    let bytes = 1 << 20;
    let head = post("/v1/preview", &service.viewer, bytes, "Expect: 100-continue\r\n");
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..80 {
        let mut stream = listening.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        // Status 100 means that the service has started to read the body.
        match status(&mut stream).await {
            100 => {
                stream.write_all(&padded_body(bytes).as_bytes()[..20_000]).await.unwrap();
                held.push(stream);
            }
            503 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((held.len(), refused), (64, 16), "64 MiB");
    let again =
        TestRequest::post("/v1/preview", serde_json::json!({"nothing": " ".repeat(20_000)}));
    let again = again.with_key(&service.viewer).send(&service.router).await;
    assert_eq!(again.is_problem(503, "unavailable").header("retry-after"), "2");

    let small = post("/v1/preview", &service.viewer, 100, "") + &padded_body(100);
    assert_eq!(listening.status(&small).await, 422, "small bodies have a separate budget");
    let keyed = post("/v1/suppressions", &service.operator, 100, "Idempotency-Key: one\r\n")
        + &padded_body(100);
    assert_eq!(listening.status(&keyed).await, 422, "and so have bodies that are read twice");

    drop(held);
    let large = post("/v1/preview", &service.viewer, bytes, "Idempotency-Key: two\r\n")
        + &padded_body(bytes);
    let freed = async { while listening.status(&large).await != 422 {} };
    tokio::time::timeout(TIMEOUT, freed).await.expect("the budget is free again");
}

async fn unread_responses_are_rejected_beyond_the_budget(service: &Service) {
    // More than the operating system buffers for a connection.
    const RESPONSE_BYTES: usize = 8 << 20;
    let budget = ResponseBudget::with_kib(4 * 8 * 1024);
    let router = Router::new()
        .route("/large", get(async || vec![b'x'; RESPONSE_BYTES]))
        .route("/small", get(async || "small"));
    let budgets = Budgets { responses: budget.clone(), ..Budgets::default() };
    let listening = listen(service, server::with_request_log(router, budgets)).await;
    let mut statuses = Vec::new();
    let mut held = Vec::new();
    for _ in 0..60 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 * 1024).unwrap();
        let mut stream = socket.connect(listening.address).await.unwrap();
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        statuses.push(status(&mut stream).await);
        held.push(stream);
    }
    let sent = statuses.iter().filter(|status| **status == 200).count();
    let refused = statuses.iter().filter(|status| **status == 503).count();
    assert_eq!((sent, refused), (4, 56));
    assert_eq!(budget.free_kib(), 0);
    let small = "GET /small HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(listening.status(small).await, 200);

    // A response that is read to its end releases its share, and so does a closed connection.
    let mut rest = held.remove(0);
    let mut body = vec![0; RESPONSE_BYTES];
    tokio::time::timeout(TIMEOUT, rest.read_exact(&mut body)).await.unwrap().unwrap();
    drop(held);
    let freed = async {
        while budget.free_kib() < 4 * 8 * 1024 {
            listening.status(small).await;
            let _ = tokio::time::timeout(Duration::from_millis(10), rest.read(&mut body)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, freed).await.expect("the budget is free again");
}

async fn clients_share_one_metrics_rendering_per_second(service: &Service) {
    let metrics =
        || async { TestRequest::get("/metrics").send(&service.router).await.is(200).bytes };
    // Each request is counted, so two renderings differ. A slow machine may need more than a
    // second for one pair.
    for _ in 0..50 {
        if metrics().await == metrics().await {
            return;
        }
    }
    panic!("each client got a new rendering");
}

testkit::both!(
    crate::support:
    endless_head_is_rejected_at_32_kib,
    incomplete_bodies_are_rejected_beyond_the_budget,
    unread_responses_are_rejected_beyond_the_budget,
    clients_share_one_metrics_rendering_per_second,
);
