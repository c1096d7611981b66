//! Validation of an ID token (a JWT).
//!
//! Pure functions without I/O. Accepts only signatures with a private key of the provider: never
//! `none`, and never a shared secret, whatever algorithm the token itself names.
//!
//! Not `jsonwebtoken`: it verifies with aws-lc or with the `rsa` crate, and this service has one
//! cryptographic library, `ring`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

/// The maximum clock difference.
const CLOCK_SKEW_SECONDS: i64 = 60;

/// The maximum number of a provider's keys. A token that names no key is checked with each of them.
const KEYS_MAX: usize = 100;

/// Why an ID token is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    /// The token may be signed with a key that is newer than the cached ones.
    #[error("the token is signed with a key that the provider does not publish")]
    UnknownKey,
    /// The token is invalid.
    #[error("{0}")]
    Invalid(&'static str),
}

/// What an ID token must contain.
pub(super) struct ExpectedClaims<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
    /// In seconds since the Unix epoch.
    pub(super) now: i64,
}

/// The public keys of a provider.
pub(super) struct KeySet(Vec<Key>);

struct Key {
    id: Option<String>,
    /// The algorithm that the key is limited to, if the provider states one.
    algorithm: Option<String>,
    material: KeyMaterial,
}

enum KeyMaterial {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl KeySet {
    /// Reads the supported keys of a JWK set and ignores the others.
    pub(super) fn parse(document: &Value) -> KeySet {
        let all = document.get("keys").and_then(Value::as_array);
        KeySet(all.into_iter().flatten().filter_map(parse_key).take(KEYS_MAX).collect())
    }
}

fn parse_key(value: &Value) -> Option<Key> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
    // A number may have leading zeros, which ring does not accept.
    let number = |name: &str| {
        let bytes = bytes(name)?;
        let start = bytes.iter().position(|byte| *byte != 0)?;
        Some(bytes[start..].to_vec())
    };
    let point = |size: usize| {
        let (x, y) = (bytes("x")?, bytes("y")?);
        (x.len() == size && y.len() == size).then(|| [&[4][..], &x, &y].concat())
    };
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return None;
    }
    let shape = match (text("kty")?, text("crv")) {
        ("RSA", _) => KeyMaterial::Rsa { modulus: number("n")?, exponent: number("e")? },
        ("EC", Some("P-256")) => KeyMaterial::P256(point(32)?),
        ("EC", Some("P-384")) => KeyMaterial::P384(point(48)?),
        ("OKP", Some("Ed25519")) => KeyMaterial::Ed25519(bytes("x")?),
        _ => return None,
    };
    Some(Key {
        id: text("kid").map(str::to_owned),
        algorithm: text("alg").map(str::to_owned),
        material: shape,
    })
}

impl Key {
    /// Whether the signature is by this key; `None` if this key does not support the algorithm.
    fn verify_signature(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> Option<bool> {
        if self.algorithm.as_deref().is_some_and(|own| own != algorithm) {
            return None;
        }
        let plain = |how: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(how, key).verify(message, signature).is_ok()
        };
        let rsa = |how: &'static RsaParameters| match &self.material {
            KeyMaterial::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                Some(key.verify(how, message, signature).is_ok())
            }
            _ => None,
        };
        match (algorithm, &self.material) {
            ("RS256", _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            ("RS384", _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            ("RS512", _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            ("PS256", _) => rsa(&signature::RSA_PSS_2048_8192_SHA256),
            ("PS384", _) => rsa(&signature::RSA_PSS_2048_8192_SHA384),
            ("PS512", _) => rsa(&signature::RSA_PSS_2048_8192_SHA512),
            ("ES256", KeyMaterial::P256(key)) => {
                Some(plain(&signature::ECDSA_P256_SHA256_FIXED, key))
            }
            ("ES384", KeyMaterial::P384(key)) => {
                Some(plain(&signature::ECDSA_P384_SHA384_FIXED, key))
            }
            ("EdDSA" | "Ed25519", KeyMaterial::Ed25519(key)) => {
                Some(plain(&signature::ED25519, key))
            }
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that the recipient must understand. None are supported.
    crit: Option<Value>,
}

/// The claims of an ID token, if it is valid.
pub(super) fn verify(
    proof: &str,
    keys: &KeySet,
    expected: &ExpectedClaims<'_>,
) -> Result<Value, TokenError> {
    const NONE: TokenError = TokenError::Invalid("the token is not a signed JWT");
    let (signed, signature) = proof.rsplit_once('.').ok_or(NONE)?;
    let (head, body) = signed.split_once('.').ok_or(NONE)?;
    let bytes = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| NONE);
    let head: Header = serde_json::from_slice(&bytes(head)?).map_err(|_| NONE)?;
    if head.crit.is_some() {
        return Err(TokenError::Invalid("the token has critical headers that are not supported"));
    }
    if !is_supported_algorithm(&head.alg) {
        return Err(TokenError::Invalid(
            "the token is not signed with a public key of the provider",
        ));
    }
    let named = keys.0.iter().filter(|key| head.kid.is_none() || key.id == head.kid);
    let signature = bytes(signature)?;
    let judged: Vec<bool> = named
        .filter_map(|key| key.verify_signature(&head.alg, signed.as_bytes(), &signature))
        .collect();
    match judged.as_slice() {
        [] => return Err(TokenError::UnknownKey),
        judged if judged.contains(&true) => {}
        // The token does not name its key, so it may be signed with a newer one.
        _ if head.kid.is_none() => return Err(TokenError::UnknownKey),
        _ => return Err(TokenError::Invalid("the signature is invalid")),
    }
    let claims: Value = serde_json::from_slice(&bytes(body)?).map_err(|_| NONE)?;
    validate_claims(&claims, expected)?;
    Ok(claims)
}

/// The list contains neither `none` nor algorithms with a shared secret.
fn is_supported_algorithm(algorithm: &str) -> bool {
    const SUPPORTED: [&str; 10] = [
        "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", "Ed25519",
    ];
    SUPPORTED.contains(&algorithm)
}

/// Checks that the claims are from this issuer, for this client, valid now, and of this sign-in.
pub(super) fn validate_claims(
    claims: &Value,
    expected: &ExpectedClaims<'_>,
) -> Result<(), TokenError> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let time = |name: &str| {
        let value = claims.get(name)?;
        value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64))
    };
    let must = |holds: bool, why| if holds { Ok(()) } else { Err(TokenError::Invalid(why)) };
    must(text("iss") == Some(expected.issuer), "the token is from a different issuer")?;
    let audience: Vec<&str> = match claims.get("aud") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    must(audience.contains(&expected.client_id), "the token is for a different client")?;
    let party = text("azp");
    must(
        audience.len() == 1 || party.is_some(),
        "the token has several audiences and no authorized party",
    )?;
    must(
        party.is_none_or(|party| party == expected.client_id),
        "the token was issued to a different client",
    )?;
    let (now, slack) = (expected.now, CLOCK_SKEW_SECONDS);
    must(time("exp").is_some_and(|end| now < end.saturating_add(slack)), "the token has expired")?;
    must(
        time("iat").is_some_and(|made| made <= now + slack),
        "the token was issued in the future",
    )?;
    must(time("nbf").is_none_or(|start| start <= now + slack), "the token is not valid yet")?;
    // `blake3::Hash` compares in constant time.
    let same = |a: &str, b: &str| blake3::hash(a.as_bytes()) == blake3::hash(b.as_bytes());
    must(
        text("nonce").is_some_and(|nonce| same(nonce, expected.nonce)),
        "the token is from a different sign-in",
    )
}
