//! Reads pages: their tables, and the CSV files that belong to them.

/// A table and its CSV file.
#[derive(Debug)]
pub(crate) struct Table {
    /// The nearest file link above the table, unless it belongs to an earlier table.
    pub(crate) file: Option<FileLink>,
    pub(crate) heads: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// How a page offers a file for download.
#[derive(Debug, Clone)]
pub(crate) enum FileLink {
    /// By a link.
    Link(String),
    /// By a form with these fields.
    Form(String, Vec<(String, String)>),
}

impl FileLink {
    pub(crate) fn path(&self) -> &str {
        let (FileLink::Link(path) | FileLink::Form(path, _)) = self;
        path
    }
}

/// The text between two markers.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    text.split_once(start)?.1.split_once(end).map(|(inner, _)| inner)
}

fn unescape(text: &str) -> String {
    let marks = [("&#60;", "<"), ("&#62;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&#38;", "&")];
    let text = text.replace("&amp;", "&");
    marks.iter().fold(text, |text, (mark, meant)| text.replace(mark, meant))
}

/// The text of some markup. Times are replaced by their exact values.
fn text_of(markup: &str) -> String {
    let mut text = String::new();
    let mut rest = markup;
    while let Some((before, tag)) = rest.split_once('<') {
        text += before;
        let (tag, after) = tag.split_once('>').unwrap();
        rest = after;
        if tag.starts_with("time ") {
            text += between(tag, "datetime=\"", "\"").unwrap();
            rest = after.split_once("</time>").unwrap().1;
        }
    }
    unescape(&(text + rest)).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cells of a row, or the headings.
fn cells(row: &str, tag: &str) -> Vec<String> {
    let mut rest = row;
    let mut found = Vec::new();
    while let Some((_, cell)) = rest.split_once(&format!("<{tag}")) {
        rest = cell;
        // `<thead` also starts with `<th`.
        if cell.starts_with(['>', ' ']) {
            let (cell, after) = cell.split_once(&format!("</{tag}>")).unwrap();
            found.push(text_of(cell.split_once('>').unwrap().1));
            rest = after;
        }
    }
    found
}

/// The fields of a form as a browser sends them without a named button.
pub(crate) fn fields(form: &str) -> Vec<(String, String)> {
    let attribute =
        |tag: &str, name| unescape(between(tag, &format!(" {name}=\""), "\"").unwrap_or(""));
    let mut found = Vec::new();
    let mut select = String::new();
    for piece in form.split('<').skip(1) {
        let tag = piece.split_once('>').map_or(piece, |(tag, _)| tag);
        let kind = attribute(tag, "type");
        let is_on = !matches!(kind.as_str(), "checkbox" | "radio") || tag.ends_with(" checked");
        if tag.starts_with("input ") && is_on {
            found.push((attribute(tag, "name"), attribute(tag, "value")));
        } else if tag.starts_with("select ") {
            select = attribute(tag, "name");
        } else if tag.starts_with("option ") && tag.ends_with(" selected") {
            found.push((select.clone(), attribute(tag, "value")));
        }
    }
    found
}

/// The form that contains this position of the page.
pub(crate) fn form_around(page: &str, at: usize) -> &str {
    let start = page[..at].rfind("<form ").unwrap();
    page[start..].split_once("</form>").unwrap().0
}

/// The tables of a page in order.
pub(crate) fn tables(page: &str) -> Vec<Table> {
    let mut files: Vec<FileLink> = Vec::new();
    let mut found = Vec::new();
    for piece in page.split('<') {
        let at = piece.as_ptr() as usize - page.as_ptr() as usize;
        let rest = &page[at..];
        if piece.starts_with("a ")
            && let Some(path) = between(piece, "href=\"", "\"")
            && path.contains(".csv")
        {
            files.push(FileLink::Link(unescape(path)));
        } else if piece.starts_with("button ")
            && let Some(path) = between(piece, "formaction=\"", "\"")
        {
            files.push(FileLink::Form(unescape(path), fields(form_around(page, at))));
        } else if piece.starts_with("table") {
            let table = rest.split_once("</table>").unwrap().0;
            let (head, body) = table.split_once("<tbody>").unwrap();
            let rows = body.split("<tr").skip(1).map(|row| cells(row, "td")).collect();
            found.push(Table { file: files.pop(), heads: cells(head, "th"), rows });
        }
    }
    found
}

/// The lines of a CSV file, split into cells (RFC 4180).
pub(crate) fn csv(text: &str) -> Vec<Vec<String>> {
    let (mut lines, mut line, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut quoted = false;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if quoted && rest.peek() == Some(&'"') => cell.push(rest.next().unwrap()),
            '"' => quoted = !quoted,
            ',' if !quoted => line.push(std::mem::take(&mut cell)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                line.push(std::mem::take(&mut cell));
                lines.push(std::mem::take(&mut line));
            }
            c => cell.push(c),
        }
    }
    assert!(cell.is_empty() && line.is_empty() && !quoted, "{text}");
    lines
}
