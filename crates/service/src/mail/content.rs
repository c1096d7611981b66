//! The content of a message, written once and rendered as text and as HTML.
//!
//! Names of servers and people come from outside, so everything is escaped in HTML. Mail programs
//! support little of HTML: the layout is one column, and colors are also set for dark mode.

/// The body of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pub title: String,
    pub blocks: Vec<Block>,
    /// Small print: why the person gets the message, and how to stop it.
    pub footer: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    Heading(String),
    Paragraph(String),
    /// The link that the message is about.
    Button(Line),
    List(Vec<Line>),
    /// Numbers, and what they count.
    Counts(Vec<(u64, String)>),
}

/// A line of text, which may be a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    pub url: Option<String>,
    /// Before the text, such as a time.
    pub label: Option<String>,
    /// Whether it is a problem. It is marked.
    pub is_problem: bool,
}

impl Line {
    pub fn new(text: impl Into<String>) -> Line {
        // Names come from outside and must not begin a line of their own.
        Line { text: text.into().replace(char::is_control, " "), ..Line::default() }
    }

    pub fn link(text: impl Into<String>, url: impl Into<String>) -> Line {
        Line { url: Some(url.into()), ..Line::new(text) }
    }
}

const STYLE: &str = "\
body{margin:0;padding:24px 12px;background:#f3f4f6;color:#16191d;\
font:15px/1.5 -apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}\
.card{max-width:600px;margin:0 auto;background:#fff;border:1px solid #dfe2e6;border-radius:8px;\
padding:24px}\
.brand{margin:0 0 16px;font-size:13px;font-weight:600;color:#5a6470}\
h1{margin:0 0 12px;font-size:20px;line-height:1.3}h2{margin:24px 0 8px;font-size:15px}\
p{margin:0 0 12px}ul{margin:0;padding:0;list-style:none}\
li{padding:7px 0;border-top:1px solid #e8eaed;overflow-wrap:anywhere}li:first-child{border-top:0}\
a{color:#0b5fb0}.label,.foot{color:#5a6470;font-size:13px}.label{margin-right:6px}\
.problem{color:#b3261e;font-weight:600;margin-right:6px}\
.button{display:inline-block;padding:9px 16px;border-radius:6px;background:#0b5fb0;color:#fff;\
text-decoration:none;font-weight:600}\
td{padding:3px 12px 3px 0;vertical-align:top}td.n{text-align:right;font-weight:600;white-space:nowrap}\
.foot{max-width:600px;margin:16px auto 0;padding:0 12px}.foot p{margin:0 0 4px}\
@media (prefers-color-scheme:dark){body{background:#101317;color:#e6e8eb}\
.card{background:#191d23;border-color:#2c323a}li{border-color:#2c323a}\
a{color:#7db8f5}.label,.foot,.brand{color:#9aa4b0}.problem{color:#ff8a80}\
.button{background:#7db8f5;color:#101317}}";

