//! Authentication and authorization: API keys, users and their second factor, single sign-on,
//! enrollment tokens, and the service's own signing keys.

pub mod api_keys;
pub mod caller;
pub mod enrollment_tokens;
pub mod oidc;
pub mod opaque_token;
pub mod orders_keys;
pub mod passwords;
pub mod root_keys;
pub mod sessions;
pub mod sso;
pub mod totp;
pub mod two_factor;
pub mod users;
