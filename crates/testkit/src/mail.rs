//! A real SMTP server on this host, which stores what it receives.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

const PROGRAM: &str = include_str!("mail_server.py");

/// The server requires this certificate chain and sign-in.
#[derive(Clone, Copy)]
pub struct Secured<'a> {
    pub certificate: &'a Path,
    pub key: &'a Path,
    pub user: &'a str,
    pub password: &'a str,
}

/// An SMTP server. It ends with the test.
pub struct MailServer {
    process: Child,
    directory: PathBuf,
    pub port: u16,
}

impl MailServer {
    /// Starts a server that stores messages in this directory. Without `secured`, it offers no
    /// encryption. Recipients at `refused.example` do not exist.
    pub fn start(directory: &Path, secured: Option<Secured<'_>>) -> MailServer {
        let directory = directory.join("mail");
        std::fs::create_dir_all(&directory).unwrap();
        // The module comes with a package of the system, so the Python of the system is used.
        let python = ["/usr/bin/python3", "python3"];
        let python = python.into_iter().find(|path| Path::new(path).exists()).unwrap_or("python3");
        let mut command = Command::new(python);
        command.args(["-c", PROGRAM]).arg(&directory);
        if let Some(secured) = secured {
            command.arg(secured.certificate).arg(secured.key);
            command.args([secured.user, secured.password]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse();
        let port = port.expect("the SMTP server starts (Debian package python3-aiosmtpd)");
        MailServer { process, directory, port }
    }

    /// The setting with which a service sends to this server without encryption.
    pub fn url(&self) -> String {
        format!("smtp://127.0.0.1:{}?tls=none", self.port)
    }

    /// The messages so far: `from`, `to`, `headers` (names in lower case), `text`, `html`, `defects`,
    /// `encrypted`, `user`.
    pub fn messages(&self) -> Vec<Value> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&self.directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .collect();
        paths.sort();
        let read = |path: &PathBuf| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        paths.iter().map(read).collect()
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
