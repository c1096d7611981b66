//! Reads FIRST's exploit prediction scores (EPSS): how likely each CVE is to be exploited.

use std::io::BufRead;

use domain::advisory::Epss;

use crate::Record;
use crate::error::{Halt, Place};
use crate::text;

const HEAD: &str = "cve,epss,percentile";

pub(crate) fn read(
    input: &mut dyn BufRead,
    place: &Place,
    each: &mut dyn FnMut(Record) -> Result<(), Halt>,
) -> Result<(), Halt> {
    let mut begun = false;
    text::lines(input, place, |line, number| {
        // The first line may name the model and the date of the scores.
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if !begun {
            begun = true;
            return match line == HEAD {
                true => Ok(()),
                false => {
                    Err(place.nonsense(number, format!("expected the header `{HEAD}`")).into())
                }
            };
        }
        let fields: Vec<&str> = line.split(',').collect();
        match fields[..] {
            [cve, score, percentile] if cve.starts_with("CVE-") => {
                let estimate = Epss::new(cve, score, percentile)
                    .map_err(|error| place.nonsense(number, error.to_string()))?;
                each(Record::Epss(estimate))
            }
            _ => {
                let why =
                    format!("`{}` is not a CVE id followed by two numbers", text::shown(line));
                Err(place.nonsense(number, why).into())
            }
        }
    })
}
