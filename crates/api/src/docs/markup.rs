//! HTML of prose, JSON and commands. Everything that is inserted is escaped here.

use std::fmt::{self, Write as _};

use serde_json::Value;

/// HTML that is safe to insert into a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Markup(String);

impl fmt::Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Markup {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn text(text: &str) -> Markup {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&quot;"),
                '\'' => out.push_str("&#39;"),
                c => out.push(c),
            }
        }
        Markup(out)
    }

    /// A link to an element of the page.
    pub(crate) fn link(target: &str, text: &str) -> Markup {
        Markup(format!("<a href=\"#{}\">{}</a>", Markup::text(target), Markup::text(text)))
    }

    pub(crate) fn code(text: &str) -> Markup {
        Markup(format!("<code>{}</code>", Markup::text(text)))
    }

    pub(crate) fn join(parts: &[Markup], separator: &str) -> Markup {
        let parts: Vec<&str> = parts.iter().map(|part| part.0.as_str()).collect();
        Markup(parts.join(&Markup::text(separator).0))
    }

    /// Paragraphs, with code between backticks.
    pub(crate) fn prose(text: &str) -> Markup {
        let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty());
        Markup(paragraphs.map(|paragraph| format!("<p>{}</p>", inline(paragraph))).collect())
    }

    /// A path with its parameters marked.
    pub(crate) fn path(path: &str) -> Markup {
        Markup(Markup::text(path).0.replace('{', "<em>{").replace('}', "}</em>"))
    }

    /// Indented JSON, with keys and values marked for the stylesheet.
    pub(crate) fn json(value: &Value) -> Markup {
        let mut out = String::new();
        write_json(&mut out, value, 0);
        Markup(out)
    }

    /// A command for a shell that sends a request.
    pub(crate) fn curl(method: &str, url: &str, with_key: bool, body: Option<&Value>) -> Markup {
        let method =
            if method == "get" { String::new() } else { format!("-X {} ", method.to_uppercase()) };
        // The script replaces the variable with the address of the service.
        let mut out = format!(
            "curl {}\"<span data-origin>$FLEETMEND_URL</span>{}\"",
            Markup::text(&method),
            Markup::text(url)
        );
        if with_key {
            out.push_str(" \\\n  -H \"Authorization: Bearer $FLEETMEND_API_KEY\"");
        }
        if let Some(body) = body {
            let json = Markup::json(body).0.replace("&#39;", "&#39;\\&#39;&#39;");
            let _ = write!(
                out,
                " \\\n  -H \"Content-Type: application/json\" \\\n  -d '<span data-body>{json}</span>'"
            );
        }
        Markup(out)
    }
}

/// Text with code between backticks. A backtick without a second one is text.
fn inline(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let mut out = String::new();
    for (place, part) in parts.iter().enumerate() {
        let part = Markup::text(part).0;
        let closed = place + 1 < parts.len();
        match (place % 2, closed) {
            (0, _) => out.push_str(&part),
            (_, true) => {
                let _ = write!(out, "<code>{part}</code>");
            }
            (_, false) => {
                let _ = write!(out, "`{part}");
            }
        }
    }
    out
}

fn write_json(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            write_items(out, ['{', '}'], depth, fields, |out, (name, value)| {
                let name = Markup::text(&Value::from(name.as_str()).to_string());
                let _ = write!(out, "<b>{name}</b>: ");
                write_json(out, value, depth + 1);
            });
        }
        Value::Array(items) if !items.is_empty() => {
            write_items(out, ['[', ']'], depth, items, |out, item| {
                write_json(out, item, depth + 1);
            });
        }
        Value::String(_) => {
            let _ = write!(out, "<i>{}</i>", Markup::text(&value.to_string()));
        }
        value => out.push_str(&Markup::text(&value.to_string()).0),
    }
}

fn write_items<I: IntoIterator>(
    out: &mut String,
    [open, close]: [char; 2],
    depth: usize,
    items: I,
    mut write: impl FnMut(&mut String, I::Item),
) {
    out.push(open);
    for (place, item) in items.into_iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(out, "{comma}\n{}", "  ".repeat(depth + 1));
        write(out, item);
    }
    let _ = write!(out, "\n{}{close}", "  ".repeat(depth));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prose_has_paragraphs_and_code() {
        let prose = Markup::prose("Use `a < b`.\n\nOne ` remains.");
        assert_eq!(prose.0, "<p>Use <code>a &lt; b</code>.</p><p>One ` remains.</p>");
    }

    #[test]
    fn marked_json_is_the_json_of_its_value() {
        let value = json!({"a": [1, "<b>", null, {}], "b": {"c": "it's"}, "d": []});
        let text = Markup::json(&value).0;
        let text =
            ["<b>", "</b>", "<i>", "</i>"].iter().fold(text, |text, tag| text.replace(tag, ""));
        let plain = serde_json::to_string_pretty(&value).unwrap();
        assert_eq!(text, Markup::text(&plain).0);
    }

    #[test]
    fn quotes_in_a_body_do_not_end_the_argument() {
        let command = Markup::curl("post", "/v1/x", true, Some(&json!("it's"))).0;
        assert!(command.ends_with("<i>&quot;it&#39;\\&#39;&#39;s&quot;</i></span>'"), "{command}");
    }
}
