//! Email: the connection to the SMTP server, and the messages that are sent.
//!
//! Connections are encrypted unless the settings explicitly say otherwise, and a password is never
//! sent over one that is not. An attempt takes at most 45 seconds.

mod content;
mod messages;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};
use reqwest::Url;

pub use content::{Block, Content, Line};
pub(crate) use messages::unsubscribed_rule;
pub use messages::{Collected, Digest, confirmation, digest, immediate, test, unsubscribe_path};

/// The time limit of each step with the SMTP server.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The longest address that SMTP can deliver to.
const ADDRESS_BYTES_MAX: usize = 254;
/// How much of an error is kept.
const ERROR_CHARS_MAX: usize = 500;

/// How the service sends email.
#[derive(Clone)]
pub struct MailSettings {
    host: String,
    port: u16,
    encryption: Encryption,
    credentials: Option<(String, String)>,
    from: Mailbox,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encryption {
    /// TLS from the start.
    Tls,
    /// The connection is upgraded to TLS before anything else is sent.
    StartTls,
    /// Only without a password.
    None,
}

/// Without the password.
impl fmt::Debug for MailSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MailSettings({}:{}, {:?})", self.host, self.port, self.encryption)
    }
}

impl MailSettings {
    /// Reads `smtps://USER:PASSWORD@HOST:PORT`, and the address that messages come from. The error
    /// never contains the password.
    pub fn parse(smtp: &str, from: Option<&str>) -> Result<MailSettings, String> {
        let url = Url::parse(smtp)
            .map_err(|_| "must be a URL such as smtps://USER:PASSWORD@mail.example.com")?;
        let unencrypted = match url.query() {
            None => false,
            Some("tls=none") => true,
            Some(_) => return Err("the only parameter is `tls=none`".to_owned()),
        };
        let (encryption, default_port) = match (url.scheme(), unencrypted) {
            ("smtps", false) => (Encryption::Tls, 465),
            ("smtps", true) => return Err("smtps:// cannot be used with `tls=none`".to_owned()),
            ("smtp", false) => (Encryption::StartTls, 587),
            ("smtp", true) => (Encryption::None, 25),
            _ => return Err("must start with smtps:// or smtp://".to_owned()),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or("has no host")?;
        if !matches!(url.path(), "" | "/") || url.fragment().is_some() {
            return Err("must have no path".to_owned());
        }
        let credentials = match (url.username(), url.password()) {
            ("", None) => None,
            ("", Some(_)) => return Err("has a password but no user".to_owned()),
            (_, None) => return Err("has a user but no password".to_owned()),
            (user, Some(password)) => Some((decode_percent(user)?, decode_percent(password)?)),
        };
        if credentials.is_some() && encryption == Encryption::None {
            return Err("a password is only sent over TLS: remove `tls=none`".to_owned());
        }
        let default = format!("Fleetmend <fleetmend@{host}>");
        let from = from.unwrap_or(&default);
        let from = Mailbox::from_str(from).map_err(|_| {
            format!("the sender `{from}` is not an email address; set it with smtp_from")
        })?;
        Ok(MailSettings {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port().unwrap_or(default_port),
            encryption,
            credentials,
            from,
        })
    }

    /// The server and the sender, for people.
    pub fn describe(&self) -> String {
        format!("{}:{}, from {}", self.host, self.port, self.from)
    }
}

/// Decodes `%XX` in the user and password of a URL.
fn decode_percent(text: &str) -> Result<String, String> {
    // A query decodes it the same way, except that `+` stands for a space there.
    let query = format!("v={}", text.replace('+', "%2B"));
    let pairs: Vec<(String, String)> =
        serde_html_form::from_str(&query).map_err(|_| "has an invalid user or password")?;
    Ok(pairs.into_iter().map(|(_, value)| value).collect())
}

/// Checks the address of a person. Returns it without surrounding whitespace.
pub fn check_address(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    let wrong = "must be an email address such as ann@example.com";
    if text.len() > ADDRESS_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(wrong);
    }
    lettre::Address::from_str(text).map(|address| address.to_string()).map_err(|_| wrong)
}

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct MailError {
    pub kind: MailErrorKind,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailErrorKind {
    /// The server could not be reached, or did not accept us: no message can be sent.
    Unavailable,
    /// The server did not accept this message.
    Refused,
}

impl MailError {
    fn unavailable(text: impl Into<String>) -> MailError {
        MailError { kind: MailErrorKind::Unavailable, text: text.into() }
    }

    fn of_server(error: &lettre::transport::smtp::Error) -> MailError {
        // The server answered to something about this message. 421 and 53x are about us.
        let about_us = |code: u16| code == 421 || (530..=539).contains(&code);
        let kind = match error.status() {
            Some(code) if !about_us(u16::from(code)) => MailErrorKind::Refused,
            _ => MailErrorKind::Unavailable,
        };
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            let inner_text = inner.to_string();
            if !text.contains(&inner_text) {
                text = format!("{text}: {inner_text}");
            }
            cause = inner.source();
        }
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        MailError { kind, text: text.chars().map(printable).take(ERROR_CHARS_MAX).collect() }
    }
}

