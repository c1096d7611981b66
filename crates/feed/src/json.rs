//! Splits a JSON array into its elements, so that each element is parsed within the limits of one
//! record.

use std::io::BufRead;

use crate::error::{FeedError, FeedLocation, PassError};
use crate::limits::{JsonScanner, Limit, RECORD_BYTES_MAX};

/// Called with the text of an element and its number.
type OnElement<'a> = dyn FnMut(&[u8], u64) -> Result<(), PassError> + 'a;

/// Whether the input starts like an array. Skips leading white space.
pub(crate) fn is_array(
    input: &mut dyn BufRead,
    location: &FeedLocation,
) -> Result<bool, FeedError> {
    Ok(peek(input, location)? == Some(b'['))
}

/// The next byte that is not white space. The byte stays in the input.
fn peek(input: &mut dyn BufRead, location: &FeedLocation) -> Result<Option<u8>, FeedError> {
    loop {
        let buffer = input.fill_buf().map_err(|source| location.read_error(source))?;
        if buffer.is_empty() {
            return Ok(None);
        }
        match buffer.iter().position(|byte| !byte.is_ascii_whitespace()) {
            Some(at) => {
                let byte = buffer[at];
                input.consume(at);
                return Ok(Some(byte));
            }
            None => {
                let all = buffer.len();
                input.consume(all);
            }
        }
    }
}

/// Calls `each` with the text of every array element and its number, from 1. The text is everything
/// between two commas; `each` must check that it is valid JSON.
pub(crate) fn for_each_element(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    each: &mut OnElement<'_>,
) -> Result<(), PassError> {
    if !is_array(input, location)? {
        return Err(location.invalid_record(1, "the document is not a JSON array").into());
    }
    input.consume(1);
    let mut text = Vec::new();
    let mut number = 0;
    loop {
        number += 1;
        let is_last = read_element(input, location, number, &mut text)?;
        let content = text.trim_ascii();
        match (content.is_empty(), is_last) {
            (true, true) if number == 1 => {}
            (true, _) => {
                return Err(location
                    .invalid_record(number, "the array has an empty element")
                    .into());
            }
            (false, _) => each(content, number)?,
        }
        if is_last {
            return match peek(input, location)? {
                None => Ok(()),
                Some(_) => {
                    Err(location.invalid_record(number, "unexpected data after the array").into())
                }
            };
        }
    }
}

/// Reads up to the comma or bracket after an element. Returns true for a bracket, which ends the
/// array.
fn read_element(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    number: u64,
    text: &mut Vec<u8>,
) -> Result<bool, FeedError> {
    text.clear();
    let mut scan = JsonScanner::default();
    loop {
        let buffer = input.fill_buf().map_err(|source| location.read_error(source))?;
        if buffer.is_empty() {
            return Err(FeedError::Truncated { place: location.clone() });
        }
        let mut end = None;
        for (at, byte) in buffer.iter().enumerate() {
            if scan.depth == 0 && !scan.in_string && matches!(byte, b',' | b']') {
                end = Some((at, *byte == b']'));
                break;
            }
            scan.push_byte(*byte).map_err(|limit| location.too_large(number, limit))?;
        }
        let read = end.map_or(buffer.len(), |(at, _)| at);
        if (text.len() + read) as u64 > RECORD_BYTES_MAX {
            return Err(location.too_large(number, Limit::RecordBytes));
        }
        text.extend_from_slice(&buffer[..read]);
        input.consume(read + usize::from(end.is_some()));
        if let Some((_, is_last)) = end {
            return Ok(is_last);
        }
    }
}
