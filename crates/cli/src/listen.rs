//! The address that the service listens on, and the one that users open.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::settings::SettingsFile;

/// The default address of the service, for listening and for operator commands.
pub(crate) const DEFAULT: &str = "127.0.0.1:7600";

/// Binds a listener. Errors include advice.
pub(crate) async fn bind(listen: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "another program is listening on {listen}: stop it, or choose another port, such as \
                 `--listen 127.0.0.1:0` for a free one"
            ),
            std::io::ErrorKind::PermissionDenied => {
                format!("no permission to listen on {listen}: choose a port above 1023 with --listen")
            }
            std::io::ErrorKind::InvalidInput => {
                format!("cannot listen on {listen}: use address:port, such as 127.0.0.1:7600")
            }
            _ => format!("cannot listen on {listen}: choose another address with --listen"),
        };
        anyhow::Error::new(error).context(advice)
    })
}

/// The address of the service for a browser, from the same settings as the service's own.
///
/// A service that listens on all addresses is reached by the name of this machine.
pub(crate) fn service_url(file: &SettingsFile) -> String {
    let setting = |name: &str| std::env::var(name).ok();
    let listen = setting("FLEETMEND_LISTEN").or_else(|| file.listen.clone());
    let tls = setting("FLEETMEND_TLS_CERT").is_some() || file.tls_cert.is_some();
    url_for(listen.as_deref().unwrap_or(DEFAULT), tls, &hostname())
}

fn url_for(listen: &str, tls: bool, hostname: &str) -> String {
    let scheme = if tls { "https" } else { "http" };
    match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => {
            format!("{scheme}://{hostname}:{}", address.port())
        }
        _ => format!("{scheme}://{listen}"),
    }
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_names_an_address_that_a_browser_can_open() {
        for (listen, tls, url) in [
            ("127.0.0.1:7600", false, "http://127.0.0.1:7600"),
            ("[::1]:8443", true, "https://[::1]:8443"),
            ("fleet.example.org:8443", true, "https://fleet.example.org:8443"),
            ("0.0.0.0:7600", false, "http://web-1:7600"),
            ("[::]:8443", true, "https://web-1:8443"),
        ] {
            assert_eq!(url_for(listen, tls, "web-1"), url);
        }
    }
}
