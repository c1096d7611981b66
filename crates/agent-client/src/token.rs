//! The enrollment token: authorizes a host to enroll, and says how to verify the service.

use std::fmt;
use std::str::FromStr;

use super::from_base64_url;

/// Length after the prefix: 24 random bytes and 8 bytes that prove who issued them.
const SECRET_BYTES: usize = 32;

/// A well-formed enrollment token. Only the service can tell whether it is valid.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    pin: Pin,
}

/// How the service is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// The service has no TLS itself. With an http address the service is not verified: for trials
    /// on one machine. With an https address there is a proxy, verified by the system's trust
    /// store.
    Plain,
    /// The SHA-256 of the service's certificate, or of the authority that issued it.
    Certificate([u8; 32]),
}

/// Why a text is not an enrollment token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Something else, for example an API key.
    #[error("an enrollment token starts with `fme_`")]
    Prefix,
    /// The secret part is truncated or mistyped.
    #[error("the part of the token before the dot is invalid; copy the whole token")]
    Secret,
    /// The part that identifies the service is missing.
    #[error("the token has no part after a dot; copy the whole token")]
    PinMissing,
    /// The part that identifies the service is truncated or mistyped.
    #[error("the part of the token after the dot is invalid; copy the whole token")]
    Pin,
}

impl Token {
    /// How the service is verified.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// The whole text, as issued by the service.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Token {
    type Err = TokenError;
    fn from_str(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        let rest = text.strip_prefix("fme_").ok_or(TokenError::Prefix)?;
        let (secret, pin) = rest.split_once('.').ok_or(TokenError::PinMissing)?;
        if from_base64_url(secret).is_none_or(|bytes| bytes.len() != SECRET_BYTES) {
            return Err(TokenError::Secret);
        }
        let pin = match pin {
            "plain" => Pin::Plain,
            hash => from_base64_url(hash)
                .and_then(|bytes| bytes.try_into().ok())
                .map(Pin::Certificate)
                .ok_or(TokenError::Pin)?,
        };
        Ok(Token { text: text.to_owned(), pin })
    }
}

/// A token is a secret: the debug output does not contain it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fme_… ({:?})", self.pin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;

    fn secret(bytes: usize) -> String {
        URL_SAFE_NO_PAD.encode(vec![7; bytes])
    }

    #[test]
    fn token_contains_a_certificate_hash_or_plain() {
        let plain: Token = format!("fme_{}.plain\n", secret(32)).parse().unwrap();
        assert_eq!(plain.pin(), Pin::Plain);
        assert_eq!(plain.as_str(), format!("fme_{}.plain", secret(32)));
        let hash = URL_SAFE_NO_PAD.encode([9; 32]);
        let pinned: Token = format!("fme_{}.{hash}", secret(32)).parse().unwrap();
        assert_eq!(pinned.pin(), Pin::Certificate([9; 32]));
    }

    #[test]
    fn each_error_says_what_is_wrong() {
        let refusal = |text: &str| text.parse::<Token>().unwrap_err();
        assert_eq!(refusal("fmk_abc"), TokenError::Prefix);
        assert_eq!(refusal(&format!("fme_{}", secret(32))), TokenError::PinMissing);
        assert_eq!(refusal(&format!("fme_{}.plain", secret(31))), TokenError::Secret);
        assert_eq!(refusal("fme_!!.plain"), TokenError::Secret);
        // A truncated token must not turn a service that is verified into one that is not.
        assert_eq!(refusal(&format!("fme_{}.", secret(32))), TokenError::Pin);
        assert_eq!(refusal(&format!("fme_{}.{}", secret(32), secret(31))), TokenError::Pin);
        assert_eq!(refusal(&format!("fme_{}.Plain", secret(32))), TokenError::Pin);
    }

    #[test]
    fn debug_output_does_not_reveal_the_token() {
        let token: Token = format!("fme_{}.plain", secret(32)).parse().unwrap();
        assert!(!format!("{token:?}").contains(&secret(32)));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "(fme_)?\\PC{0,60}(\\.plain)?") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.as_str(), text.trim());
            }
        }
    }
}
