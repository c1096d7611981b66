//! A count or a percentage: `3` servers, or `"10%"` of them.

use std::fmt;
use std::str::FromStr;

use crate::text::quote_input;

/// A count, or a percentage from 1 to 100. In JSON a count is a number and a percentage a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Portion {
    Count(u32),
    Percent(Percent),
}

/// A whole number from 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u8);

/// Error returned when parsing a portion.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortionError {
    #[error("must be a count like 3 or a percentage like \"10%\" (got `{0}`)")]
    Malformed(String),
    #[error("must be between 1% and 100% (got {0}%)")]
    Percent(u32),
    #[error("must not be zero")]
    Zero,
}

impl Portion {
    /// Creates a percentage.
    pub fn percent(value: u32) -> Result<Portion, PortionError> {
        match u8::try_from(value) {
            Ok(value @ 1..=100) => Ok(Portion::Percent(Percent(value))),
            _ => Err(PortionError::Percent(value)),
        }
    }

    /// Returns this portion of `total`, rounded up: one percent of three servers is one server. A
    /// count is returned unchanged, even if it exceeds the total.
    pub fn resolve(self, total: u32) -> u32 {
        match self {
            Portion::Count(count) => count,
            Portion::Percent(Percent(share)) => {
                let share = (u64::from(total) * u64::from(share)).div_ceil(100);
                u32::try_from(share).unwrap_or(total)
            }
        }
    }

    /// Returns this portion of `total`, rounded down: ten percent of five servers is none. For
    /// tolerances, which must not be larger than written.
    pub fn resolve_down(self, total: u32) -> u32 {
        match self {
            Portion::Count(count) => count,
            Portion::Percent(Percent(share)) => {
                let share = u64::from(total) * u64::from(share) / 100;
                u32::try_from(share).unwrap_or(total)
            }
        }
    }

    /// Rejects zero, for fields where it makes no sense.
    pub fn at_least_one(self) -> Result<Portion, PortionError> {
        if self == Portion::Count(0) { Err(PortionError::Zero) } else { Ok(self) }
    }
}

impl FromStr for Portion {
    type Err = PortionError;
    fn from_str(text: &str) -> Result<Self, PortionError> {
        let malformed = || PortionError::Malformed(quote_input(text));
        let number = |digits: &str| {
            // `u32::from_str` accepts a plus sign, but `+3` is not a plain count.
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u32>().ok().filter(|_| plain).ok_or_else(malformed)
        };
        match text.strip_suffix('%') {
            Some(digits) => Portion::percent(number(digits)?),
            None => number(text).map(Portion::Count),
        }
    }
}

impl fmt::Display for Portion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Portion::Count(count) => write!(f, "{count}"),
            Portion::Percent(Percent(share)) => write!(f, "{share}%"),
        }
    }
}

impl serde::Serialize for Portion {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Portion::Count(count) => to.serialize_u32(*count),
            Portion::Percent(_) => to.collect_str(self),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Portion {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Portion;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a count like 3 or a percentage like \"10%\"")
            }

            fn visit_u64<E: serde::de::Error>(self, count: u64) -> Result<Portion, E> {
                u32::try_from(count)
                    .map(Portion::Count)
                    .map_err(|_| E::custom(PortionError::Malformed(count.to_string())))
            }

            fn visit_i64<E: serde::de::Error>(self, count: i64) -> Result<Portion, E> {
                match u64::try_from(count) {
                    Ok(count) => self.visit_u64(count),
                    Err(_) => Err(E::custom(PortionError::Malformed(count.to_string()))),
                }
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Portion, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn portion(text: &str) -> Portion {
        text.parse().unwrap()
    }

    #[test]
    fn percentage_rounds_up_so_canary_is_never_empty() {
        assert_eq!(portion("10%").resolve(3), 1);
        assert_eq!(portion("10%").resolve(11), 2);
        assert_eq!(portion("100%").resolve(u32::MAX), u32::MAX);
        assert_eq!(portion("1%").resolve(0), 0);
        assert_eq!(portion("5").resolve(3), 5);
    }

    #[test]
    fn json_uses_numbers_for_counts_and_strings_for_percentages() {
        for text in ["3", "0", "\"10%\""] {
            let portion: Portion = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&portion).unwrap(), text);
        }
        for text in ["-1", "1.5", "true", "\"0%\"", "\"101%\"", "\"ten\"", "4294967296", "null"] {
            assert!(serde_json::from_str::<Portion>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let refusal = |text: &str| text.parse::<Portion>().unwrap_err();
        assert_eq!(refusal("0%"), PortionError::Percent(0));
        assert_eq!(refusal("101%"), PortionError::Percent(101));
        assert_eq!(
            refusal("+3").to_string(),
            "must be a count like 3 or a percentage like \"10%\" (got `+3`)"
        );
        assert_eq!(portion("0").at_least_one(), Err(PortionError::Zero));
        assert_eq!(portion("1%").at_least_one(), Ok(portion("1%")));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_parsed_portion_round_trips(text in "\\PC{0,12}|[0-9]{0,12}%?") {
            if let Ok(portion) = text.parse::<Portion>() {
                prop_assert_eq!(portion.to_string().parse(), Ok(portion));
            }
        }
    }
}
