//! A small mutation fuzzer for `cargo test`. It has no coverage feedback, but needs no
//! installation.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Tokens that are significant to the parsers.
const TOKENS: &[&[u8]] = &[
    b"\n",
    b"\t",
    b" ",
    b"\0",
    b"\"",
    b"\\",
    b":",
    b",",
    b"-",
    b"~",
    b"^",
    b"{",
    b"}",
    b"[",
    b"]",
    b"<",
    b">",
    b"&#",
    b"0",
    b"9",
    b"18446744073709551616",
    b"-1",
    b"1e999",
    b"null",
    b"\\u0000",
    b"\xff",
    b"\xe2\x80\xae",
    b"CVE-2026-0001",
    b"ustar",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"PK\x03\x04",
];

/// A random number generator with a fixed seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }
}

/// Copies one of `seeds` and changes it in a few places.
pub fn mutate_seed(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = seeds.get(rng.below(seeds.len())).cloned().unwrap_or_default();
    for _ in 0..=rng.below(6) {
        let at = rng.below(input.len() + 1);
        let to = (at + rng.below(64)).min(input.len());
        match rng.below(7) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = rng.below(256) as u8,
            2 => drop(input.drain(at..to)),
            3 => {
                let piece = input[at..to].to_vec();
                let times = 1 + rng.below(20);
                let more = piece.repeat(times);
                input.splice(at..at, more);
            }
            4 => {
                let other = &seeds[rng.below(seeds.len()).min(seeds.len().saturating_sub(1))];
                let from = rng.below(other.len() + 1);
                let end = (from + rng.below(256)).min(other.len());
                input.splice(at..to, other[from..end].iter().copied());
            }
            5 => input.truncate(at),
            _ => {
                let token = TOKENS[rng.below(TOKENS.len())];
                let times = if rng.below(8) == 0 { 1_000 } else { 1 };
                input.splice(at..at, token.repeat(times));
            }
        }
    }
    input.truncate(crate::INPUT_BYTES_MAX);
    input
}

/// The files of a directory, sorted. Empty if the directory does not exist.
pub fn corpus(folder: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry?.path();
        let bytes = fs::read(&path)?;
        files.insert(path, bytes);
    }
    Ok(files)
}
