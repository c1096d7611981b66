//! Drives Chromium through chromedriver, with the part of WebDriver that the tests need.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// Far longer than usual: something hangs.
const POLLS_MAX: u32 = 4_800;
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Keys in WebDriver's encoding.
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const TAB: &str = "\u{e004}";

/// A browser with one tab, closed on drop.
pub(crate) struct Tab {
    driver: Child,
    /// Kept open, because chromedriver ends when its output is closed.
    _stdout: BufReader<ChildStdout>,
    address: String,
    session: String,
}

impl Tab {
    /// Opens a browser; none if this machine has no Chromium.
    pub(crate) fn open() -> Option<Tab> {
        let mut command = Command::new("chromedriver");
        command
            .args(["--port=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let Ok(mut driver) = command.spawn() else {
            let required =
                std::env::var("FLEETMEND_TEST_REQUIRE_TOOLS").is_ok_and(|value| value == "1");
            assert!(
                !required,
                "chromedriver is missing, and FLEETMEND_TEST_REQUIRE_TOOLS=1 is set"
            );
            println!("skipped: chromedriver is missing (Debian: chromium-driver)");
            return None;
        };
        let mut message = BufReader::new(driver.stdout.take().unwrap());
        let port = message.by_ref().lines().map_while(Result::ok).find_map(|line| {
            let port = line.split("successfully on port ").nth(1)?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let address = format!("127.0.0.1:{}", port.expect("chromedriver prints its port"));
        let mut tab = Tab { driver, _stdout: message, address, session: String::new() };
        // For a closed network and a container: only the service is contacted.
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
        ];
        let capabilities = json!({"browserName": "chrome", "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL"}});
        let made =
            tab.send("POST", "/session", &json!({"capabilities": {"alwaysMatch": capabilities}}));
        tab.session = made["sessionId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        Some(tab)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let body = read_response(stream).unwrap();
        let value: Value = serde_json::from_slice(&body).unwrap();
        value["value"].clone()
    }

    #[track_caller]
    fn session_command(&self, method: &str, path: &str, body: &Value) -> Value {
        let response = self.send(method, &format!("/session/{}{path}", self.session), body);
        assert!(response.get("error").is_none(), "{method} {path} {body}: {response}");
        response
    }

    pub(crate) fn go(&self, url: &str) {
        self.session_command("POST", "/url", &json!({"url": url}));
    }

    pub(crate) fn url(&self) -> String {
        self.session_command("GET", "/url", &Value::Null).as_str().unwrap().to_owned()
    }

    /// Runs a script in the page and returns its result.
    pub(crate) fn eval(&self, script: &str) -> Value {
        self.session_command("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    #[track_caller]
    fn element(&self, css: &str) -> String {
        let found = self.session_command(
            "POST",
            "/element",
            &json!({"using": "css selector", "value": css}),
        );
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Clicks the element that matches the selector.
    #[track_caller]
    pub(crate) fn click(&self, css: &str) {
        let element = self.element(css);
        self.session_command("POST", &format!("/element/{element}/click"), &json!({}));
    }

    /// Types into the element that matches the selector.
    #[track_caller]
    pub(crate) fn fill(&self, css: &str, text: &str) {
        let element = self.element(css);
        self.session_command("POST", &format!("/element/{element}/value"), &json!({"text": text}));
    }

    /// Types into the focused element.
    pub(crate) fn keys(&self, text: &str) {
        let active = self.session_command("GET", "/element/active", &Value::Null);
        let element = active[ELEMENT].as_str().unwrap().to_owned();
        self.session_command("POST", &format!("/element/{element}/value"), &json!({"text": text}));
    }

    /// The visible text of the page.
    pub(crate) fn text(&self) -> String {
        let text = self.eval("return document.body ? document.body.innerText : ''");
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows this text.
    #[track_caller]
    pub(crate) fn until_shown(&self, text: &str) {
        self.until(&format!("{text:?} is shown"), |tab| tab.text().contains(text));
    }

    /// Waits for a condition, with a timeout.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Tab) -> bool) {
        for _ in 0..POLLS_MAX {
            if condition(self) {
                return;
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
        panic!("timed out waiting for: {what}, at {}\n{}", self.url(), self.text());
    }

    /// Sends a DevTools command to the browser.
    pub(crate) fn cdp(&self, command: &str, params: &Value) {
        self.session_command(
            "POST",
            "/goog/cdp/execute",
            &json!({"cmd": command, "params": params}),
        );
    }

    /// Sets the width of the window and the color theme.
    pub(crate) fn set_viewport(&self, width: u32, theme: &str) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.cdp("Emulation.setDeviceMetricsOverride", &size);
        let theme = json!([{"name": "prefers-color-scheme", "value": theme}]);
        self.cdp("Emulation.setEmulatedMedia", &json!({"features": theme}));
    }

    /// A screenshot of the page, as PNG.
    pub(crate) fn screenshot(&self) -> Vec<u8> {
        let text = self.session_command("GET", "/screenshot", &Value::Null);
        base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap()
    }

    /// The errors and warnings in the browser's console: script errors, and violations of the
    /// Content Security Policy.
    pub(crate) fn console_problems(&self) -> Vec<String> {
        let log = self.session_command("POST", "/se/log", &json!({"type": "browser"}));
        let entries = log.as_array().unwrap().iter();
        let bad = entries.filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        bad.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// The body of a response. chromedriver keeps its connections open, whatever the request asks for.
fn read_response(stream: TcpStream) -> std::io::Result<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}

impl Drop for Tab {
    fn drop(&mut self) {
        // Chromium ends with its session, not with its driver. Nothing may panic here.
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            let head =
                format!("DELETE /session/{} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.session);
            let _ = stream.write_all(head.as_bytes()).and_then(|()| read_response(stream));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
