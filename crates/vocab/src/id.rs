//! Identifiers: a prefix that names the type, and a sortable UUIDv7 in base 32.
//!
//! `srv_01jcqk3m8ye0fr5cq0k6s8v2xw` is a [`ServerId`]. The format is TypeID: 128 bits as 26 digits
//! of Crockford's base 32 in lower case, so the first digit is at most `7`. Each id has exactly one
//! spelling: uppercase and look-alike letters are rejected, not corrected, because ids are compared
//! as text.
//!
//! This module reads no clock and no random source: the caller passes both to `new`.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const DIGITS: usize = 26;

/// Error returned when parsing an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The prefix is missing or belongs to another type.
    #[error("this id must start with `{expected}_`")]
    Prefix { expected: &'static str },
    #[error("an id must have 26 characters after its prefix (got {found})")]
    Length { found: usize },
    /// The part after the prefix contains a character that is not a base-32 digit.
    #[error("`{0}` is not allowed in an id (allowed: 0 to 9, a to z without i, l, o, u)")]
    Digit(char),
    /// 26 digits hold 130 bits; an id has 128.
    #[error("the first digit of an id must be at most 7")]
    Overflow,
}

/// Returns the 128 bits of a UUIDv7: 48 bits of Unix milliseconds, then version, variant and 74
/// random bits.
fn uuid_v7(at: Timestamp, random: u128) -> u128 {
    let millis = u128::from(u64::try_from(at.as_millisecond()).unwrap_or(0)) & ((1 << 48) - 1);
    let rand_a = (random >> 62) & 0xfff;
    let rand_b = random & ((1 << 62) - 1);
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
    for (index, digit) in digits.chars().enumerate() {
        let value = u8::try_from(digit)
            .ok()
            .and_then(|byte| ALPHABET.iter().position(|known| *known == byte))
            .ok_or(IdError::Digit(digit))?;
        if index == 0 && value > 7 {
            return Err(IdError::Overflow);
        }
        bits = (bits << 5) | value as u128;
    }
    Ok(bits)
}

fn write_id(prefix: &str, bits: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut digits = [0_u8; DIGITS];
    for (index, digit) in digits.iter_mut().enumerate() {
        let shift = 5 * (DIGITS - 1 - index);
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
            /// Prefix of every id of this type, without the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// Creates an id for something created at `at`. `random` must come from a cryptographic
            /// source.
            pub fn new(at: Timestamp, random: u128) -> Self {
                Self(uuid_v7(at, random))
            }

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
                write_id(Self::PREFIX, self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_id(Self::PREFIX, self.0, f)
            }
        }

        crate::text::serde_as_text!($name);
    )*};
}

ids! {
    /// A server with an agent.
    ServerId = "srv";
    /// A schedule of recurring batches.
    ScheduleId = "sch";
    /// A freeze: a time in which no task starts on the selected servers.
    FreezeId = "frz";
    /// A policy: by when updates must be installed.
    PolicyId = "pol";
    /// One execution of a schedule.
    RunId = "run";
    /// A batch. Internally every batch, schedule run and single-server patch is a rollout; this is
    /// its id.
    BatchId = "bat";
    /// A task: one server's part of a batch.
    TaskId = "tsk";
    /// An organization: the tenant whose data a caller can see.
    OrgId = "org";
    KeyId = "key";
    /// An enrollment token.
    TokenId = "enr";
    WebhookId = "whk";
    /// A webhook's delivery of an event.
    DeliveryId = "dlv";
    EventId = "evt";
    /// A rule about what a user is notified of.
    NotificationRuleId = "ntf";
    /// A user.
    UserId = "usr";
    /// A session of a signed-in user.
    SessionId = "ses";
    /// A saved view of a list in the dashboard.
    ViewId = "view";
    /// A suppression of a CVE.
    SuppressionId = "sup";
    /// A vulnerability feed.
    FeedId = "feed";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The two worked examples of the TypeID specification: all zeros and all ones.
    #[test]
    fn smallest_and_largest_ids_match_typeid_examples() {
        assert_eq!(ServerId(0).to_string(), "srv_00000000000000000000000000");
        assert_eq!(ServerId(u128::MAX).to_string(), "srv_7zzzzzzzzzzzzzzzzzzzzzzzzz");
    }

    #[test]
    fn later_ids_sort_after_earlier_ones() {
        let early = ServerId::new("2026-11-15T04:00:00Z".parse().unwrap(), u128::MAX);
        let late = ServerId::new("2026-11-15T04:00:00.001Z".parse().unwrap(), 0);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
    }

    #[test]
    fn version_and_variant_are_uuid_v7() {
        let id = ServerId::new("2026-11-15T04:00:00Z".parse().unwrap(), u128::MAX).bits();
        assert_eq!((id >> 76) & 0xf, 7);
        assert_eq!((id >> 62) & 0b11, 0b10);
    }

    #[test]
    fn errors_say_what_is_wrong() {
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
        fn displayed_id_parses_to_same_value(bits: u128) {
            prop_assert_eq!(ServerId(bits).to_string().parse(), Ok(ServerId(bits)));
        }

        #[test]
        fn text_and_bits_sort_the_same(a: u128, b: u128) {
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
