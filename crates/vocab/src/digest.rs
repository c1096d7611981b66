//! Content digests: BLAKE3, 32 bytes, displayed as 64 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

/// The BLAKE3 hash of some bytes. Equal digests mean equal bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Error returned when parsing a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    #[error("a digest must have 64 hexadecimal digits (got {found} characters)")]
    Length { found: usize },
    /// Not a hexadecimal digit. Uppercase letters are rejected, so that each digest has exactly one
    /// spelling.
    #[error("`{}` is not a hexadecimal digit (0 to 9, a to f)", .0.escape_debug())]
    Digit(char),
}

impl Digest {
    /// Hashes `bytes`.
    pub fn compute(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Restores a digest that was stored as bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for Digest {
    type Err = DigestError;
    fn from_str(text: &str) -> Result<Self, DigestError> {
        let found = text.chars().count();
        if found != 64 {
            return Err(DigestError::Length { found });
        }
        let mut bytes = [0_u8; 32];
        for (place, digit) in text.chars().enumerate() {
            let value = match digit {
                '0'..='9' => digit as u8 - b'0',
                'a'..='f' => digit as u8 - b'a' + 10,
                other => return Err(DigestError::Digit(other)),
            };
            bytes[place / 2] = (bytes[place / 2] << 4) | value;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

crate::text::serde_as_text!(Digest);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The published BLAKE3 digest of the empty input.
    #[test]
    fn digest_of_empty_input_is_blake3() {
        assert_eq!(
            Digest::compute(b"").to_string(),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!("abc".parse::<Digest>(), Err(DigestError::Length { found: 3 }));
        assert_eq!("A".repeat(64).parse::<Digest>(), Err(DigestError::Digit('A')));
        assert_eq!("é".repeat(64).parse::<Digest>(), Err(DigestError::Digit('é')));
    }

    proptest! {
        #[test]
        fn displayed_digest_parses_to_same_value(bytes: [u8; 32]) {
            prop_assert_eq!(Digest(bytes).to_string().parse(), Ok(Digest(bytes)));
        }
    }
}