/// A message to one person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub subject: String,
    pub text: String,
    pub html: String,
    /// The same when the message is sent again, so that mail servers can drop the copy.
    pub id: String,
    /// When it was written.
    pub at: Timestamp,
    /// Ends these messages without signing in (RFC 8058).
    pub unsubscribe_url: Option<String>,
}

/// Sends messages.
pub struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
}

impl Mailer {
    pub fn new(settings: &MailSettings) -> Result<Mailer, MailError> {
        let tls = || {
            TlsParameters::new(settings.host.clone())
                .map_err(|error| MailError::unavailable(format!("cannot use TLS: {error}")))
        };
        let tls = match settings.encryption {
            Encryption::Tls => Tls::Wrapper(tls()?),
            Encryption::StartTls => Tls::Required(tls()?),
            Encryption::None => Tls::None,
        };
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&settings.host)
            .port(settings.port)
            .tls(tls)
            .timeout(Some(TIMEOUT));
        if let Some((user, password)) = settings.credentials.clone() {
            builder = builder.credentials(Credentials::new(user, password));
        }
        Ok(Mailer { transport: builder.build(), from: settings.from.clone() })
    }

    /// Sends a message once. Returns what the server answered.
    pub async fn send(&self, to: &str, message: &Message) -> Result<String, MailError> {
        let unusable = |error: &dyn fmt::Display| MailError {
            kind: MailErrorKind::Refused,
            text: format!("the message cannot be sent: {error}"),
        };
        let to: lettre::Address = to.parse().map_err(|error| unusable(&error))?;
        let raw =
            |name, value: String| HeaderValue::new(HeaderName::new_from_ascii_str(name), value);
        let domain = self.from.email.domain().to_owned();
        let mut builder = lettre::Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(message.subject.replace(char::is_control, " "))
            .date(SystemTime::from(message.at))
            .message_id(Some(format!("<{}@{domain}>", message.id)))
            .raw_header(raw("Auto-Submitted", "auto-generated".to_owned()));
        if let Some(url) = &message.unsubscribe_url {
            builder = builder
                .raw_header(raw("List-Unsubscribe", format!("<{url}>")))
                .raw_header(raw("List-Unsubscribe-Post", "List-Unsubscribe=One-Click".to_owned()));
        }
        let body = MultiPart::alternative_plain_html(message.text.clone(), message.html.clone());
        let mail = builder.multipart(body).map_err(|error| unusable(&error))?;
        // The limit of the transport is per step; a server that answers byte by byte gets no longer.
        match tokio::time::timeout(TIMEOUT * 3, self.transport.send(mail)).await {
            Ok(Ok(response)) => {
                let lines: Vec<&str> = response.message().collect();
                let text = format!("{} {}", response.code(), lines.join(" "));
                Ok(text.chars().take(ERROR_CHARS_MAX).collect())
            }
            Ok(Err(error)) => Err(MailError::of_server(&error)),
            Err(_) => Err(MailError::unavailable("the server did not answer in time")),
        }
    }

    /// Connects and signs in, without sending a message.
    pub async fn check(&self) -> Result<(), MailError> {
        match tokio::time::timeout(TIMEOUT * 2, self.transport.test_connection()).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(MailError::unavailable("the server does not answer as expected")),
            Ok(Err(error)) => Err(MailError::of_server(&error)),
            Err(_) => Err(MailError::unavailable("the server did not answer in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_encrypted_unless_they_say_otherwise() {
        let parse = |url: &str| MailSettings::parse(url, Some("ops@example.org")).unwrap();
        let all = parse("smtps://us%40er:p%3a+s@mail.example.org");
        assert_eq!((all.port, all.encryption), (465, Encryption::Tls));
        assert_eq!(all.credentials, Some(("us@er".into(), "p:+s".into())));
        let relay = parse("smtp://mail.example.org");
        assert_eq!((relay.port, relay.encryption), (587, Encryption::StartTls));
        let local = parse("smtp://[::1]:2525?tls=none");
        assert_eq!((local.host.as_str(), local.port), ("::1", 2525));
        assert_eq!(local.encryption, Encryption::None);
        assert_eq!(format!("{all:?}"), "MailSettings(mail.example.org:465, Tls)");
    }

    #[test]
    fn wrong_settings_are_refused_without_their_password() {
        for wrong in [
            "",
            "mail.example.org",
            "https://u:hunter2@mail.example.org",
            "smtp://u:hunter2@mail.example.org?tls=none",
            "smtps://u:hunter2@mail.example.org?tls=none",
            "smtps://u:hunter2@mail.example.org?tls=maybe",
            "smtps://u:hunter2@mail.example.org/path",
            "smtps://:hunter2@mail.example.org",
            "smtps://user@mail.example.org",
            "smtps://u:hunter2@",
        ] {
            let error = MailSettings::parse(wrong, None).unwrap_err();
            assert!(!error.contains("hunter2"), "{wrong}: {error}");
        }
        let error = MailSettings::parse("smtps://mail.example.org", Some("ops")).unwrap_err();
        assert!(error.contains("smtp_from"), "{error}");
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(check_address(" ann@example.com ").as_deref(), Ok("ann@example.com"));
        let long = format!("{}@example.com", "a".repeat(300));
        for wrong in ["", "ann", "ann@", "ann@example.com\nBcc: x@y.z", "a@b.c, d@e.f", &long] {
            assert!(check_address(wrong).is_err(), "{wrong}");
        }
    }
}
