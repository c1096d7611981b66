//! Reproducible random numbers: the same seed gives the same fleet and the same faults.
//!
//! Keys and nonces must not come from here. They come from the operating system; see the crate
//! `agent-client`.

/// A random number generator with a fixed seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// An independent generator for one entity of a seeded simulation, such as one host.
    pub fn for_entity(seed: u64, entity: &str, which: u64) -> Rng {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_be_bytes()).update(&which.to_be_bytes()).update(entity.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Rng(u64::from_be_bytes(first))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The modulo bias is n in 2^64, which does not matter for a simulation.
        if n == 0 { 0 } else { self.next_u64() % n }
    }

    /// A number from `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn next_f64(&mut self) -> f64 {
        // A double has 53 bits of precision.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn with_probability(&mut self, share: f64) -> bool {
        self.next_f64() < share
    }

    /// A random element. The slice must not be empty.
    pub fn pick<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        &several[self.below(several.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_repeats_and_entities_are_independent() {
        let stream = |seed, thing, which| {
            let mut rng = Rng::for_entity(seed, thing, which);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(stream(1, "host", 7), stream(1, "host", 7));
        assert_ne!(stream(1, "host", 7), stream(2, "host", 7));
        assert_ne!(stream(1, "host", 7), stream(1, "host", 8));
        assert_ne!(stream(1, "host", 7), stream(1, "kind", 7));
    }

    #[test]
    fn probability_matches_observed_frequency() {
        let mut rng = Rng::new(3);
        let times = (0..10_000).filter(|_| rng.with_probability(0.1)).count();
        assert!((900..1_100).contains(&times), "{times}");
    }
}
