//! OpenID Connect: requests to the identity provider, and validation of its responses.
//!
//! Implements the authorization code flow with PKCE. `token` validates the ID token, `http` sends
//! HTTP requests, and `config` has the settings. `auth::sso` maps the identity to a user;
//! `dashboard::oidc` handles the browser.
//!
//! This is implemented on ring and reqwest, which the project uses anyway. The `openidconnect`
//! crate was considered: it is well maintained, but adds about eighty crates, among them second
//! copies of the HTTP client and of three cryptography libraries, to replace about a hundred lines
//! here, in which ring verifies the signatures.

mod config;
mod http;
mod token;

use async_recursion::async_recursion as boxed;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;

pub use config::{Config, RoleGrant, RoleMapping, Secret, parse_issuer};
use token::{ExpectedClaims, KeySet, TokenError};

/// After this time, the provider's metadata and keys are fetched again. An unknown key causes a
/// fetch immediately.
const METADATA_TTL: SignedDuration = SignedDuration::from_hours(1);
/// Longer subjects are rejected; the specification allows 255 characters.
const SUBJECT_CHARS_MAX: usize = 255;

/// Why a sign-in failed.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The provider does not respond, or not in time.
    #[error("cannot reach the identity provider's {what}")]
    Unreachable {
        /// Which endpoint or document.
        what: &'static str,
        source: reqwest::Error,
    },
    /// The response cannot be used: an administrator must check the configuration.
    #[error("the identity provider's {what} cannot be used: {why}")]
    Unusable {
        /// Which endpoint or document.
        what: &'static str,
        why: String,
    },
    /// The provider rejects the code: it was already used, or has expired.
    #[error("the identity provider rejected the authorization code ({0})")]
    RejectedCode(String),
    /// The provider rejects this client: the secret or the client's registration is wrong.
    #[error("the identity provider rejected this client ({0})")]
    RejectedClient(String),
    /// The ID token is invalid.
    #[error("the identity provider returned an invalid ID token: {0}")]
    InvalidToken(String),
}

/// The parameters of one authorization request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRequest {
    /// The browser returns this value with the code.
    pub state: String,
    /// The ID token must contain this value.
    pub nonce: String,
    /// The PKCE verifier: proves that the code is redeemed by the client that requested it.
    pub verifier: String,
    pub redirect_uri: String,
}

/// An identity that a provider has authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcIdentity {
    pub issuer: String,
    /// The provider's identifier of the user.
    pub subject: String,
    /// The email address, if the provider has verified it.
    pub email: Option<String>,
    /// The values of the claim that is mapped to roles.
    pub values: Vec<String>,
}

/// An identity provider with its settings and its cached metadata.
pub struct Provider {
    pub config: Config,
    cached: Mutex<Option<Arc<CachedMetadata>>>,
}

struct CachedMetadata {
    metadata: ProviderMetadata,
    keys: KeySet,
    at: Timestamp,
}

#[derive(Debug, Deserialize)]
struct ProviderMetadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

#[derive(Debug, Deserialize)]
struct TokenResponse {
    id_token: String,
    #[serde(default)]
    access_token: String,
}

impl Provider {
    pub fn new(config: Config) -> Provider {
        Provider { config, cached: Mutex::new(None) }
    }

    /// The URL to which the browser is sent to sign in.
    #[boxed]
    pub async fn authorization_url(
        &self,
        now: Timestamp,
        auth_request: &AuthRequest,
    ) -> Result<Url, OidcError> {
        let cached = self.metadata(now).await?;
        let mut url =
            http::parse_url("authorization endpoint", &cached.metadata.authorization_endpoint)?;
        let challenge =
            ring::digest::digest(&ring::digest::SHA256, auth_request.verifier.as_bytes());
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.config.client_id)
            .append_pair("redirect_uri", &auth_request.redirect_uri)
            .append_pair("scope", &self.config.scope)
            .append_pair("state", &auth_request.state)
            .append_pair("nonce", &auth_request.nonce)
            .append_pair("code_challenge", &URL_SAFE_NO_PAD.encode(challenge))
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Whether an authorization response that names this issuer, or none, comes from this provider.
    /// A response of another provider must not be accepted (RFC 9207).
    #[boxed]
    pub async fn accepts_response_issuer(
        &self,
        now: Timestamp,
        named: &str,
    ) -> Result<bool, OidcError> {
        let cached = self.metadata(now).await?;
        let must = cached.metadata.authorization_response_iss_parameter_supported;
        Ok(if named.is_empty() { !must } else { named == self.config.issuer })
    }

