//! `fleetmend health`: asks a service whether it is ready, for the health check of a container.

use std::path::PathBuf;

use clap::Args;

use crate::listen;
use crate::operator::api::Api;

/// Ask a running service whether it is ready.
///
/// Exits with 0 if `/readyz` reports that the service accepts requests, and with 1 otherwise. Needs
/// no API key.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend health
  fleetmend health --url https://fleet.example:7600 --json")]
pub(crate) struct Health {
    /// Address of the service [default: http://127.0.0.1:7600]
    #[arg(long, value_name = "URL", env = "FLEETMEND_URL")]
    url: Option<String>,
    /// Certificate to trust (PEM), for a service with a self-signed certificate
    #[arg(long, value_name = "FILE", env = "FLEETMEND_CA_CERT")]
    ca_cert: Option<PathBuf>,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

impl Health {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let url = self.url.unwrap_or_else(|| format!("http://{}", listen::DEFAULT));
        let body = Api::new(&url, "", self.ca_cert.as_deref())?.readiness().await?;
        crate::print_line(if self.json { body.text.trim_end() } else { "The service is ready." })
    }
}
