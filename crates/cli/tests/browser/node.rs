//! Tools from npm, installed into the target directory by `cargo xtask setup` and `cargo xtask
//! test`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The directory of the npm packages; none if they are not installed.
pub(crate) fn home() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_fleetmend")).ancestors().nth(2).unwrap();
    let home = target.join("browser");
    if home.join("complete").is_file() {
        return Some(home);
    }
    let required = std::env::var("FLEETMEND_TEST_REQUIRE_TOOLS").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "there are no npm packages in {}, and FLEETMEND_TEST_REQUIRE_TOOLS=1 is set",
        home.display()
    );
    println!("skipped: there are no npm packages in {} (run `cargo xtask setup`)", home.display());
    None
}

/// A real identity provider, stopped on drop.
pub(crate) struct Provider {
    child: Child,
    input: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pub(crate) issuer: String,
}

impl Provider {
    /// Starts a provider on a free port.
    pub(crate) fn start(home: &Path) -> Provider {
        Provider::at(home, "0")
    }

    fn at(home: &Path, port: &str) -> Provider {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/provider.mjs");
        let mut child = Command::new("node")
            .arg(script)
            .args([home.to_str().unwrap(), port])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let message = BufReader::new(child.stdout.take().unwrap());
        let mut provider = Provider { child, input, stdout: message, issuer: String::new() };
        provider.issuer = provider.line();
        provider
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Tells the provider the address of the service, for the redirect URI.
    pub(crate) fn set_service(&mut self, service: &str) {
        writeln!(self.input, "{service}/sign-in/oidc/back").unwrap();
        // It prints warnings about settings that are acceptable in a test only.
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "the provider ended; run provider.mjs manually to see why");
            if line == "ready" {
                return;
            }
        }
    }

    /// Restarts the provider: with new keys, and without sessions.
    pub(crate) fn restart(self, home: &Path) -> Provider {
        let port = self.issuer.rsplit(':').next().unwrap().to_owned();
        drop(self);
        Provider::at(home, &port)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
