//! Lines and whole documents, each within a bound.

use std::io::{BufRead, Read};

use crate::RECORD_BYTES_MAX;
use crate::error::{FeedError, Halt, Place};

/// Reads the next line into `line`, its end included. False at the end of the input.
pub(crate) fn next_line(
    input: &mut dyn BufRead,
    place: &Place,
    number: u64,
    line: &mut Vec<u8>,
) -> Result<bool, FeedError> {
    line.clear();
    let read = input
        .take(RECORD_BYTES_MAX + 1)
        .read_until(b'\n', line)
        .map_err(|source| place.failed(source))?;
    match read as u64 > RECORD_BYTES_MAX {
        true => Err(FeedError::TooLarge { place: place.clone(), record: number }),
        false => Ok(read > 0),
    }
}

/// Reads the rest of the input behind what `document` already holds.
pub(crate) fn rest(
    input: &mut dyn BufRead,
    place: &Place,
    document: &mut Vec<u8>,
) -> Result<(), FeedError> {
    input
        .take(RECORD_BYTES_MAX + 1)
        .read_to_end(document)
        .map_err(|source| place.failed(source))?;
    match document.len() as u64 > RECORD_BYTES_MAX {
        true => Err(FeedError::TooLarge { place: place.clone(), record: 1 }),
        false => Ok(()),
    }
}

/// Hands each line of a list to `each`, without its end, with its number from 1. A last line that
/// has no end was cut off.
pub(crate) fn lines(
    input: &mut dyn BufRead,
    place: &Place,
    mut each: impl FnMut(&str, u64) -> Result<(), Halt>,
) -> Result<(), Halt> {
    let mut line = Vec::new();
    let mut number = 1;
    while next_line(input, place, number, &mut line)? {
        let Some((b'\n', text)) = line.split_last() else {
            return Err(FeedError::CutOff { place: place.clone() }.into());
        };
        let text = str::from_utf8(text).map_err(|_| place.nonsense(number, "not UTF-8"))?;
        each(text.strip_suffix('\r').unwrap_or(text), number)?;
        number += 1;
    }
    Ok(())
}

/// Text from a feed as an error may repeat it.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}
