//! Reads FIRST's exploit prediction scores (EPSS): how likely each CVE is to be exploited.

use std::io::BufRead;

use domain::advisory::Epss;

use crate::Record;
use crate::error::{FeedLocation, PassError};
use crate::text;

const HEADER: &str = "cve,epss,percentile";

pub(crate) fn read(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    each: &mut dyn FnMut(Record) -> Result<(), PassError>,
) -> Result<(), PassError> {
    let mut has_header = false;
    text::for_each_line(input, location, |line, number| {
        // The first line may name the model and the date of the scores.
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if !has_header {
            has_header = true;
            return match line == HEADER {
                true => Ok(()),
                false => Err(location
                    .invalid_record(number, format!("expected the header `{HEADER}`"))
                    .into()),
            };
        }
        let fields: Vec<&str> = line.split(',').collect();
        match fields[..] {
            [cve, score, percentile] if cve.starts_with("CVE-") => {
                let estimate = Epss::new(cve, score, percentile)
                    .map_err(|error| location.invalid_record(number, error.to_string()))?;
                each(Record::Epss(estimate))
            }
            _ => {
                let why =
                    format!("`{}` is not a CVE id followed by two numbers", text::excerpt(line));
                Err(location.invalid_record(number, why).into())
            }
        }
    })
}
