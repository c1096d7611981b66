//! The address that the service listens on.

use tokio::net::TcpListener;

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
