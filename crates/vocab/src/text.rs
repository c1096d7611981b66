//! Text representation of the value types: serde through `Display` and `FromStr`, and quoting in
//! errors.

/// Serializes with `Display` and deserializes with `FromStr`, so that a value has one spelling
/// everywhere: in JSON, in the database, on the command line and in errors.
macro_rules! serde_as_text {
    ($name:ty) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Maximum number of characters of user input that an error repeats.
const QUOTED_CHARS_MAX: usize = 40;

/// Quotes user input for an error message: shortened and escaped.
pub(crate) fn quote_input(text: &str) -> String {
    let mut quoted: String =
        text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        quoted.push('…');
    }
    quoted
}
