//! Dice that fall the same way for the same seed, on every machine and in every version.

/// A seeded source of numbers (SplitMix64: small, fast, and good enough to choose faults by).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The dice of one seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` up to and with `to`.
    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        let span = (to - from).unsigned_abs() + 1;
        from + (self.next() % span) as i64
    }

    /// True this often in a hundred.
    pub fn percent(&mut self, often: u32) -> bool {
        self.next() % 100 < u64::from(often)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() % of.len() as u64) as usize]
    }
}
