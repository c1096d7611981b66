//! Chance that can be had again: the same seed, the same fleet, the same faults.
//!
//! Keys and nonces come from the operating system instead; see `protocol`.

/// A stream of numbers that a seed decides (SplitMix64).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The stream of `seed`.
    pub fn of(seed: u64) -> Chance {
        Chance(seed)
    }

    /// The stream that belongs to one `thing` of a seed's world; each has its own.
    pub fn about(seed: u64, thing: &str, which: u64) -> Chance {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_be_bytes()).update(&which.to_be_bytes()).update(thing.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Chance(u64::from_be_bytes(first))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`; 0 if there are none.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias is one in 2^64 / n: nothing that a fleet would notice.
        if n == 0 { 0 } else { self.number() % n }
    }

    /// One of `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// At least 0, less than 1.
    pub fn share(&mut self) -> f64 {
        // 53 bits are what a double holds.
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True in this share of all cases.
    pub fn happens(&mut self, share: f64) -> bool {
        self.share() < share
    }

    /// One of several.
    pub fn one_of<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        &several[self.below(several.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_each_thing_has_its_own() {
        let stream = |seed, thing, which| {
            let mut chance = Chance::about(seed, thing, which);
            [chance.number(), chance.number(), chance.number()]
        };
        assert_eq!(stream(1, "host", 7), stream(1, "host", 7));
        assert_ne!(stream(1, "host", 7), stream(2, "host", 7));
        assert_ne!(stream(1, "host", 7), stream(1, "host", 8));
        assert_ne!(stream(1, "host", 7), stream(1, "kind", 7));
    }

    #[test]
    fn what_happens_in_a_tenth_of_cases_happens_in_about_a_tenth() {
        let mut chance = Chance::of(3);
        let times = (0..10_000).filter(|_| chance.happens(0.1)).count();
        assert!((900..1_100).contains(&times), "{times}");
    }
}
