//! TLS verification with `--ca-cert`: the system's trust store, and the certificates in a file.
//!
//! A self-signed certificate often says that it is an authority (`CA:TRUE`, which `openssl req
//! -x509` sets by default), and no authority is accepted as a server's own certificate. It is
//! accepted here if it is exactly the one in the file. Its name and dates are still verified.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

#[derive(Debug)]
struct TrustedCertificates {
    named: Vec<CertificateDer<'static>>,
    authorities: Arc<WebPkiServerVerifier>,
}

/// A client configuration that trusts the certificates in this PEM file, in addition to the
/// system's authorities.
pub(super) fn client_config(file: &Path) -> anyhow::Result<ClientConfig> {
    let named = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .context("not a certificate in PEM format")?;
    ensure!(!named.is_empty(), "the file contains no certificate");
    let mut roots = RootCertStore::empty();
    // Certificates of the system that cannot be read or parsed are skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in &named {
        roots.add(certificate.clone())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let authorities =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustedCertificates { named, authorities }))
        .with_no_client_auth())
}

impl ServerCertVerifier for TrustedCertificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.authorities.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            // An authority as the server's certificate; rustls has no dedicated variant for this
            // error. The dates were verified before it.
            Err(Error::InvalidCertificate(CertificateError::Other(_)))
                if self.named.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}
