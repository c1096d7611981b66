//! Strict JSON: only an object is accepted as an object, and a whole number may be written with a
//! decimal point.
//!
//! serde also reads a struct from an array, field by field in the order of declaration. A client
//! that sends `[["srv_…"], [], …]` would request something that it never named, so arrays are
//! rejected here. On the other hand, `30.0` is an integer in JSON Schema, and some languages write
//! integers like that.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// A JSON value to deserialize strictly.
#[derive(Clone, Copy)]
pub(crate) struct StrictJson<'a>(pub(crate) &'a Value);

impl StrictJson<'_> {
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, Error> {
        T::deserialize(self)
    }
}

impl<'de> IntoDeserializer<'de, Error> for StrictJson<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for StrictJson<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.iter().map(StrictJson)))
            }
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.as_str(), StrictJson(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            Value::Number(number) => match whole_number(number) {
                Some(number) => visitor.visit_i64(number),
                None => self.0.deserialize_any(visitor),
            },
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &"an object")),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// The integer value of a number with a decimal point, up to 2^53. Above that, adjacent integers
/// are indistinguishable.
fn whole_number(number: &serde_json::Number) -> Option<i64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let value = number.as_f64().filter(|_| number.is_f64())?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value has no fraction and is in range"
    )]
    let integer = (value.fract() == 0.0 && value.abs() < EXACT_MAX).then_some(value as i64);
    integer
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        name: Option<String>,
        inner: Option<Inner>,
        list: Vec<Inner>,
        word: Choice,
        whole: Value,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        count: u32,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        SomeWord,
    }

    fn with(inner: Value) -> Value {
        json!({"name": null, "inner": inner, "list": [{"count": 2}], "word": "some_word", "whole": [[1], {"a": 1}]})
    }

    #[test]
    fn valid_values_are_accepted() {
        for inner in [json!({"count": 7}), Value::Null] {
            let value = with(inner);
            let ours: Outer = StrictJson(&value).read().unwrap();
            assert_eq!(ours, serde_json::from_value::<Outer>(value).unwrap());
        }
    }

    #[test]
    fn whole_number_may_have_a_decimal_point() {
        let read = |count: Value| StrictJson(&json!({"count": count})).read::<Inner>();
        assert_eq!(read(json!(30.0)).unwrap(), Inner { count: 30 });
        assert_eq!(read(json!(3e1)).unwrap(), Inner { count: 30 });
        for no in [json!(30.5), json!(-1.0), json!(1e300)] {
            assert!(read(no.clone()).is_err(), "{no}");
        }
    }

    #[test]
    fn array_is_not_an_object_at_any_depth() {
        let nested = with(json!([7]));
        assert!(serde_json::from_value::<Outer>(nested.clone()).is_ok(), "serde alone accepts it");
        for value in [nested, json!([null, null, [], "some_word", 1])] {
            let error = StrictJson(&value).read::<Outer>().unwrap_err().to_string();
            assert_eq!(error, "invalid type: sequence, expected an object");
        }
    }
}
