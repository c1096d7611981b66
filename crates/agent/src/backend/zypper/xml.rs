//! As much of XML as zypper writes: elements with attributes, and text. Pure, and small enough to read.

/// One thing in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// An element begins. One that is closed at once is followed by its end like any other.
    Open(Element),
    /// An element ends.
    Close(String),
    /// What stands between, with its entities read.
    Text(String),
}

/// An element's name and attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    attributes: Vec<(String, String)>,
}

impl Element {
    /// What an attribute says; empty if it is not there.
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }
}

/// Everything in a text, or what is wrong with it.
pub(super) fn events(text: &str) -> Result<Vec<Event>, String> {
    let mut events = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at);
        if !before.trim().is_empty() {
            events.push(Event::Text(unescaped(before)));
        }
        rest = if let Some(tag) = tag.strip_prefix("<!--") {
            after(tag, "-->")?.1
        } else if let Some(tag) = tag.strip_prefix("<![CDATA[") {
            let (raw, rest) = after(tag, "]]>")?;
            events.push(Event::Text(raw.to_owned()));
            rest
        } else if tag.starts_with("<?") || tag.starts_with("<!") {
            after(tag, ">")?.1
        } else if let Some(tag) = tag.strip_prefix("</") {
            let (name, rest) = after(tag, ">")?;
            events.push(Event::Close(name.trim().to_owned()));
            rest
        } else {
            element(&tag[1..], &mut events)?
        };
    }
    Ok(events)
}

/// What stands before a sign, and what stands after it.
fn after<'a>(text: &'a str, sign: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(sign).ok_or_else(|| format!("it ends before a `{sign}`"))
}

/// Reads an element after its `<`, and answers with what follows it.
fn element<'a>(text: &'a str, events: &mut Vec<Event>) -> Result<&'a str, String> {
    let end = text.find(|c: char| c.is_whitespace() || c == '>' || c == '/');
    let (name, mut rest) = text.split_at(end.ok_or("it ends within an element")?);
    let mut element = Element { name: name.to_owned(), attributes: Vec::new() };
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix("/>") {
            let name = element.name.clone();
            events.extend([Event::Open(element), Event::Close(name)]);
            return Ok(rest);
        }
        if let Some(rest) = rest.strip_prefix('>') {
            events.push(Event::Open(element));
            return Ok(rest);
        }
        let (attribute, value) = after(rest, "=")?;
        let value = value.trim_start();
        let quote = value.chars().next().filter(|c| ['"', '\''].contains(c));
        let quote = quote.ok_or_else(|| format!("`{}` has no value", attribute.trim()))?;
        let (value, next) = after(&value[1..], &quote.to_string())?;
        element.attributes.push((attribute.trim().to_owned(), unescaped(value)));
        rest = next;
    }
}

/// A text with its entities read. What is none is left as it stands.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, tail)) = rest.split_once('&') {
        plain.push_str(before);
        let known = tail.split_once(';').and_then(|(name, after)| Some((entity(name)?, after)));
        rest = match known {
            Some((c, after)) => {
                plain.push(c);
                after
            }
            None => {
                plain.push('&');
                tail
            }
        };
    }
    plain.push_str(rest);
    plain
}

fn entity(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_attributes_and_text_are_read() {
        let text = "<?xml version='1.0'?>\n<stream><!-- a < b -->\n<update name=\"a&amp;b\" \
                    edition='1:2-3'><summary>x &lt; &#65;&#x42; &odd; y</summary><license/></update>\
                    <![CDATA[<raw>]]></stream>";
        let events = events(text).unwrap();
        let Event::Open(update) = &events[1] else { panic!("{events:?}") };
        assert_eq!(
            (update.get("name"), update.get("edition"), update.get("none")),
            ("a&b", "1:2-3", "")
        );
        assert_eq!(events[3], Event::Text("x < AB &odd; y".to_owned()));
        assert_eq!(events[6], Event::Close("license".to_owned()));
        assert_eq!(events[8], Event::Text("<raw>".to_owned()));
    }

    #[test]
    fn what_is_cut_off_is_an_error_and_not_half_an_answer() {
        for cut in ["<stream><update name=\"a", "<stream><upd", "<a b>", "<!-- x", "</a", "<a b=c>"]
        {
            assert!(events(cut).is_err(), "{cut}");
        }
        assert_eq!(events("no element at all").unwrap(), []);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[<>/=\"'&;#!?a-c \\[\\]-]{0,60}") {
            let _ = events(&text).map(|events| events.len());
        }
    }
}
