//! Loads the TLS certificate of the service.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub(crate) struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    /// Digest of the last certificate in the file: the certificate authority's, or the only one.
    /// Enrollment tokens carry it, and it should outlive renewals of the server's own certificate.
    pub(crate) sha256: [u8; 32],
}

impl Tls {
    pub(crate) fn load(certificates: &Path, key: &Path) -> anyhow::Result<Tls> {
        let shown = certificates.display();
        let chain = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| format!("cannot read the certificates in {shown}"))?;
        let Some(last) = chain.last() else { bail!("no certificate in {shown}") };
        let digest = ring::digest::digest(&ring::digest::SHA256, last);
        let sha256 = digest.as_ref().try_into().context("a SHA-256 digest must have 32 bytes")?;
        let private = PrivateKeyDer::from_pem_file(key)
            .with_context(|| format!("cannot read the private key in {}", key.display()))?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .with_context(|| {
                format!(
                    "the certificate in {shown} and the private key in {} do not match",
                    key.display()
                )
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), sha256 })
    }
}
