//! Reads the files of a tar archive one by one from a stream, without seeking.

use std::io::{self, BufRead, Read};

use crate::error::{FeedError, Halt, Place};
use crate::source::Reading;

pub(crate) const BLOCK_BYTES: usize = 512;
/// The bytes of a header that contain `ustar`.
const MARK: std::ops::Range<usize> = 257..262;
const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const TYPE: usize = 156;

/// Whether this block is a tar header, that is, whether the input is a tar archive.
pub(crate) fn is_header(block: &[u8]) -> bool {
    block.get(MARK).is_some_and(|mark| mark == b"ustar")
}

/// Passes every JSON file of the archive to `reading`. Returns the number of files.
pub(crate) fn read(
    mut input: impl BufRead,
    place: &Place,
    reading: &mut Reading<'_>,
) -> Result<u64, Halt> {
    let failed = |source| place.failed(source);
    let mut count = 0;
    let mut number = 0;
    loop {
        let mut header = [0; BLOCK_BYTES];
        input.read_exact(&mut header).map_err(failed)?;
        if header.iter().all(|byte| *byte == 0) {
            // The rest is padding, but it must be read: a compressed stream has its checksum at the
            // end.
            io::copy(&mut input, &mut io::sink()).map_err(failed)?;
            return Ok(count);
        }
        number += 1;
        let size = match is_header(&header).then(|| octal(&header[SIZE])).flatten() {
            Some(size) => size,
            None => return Err(place.nonsense(number, "not a tar header").into()),
        };
        let name = header[NAME].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let mut entry = input.by_ref().take(size);
        if matches!(header[TYPE], b'0' | 0) && is_document(&name) {
            let place = Place { file: place.file.clone(), entry: Some(name) };
            reading(&mut entry, &place)?;
            count += 1;
        }
        io::copy(&mut entry, &mut io::sink()).map_err(failed)?;
        if entry.limit() > 0 {
            return Err(FeedError::CutOff { place: place.clone() }.into());
        }
        let padding = size.next_multiple_of(BLOCK_BYTES as u64) - size;
        let skipped = io::copy(&mut input.by_ref().take(padding), &mut io::sink());
        if skipped.map_err(failed)? < padding {
            return Err(FeedError::CutOff { place: place.clone() }.into());
        }
    }
}

/// Parses an octal size field. The upper limit prevents overflow in the arithmetic that follows.
fn octal(field: &[u8]) -> Option<u64> {
    let text = str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    u64::from_str_radix(text, 8).ok().filter(|size| *size < 1 << 40)
}

fn is_document(name: &str) -> bool {
    [".json", ".jsonl"].iter().any(|end| name.ends_with(end))
}
