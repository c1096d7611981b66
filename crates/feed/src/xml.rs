//! Reads XML event by event, with limits on the size of an event, the depth and the attributes.
//!
//! Document type declarations are refused, so there are no entities to expand. `updateinfo` and
//! `repomd` interpret the events.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use quick_xml::Reader;
use quick_xml::errors::SyntaxError;
use quick_xml::escape::{resolve_predefined_entity, unescape_with};
use quick_xml::events::{BytesRef, BytesStart, Event};

use crate::error::{FeedError, FeedLocation};
use crate::limits::{Limit, XML_EVENT_BYTES_MAX};
use crate::text;

/// Maximum depth of elements. Real documents have six levels.
const DEPTH_MAX: usize = 32;
/// Maximum attributes of one element. Real elements have up to eight.
const ATTRIBUTES_MAX: usize = 64;
/// Maximum bytes of text that are kept of one element.
const TEXT_BYTES_MAX: usize = 4_096;

/// What a document consists of, as far as it matters here.
pub(crate) enum XmlEvent {
    Open(Element),
    /// The end of an element with this name, and its text, without that of its children.
    Close(String, String),
}

pub(crate) struct Element {
    pub(crate) name: String,
    attributes: Vec<(String, String)>,
}

impl Element {
    /// The value of an attribute, if the element has it and it is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }
}

pub(crate) struct XmlReader<'a> {
    reader: Reader<CappedReader<'a>>,
    location: &'a FeedLocation,
    buffer: Vec<u8>,
    /// The text of each open element.
    texts: Vec<String>,
    has_root: bool,
}

/// Why a part of a document was refused. The caller knows the number of the record.
enum Refusal {
    Io(io::Error),
    Truncated,
    Invalid(String),
    Limit(Limit),
}

impl<'a> XmlReader<'a> {
    pub(crate) fn new(input: &'a mut dyn BufRead, location: &'a FeedLocation) -> Self {
        let mut reader = Reader::from_reader(CappedReader { inner: input, left: 0 });
        reader.config_mut().expand_empty_elements = true;
        XmlReader { reader, location, buffer: Vec::new(), texts: Vec::new(), has_root: false }
    }

    /// The next event, or `None` at the end of a complete document. `record` is the number of the
    /// record for error messages.
    pub(crate) fn next(&mut self, record: u64) -> Result<Option<XmlEvent>, FeedError> {
        self.next_event().map_err(|refusal| match refusal {
            Refusal::Io(source) => match Limit::from_io_error(&source) {
                Some(Limit::XmlEventBytes) => self.location.too_large(record, Limit::XmlEventBytes),
                _ => self.location.read_error(source),
            },
            Refusal::Truncated => FeedError::Truncated { place: self.location.clone() },
            Refusal::Invalid(why) => self.location.invalid_record(record, why),
            Refusal::Limit(limit) => self.location.too_large(record, limit),
        })
    }

    fn next_event(&mut self) -> Result<Option<XmlEvent>, Refusal> {
        loop {
            self.buffer.clear();
            self.reader.get_mut().left = XML_EVENT_BYTES_MAX;
            let event = self.reader.read_event_into(&mut self.buffer).map_err(refusal)?;
            match event {
                Event::Start(start) => {
                    if self.texts.len() == DEPTH_MAX {
                        return Err(Refusal::Limit(Limit::Count(DEPTH_MAX, "levels of XML")));
                    }
                    if self.texts.is_empty() && self.has_root {
                        return Err(Refusal::Invalid(
                            "content after the end of the document".into(),
                        ));
                    }
                    self.has_root = true;
                    self.texts.push(String::new());
                    return parse_element(&start).map(|element| Some(XmlEvent::Open(element)));
                }
                Event::End(end) => {
                    let text = self.texts.pop().unwrap_or_default();
                    return Ok(Some(XmlEvent::Close(end.name().0.to_owned(), text)));
                }
                Event::Text(part) => append(&mut self.texts, &part.xml10_content()),
                Event::CData(part) => append(&mut self.texts, &part.xml10_content()),
                Event::GeneralRef(entity) => append(&mut self.texts, &resolve(&entity)?),
                Event::DocType(_) => {
                    return Err(Refusal::Invalid(
                        "a document type declaration is not allowed".into(),
                    ));
                }
                Event::Eof if self.texts.is_empty() && self.has_root => return Ok(None),
                Event::Eof => return Err(Refusal::Truncated),
                _ => {}
            }
        }
    }
}

/// Appends to the text of the innermost element, up to [`TEXT_BYTES_MAX`]: descriptions are long,
/// and nobody reads them.
fn append(texts: &mut [String], part: &str) {
    let Some(text) = texts.last_mut() else { return };
    let room = TEXT_BYTES_MAX.saturating_sub(text.len());
    text.push_str(&part[..part.floor_char_boundary(room)]);
}

fn parse_element(start: &BytesStart<'_>) -> Result<Element, Refusal> {
    let mut element = Element { name: start.name().0.to_owned(), attributes: Vec::new() };
    // Without the check for duplicates, which takes quadratic time.
    for attribute in start.attributes().with_checks(false) {
        let attribute = attribute.map_err(|error| invalid(&error.to_string()))?;
        if element.attributes.len() == ATTRIBUTES_MAX {
            return Err(Refusal::Limit(Limit::Count(ATTRIBUTES_MAX, "XML attributes")));
        }
        let value = unescape_with(&attribute.value, resolve_predefined_entity)
            .map_err(|error| invalid(&error.to_string()))?;
        element.attributes.push((attribute.key.0.to_owned(), value.into_owned()));
    }
    Ok(element)
}

fn resolve(entity: &BytesRef<'_>) -> Result<String, Refusal> {
    if let Ok(Some(c)) = entity.resolve_char_ref() {
        return Ok(c.to_string());
    }
    let name = entity.xml10_content();
    let known = resolve_predefined_entity(&name).map(str::to_owned);
    known.ok_or_else(|| invalid(&format!("unknown entity `{name}`")))
}

fn invalid(why: &str) -> Refusal {
    Refusal::Invalid(format!(
        "invalid XML: {}",
        why.chars().take(200).flat_map(char::escape_debug).collect::<String>()
    ))
}

fn refusal(error: quick_xml::Error) -> Refusal {
    match error {
        quick_xml::Error::Io(error) => {
            let kind = error.kind();
            Refusal::Io(Arc::into_inner(error).unwrap_or_else(|| kind.into()))
        }
        // Every other syntax error is something that the document does not end.
        quick_xml::Error::Syntax(error) if error != SyntaxError::InvalidBangMarkup => {
            Refusal::Truncated
        }
        error => invalid(&error.to_string()),
    }
}

/// A reader that fails once an event needs more bytes than allowed. quick-xml keeps a whole event
/// in memory.
struct CappedReader<'a> {
    inner: &'a mut dyn BufRead,
    left: usize,
}

impl Read for CappedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for CappedReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let buffer = self.inner.fill_buf()?;
        match (self.left, buffer.is_empty()) {
            (0, false) => Err(Limit::XmlEventBytes.into()),
            (left, _) => Ok(&buffer[..buffer.len().min(left)]),
        }
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        self.left = self.left.saturating_sub(amount);
    }
}

/// An excerpt of untrusted text, for messages.
pub(crate) fn quote(text: &str) -> String {
    format!("`{}`", text::excerpt(text))
}
