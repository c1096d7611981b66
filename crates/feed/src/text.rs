//! Reads lines and whole documents, each up to a maximum size.

use std::io::{BufRead, Read};

use serde::Deserialize;

use crate::error::{FeedError, FeedLocation, PassError};
use crate::limits;
use crate::limits::{LINE_BYTES_MAX, Limit, RECORD_BYTES_MAX};

/// Reads the next line into `line`, including its line ending. Returns false at the end of the
/// input.
pub(crate) fn next_line(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    number: u64,
    line: &mut Vec<u8>,
) -> Result<bool, FeedError> {
    bounded_line(input, location, number, line, (RECORD_BYTES_MAX, Limit::RecordBytes))
}

fn bounded_line(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    number: u64,
    line: &mut Vec<u8>,
    (bytes_max, limit): (u64, Limit),
) -> Result<bool, FeedError> {
    line.clear();
    let read = input
        .take(bytes_max + 1)
        .read_until(b'\n', line)
        .map_err(|source| location.read_error(source))?;
    match read as u64 > bytes_max {
        true => Err(location.too_large(number, limit)),
        false => Ok(read > 0),
    }
}

/// Parses one record, unless that would need too much memory.
pub(crate) fn parse_json<'a, T: Deserialize<'a>>(
    text: &'a [u8],
    location: &FeedLocation,
    number: u64,
) -> Result<T, FeedError> {
    limits::check_json(text).map_err(|limit| location.too_large(number, limit))?;
    serde_json::from_slice(text).map_err(|error| location.parse_error(number, error))
}

/// Appends the rest of the input to `document`.
pub(crate) fn read_rest(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    document: &mut Vec<u8>,
) -> Result<(), FeedError> {
    input
        .take(RECORD_BYTES_MAX + 1)
        .read_to_end(document)
        .map_err(|source| location.read_error(source))?;
    match document.len() as u64 > RECORD_BYTES_MAX {
        true => Err(location.too_large(1, Limit::RecordBytes)),
        false => Ok(()),
    }
}

/// Passes each line, without its line ending, to `each` with its number from 1. A last line without
/// a line ending means that the file is truncated.
pub(crate) fn for_each_line(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    mut each: impl FnMut(&str, u64) -> Result<(), PassError>,
) -> Result<(), PassError> {
    let mut line = Vec::new();
    let mut number = 1;
    while bounded_line(input, location, number, &mut line, (LINE_BYTES_MAX, Limit::LineBytes))? {
        let Some((b'\n', text)) = line.split_last() else {
            return Err(FeedError::Truncated { place: location.clone() }.into());
        };
        let text = str::from_utf8(text)
            .map_err(|_| location.invalid_record(number, "the line is not UTF-8"))?;
        each(text.strip_suffix('\r').unwrap_or(text), number)?;
        number += 1;
    }
    Ok(())
}

/// An excerpt of untrusted feed text that is safe to show in an error message.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}
