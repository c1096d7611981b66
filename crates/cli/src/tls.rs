//! Loads the TLS certificate of the service, and loads it again when its files change.
//!
//! Connections keep the certificate that they started with. Files that cannot be used, such as a
//! certificate that was written before its key, leave the previous certificate in use.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use service::App;
use tokio::signal::unix::Signal;
use tokio::time::MissedTickBehavior;

/// How often the files are read. They are small, so their content is compared instead of their
/// times: two renewals may have the same time.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// More than any chain of certificates needs.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(crate) struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    /// Digest of the last certificate in the file: the certificate authority's, or the only one.
    /// Enrollment tokens carry it, and it should outlive renewals of the server's own certificate.
    pub(crate) sha256: [u8; 32],
    /// The SHA-256 of the server's public key, if this machine does not trust the certificate.
    pub(crate) untrusted_public_key: Option<[u8; 32]>,
    files: CertificateFiles,
    current: Arc<CurrentCertificate>,
    /// The content that was last loaded or rejected.
    seen: Content,
}

impl Tls {
    pub(crate) fn load(certificates: &Path, key: &Path) -> anyhow::Result<Tls> {
        let files = CertificateFiles { certificates: certificates.into(), key: key.into() };
        let seen = files.read()?;
        let Certificate { key, sha256, untrusted_public_key } = files.parse(&seen)?;
        let current = Arc::new(CurrentCertificate(RwLock::new(key)));
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), sha256, untrusted_public_key, files, current, seen })
    }

    /// Reads the files again. New connections get the new certificate if it can be used.
    fn reload(&mut self) -> Reload {
        let content = match self.files.read() {
            Ok(content) if content == self.seen => return Reload::Unchanged,
            Ok(content) => content,
            // An empty content stands for files that cannot be read.
            Err(_) if self.seen == Content::default() => return Reload::Unchanged,
            Err(error) => {
                self.seen = Content::default();
                return Reload::Failed(error);
            }
        };
        let parsed = self.files.parse(&content);
        self.seen = content;
        match parsed {
            Ok(Certificate { key, sha256, untrusted_public_key }) => {
                self.current.set(key);
                self.untrusted_public_key = untrusted_public_key;
                let authority_changed = std::mem::replace(&mut self.sha256, sha256) != sha256;
                Reload::Loaded { authority_changed }
            }
            Err(error) => Reload::Failed(error),
        }
    }

    /// Loads the files again whenever they change, and at each SIGHUP.
    pub(crate) async fn reload_on_change(mut self, app: App, mut hangups: Signal) {
        app.condition().note_certificate_rejected(false);
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let requested = tokio::select! {
                _ = ticks.tick() => false,
                Some(()) = hangups.recv() => true,
            };
            // Reads two small files; nothing else runs on this task.
            match self.reload() {
                Reload::Unchanged if requested => {
                    tracing::info!("received SIGHUP; the certificate files have not changed");
                }
                Reload::Unchanged => {}
                Reload::Loaded { authority_changed } => {
                    tracing::info!("loaded the changed certificate");
                    if authority_changed {
                        tracing::warn!(
                            "the last certificate in the file is another one: agents that were \
                             enrolled with the previous one reject it and must be enrolled again"
                        );
                    }
                    app.set_certificate(self.sha256, self.untrusted_public_key);
                    app.condition().note_certificate_rejected(false);
                }
                Reload::Failed(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "cannot load the changed certificate; the previous one stays in use"
                    );
                    app.condition().note_certificate_rejected(true);
                }
            }
        }
    }
}

enum Reload {
    Unchanged,
    Loaded {
        /// Whether agents that pin the previous authority reject the new certificate.
        authority_changed: bool,
    },
    Failed(anyhow::Error),
}

struct CertificateFiles {
    certificates: PathBuf,
    key: PathBuf,
}

