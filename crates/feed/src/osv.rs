//! Reads advisories in the OSV format.
//!
//! OSV leaves several fields to each publisher, and a match depends on them: which CVEs an advisory
//! is about, how severe it is, what is not fixed and why. `interpret` evaluates these fields. An
//! unknown value never makes a record invalid.

mod interpret;
mod schema;

use std::io::BufRead;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

use crate::Record;
use crate::error::{FeedLocation, PassError};
use crate::{json, limits, text};

use schema::Osv;

type OnRecord<'a> = dyn FnMut(Record) -> Result<(), PassError> + 'a;

/// Reads one document: one record per line, one record over several lines, or an array of records.
pub(crate) fn read(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    each: &mut OnRecord<'_>,
) -> Result<(), PassError> {
    if json::is_array(input, location)? {
        return json::for_each_element(input, location, &mut |text, number| {
            emit(text::parse_json(text, location, number)?, number, location, each)
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
        match serde_json::from_slice::<Osv<'_>>(content) {
            Ok(osv) => emit(osv, number, location, each)?,
            // Incomplete JSON: the record continues on the next line.
            Err(error) if number == 1 && error.is_eof() => {
                text::read_rest(input, location, &mut line)?;
                return emit(text::parse_json(&line, location, 1)?, number, location, each);
            }
            Err(error) => return Err(location.parse_error(number, error).into()),
        }
    }
    Ok(())
}

fn emit(
    osv: Osv<'_>,
    number: u64,
    location: &FeedLocation,
    each: &mut OnRecord<'_>,
) -> Result<(), PassError> {
    if osv.id.is_empty() {
        return Err(location.invalid_record(number, "the advisory has no id").into());
    }
    osv.check().map_err(|limit| location.too_large(number, limit))?;
    each(Record::Advisory(Box::new(interpret::advisory(osv))))
}

/// Deserializes a map as `T`, and anything else as `T::default()`. Publishers may put any value
/// into publisher-specific fields.
fn map_or_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    from.deserialize_any(MapOrDefaultVisitor(std::marker::PhantomData))
}

struct MapOrDefaultVisitor<T>(std::marker::PhantomData<T>);

macro_rules! visit_default {
    ($($visit:ident: $kind:ty,)*) => {
        $(fn $visit<E: Error>(self, _: $kind) -> Result<T, E> { Ok(T::default()) })*
    };
}

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for MapOrDefaultVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(serde::de::value::MapAccessDeserializer::new(map))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(T::default())
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::default())
    }

    visit_default! { visit_str: &str, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, }
}

/// Deserializes a string, and anything else as an empty string.
fn text_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(from)? {
        serde_json::Value::String(text) => text,
        _ => String::new(),
    })
}
