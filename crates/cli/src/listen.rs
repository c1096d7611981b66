//! The address that the service listens on.

use tokio::net::TcpListener;

/// Where the service listens, and where operators' commands look for it, unless told otherwise.
pub(crate) const DEFAULT: &str = "127.0.0.1:7600";

/// Binds a listener. An error says what to do about it.
pub(crate) async fn bind(listen: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "another program listens on {listen}: end it, or choose another port, such as \
                 `--listen 127.0.0.1:0` for a free one"
            ),
            std::io::ErrorKind::PermissionDenied => {
                format!("you may not listen on {listen}: choose a port above 1023 with --listen")
            }
            std::io::ErrorKind::InvalidInput => {
                format!("cannot listen on {listen}: say address and port, such as 127.0.0.1:7600")
            }
            _ => format!("cannot listen on {listen}: choose another address with --listen"),
        };
        anyhow::Error::new(error).context(advice)
    })
}
