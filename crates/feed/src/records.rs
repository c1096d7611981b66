//! Reads JSON documents of one type: one per file, one per line, or an array of them.

use std::io::BufRead;

use serde::de::DeserializeOwned;

use crate::error::{FeedLocation, PassError};
use crate::{json, limits, text};

/// Calls `each` with every document and its number, from 1. At most
/// [`RECORD_BYTES_MAX`](crate::limits::RECORD_BYTES_MAX) bytes of input are in memory at a time.
pub(crate) fn read<T: DeserializeOwned>(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    each: &mut dyn FnMut(T, u64) -> Result<(), PassError>,
) -> Result<(), PassError> {
    if json::is_array(input, location)? {
        return json::for_each_element(input, location, &mut |text, number| {
            each(text::parse_json(text, location, number)?, number)
        });
    }
    let mut line = Vec::new();
    let mut number = 0;
    while text::next_line(input, location, number + 1, &mut line)? {
        let content = line.trim_ascii();
        if content.is_empty() {
            continue;
        }
        number += 1;
        limits::check_json(content).map_err(|limit| location.too_large(number, limit))?;
        match serde_json::from_slice(content) {
            Ok(one) => each(one, number)?,
            // The document continues on the next line.
            Err(error) if number == 1 && error.is_eof() => {
                text::read_rest(input, location, &mut line)?;
                return each(text::parse_json(&line, location, 1)?, number);
            }
            Err(error) => return Err(location.parse_error(number, error).into()),
        }
    }
    Ok(())
}
