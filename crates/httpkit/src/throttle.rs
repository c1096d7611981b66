//! Rate limits by keys that clients choose, such as addresses and usernames.
//!
//! Keys are hashed and their number is limited, so that no client determines the memory use. When a
//! map is full, the buckets closest to full recovery are dropped first. So a flood of new keys
//! evicts those keys, and not the bucket under attack.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use service::clock::random_bytes;
use tokio::time::Instant;

/// Maximum number of keys in one map. An entry takes about 40 bytes.
const KEYS_MAX: usize = 50_000;

type Key = [u8; 16];

/// A rate limit with one bucket per key.
pub struct Throttle {
    /// Prevents clients from choosing keys that collide.
    secret: [u8; 32],
    /// The time after which one more attempt is allowed.
    period: Duration,
    /// The time after which an empty bucket is full again.
    depth: Duration,
    /// When each bucket is full again.
    full_at: Mutex<HashMap<Key, Instant>>,
}

impl Throttle {
    /// Allows `burst` attempts at once, and one more per `period`.
    pub fn new(burst: u32, period: Duration) -> Throttle {
        Throttle {
            secret: random_bytes(),
            period,
            depth: period.saturating_mul(burst),
            full_at: Mutex::default(),
        }
    }

    /// Counts an attempt for the key made of `parts`, or returns how long to wait.
    pub fn take(&self, parts: &[&[u8]]) -> Result<(), Duration> {
        self.take_at(self.key(parts), Instant::now())
    }

    fn key(&self, parts: &[&[u8]]) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        for part in parts {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        key
    }

    fn take_at(&self, key: Key, now: Instant) -> Result<(), Duration> {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = full_at.get(&key).map_or(now, |at| (*at).max(now));
        let next = begin + self.period;
        let ahead = next - now;
        if ahead > self.depth {
            return Err(ahead - self.depth);
        }
        if full_at.len() >= KEYS_MAX && !full_at.contains_key(&key) {
            make_room(&mut full_at, now);
        }
        full_at.insert(key, next);
        Ok(())
    }
}

/// Drops every bucket that is full again. If that is not enough, drops the quarter that is full
/// soonest.
fn make_room(full_at: &mut HashMap<Key, Instant>, now: Instant) {
    full_at.retain(|_, at| *at > now);
    if full_at.len() < KEYS_MAX {
        return;
    }
    let mut times: Vec<Instant> = full_at.values().copied().collect();
    let quarter = times.len() / 4;
    let (_, limit, _) = times.select_nth_unstable(quarter);
    let limit = *limit;
    full_at.retain(|_, at| *at > limit);
}

/// The address that attempts are counted by. An IPv6 network assigns whole /64 prefixes, so a
/// prefix counts as one address.
pub fn counted_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        },
    }
}

/// The bytes of the address that attempts are counted by.
pub fn counted_address_bytes(address: IpAddr) -> Vec<u8> {
    match counted_address(address) {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(throttle: &Throttle, key: &str, times: usize, now: Instant) -> usize {
        let key = throttle.key(&[key.as_bytes()]);
        (0..times).filter(|_| throttle.take_at(key, now).is_ok()).count()
    }

    #[test]
    fn a_bucket_empties_and_recovers() {
        let throttle = Throttle::new(3, Duration::from_secs(10));
        let now = Instant::now();
        assert_eq!(taken(&throttle, "ann", 100, now), 3);
        assert_eq!(taken(&throttle, "bob", 100, now), 3);
        assert_eq!(taken(&throttle, "ann", 100, now + Duration::from_secs(10)), 1);
        assert_eq!(taken(&throttle, "ann", 100, now + Duration::from_secs(1_000)), 3);
    }

    #[test]
    fn flood_of_keys_is_bounded_and_keeps_attacked_bucket() {
        let throttle = Throttle::new(10, Duration::from_secs(60));
        let now = Instant::now();
        assert_eq!(taken(&throttle, "ann", 100, now), 10);
        for nth in 0..4 * KEYS_MAX {
            taken(&throttle, &nth.to_string(), 1, now + Duration::from_millis(1));
        }
        assert!(throttle.full_at.lock().unwrap().len() <= KEYS_MAX);
        assert_eq!(taken(&throttle, "ann", 100, now + Duration::from_secs(1)), 0);
    }

    #[test]
    fn ipv6_prefix_counts_as_one_address() {
        let source = |text: &str| counted_address(text.parse().unwrap()).to_string();
        assert_eq!(source("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(source("2001:db8:1:2:ffff::1"), "2001:db8:1:2::");
        assert_eq!(source("2001:db8:1:3::1"), "2001:db8:1:3::");
        assert_eq!(source("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(source("192.0.2.1"), "192.0.2.1");
    }
}