    /// Exchanges the authorization code for the identity of the user.
    #[boxed]
    pub async fn redeem(
        &self,
        now: Timestamp,
        auth_request: &AuthRequest,
        code: &str,
    ) -> Result<OidcIdentity, OidcError> {
        let cached = self.metadata(now).await?;
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", auth_request.redirect_uri.as_str()),
            ("code_verifier", auth_request.verifier.as_str()),
        ];
        let posts = cached.metadata.token_endpoint_auth_methods_supported.as_slice();
        let by_form =
            posts.iter().all(|method| method != "client_secret_basic") && !posts.is_empty();
        let endpoint = http::parse_url("token endpoint", &cached.metadata.token_endpoint)?;
        let tokens = http::redeem(&endpoint, &form, &self.config, by_form).await?;
        let mut claims = self.validated_claims(now, &tokens.id_token, &auth_request.nonce).await?;
        if !self.has_required_claims(&claims) && !tokens.access_token.is_empty() {
            self.add_userinfo_claims(&cached, &tokens.access_token, &mut claims).await?;
        }
        self.identity(&claims)
    }

    /// The claims of an ID token, if it is valid. An unknown key may be a new one, so the keys are
    /// fetched again.
    async fn validated_claims(
        &self,
        now: Timestamp,
        proof: &str,
        nonce: &str,
    ) -> Result<Value, OidcError> {
        let expected = ExpectedClaims {
            issuer: &self.config.issuer,
            client_id: &self.config.client_id,
            nonce,
            now: now.as_second(),
        };
        let cached = self.metadata(now).await?;
        let judged = match token::verify(proof, &cached.keys, &expected) {
            Err(TokenError::UnknownKey) => {
                let fresh = self.fetch_metadata(now).await?;
                token::verify(proof, &fresh.keys, &expected)
            }
            judged => judged,
        };
        judged.map_err(|reject| OidcError::InvalidToken(reject.to_string()))
    }

    fn has_required_claims(&self, claims: &Value) -> bool {
        let by = self.config.roles.as_ref().map(|roles| roles.claim.as_str());
        let email = ["email", "email_verified"].iter().all(|name| claims.get(name).is_some());
        email && by.is_none_or(|claim| claims.get(claim).is_some())
    }

    /// Adds the claims of the userinfo endpoint: many providers leave them out of the ID token.
    async fn add_userinfo_claims(
        &self,
        cached: &CachedMetadata,
        access_token: &str,
        claims: &mut Value,
    ) -> Result<(), OidcError> {
        const WHAT: &str = "userinfo endpoint";
        let Some(userinfo_url) = &cached.metadata.userinfo_endpoint else { return Ok(()) };
        let userinfo: Value =
            http::get(WHAT, &http::parse_url(WHAT, userinfo_url)?, Some(access_token)).await?;
        if userinfo.get("sub") != claims.get("sub") {
            return Err(OidcError::InvalidToken(
                "the userinfo endpoint returned a different subject".into(),
            ));
        }
        let (Value::Object(claims), Value::Object(userinfo_claims)) = (claims, userinfo) else {
            return Ok(());
        };
        // `email_verified` applies only to the `email` from the same source.
        if userinfo_claims.contains_key("email") && !claims.contains_key("email_verified") {
            claims.remove("email");
        }
        if claims.contains_key("email") {
            claims.entry("email_verified").or_insert(Value::Bool(false));
        } else {
            claims.remove("email_verified");
        }
        for (name, value) in userinfo_claims {
            claims.entry(name).or_insert(value);
        }
        Ok(())
    }

    fn identity(&self, claims: &Value) -> Result<OidcIdentity, OidcError> {
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or("");
        if subject.is_empty() || subject.chars().count() > SUBJECT_CHARS_MAX || has_control(subject)
        {
            return Err(OidcError::InvalidToken("the `sub` claim is missing or invalid".into()));
        }
        // Some providers send the text "true".
        let is_verified =
            |claim: &Value| claim == &Value::Bool(true) || claim.as_str() == Some("true");
        let verified = claims.get("email_verified").is_some_and(is_verified);
        let email = claims
            .get("email")
            .and_then(Value::as_str)
            .filter(|email| verified && email.contains('@') && !has_control(email));
        let claim = self.config.roles.as_ref().and_then(|roles| claims.get(&roles.claim));
        let values = match claim {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(all)) => {
                all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        Ok(OidcIdentity {
            issuer: self.config.issuer.clone(),
            subject: subject.to_owned(),
            email: email.map(str::to_owned),
            values,
        })
    }

    async fn metadata(&self, now: Timestamp) -> Result<Arc<CachedMetadata>, OidcError> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let fresh = |cached: &Arc<CachedMetadata>| {
            let age = now.duration_since(cached.at);
            !age.is_negative() && age < METADATA_TTL
        };
        match cached.filter(fresh) {
            Some(known) => Ok(known),
            None => self.fetch_metadata(now).await,
        }
    }

    async fn fetch_metadata(&self, now: Timestamp) -> Result<Arc<CachedMetadata>, OidcError> {
        const WHAT: &str = "discovery document";
        let issuer = &self.config.issuer;
        let at = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let metadata: ProviderMetadata =
            http::get(WHAT, &http::parse_url(WHAT, &at)?, None).await?;
        if metadata.issuer != *issuer {
            let why = format!(
                "its issuer is `{}`, but `{issuer}` is configured; both must be exactly the same",
                metadata.issuer
            );
            return Err(OidcError::Unusable { what: WHAT, why });
        }
        let keys: Value =
            http::get("keys", &http::parse_url("keys", &metadata.jwks_uri)?, None).await?;
        let cached = Arc::new(CachedMetadata { metadata, keys: KeySet::parse(&keys), at: now });
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(cached.clone());
        Ok(cached)
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// Parses bytes as each of the documents that an identity provider sends: its metadata, its keys, a
/// token response, and an ID token preceded by its keys, separated by a line feed.
#[cfg(feature = "fuzzing")]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(metadata) = serde_json::from_slice::<ProviderMetadata>(bytes) {
        for url in [&metadata.authorization_endpoint, &metadata.token_endpoint, &metadata.jwks_uri]
        {
            let _ = http::parse_url("endpoint", url);
        }
    }
    let _ = serde_json::from_slice::<TokenResponse>(bytes);
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (keys, proof) = bytes.split_at(end);
    let keys = KeySet::parse(&serde_json::from_slice(keys).unwrap_or_default());
    let expected = ExpectedClaims { issuer: "https://id.test", client_id: "c", nonce: "n", now: 1 };
    let claims = token::verify(String::from_utf8_lossy(proof).trim(), &keys, &expected);
    let provider = Provider::new(Config {
        issuer: expected.issuer.to_owned(),
        name: "Test".to_owned(),
        client_id: "c".to_owned(),
        client_secret: None,
        scope: "openid".to_owned(),
        roles: Some(config::RoleMapping { claim: "groups".to_owned(), by_value: Vec::new() }),
        default_role: None,
        org: vocab::OrgId::new(Timestamp::UNIX_EPOCH, 1),
    });
    for claims in claims.ok().into_iter().chain(serde_json::from_slice(proof)) {
        let _ = (token::validate_claims(&claims, &expected), provider.identity(&claims));
    }
}
