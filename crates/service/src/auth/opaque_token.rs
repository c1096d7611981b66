//! Credentials of random bytes with a tag that only this installation can compute. A made-up
//! credential is rejected without a database query.
//!
//! The database stores a hash of the random bytes; the text is shown once and not stored.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::clock::random_bytes;
use crate::secrets::Secrets;

const TAG_BYTES: usize = 8;

/// Creates a credential of `N` random bytes for one purpose. Returns its text, and the hash that
/// the database stores.
pub fn mint<const N: usize>(secrets: &Secrets, purpose: &'static str) -> (String, Vec<u8>) {
    let random = random_bytes::<N>();
    let tag = secrets.tag(purpose, &[&random]);
    (URL_SAFE_NO_PAD.encode([&random[..], &tag[..TAG_BYTES]].concat()), hash(&random))
}

/// The hash of a credential that this installation created for this purpose; `None` for any other
/// text.
pub fn recognize<const N: usize>(
    secrets: &Secrets,
    purpose: &'static str,
    text: &str,
) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (random, tag) = bytes.split_at_checked(N)?;
    secrets.verifies(purpose, &[random], TAG_BYTES, tag).then(|| hash(random))
}

fn hash(random: &[u8]) -> Vec<u8> {
    blake3::hash(random).as_bytes().to_vec()
}
