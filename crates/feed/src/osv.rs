//! Reads advisories in the OSV format.
//!
//! OSV leaves several fields to each publisher, and a match depends on them: which CVEs an advisory
//! is about, how severe it is, what is not fixed and why. `interpret` evaluates these fields. An
//! unknown value never makes a record invalid.

mod meaning;
mod shape;

use std::io::BufRead;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

use crate::Record;
use crate::error::{Halt, Place};
use crate::{json, limits, text};

use shape::Osv;

type Each<'a> = dyn FnMut(Record) -> Result<(), Halt> + 'a;

/// Reads one document: one record per line, one record over several lines, or an array of records.
pub(crate) fn read(
    input: &mut dyn BufRead,
    place: &Place,
    each: &mut Each<'_>,
) -> Result<(), Halt> {
    if json::is_array(input, place)? {
        return json::elements(input, place, &mut |text, number| {
            take(text::json(text, place, number)?, number, place, each)
        });
    }
    let mut line = Vec::new();
    let mut number = 0;
    while text::next_line(input, place, number + 1, &mut line)? {
        let content = line.trim_ascii();
        if content.is_empty() {
            continue;
        }
        number += 1;
        limits::check_json(content).map_err(|limit| place.too_large(number, limit))?;
        match serde_json::from_slice::<Osv<'_>>(content) {
            Ok(osv) => take(osv, number, place, each)?,
            // Incomplete JSON: the record continues on the next line.
            Err(error) if number == 1 && error.is_eof() => {
                text::rest(input, place, &mut line)?;
                return take(text::json(&line, place, 1)?, number, place, each);
            }
            Err(error) => return Err(place.broken(number, error).into()),
        }
    }
    Ok(())
}

fn take(osv: Osv<'_>, number: u64, place: &Place, each: &mut Each<'_>) -> Result<(), Halt> {
    if osv.id.is_empty() {
        return Err(place.nonsense(number, "the advisory has no id").into());
    }
    osv.check().map_err(|limit| place.too_large(number, limit))?;
    each(Record::Advisory(Box::new(meaning::advisory(osv))))
}

/// Deserializes a map as `T`, and anything else as `T::default()`. Publishers may put any value
/// into publisher-specific fields.
fn map_or_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    from.deserialize_any(MapOr(std::marker::PhantomData))
}

struct MapOr<T>(std::marker::PhantomData<T>);

macro_rules! otherwise {
    ($($visit:ident: $kind:ty,)*) => {
        $(fn $visit<E: Error>(self, _: $kind) -> Result<T, E> { Ok(T::default()) })*
    };
}

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for MapOr<T> {
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

    otherwise! { visit_str: &str, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, }
}

/// Deserializes a string, and anything else as an empty string.
fn text_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(from)? {
        serde_json::Value::String(text) => text,
        _ => String::new(),
    })
}
