//! Passwords: Argon2id, away from the threads that serve, few at a time.

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;

use crate::clock::chance;
use crate::service::{Result, ServiceError};

/// How many are worked on at once: each takes 19 MiB and a core for some tens of milliseconds, and strangers can ask for it.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// What an unknown person's password is held against, so that asking about one takes as long as asking about a
/// known one. No password has this hash.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5IGF0IGFsbA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn argon2() -> Argon2<'static> {
    // What OWASP advises where memory is shared with a service.
    let params = Params::new(19_456, 2, 1, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// The hash of a password, as a PHC string.
pub(crate) async fn hash(password: &str) -> Result<String> {
    let password = password.to_owned();
    apart(move || {
        let hash = argon2().hash_password_with_salt(password.as_bytes(), &chance::<16>());
        hash.map(|hash| hash.to_string()).map_err(|error| error.to_string())
    })
    .await?
    .map_err(|error| ServiceError::Internal(error.into()))
}

/// Whether this is the password behind `hash`. Without one it never is, and takes as long.
pub(crate) async fn fits(password: &str, hash: Option<&str>) -> Result<bool> {
    let known = hash.is_some();
    let (password, hash) = (password.to_owned(), hash.unwrap_or(NOBODY).to_owned());
    let fits = apart(move || {
        let parsed = PasswordHash::new(&hash);
        parsed.is_ok_and(|parsed| argon2().verify_password(password.as_bytes(), &parsed).is_ok())
    });
    Ok(fits.await? && known)
}

async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let internal = |error: Box<dyn std::error::Error + Send + Sync>| ServiceError::Internal(error);
    let _turn = AT_ONCE.acquire().await.map_err(|error| internal(error.into()))?;
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_fits_its_own_hash_and_nothing_else() {
        let hash = hash("correct horse battery").await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(fits("correct horse battery", Some(&hash)).await.unwrap());
        assert!(!fits("correct horse batterz", Some(&hash)).await.unwrap());
        assert!(!fits("", Some("not a hash")).await.unwrap());
    }

    #[tokio::test]
    async fn nobody_is_held_against_a_hash_that_can_be_read() {
        assert!(PasswordHash::new(NOBODY).is_ok(), "or the answer would come at once");
        assert!(!fits("anything", None).await.unwrap());
    }
}
