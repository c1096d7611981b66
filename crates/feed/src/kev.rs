//! Reads CISA's catalog of known exploited vulnerabilities (KEV).

use std::io::BufRead;

use domain::advisory::KevEntry;
use jiff::civil::Date;
use serde::Deserialize;

use crate::Record;
use crate::error::{FeedLocation, PassError};
use crate::text;

#[derive(Deserialize)]
struct Catalog {
    count: u64,
    vulnerabilities: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(rename = "cveID")]
    cve: String,
    date_added: Date,
    #[serde(default)]
    due_date: Option<String>,
    #[serde(default)]
    known_ransomware_campaign_use: String,
}

pub(crate) fn read(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    each: &mut dyn FnMut(Record) -> Result<(), PassError>,
) -> Result<(), PassError> {
    let mut document = Vec::new();
    text::read_rest(input, location, &mut document)?;
    let catalog: Catalog = text::parse_json(&document, location, 1)?;
    let found = catalog.vulnerabilities.len() as u64;
    if catalog.count != found {
        let why = format!("the catalog declares {} entries but contains {found}", catalog.count);
        return Err(location.invalid_record(found, why).into());
    }
    for (entry, number) in catalog.vulnerabilities.into_iter().zip(1..) {
        if !entry.cve.starts_with("CVE-") {
            let why = format!("`{}` is not a CVE id", text::excerpt(&entry.cve));
            return Err(location.invalid_record(number, why).into());
        }
        each(Record::Exploited(KevEntry {
            cve: entry.cve,
            added: entry.date_added,
            due: entry.due_date.and_then(|date| date.parse().ok()),
            ransomware: entry.known_ransomware_campaign_use.eq_ignore_ascii_case("known"),
        }))?;
    }
    Ok(())
}
