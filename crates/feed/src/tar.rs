//! Reads the files of a tar archive one by one from a stream, without seeking.

use std::io::{self, BufRead, Read};

use crate::error::{FeedError, FeedLocation, PassError};
use crate::source::DocumentReader;

pub(crate) const BLOCK_BYTES: usize = 512;
/// The bytes of a header that contain `ustar`.
const MAGIC_RANGE: std::ops::Range<usize> = 257..262;
const NAME_RANGE: std::ops::Range<usize> = 0..100;
const SIZE_RANGE: std::ops::Range<usize> = 124..136;
const TYPE_OFFSET: usize = 156;

/// Whether this block is a tar header, that is, whether the input is a tar archive.
pub(crate) fn is_header(block: &[u8]) -> bool {
    block.get(MAGIC_RANGE).is_some_and(|mark| mark == b"ustar")
}

/// Passes every JSON file of the archive to `reader`. Returns the number of files.
pub(crate) fn read(
    mut input: impl BufRead,
    location: &FeedLocation,
    reader: &mut DocumentReader<'_>,
) -> Result<u64, PassError> {
    let failed = |source| location.read_error(source);
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
        let size = match is_header(&header).then(|| parse_octal(&header[SIZE_RANGE])).flatten() {
            Some(size) => size,
            None => return Err(location.invalid_record(number, "not a tar header").into()),
        };
        let name = header[NAME_RANGE].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let mut entry = input.by_ref().take(size);
        if matches!(header[TYPE_OFFSET], b'0' | 0) && is_json_file(&name) {
            let location = FeedLocation { file: location.file.clone(), entry: Some(name) };
            reader(&mut entry, &location)?;
            count += 1;
        }
        io::copy(&mut entry, &mut io::sink()).map_err(failed)?;
        if entry.limit() > 0 {
            return Err(FeedError::Truncated { place: location.clone() }.into());
        }
        let padding = size.next_multiple_of(BLOCK_BYTES as u64) - size;
        let skipped = io::copy(&mut input.by_ref().take(padding), &mut io::sink());
        if skipped.map_err(failed)? < padding {
            return Err(FeedError::Truncated { place: location.clone() }.into());
        }
    }
}

/// Parses an octal size field. The upper limit prevents overflow in the arithmetic that follows.
fn parse_octal(field: &[u8]) -> Option<u64> {
    let text = str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    u64::from_str_radix(text, 8).ok().filter(|size| *size < 1 << 40)
}

fn is_json_file(name: &str) -> bool {
    [".json", ".jsonl"].iter().any(|end| name.ends_with(end))
}
