//! The state of an OIDC sign-in while the browser is at the identity provider.
//!
//! The service stores nothing. The browser holds a cookie, and `state`, `nonce` and the PKCE
//! verifier are derived from it with a secret of the installation. So every replica can handle the
//! callback, no client can fill a table, and a sign-in that another browser started is rejected.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::SignedDuration;
use service::auth::oidc::AuthRequest;
use service::clock::random_bytes;
use service::secrets::RootKeyAge;

use crate::Dashboard;

/// How long the user may take at the identity provider.
pub(crate) const VALID_FOR: SignedDuration = SignedDuration::from_mins(10);
const RANDOM_BYTES: usize = 16;

/// A sign-in in progress.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OidcState {
    random: [u8; RANDOM_BYTES],
    /// When it expires, in seconds since the epoch.
    expires_at: i64,
    /// The path to open after the sign-in.
    pub(crate) next: String,
    /// Which root key everything is derived from: `root.key` may be rotated during the sign-in.
    age: RootKeyAge,
}

const COOKIE_PURPOSE: &str = "fleetmend sign-in flow v1";
const TAG_BYTES: usize = 32;

impl OidcState {
    /// A new sign-in that continues at `next`, a path of this service.
    pub(crate) fn begin(app: &Dashboard, next: String) -> OidcState {
        let until = (app.clock.now() + VALID_FOR).as_second();
        OidcState { random: random_bytes(), expires_at: until, next, age: RootKeyAge::Current }
    }

    /// The value of the cookie.
    pub(crate) fn cookie(&self, app: &Dashboard) -> String {
        let text = URL_SAFE_NO_PAD.encode(self.to_bytes());
        format!("{text}.{}", self.derive(app, COOKIE_PURPOSE))
    }

    /// Parses a cookie. `None` if it has expired or was not issued by this installation.
    pub(crate) fn parse(app: &Dashboard, cookie: &str) -> Option<OidcState> {
        let (text, shown) = cookie.split_once('.')?;
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let shown = URL_SAFE_NO_PAD.decode(shown).ok()?;
        let age = app.secrets.tag_age(COOKIE_PURPOSE, &[&bytes], TAG_BYTES, &shown)?;
        let (random, rest) = bytes.split_first_chunk::<RANDOM_BYTES>()?;
        let (until, next) = rest.split_first_chunk::<8>()?;
        let next = String::from_utf8(next.to_vec()).ok()?;
        let state =
            OidcState { random: *random, expires_at: i64::from_be_bytes(*until), next, age };
        (state.expires_at > app.clock.now().as_second()).then_some(state)
    }

    fn to_bytes(&self) -> Vec<u8> {
        [&self.random[..], &self.expires_at.to_be_bytes(), self.next.as_bytes()].concat()
    }

    fn derive(&self, app: &Dashboard, purpose: &'static str) -> String {
        URL_SAFE_NO_PAD.encode(app.secrets.tag_of(self.age, purpose, &[&self.to_bytes()]))
    }

    /// The parameters of the authorization request. `redirect_uri` is the callback of this service.
    pub(crate) fn auth_request(&self, app: &Dashboard, redirect_uri: String) -> AuthRequest {
        AuthRequest {
            state: self.derive(app, "fleetmend sign-in state v1"),
            nonce: self.derive(app, "fleetmend sign-in nonce v1"),
            verifier: self.derive(app, "fleetmend sign-in verifier v1"),
            redirect_uri,
        }
    }
}

/// Compares in constant time, as `blake3::Hash` does.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}
