//! A random number generator that gives the same numbers for the same seed, on every machine and in
//! every version.

/// A seeded generator (SplitMix64: small, fast, and good enough to choose faults).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `from` to `to`, inclusive.
    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        let span = (to - from).unsigned_abs() + 1;
        from + (self.next() % span) as i64
    }

    /// Returns true with this probability in percent.
    pub fn percent(&mut self, probability: u32) -> bool {
        self.next() % 100 < u64::from(probability)
    }

    /// Returns another generator that depends on this one.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next())
    }

    /// Returns a random element.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[(self.next() % items.len() as u64) as usize]
    }
}
