//! Reproducible random numbers: the same seed gives the same fleet and the same faults.
//!
//! Keys and nonces must not come from here. They come from the operating system; see the crate
//! `agent-client`.

/// A random number generator with a fixed seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    pub fn of(seed: u64) -> Chance {
        Chance(seed)
    }

    /// An independent generator for one entity of a seeded simulation, such as one host.
    pub fn about(seed: u64, thing: &str, which: u64) -> Chance {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_be_bytes()).update(&which.to_be_bytes()).update(thing.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Chance(u64::from_be_bytes(first))
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The modulo bias is n in 2^64, which does not matter for a simulation.
        if n == 0 { 0 } else { self.number() % n }
    }

    /// A number from `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn share(&mut self) -> f64 {
        // A double has 53 bits of precision.
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn happens(&mut self, share: f64) -> bool {
        self.share() < share
    }

    /// A random element. The slice must not be empty.
    pub fn one_of<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        &several[self.below(several.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_repeats_and_entities_are_independent() {
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
    fn probability_matches_observed_frequency() {
        let mut chance = Chance::of(3);
        let times = (0..10_000).filter(|_| chance.happens(0.1)).count();
        assert!((900..1_100).contains(&times), "{times}");
    }
}
