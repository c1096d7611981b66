//! Checks the listen address and the TLS certificate.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::Findings;
use crate::listen;
use crate::settings::SettingsFile;
use crate::tls::Tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Enough time to renew a certificate by hand.
const EXPIRES_SOON: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Returns whether something accepts connections at the listen address.
pub(super) fn check(file: &SettingsFile, findings: &mut Findings) -> bool {
    let listen = file.listen.as_deref().unwrap_or(listen::DEFAULT);
    match (&file.tls_cert, &file.tls_key) {
        (Some(cert), Some(key)) => check_certificate(cert, key, findings),
        (None, None) => {}
        _ => findings.problem(
            "certificate",
            "tls_cert and tls_key must be set together, but one of them is missing",
            "set both, or neither",
        ),
    }
    check_address(listen, file.tls_cert.is_some(), findings)
}

fn check_certificate(cert: &Path, key: &Path, findings: &mut Findings) {
    if let Err(error) = Tls::load(cert, key) {
        let remedy = "set tls_cert to a PEM file with the server certificate first, and tls_key to its private key; the service's user must be able to read both";
        return findings.problem("certificate", format!("{error:#}"), remedy);
    }
    let first = CertificateDer::pem_file_iter(cert).ok().and_then(|mut all| all.next()?.ok());
    let Some(ends) = first.as_deref().and_then(not_after) else {
        let message = format!("cannot read the expiry date of {}", cert.display());
        return findings.note(
            "certificate",
            message,
            "inspect it with `openssl x509 -noout -enddate`",
        );
    };
    let message = format!("{} expires at {ends:.0}", cert.display());
    match ends.duration_since(findings.now) {
        left if left <= SignedDuration::ZERO => findings.problem(
            "certificate",
            format!("{} expired at {ends:.0}", cert.display()),
            "renew it; the service loads it within seconds, and agents that pin its certificate authority are not affected",
        ),
        left if left < EXPIRES_SOON => {
            findings.problem("certificate", message, "renew it; the service loads it within seconds");
        }
        _ => findings.ok("certificate", message),
    }
}

fn check_address(listen: &str, tls: bool, findings: &mut Findings) -> bool {
    let Some(address) = listen.to_socket_addrs().ok().and_then(|mut all| all.next()) else {
        let remedy = "use address:port, such as 127.0.0.1:7600 or [::]:7600";
        findings.problem("listen address", format!("`{listen}` is not a valid address"), remedy);
        return false;
    };
    match tls || address.ip().is_loopback() {
        true => findings.ok("listen address", format!("{listen}, {}", if tls { "with TLS" } else { "reachable from this machine only" })),
        false => findings.problem(
            "listen address",
            format!("{listen} is reachable from other machines without TLS: API keys cross the network in clear text"),
            "set tls_cert and tls_key, or listen on 127.0.0.1 behind a reverse proxy with TLS",
        ),
    }
    let mut near = address;
    if near.ip().is_unspecified() {
        near.set_ip(match near {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    TcpStream::connect_timeout(&near, CONNECT_TIMEOUT).is_ok()
}

/// Reads a certificate's expiry (`notAfter`): the second time in `validity`, which is the fifth
/// field of `tbsCertificate`, or the fourth if the optional version field is absent.
fn not_after(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = der_element(der)?;
    let (_, mut fields, _) = der_element(certificate)?;
    const VERSION: u8 = 0xa0;
    if der_element(fields)?.0 == VERSION {
        fields = der_element(fields)?.2;
    }
    // Skip the serial number, the signature algorithm and the issuer.
    for _ in 0..3 {
        fields = der_element(fields)?.2;
    }
    let (_, validity, _) = der_element(fields)?;
    let (_, _, rest) = der_element(validity)?;
    let (kind, text, _) = der_element(rest)?;
    const UTC_TIME: u8 = 0x17;
    let text = std::str::from_utf8(text).ok()?;
    let text = match kind {
        UTC_TIME => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        _ => text.to_owned(),
    };
    let at = jiff::civil::DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    at.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// Splits off the first DER element: its tag, its content, and the bytes after it.
fn der_element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        _ => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            if digits.len() > 4 {
                return None;
            }
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
    };
    let (inside, after) = rest.split_at_checked(length)?;
    Some((tag, inside, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_after_reads_the_expiry_date() {
        let key = rcgen::KeyPair::generate().unwrap();
        for (year, ends) in [(2031, "2031-02-03T00:00:00Z"), (2061, "2061-02-03T00:00:00Z")] {
            let mut wanted = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
            wanted.not_after = rcgen::date_time_ymd(year, 2, 3);
            let cert = wanted.self_signed(&key).unwrap();
            assert_eq!(not_after(cert.der()).unwrap().to_string(), ends);
        }
        assert_eq!(not_after(b"no certificate"), None);
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
