//! Identifiers: a prefix that says what the thing is, and a sortable UUIDv7 in base 32.
//!
//! `srv_01jcqk3m8ye0fr5cq0k6s8v2xw` is a [`ServerId`]. The form is TypeID's: 26 digits of Crockford's
//! base 32 in lower case for 128 bits, so the first digit is at most `7`. One spelling for each id:
//! upper case and look-alike letters are refused, not mended, because an id is compared as text.
//!
//! Nothing here asks for time or chance: whoever makes an id hands both in.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const DIGITS: usize = 26;

/// Why a text is not an id of the kind that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text names another kind of thing, or nothing at all.
    #[error("an id of this kind starts with `{expected}_`")]
    Prefix {
        /// The prefix that was asked for.
        expected: &'static str,
    },
    /// The part behind the prefix has the wrong length.
    #[error("an id has 26 characters after its prefix, this one has {found}")]
    Length {
        /// How many characters there were.
        found: usize,
    },
    /// The part behind the prefix holds something that is not a digit of base 32.
    #[error("`{0}` is not a digit of an id (0 to 9, a to z without i, l, o, u)")]
    Digit(char),
    /// 26 digits hold 130 bits; an id has 128 of them.
    #[error("an id's first digit is at most 7")]
    Overflow,
}

/// The 128 bits of a UUIDv7: 48 of Unix milliseconds, then version, variant and 74 of chance.
fn uuid_v7(at: Timestamp, chance: u128) -> u128 {
    let millis = u128::from(u64::try_from(at.as_millisecond()).unwrap_or(0)) & ((1 << 48) - 1);
    let rand_a = (chance >> 62) & 0xfff;
    let rand_b = chance & ((1 << 62) - 1);
    (millis << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | rand_b
}

fn parse(prefix: &'static str, text: &str) -> Result<u128, IdError> {
    let digits = text
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('_'))
        .ok_or(IdError::Prefix { expected: prefix })?;
    let found = digits.chars().count();
    if found != DIGITS {
        return Err(IdError::Length { found });
    }
    let mut bits: u128 = 0;
    for (place, digit) in digits.chars().enumerate() {
        let value = u8::try_from(digit)
            .ok()
            .and_then(|byte| ALPHABET.iter().position(|known| *known == byte))
            .ok_or(IdError::Digit(digit))?;
        if place == 0 && value > 7 {
            return Err(IdError::Overflow);
        }
        bits = (bits << 5) | value as u128;
    }
    Ok(bits)
}

fn print(prefix: &str, bits: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut digits = [0_u8; DIGITS];
    for (place, digit) in digits.iter_mut().enumerate() {
        let shift = 5 * (DIGITS - 1 - place);
        *digit = ALPHABET[((bits >> shift) & 31) as usize];
    }
    write!(f, "{prefix}_")?;
    digits.iter().try_for_each(|digit| fmt::Write::write_char(f, char::from(*digit)))
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// What every id of this kind starts with, before the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// The id of something made at `at`; `chance` must come from a good source.
            pub fn new(at: Timestamp, chance: u128) -> Self {
                Self(uuid_v7(at, chance))
            }

            /// The 128 bits behind the text.
            pub const fn bits(self) -> u128 {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse(Self::PREFIX, text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                print(Self::PREFIX, self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                print(Self::PREFIX, self.0, f)
            }
        }

        crate::text::serde_as_text!($name);
    )*};
}

ids! {
    /// A server that reports through an agent.
    ServerId = "srv";
    /// A schedule: a recurring patch run.
    ScheduleId = "sch";
    /// One execution of a schedule.
    RunId = "run";
    /// A batch. Inside, every batch, run and single install is a rollout, and this is its id.
    BatchId = "bat";
    /// The part of a batch that concerns one server.
    TaskId = "tsk";
    /// An organization: what one caller can see.
    OrgId = "org";
    /// An API key.
    KeyId = "key";
    /// An enrolment token.
    TokenId = "enr";
    /// A webhook.
    WebhookId = "whk";
    /// An event.
    EventId = "evt";
    /// A person who signs in.
    UserId = "usr";
    /// A flaw that was set aside.
    SuppressionId = "sup";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The two worked examples of the TypeID specification: all zeros and all ones.
    #[test]
    fn the_ends_of_the_range_are_spelled_as_typeid_spells_them() {
        assert_eq!(ServerId(0).to_string(), "srv_00000000000000000000000000");
        assert_eq!(ServerId(u128::MAX).to_string(), "srv_7zzzzzzzzzzzzzzzzzzzzzzzzz");
    }

    #[test]
    fn an_id_carries_its_time_so_that_later_ids_sort_later() {
        let early = ServerId::new("2026-11-15T04:00:00Z".parse().unwrap(), u128::MAX);
        let late = ServerId::new("2026-11-15T04:00:00.001Z".parse().unwrap(), 0);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
    }

    #[test]
    fn version_and_variant_are_those_of_uuid_7() {
        let id = ServerId::new("2026-11-15T04:00:00Z".parse().unwrap(), u128::MAX).bits();
        assert_eq!((id >> 76) & 0xf, 7);
        assert_eq!((id >> 62) & 0b11, 0b10);
    }

    #[test]
    fn each_refusal_says_what_is_wrong() {
        let refusal = |text: &str| text.parse::<ServerId>().unwrap_err();
        assert_eq!(refusal("bat_00000000000000000000000000"), IdError::Prefix { expected: "srv" });
        assert_eq!(refusal(""), IdError::Prefix { expected: "srv" });
        assert_eq!(refusal("srv_123"), IdError::Length { found: 3 });
        assert_eq!(refusal("srv_0000000000000000000000000A"), IdError::Digit('A'));
        assert_eq!(refusal("srv_0000000000000000000000000é"), IdError::Digit('é'));
        assert_eq!(refusal("srv_80000000000000000000000000"), IdError::Overflow);
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(bits: u128) {
            prop_assert_eq!(ServerId(bits).to_string().parse(), Ok(ServerId(bits)));
        }

        #[test]
        fn text_and_bits_have_one_order(a: u128, b: u128) {
            prop_assert_eq!(a.cmp(&b), TaskId(a).to_string().cmp(&TaskId(b).to_string()));
        }

        #[test]
        fn no_text_panics(text in "(srv_)?\\PC{0,40}") {
            if let Ok(id) = text.parse::<ServerId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
