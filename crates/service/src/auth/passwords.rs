//! Password hashing with Argon2id, on blocking threads and with limited concurrency.

use async_recursion::async_recursion as boxed;
use std::sync::{Mutex, PoisonError};

use argon2::password_hash::PasswordHasher as _;
use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Block, Params, Version};
use tokio::sync::Semaphore;

use crate::clock::random_bytes;
use crate::{Result, ServiceError};

/// A queue in which passwords are checked one at a time: each check takes 19 MiB and a core for
/// some tens of milliseconds, and unauthenticated clients can request it.
struct Queue {
    worker: Semaphore,
    waiting: Semaphore,
}

/// The maximum length of a queue. Further requests are rejected and should be retried.
const QUEUE_LENGTH_MAX: usize = 16;
static UNKNOWN_BROWSERS: Queue = Queue::new();
/// Browsers that have signed in before do not wait behind unknown ones.
static KNOWN_BROWSERS: Queue = Queue::new();
/// Buffers for reuse. Large blocks that many threads free would otherwise stay in the allocator's
/// per-thread caches.
static BUFFERS: Mutex<Vec<Vec<Block>>> = Mutex::new(Vec::new());

impl Queue {
    const fn new() -> Queue {
        Queue { worker: Semaphore::const_new(1), waiting: Semaphore::const_new(QUEUE_LENGTH_MAX) }
    }
}

/// The result of a password check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordCheck {
    Match,
    Mismatch,
    /// Too many other checks are waiting.
    Busy,
}

/// The hash that the password of an unknown user is checked against, so that the response time does
/// not reveal whether a user exists. No password has this hash.
const UNKNOWN_USER_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5IGF0IGFsbA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn argon2() -> Argon2<'static> {
    // The parameters that OWASP recommends for a server with limited memory.
    let params = Params::new(19_456, 2, 1, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// Hashes a password into a PHC string.
#[boxed]
pub async fn hash(password: &str) -> Result<String> {
    let password = password.to_owned();
    run_queued(&KNOWN_BROWSERS, move || {
        let hash = argon2().hash_password_with_salt(password.as_bytes(), &random_bytes::<16>());
        hash.map(|hash| hash.to_string()).map_err(|error| error.to_string())
    })
    .await?
    .map_err(|error| ServiceError::Internal(error.into()))
}

/// Whether `password` has this hash. If `hash` is `None`, the result is never `Match`, but takes
/// equally long. `is_known`: the request comes from a browser that has signed in before.
#[boxed]
pub async fn check(password: &str, hash: Option<&str>, is_known: bool) -> Result<PasswordCheck> {
    let queue = if is_known { &KNOWN_BROWSERS } else { &UNKNOWN_BROWSERS };
    let Ok(_place) = queue.waiting.try_acquire() else { return Ok(PasswordCheck::Busy) };
    let exists = hash.is_some();
    let (password, hash) = (password.to_owned(), hash.unwrap_or(UNKNOWN_USER_HASH).to_owned());
    let is_right = run_queued(queue, move || matches(&password, &hash).unwrap_or(false)).await?;
    Ok(if is_right && exists { PasswordCheck::Match } else { PasswordCheck::Mismatch })
}

fn matches(password: &str, hash: &str) -> Option<bool> {
    let parsed = PasswordHash::new(hash).ok()?;
    let params = Params::try_from(&parsed).ok()?;
    let (salt, expected) = (parsed.salt?, parsed.hash?);
    let mut found = vec![0; expected.as_bytes().len()];
    let mut blocks = buffers().pop().unwrap_or_default();
    blocks.resize(blocks.len().max(params.block_count()), Block::default());
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let done = argon2.hash_password_into_with_memory(
        password.as_bytes(),
        salt.as_ref(),
        &mut found,
        &mut blocks,
    );
    buffers().push(blocks);
    done.ok()?;
    // `blake3::Hash` compares in constant time.
    Some(blake3::hash(&found) == blake3::hash(expected.as_bytes()))
}

fn buffers() -> std::sync::MutexGuard<'static, Vec<Vec<Block>>> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run_queued<T: Send + 'static>(
    queue: &Queue,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let internal = |error: Box<dyn std::error::Error + Send + Sync>| ServiceError::Internal(error);
    let _turn = queue.worker.acquire().await.map_err(|error| internal(error.into()))?;
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn password_matches_only_its_own_hash() {
        let hash = hash("correct horse battery").await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        for (password, hash, expected) in [
            ("correct horse battery", hash.as_str(), PasswordCheck::Match),
            ("correct horse batterz", hash.as_str(), PasswordCheck::Mismatch),
            ("", "not a hash", PasswordCheck::Mismatch),
        ] {
            assert_eq!(check(password, Some(hash), true).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn unknown_user_is_checked_against_a_valid_hash() {
        assert!(
            PasswordHash::new(UNKNOWN_USER_HASH).is_ok(),
            "an invalid hash would be refused without hashing, in less time"
        );
        assert_eq!(check("anything", None, true).await.unwrap(), PasswordCheck::Mismatch);
    }

    #[tokio::test]
    async fn unknown_browsers_are_limited_and_do_not_delay_known_ones() {
        let strangers = (0..200).map(|_| check("guess", None, false));
        let strangers = futures_util::future::join_all(strangers);
        let known = check("guess", None, true);
        let (strangers, known) = tokio::join!(strangers, known);
        let busy =
            strangers.into_iter().filter(|fits| matches!(fits, Ok(PasswordCheck::Busy))).count();
        assert_eq!((busy, known.unwrap()), (200 - QUEUE_LENGTH_MAX, PasswordCheck::Mismatch));
        assert!(buffers().len() <= 2, "one buffer per queue");
    }
}
