//! Random bytes with a tag that only this installation can make: a made-up credential is refused without asking the database.
//!
//! The database keeps a hash of the random bytes; the text is told once and kept nowhere.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::clock::chance;
use crate::secrets::Secrets;

const TAG_BYTES: usize = 8;

/// Makes a credential of `N` random bytes for one purpose: its text, and what the database keeps of it.
pub fn mint<const N: usize>(secrets: &Secrets, purpose: &'static str) -> (String, Vec<u8>) {
    let random = chance::<N>();
    let tag = secrets.tag(purpose, &[&random]);
    (URL_SAFE_NO_PAD.encode([&random[..], &tag[..TAG_BYTES]].concat()), hash(&random))
}

/// The hash of a credential that this installation made for this purpose, or nothing if it did not.
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
