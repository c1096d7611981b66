//! The enrolment token: what lets a host in, and by what it knows the server it talks to.

use std::fmt;
use std::str::FromStr;

use super::from_base64_url;

/// How many bytes stand behind the prefix: 24 of chance and 8 that prove whose they are.
const SECRET_BYTES: usize = 32;

/// An enrolment token, well-formed. Whether it is valid only the server can say.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    pin: Pin,
}

/// By what the server is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// The service has no TLS itself. At an http address the server is not verified: a trial on one
    /// machine. At an https address there is a proxy, verified by the system's trust store.
    Plain,
    /// The SHA-256 of the certificate that it shows, or of the authority that issued that one.
    Certificate([u8; 32]),
}

/// Why a text is not an enrolment token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is something else; an API key for instance.
    #[error("an enrolment token starts with `fme_`")]
    Prefix,
    /// The part that lets the host in is cut or misspelled.
    #[error("the part of the token before its dot is damaged; copy the whole of it")]
    Secret,
    /// The part that names the server is missing.
    #[error("the token ends before its dot; copy the whole of it")]
    PinMissing,
    /// The part that names the server is cut or misspelled.
    #[error("the part of the token after its dot is damaged; copy the whole of it")]
    Pin,
}

impl Token {
    /// By what the server is known.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// The whole text, as the server gave it out.
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

/// A token is a secret: what is printed does not let anyone in.
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
    fn a_token_names_the_certificate_or_says_that_there_is_none() {
        let plain: Token = format!("fme_{}.plain\n", secret(32)).parse().unwrap();
        assert_eq!(plain.pin(), Pin::Plain);
        assert_eq!(plain.as_str(), format!("fme_{}.plain", secret(32)));
        let hash = URL_SAFE_NO_PAD.encode([9; 32]);
        let pinned: Token = format!("fme_{}.{hash}", secret(32)).parse().unwrap();
        assert_eq!(pinned.pin(), Pin::Certificate([9; 32]));
    }

    #[test]
    fn each_refusal_says_what_is_wrong() {
        let refusal = |text: &str| text.parse::<Token>().unwrap_err();
        assert_eq!(refusal("fmk_abc"), TokenError::Prefix);
        assert_eq!(refusal(&format!("fme_{}", secret(32))), TokenError::PinMissing);
        assert_eq!(refusal(&format!("fme_{}.plain", secret(31))), TokenError::Secret);
        assert_eq!(refusal("fme_!!.plain"), TokenError::Secret);
        // A server that is to be verified must not become one that is not by a cut end.
        assert_eq!(refusal(&format!("fme_{}.", secret(32))), TokenError::Pin);
        assert_eq!(refusal(&format!("fme_{}.{}", secret(32), secret(31))), TokenError::Pin);
        assert_eq!(refusal(&format!("fme_{}.Plain", secret(32))), TokenError::Pin);
    }

    #[test]
    fn what_is_printed_for_people_who_search_for_a_bug_lets_nobody_in() {
        let token: Token = format!("fme_{}.plain", secret(32)).parse().unwrap();
        assert!(!format!("{token:?}").contains(&secret(32)));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(fme_)?\\PC{0,60}(\\.plain)?") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.as_str(), text.trim());
            }
        }
    }
}
