//! Parses zypper's XML into a flat list of elements and texts, with quick-xml.

use quick_xml::Reader;
use quick_xml::escape::{resolve_predefined_entity, unescape_with};
use quick_xml::events::{BytesRef, BytesStart, Event as XmlEvent};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The start of an element. An empty element is followed by its `Close`.
    Open(Element),
    Close(String),
    /// Text inside an element, with its entities resolved.
    Text(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    attributes: Vec<(String, String)>,
}

impl Element {
    /// The value of an attribute; empty if the element does not have it.
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }
}

/// Parses a whole document, or returns what is wrong with it. Text outside the elements is ignored:
/// zypper prints messages there.
pub(super) fn parse_events(document: &str) -> Result<Vec<Event>, String> {
    let mut reader = Reader::from_str(document);
    reader.config_mut().expand_empty_elements = true;
    let mut events = Vec::new();
    let mut text = String::new();
    let mut depth = 0_usize;
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        match &event {
            XmlEvent::Text(part) if depth > 0 => text += &part.xml10_content(),
            XmlEvent::CData(part) if depth > 0 => text += &part.xml10_content(),
            XmlEvent::GeneralRef(entity) if depth > 0 => text += &resolve(entity),
            _ if !text.trim().is_empty() => events.push(Event::Text(std::mem::take(&mut text))),
            _ => text.clear(),
        }
        match event {
            XmlEvent::Start(start) => {
                depth += 1;
                events.push(Event::Open(parse_element(&start)?));
            }
            XmlEvent::End(end) => {
                depth = depth.saturating_sub(1);
                events.push(Event::Close(end.name().0.to_owned()));
            }
            XmlEvent::Eof => return Ok(events),
            _ => {}
        }
    }
}

fn parse_element(start: &BytesStart<'_>) -> Result<Element, String> {
    let mut element = Element { name: start.name().0.to_owned(), attributes: Vec::new() };
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        // Keep the raw value if it contains an unknown entity.
        let value = unescape_with(&attribute.value, resolve_predefined_entity)
            .unwrap_or(attribute.value.as_ref().into());
        element.attributes.push((attribute.key.0.to_owned(), value.into_owned()));
    }
    Ok(element)
}

/// The text of an entity or a character reference. An unknown one stays as written.
fn resolve(entity: &BytesRef<'_>) -> String {
    if let Ok(Some(c)) = entity.resolve_char_ref() {
        return c.to_string();
    }
    let name = entity.xml10_content();
    resolve_predefined_entity(&name).map_or_else(|| format!("&{name};"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_attributes_and_text_are_parsed() {
        let text = "<?xml version='1.0'?>\n<stream><!-- a < b -->\n<update name=\"a&amp;b\" \
                    edition='1:2-3'><summary>x &lt; &#65;&#x42; &odd; y</summary><license/></update>\
                    <![CDATA[<raw>]]></stream>";
        let events = parse_events(text).unwrap();
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
    fn truncated_document_is_an_error() {
        for cut in ["<stream><update name=\"a", "<stream><upd", "<a b>", "<!-- x", "</a", "<a b=c>"]
        {
            assert!(parse_events(cut).is_err(), "{cut}");
        }
        assert_eq!(parse_events("no element at all").unwrap(), []);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[<>/=\"'&;#!?a-c \\[\\]-]{0,60}") {
            let _ = parse_events(&text).map(|events| events.len());
        }
    }
}