impl Content {
    /// As text, for mail programs that show no HTML.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.title, "=".repeat(self.title.chars().count()));
        for block in &self.blocks {
            out.push('\n');
            match block {
                Block::Heading(text) => {
                    out.push_str(&format!("{text}\n{}\n", "-".repeat(text.chars().count())));
                }
                Block::Paragraph(text) => out.push_str(&format!("{text}\n")),
                Block::Button(line) => out.push_str(&text_line(line, "")),
                Block::List(lines) => {
                    lines.iter().for_each(|line| out.push_str(&text_line(line, "- ")));
                }
                Block::Counts(rows) => {
                    for (count, text) in rows {
                        out.push_str(&format!("{count:>6}  {text}\n"));
                    }
                }
            }
        }
        out.push_str("\n-- \n");
        self.footer.iter().for_each(|line| out.push_str(&text_line(line, "")));
        out
    }

    pub fn html(&self) -> String {
        let mut body = format!("<h1>{}</h1>", escape(&self.title));
        for block in &self.blocks {
            match block {
                Block::Heading(text) => body.push_str(&format!("<h2>{}</h2>", escape(text))),
                Block::Paragraph(text) => body.push_str(&format!("<p>{}</p>", escape(text))),
                Block::Button(line) => {
                    body.push_str(&format!("<p>{}</p>", html_line(line, Some("button"))));
                }
                Block::List(lines) => {
                    let row = |line: &Line| format!("<li>{}</li>", html_line(line, None));
                    body.push_str(&format!(
                        "<ul>{}</ul>",
                        lines.iter().map(row).collect::<String>()
                    ));
                }
                Block::Counts(rows) => {
                    let row = |(count, text): &(u64, String)| {
                        format!("<tr><td class=\"n\">{count}</td><td>{}</td></tr>", escape(text))
                    };
                    body.push_str(&format!(
                        "<table role=\"presentation\">{}</table>",
                        rows.iter().map(row).collect::<String>()
                    ));
                }
            }
        }
        let small = |line: &Line| format!("<p>{}</p>", html_line(line, None));
        let footer: String = self.footer.iter().map(small).collect();
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{}</title>\
             <style>{STYLE}</style></head><body><div class=\"card\">\
             <p class=\"brand\">Fleetmend</p>{body}</div><div class=\"foot\">{footer}</div>\
             </body></html>\n",
            escape(&self.title)
        )
    }
}

fn text_line(line: &Line, bullet: &str) -> String {
    let mut text = bullet.to_owned();
    if line.is_problem {
        text.push_str("! ");
    }
    if let Some(label) = &line.label {
        text.push_str(&format!("{label}  "));
    }
    text.push_str(&line.text);
    match &line.url {
        Some(url) => format!("{text}\n{}{url}\n", " ".repeat(bullet.len())),
        None => format!("{text}\n"),
    }
}

fn html_line(line: &Line, class: Option<&str>) -> String {
    let mut html = String::new();
    if line.is_problem {
        html.push_str("<span class=\"problem\" title=\"problem\">!</span>");
    }
    if let Some(label) = &line.label {
        html.push_str(&format!("<span class=\"label\">{}</span>", escape(label)));
    }
    let class = class.map(|class| format!(" class=\"{class}\"")).unwrap_or_default();
    match &line.url {
        Some(url) => {
            html.push_str(&format!(
                "<a{class} href=\"{}\">{}</a>",
                escape(url),
                escape(&line.text)
            ));
        }
        None => html.push_str(&escape(&line.text)),
    }
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_in_both_forms_and_escaped_in_html() {
        let content = Content {
            title: "A <b>title</b>".into(),
            blocks: vec![
                Block::Heading("Heading".into()),
                Block::Paragraph("Paragraph & more".into()),
                Block::Button(Line::link("Open", "https://patch.example.org/?a=1&b=\"")),
                Block::List(vec![Line {
                    label: Some("Tue 03:00".into()),
                    is_problem: true,
                    ..Line::link("<script>", "https://patch.example.org/servers")
                }]),
                Block::Counts(vec![(12, "tasks".into())]),
            ],
            footer: vec![Line::new("Why")],
        };
        let (text, html) = (content.text(), content.html());
        assert_eq!(
            text,
            "A <b>title</b>\n==============\n\nHeading\n-------\n\nParagraph & more\n\nOpen\n\
             https://patch.example.org/?a=1&b=\"\n\n- ! Tue 03:00  <script>\n  \
             https://patch.example.org/servers\n\n    12  tasks\n\n-- \nWhy\n"
        );
        assert!(!html.contains("<script>") && !html.contains("<b>"), "{html}");
        for part in [
            "&lt;script&gt;",
            "a=1&amp;b=&quot;\">Open",
            "Tue 03:00",
            "Paragraph &amp; more",
            "<td class=\"n\">12</td><td>tasks</td>",
            "Why",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }
}
