//! Loads the TLS certificate of the service.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};

pub(crate) struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    /// Digest of the last certificate in the file: the certificate authority's, or the only one.
    /// Enrollment tokens carry it, and it should outlive renewals of the server's own certificate.
    pub(crate) sha256: [u8; 32],
    /// The SHA-256 of the server's public key, if this machine does not trust the certificate.
    pub(crate) untrusted_public_key: Option<[u8; 32]>,
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
        let untrusted_public_key = untrusted_public_key(&chain);
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
        Ok(Tls { config: Arc::new(config), sha256, untrusted_public_key })
    }
}

/// The SHA-256 of the public key of a certificate that this machine's trust store does not accept.
/// Whether it is valid for a name is not checked, because the service has many names.
fn untrusted_public_key(chain: &[CertificateDer<'_>]) -> Option<[u8; 32]> {
    let (leaf, others) = chain.split_first()?;
    let certificate = ParsedCertificate::try_from(leaf).ok()?;
    if is_trusted(leaf, others) {
        return None;
    }
    let key = certificate.subject_public_key_info();
    ring::digest::digest(&ring::digest::SHA256, &key).as_ref().try_into().ok()
}

fn is_trusted(leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let Ok(verifier) =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()
    else {
        return false;
    };
    let Ok(name) = ServerName::try_from("fleetmend.invalid") else { return false };
    let verified = verifier.verify_server_cert(leaf, others, &name, &[], UnixTime::now());
    // The name is checked last, so this error means that everything else is fine.
    let wrong_name = |error: &Error| {
        matches!(
            error,
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            )
        )
    };
    verified.as_ref().err().is_none_or(wrong_name)
}
