//! Time-based one-time passwords (TOTP, RFC 6238): six digits that change every 30 seconds.
//!
//! Not totp-rs: it brings its own HMAC and SHA-1, SHA-2 and Base32 crates, and this service has one
//! cryptographic library, `ring`. What remains is the ten lines of `code`.

use jiff::Timestamp;
use ring::hmac::{HMAC_SHA1_FOR_LEGACY_USE_ONLY, Key, sign};

const STEP_SECONDS: i64 = 30;
/// The number of steps before and after the current one that are accepted, because clocks differ.
const STEP_TOLERANCE: i64 = 1;
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The code of one step. SHA-1 is what all authenticators support, and it is still secure in an
/// HMAC.
fn code(secret: &[u8], step: i64) -> u32 {
    let tag = sign(&Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret), &step.to_be_bytes());
    let bytes = tag.as_ref();
    let at = usize::from(bytes.last().copied().unwrap_or(0) & 15);
    let word = bytes.iter().skip(at).take(4).fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
    (word & 0x7fff_ffff) % 1_000_000
}

/// The step to which this code belongs, if it is current and later than `last_step`: a code can be
/// used only once.
pub fn matching_step(secret: &[u8], typed: &str, now: Timestamp, last_step: i64) -> Option<i64> {
    let digits: String = typed.chars().filter(|c| !c.is_whitespace()).collect();
    if digits.len() != 6 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let typed: u32 = digits.parse().ok()?;
    let this = now.as_second().div_euclid(STEP_SECONDS);
    let mut steps = this - STEP_TOLERANCE..=this + STEP_TOLERANCE;
    steps.find(|step| *step > last_step && code(secret, *step) == typed)
}

/// The code that an authenticator with this secret shows now.
pub fn current_code(base32: &str, now: Timestamp) -> String {
    format!("{:06}", code(&from_base32(base32), now.as_second().div_euclid(STEP_SECONDS)))
}

/// Decodes a secret as a user typed it. Characters outside the Base32 alphabet are ignored.
pub fn from_base32(text: &str) -> Vec<u8> {
    let mut bits = (0_u64, 0);
    let mut secret = Vec::new();
    for letter in text.bytes().filter_map(|byte| ALPHABET.iter().position(|known| *known == byte)) {
        bits = ((bits.0 << 5 | letter as u64) & 0xffff, bits.1 + 5);
        if bits.1 >= 8 {
            bits.1 -= 8;
            secret.push((bits.0 >> bits.1 & 255) as u8);
        }
    }
    secret
}

/// Encodes a secret for typing into an authenticator.
pub fn base32(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(5) {
        let word =
            (0..5).fold(0_u64, |word, n| word << 8 | u64::from(chunk.get(n).copied().unwrap_or(0)));
        let letters = (chunk.len() * 8).div_ceil(5);
        text.extend(
            (0..letters).map(|n| char::from(ALPHABET[(word >> (35 - 5 * n) & 31) as usize])),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"12345678901234567890";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The table in RFC 6238, appendix B, last six digits.
    #[test]
    fn codes_match_rfc_6238() {
        for (second, expected) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert!(matching_step(SECRET, expected, at(second), 0).is_some(), "{second}");
            assert_eq!(current_code(&base32(SECRET), at(second)), expected);
        }
    }

    #[test]
    fn code_is_valid_for_a_short_time_and_once() {
        let code = "287082";
        let step = matching_step(SECRET, code, at(59), 0).unwrap();
        assert_eq!(matching_step(SECRET, code, at(59), step), None, "already used");
        assert_eq!(
            matching_step(SECRET, " 287 082 ", at(89), 0),
            Some(step),
            "clock slightly ahead"
        );
        assert_eq!(matching_step(SECRET, code, at(120), 0), None, "too late");
        for bad in ["", "28708", "2870821", "+28708", "２８７０８２"] {
            assert_eq!(matching_step(SECRET, bad, at(59), 0), None, "{bad}");
        }
    }

    #[test]
    fn secret_is_encoded_as_base32() {
        assert_eq!(base32(SECRET), "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        assert_eq!([base32(b"f"), base32(b"foob")], ["MY", "MZXW6YQ"]);
    }
}
