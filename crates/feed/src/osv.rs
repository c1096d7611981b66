//! Advisories in OSV's form.
//!
//! The form leaves room for each publisher's own words, and those are what a match needs most: which
//! CVEs an advisory is about, how bad it is, what is not fixed and why. What is understood of them
//! is in `meaning`; a word that is not understood never costs the record.

mod meaning;
mod shape;

use std::io::{BufRead, Cursor, Read};

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

use crate::Record;
use crate::error::{Halt, Place};
use crate::text;

use shape::Osv;

type Each<'a> = dyn FnMut(Record) -> Result<(), Halt> + 'a;

/// Reads one document: a record a line, one record over several lines, or an array of records.
pub(crate) fn read(
    input: &mut dyn BufRead,
    place: &Place,
    each: &mut Each<'_>,
) -> Result<(), Halt> {
    let mut line = Vec::new();
    let mut number = 0;
    while text::next_line(input, place, number + 1, &mut line)? {
        let content = line.trim_ascii();
        if content.is_empty() {
            continue;
        }
        number += 1;
        if number == 1 && content[0] == b'[' {
            return array(Cursor::new(line).chain(input), place, each);
        }
        match serde_json::from_slice::<Osv<'_>>(content) {
            Ok(osv) => take(osv, number, place, each)?,
            // Not the whole of it: the record goes on on the next line.
            Err(error) if number == 1 && error.is_eof() => {
                text::rest(input, place, &mut line)?;
                let osv = serde_json::from_slice(&line).map_err(|error| place.broken(1, error))?;
                return take(osv, number, place, each);
            }
            Err(error) => return Err(place.broken(number, error).into()),
        }
    }
    Ok(())
}

fn take(osv: Osv<'_>, number: u64, place: &Place, each: &mut Each<'_>) -> Result<(), Halt> {
    if osv.id.is_empty() {
        return Err(place.nonsense(number, "an advisory without an id").into());
    }
    each(Record::Advisory(Box::new(meaning::advisory(osv))))
}

/// An array of records, one at a time.
fn array(input: impl Read, place: &Place, each: &mut Each<'_>) -> Result<(), Halt> {
    let mut from = serde_json::Deserializer::from_reader(input);
    let mut elements = Elements { place, each, number: 0, halt: None };
    let read = from.deserialize_seq(&mut elements).and_then(|()| from.end());
    match (elements.halt, read) {
        (Some(halt), _) => Err(halt),
        (None, Err(error)) => Err(place.broken(elements.number + 1, error).into()),
        (None, Ok(())) => Ok(()),
    }
}

struct Elements<'a, 'e> {
    place: &'a Place,
    each: &'a mut Each<'e>,
    number: u64,
    halt: Option<Halt>,
}

impl<'de> Visitor<'de> for &mut Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of advisories")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(osv) = from.next_element::<Osv<'_>>()? {
            self.number += 1;
            if let Err(halt) = take(osv, self.number, self.place, self.each) {
                self.halt = Some(halt);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// A map as `T`; anything else as its default. Publishers may put what they like into the places
/// that the form leaves to them.
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

/// A text; anything else as an empty one.
fn text_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(from)? {
        serde_json::Value::String(text) => text,
        _ => String::new(),
    })
}