/// What the files contain.
#[derive(Default, PartialEq, Eq)]
struct Content {
    certificates: Vec<u8>,
    key: Vec<u8>,
}

struct Certificate {
    key: Arc<CertifiedKey>,
    sha256: [u8; 32],
    untrusted_public_key: Option<[u8; 32]>,
}

impl CertificateFiles {
    fn read(&self) -> anyhow::Result<Content> {
        let certificates = read_limited(&self.certificates).with_context(|| {
            format!("cannot read the certificates in {}", self.certificates.display())
        })?;
        let key = read_limited(&self.key)
            .with_context(|| format!("cannot read the private key in {}", self.key.display()))?;
        Ok(Content { certificates, key })
    }

    fn parse(&self, content: &Content) -> anyhow::Result<Certificate> {
        let (shown, key_shown) = (self.certificates.display(), self.key.display());
        let chain = CertificateDer::pem_slice_iter(&content.certificates)
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("cannot read the certificates in {shown}"))?;
        let Some(last) = chain.last() else { bail!("no certificate in {shown}") };
        let digest = ring::digest::digest(&ring::digest::SHA256, last);
        let sha256 = digest.as_ref().try_into().context("a SHA-256 digest must have 32 bytes")?;
        let untrusted_public_key = untrusted_public_key(&chain);
        let private = PrivateKeyDer::from_pem_slice(&content.key)
            .with_context(|| format!("cannot read the private key in {key_shown}"))?;
        let provider = CryptoProvider::get_default().context("no TLS provider is installed")?;
        let key = CertifiedKey::from_der(chain, private, provider).with_context(|| {
            format!("the certificate in {shown} and the private key in {key_shown} do not match")
        })?;
        Ok(Certificate { key: Arc::new(key), sha256, untrusted_public_key })
    }
}

fn read_limited(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "the file is larger than 1 MiB");
    Ok(bytes)
}

/// The certificate for new connections.
#[derive(Debug)]
struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl CurrentCertificate {
    fn set(&self, key: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A self-signed certificate and its key.
    fn pair() -> [String; 2] {
        let made = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        [made.cert.pem(), made.signing_key.serialize_pem()]
    }

    #[test]
    fn unusable_files_keep_the_certificate_and_are_reported_once() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = std::env::temp_dir().join(format!("fleetmend_tls_{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let paths = ["cert.pem", "key.pem"].map(|name| dir.join(name));
        let write = |content: &[String; 2]| {
            paths.iter().zip(content).for_each(|(path, text)| fs::write(path, text).unwrap());
        };
        let (first, second) = (pair(), pair());
        write(&first);
        let mut tls = Tls::load(&paths[0], &paths[1]).unwrap();
        let served = |tls: &Tls| tls.current.0.read().unwrap().cert[0].clone();
        let original = served(&tls);
        assert!(matches!(tls.reload(), Reload::Unchanged));

        let half = second[0][..second[0].len() / 2].to_owned();
        for broken in [
            [second[0].clone(), first[1].clone()],
            [half, second[1].clone()],
            [String::new(), second[1].clone()],
            [second[0].clone(), "no key".to_owned()],
            ["x".repeat(2 << 20), second[1].clone()],
        ] {
            write(&broken);
            assert!(matches!(tls.reload(), Reload::Failed(_)));
            assert!(matches!(tls.reload(), Reload::Unchanged), "it is reported once");
            assert_eq!(served(&tls), original);
        }
        fs::remove_file(&paths[1]).unwrap();
        // Files that are too large and files that are missing both cannot be read.
        assert!(matches!(tls.reload(), Reload::Unchanged));
        write(&second);
        assert!(matches!(tls.reload(), Reload::Loaded { authority_changed: true }));
        assert_ne!(served(&tls), original);
        write(&first);
        assert!(matches!(tls.reload(), Reload::Loaded { authority_changed: true }));
        assert_eq!(served(&tls), original);
        fs::remove_dir_all(&dir).unwrap();
    }
}
