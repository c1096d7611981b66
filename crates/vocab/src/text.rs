//! How a word crosses a border: as the text that it prints and parses.

/// Serializes with `Display` and deserializes with `FromStr`, so that a word has one spelling
/// everywhere: in JSON, in a column, on a command line, in an error.
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

/// The most characters of someone's text that an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Someone's text as an error may repeat it: bounded, and nothing in it that a terminal obeys.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
