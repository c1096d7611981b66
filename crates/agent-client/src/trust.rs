//! TLS verification: the service must present the certificate whose hash is in the token, or one
//! issued by the authority whose hash is in the token.
//!
//! Public certificate authorities play no role in this case: a self-signed server is verified and
//! never blindly trusted, and a certificate that a public authority issued to someone else is
//! rejected. Only a token without a hash (`.plain`), used with an https address, relies on the
//! system's trust store, as any other client on the host does.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Why the system's trust store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustStoreError {
    /// The trust store contains no certificate.
    #[error(
        "the token contains no certificate hash, so the service is verified by this system's trust \
         store, which is empty: install the package `ca-certificates`, or set SSL_CERT_FILE"
    )]
    Empty,
    #[error("cannot use the system's trust store")]
    Tls(#[from] Error),
}

/// A client configuration that trusts the authorities of this system. `SSL_CERT_FILE` and
/// `SSL_CERT_DIR` override them.
pub(crate) fn system_trust_config() -> Result<ClientConfig, TrustStoreError> {
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be read or parsed are skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(TrustStoreError::Empty);
    }
    Ok(client_config_with_roots(roots)?)
}

/// A client configuration that trusts these authorities, and checks names and dates.
fn client_config_with_roots(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// Accepts the certificate with this SHA-256, or one issued by the authority with this SHA-256.
#[derive(Debug)]
pub struct PinnedServer {
    sha256: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl PinnedServer {
    /// A client configuration that accepts this service and no other.
    ///
    /// # Panics
    /// Never: the provider supports the default protocol versions.
    pub fn client_config(sha256: [u8; 32]) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Arc::new(PinnedServer { sha256, provider: provider.clone() });
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports the default protocol versions")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth()
    }

    fn is_pinned(&self, certificate: &CertificateDer<'_>) -> bool {
        digest(&SHA256, certificate).as_ref() == self.sha256
    }
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The pinned certificate itself: its name and dates add nothing to a hash, and a host whose
        // clock is wrong must still reach its service. The handshake proves that the service has
        // the private key.
        if self.is_pinned(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        let authority = intermediates
            .iter()
            .find(|certificate| self.is_pinned(certificate))
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        verify_server_name(&certificate, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, Issuer, KeyPair};
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::sign::{CertifiedKey, SingleCertAndKey};
    use rustls::{ClientConnection, ServerConfig, ServerConnection};

    struct CertifiedChain {
        chain: Vec<CertificateDer<'static>>,
        key: KeyPair,
    }

    fn self_signed(name: &str) -> CertifiedChain {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        CertifiedChain { chain: vec![certificate.der().clone()], key }
    }

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn issue_certificate(
        name: &str,
        by: &Issuer<'_, KeyPair>,
        authority: &CertificateDer<'static>,
    ) -> CertifiedChain {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, by).unwrap();
        CertifiedChain { chain: vec![certificate.der().clone(), authority.clone()], key }
    }

    fn sha256(certificate: &CertificateDer<'_>) -> [u8; 32] {
        digest(&SHA256, certificate).as_ref().try_into().unwrap()
    }

    /// A complete handshake in memory, with a service that presents this chain.
    fn handshake(pin: [u8; 32], chain: CertifiedChain) -> Result<(), Error> {
        handshake_with(PinnedServer::client_config(pin), chain)
    }

    fn handshake_with(client: ClientConfig, shown: CertifiedChain) -> Result<(), Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(shown.key.serialize_der()));
        // `CertifiedKey::new` does not check that the key matches the certificate; an attacker's
        // does not.
        let certified =
            CertifiedKey::new(shown.chain, provider.key_provider.load_private_key(key)?);
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        let mut server = ServerConnection::new(Arc::new(server))?;
        let mut client = ClientConnection::new(Arc::new(client), "fleet.test".try_into().unwrap())?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut wire = Vec::new();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn only_the_pinned_certificate_is_accepted() {
        let certified = self_signed("some-other-name");
        handshake(sha256(&certified.chain[0]), certified).unwrap();
        let pin = sha256(&self_signed("fleet.test").chain[0]);
        let refused = handshake(pin, self_signed("fleet.test")).unwrap_err();
        assert_eq!(refused, Error::InvalidCertificate(CertificateError::UnknownIssuer));
    }

    #[test]
    fn certificate_issued_by_pinned_authority_for_this_name_is_accepted() {
        let authority = authority();
        let pin = sha256(authority.der());
        handshake(pin, issue_certificate("fleet.test", &authority, authority.der())).unwrap();
        let refused = handshake(pin, issue_certificate("evil.test", &authority, authority.der()));
        assert!(matches!(
            refused,
            Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. }))
        ));
    }

    /// Anyone can present a public certificate; only the owner of its key can issue another with
    /// it.
    #[test]
    fn chain_with_unrelated_pinned_authority_is_rejected() {
        let authority = authority();
        let mut certified = self_signed("fleet.test");
        certified.chain.push(authority.der().clone());
        let refused = handshake(sha256(authority.der()), certified);
        assert!(matches!(refused, Err(Error::InvalidCertificate(_))), "{refused:?}");
    }

    #[test]
    fn public_certificate_is_verified_by_authority_and_name() {
        let authority = authority();
        let client = || {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der().clone()).unwrap();
            client_config_with_roots(roots).unwrap()
        };
        handshake_with(client(), issue_certificate("fleet.test", &authority, authority.der()))
            .unwrap();
        let other_name = issue_certificate("evil.test", &authority, authority.der());
        let refused = handshake_with(client(), other_name);
        assert!(matches!(
            refused,
            Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. }))
        ));
        let untrusted = handshake_with(client(), self_signed("fleet.test"));
        assert!(matches!(untrusted, Err(Error::InvalidCertificate(_))), "{untrusted:?}");
    }

    /// An attacker who has the certificate without its key cannot complete a handshake.
    #[test]
    fn certificate_without_its_key_is_rejected() {
        let real = self_signed("fleet.test");
        let pin = sha256(&real.chain[0]);
        let thief = CertifiedChain { key: KeyPair::generate().unwrap(), ..real };
        let refused = handshake(pin, thief).unwrap_err();
        assert_eq!(refused, Error::InvalidCertificate(CertificateError::BadSignature));
    }
}
