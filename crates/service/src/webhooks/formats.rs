//! The bodies of requests: Standard Webhooks, Slack and Microsoft Teams.

use serde_json::{Value, json};
use wire::v1::Event;

use crate::events::EventKind;

/// The maximum number of events that one chat message describes; it counts the others.
const LINES_MAX: usize = 10;

/// The format of the requests of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One request per event, with all of its fields.
    Standard,
    /// Messages for an incoming webhook of Slack.
    Slack,
    /// Messages for a workflow of Microsoft Teams.
    Teams,
}

impl Format {
    pub const ALL: [Format; 3] = [Format::Standard, Format::Slack, Format::Teams];
    pub const WORDS: [&'static str; 3] = ["standard", "slack", "teams"];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Format::Standard => "standard",
            Format::Slack => "slack",
            Format::Teams => "teams",
        }
    }

    pub fn parse(text: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.as_str() == text)
    }

    /// Whether one message can describe several events, so that people are not flooded.
    pub const fn combines_events(self) -> bool {
        match self {
            Format::Standard => false,
            Format::Slack | Format::Teams => true,
        }
    }
}

/// A request to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The `webhook-id`: the same when it is sent again.
    pub id: String,
    pub body: String,
}

impl Message {
    /// The message about these events; there is at least one.
    pub fn new(format: Format, events: &[Event]) -> Message {
        let id = events.first().map_or_else(String::new, |event| event.id.to_string());
        let body = match (format, events) {
            (Format::Standard, [event, ..]) => {
                json!({"type": event.kind, "timestamp": event.occurred_at, "data": event})
            }
            (Format::Standard, []) => Value::Null,
            (Format::Slack, events) => json!({"text": chat_text(events, slack_link)}),
            (Format::Teams, events) => json!({
                "type": "message",
                "attachments": [{
                    "contentType": "application/vnd.microsoft.card.adaptive",
                    "content": {
                        "type": "AdaptiveCard",
                        "version": "1.4",
                        "body": [{"type": "TextBlock", "wrap": true,
                            "text": chat_text(events, teams_link)}],
                    },
                }],
            }),
        };
        Message { id, body: body.to_string() }
    }
}

/// One line per event.
fn chat_text(events: &[Event], line: fn(&Event) -> String) -> String {
    let mut lines: Vec<String> = events.iter().take(LINES_MAX).map(line).collect();
    let more = events.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.push(format!("… and {more} more events"));
    }
    lines.join("\n\n")
}

/// What happened, in one sentence.
pub fn sentence(event: &Event) -> String {
    let mut text = format!("{}:", event.subject.name);
    // A test is not in the event log and has only a message.
    if let Some(kind) = EventKind::parse(&event.kind) {
        text.push_str(&format!(" {}", kind.description()));
    }
    for field in ["reason", "message"] {
        if let Some(detail) = event.data.get(field).and_then(Value::as_str) {
            let is_sentence = text.ends_with('.');
            text.truncate(text.trim_end_matches('.').len());
            let join = if is_sentence { ":" } else { "" };
            text.push_str(&format!("{join} {}", detail.replace('_', " ")));
        }
    }
    text.replace(breaks_line, " ")
}

/// Whether a character ends a line or changes the direction of the text after it: names come from
/// outside and must not change how the rest of a message looks.
fn breaks_line(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn is_absolute(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

fn slack_link(event: &Event) -> String {
    // The characters that Slack interprets.
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let text = escape(&sentence(event));
    match is_absolute(&event.url) {
        true => format!("{text} <{}|Show>", escape(&event.url)),
        false => text,
    }
}

fn teams_link(event: &Event) -> String {
    // The characters that Markdown interprets.
    let mut text = String::new();
    for c in sentence(event).chars() {
        if "\\`*_{}[]()#+!|<>".contains(c) {
            text.push('\\');
        }
        text.push(c);
    }
    match is_absolute(&event.url) {
        true => format!("{text} [Show]({})", event.url),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> Event {
        serde_json::from_value(json!({
            "id": "evt_01k9zq3c8efxr9w1m6t5y0b7a2", "sequence": 7, "type": "batch.halted",
            "occurred_at": "2026-11-18T03:00:00Z",
            "actor": {"type": "system", "id": "engine", "name": null},
            "subject": {"type": "batch", "id": "bat_1", "name": name},
            "environment": null, "data": {"reason": "canary_failed"},
            "url": "https://patch.example.com/batches/bat_1",
        }))
        .unwrap()
    }

    #[test]
    fn standard_body_contains_the_whole_event() {
        let message = Message::new(Format::Standard, &[event("Nightly")]);
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert_eq!(message.id, "evt_01k9zq3c8efxr9w1m6t5y0b7a2");
        assert_eq!(body["type"], "batch.halted");
        assert_eq!(body["data"], serde_json::to_value(event("Nightly")).unwrap());
    }

    #[test]
    fn names_cannot_format_or_link_in_a_chat_message() {
        let slack = Message::new(Format::Slack, &[event("<!channel> & <https://evil|x>")]).body;
        let slack: Value = serde_json::from_str(&slack).unwrap();
        assert_eq!(
            slack["text"],
            "&lt;!channel&gt; &amp; &lt;https://evil|x&gt;: A batch halted automatically, because servers \
             failed: canary failed <https://patch.example.com/batches/bat_1|Show>"
        );
        let teams = Message::new(Format::Teams, &[event("[x](https://evil)")]).body;
        assert!(teams.contains(r"\\[x\\]\\(https://evil\\)"), "{teams}");
    }

    #[test]
    fn names_cannot_change_the_rest_of_a_line() {
        let text = sentence(&event("a\u{202e}gnp.exe\nb\u{2066}"));
        assert!(text.starts_with("a gnp.exe b : A batch"), "{text:?}");
    }

    #[test]
    fn chat_message_counts_what_it_does_not_describe() {
        let events: Vec<Event> = (0..5_000).map(|_| event("Nightly")).collect();
        let body = Message::new(Format::Slack, &events).body;
        assert!(body.contains("and 4990 more events") && body.len() < 4_000, "{body}");
    }
}
