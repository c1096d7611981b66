//! Output formatting: tables that fit the terminal, colors with a meaning, relative times.
//!
//! On a terminal, a table is cut to its width and times are relative. When piped, nothing is cut,
//! columns are separated by tabs, times are absolute and there is no color, so that programs can
//! read it.

use std::fmt::Write as _;

use crate::output;

use jiff::Timestamp;
use service::clock::Clock;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};
use vocab::terminal::{escape_line, is_unsafe};

/// The properties of an output stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    /// Width in columns; none if the stream is not a terminal.
    pub(crate) width: Option<usize>,
    pub(crate) height: usize,
    pub(crate) color: bool,
    /// The current time, for relative times.
    pub(crate) now: Timestamp,
}

/// The meaning of a color.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Busy,
    Warning,
    Bad,
    Critical,
    /// Less important.
    Faint,
    Title,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    fit: Fit,
    right: bool,
}

/// What happens to a column when the terminal is too narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Full,
    Truncate,
    Omit,
}

/// A column that is always shown in full.
pub(crate) const fn full_column(title: &'static str) -> Column {
    Column { title, fit: Fit::Full, right: false }
}

/// A column that may be truncated.
pub(crate) const fn truncated_column(title: &'static str) -> Column {
    Column { title, fit: Fit::Truncate, right: false }
}

/// A column that may be omitted; the last such column is omitted first.
pub(crate) const fn optional_column(title: &'static str) -> Column {
    Column { title, fit: Fit::Omit, right: false }
}

impl Column {
    /// Right-aligns the column.
    pub(crate) const fn align_right(self) -> Column {
        Column { right: true, ..self }
    }
}

/// Preferred minimum width of a truncated column: before columns get narrower, optional columns are
/// omitted.
const TRUNCATED_WIDTH_PREFERRED: usize = 20;
/// Minimum width of a truncated column.
const TRUNCATED_WIDTH_MIN: usize = 8;
const GAP: &str = "  ";

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Cell {
        Cell { text: escape_cell(text.into()), tone }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn with_tone(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }
}

/// Escapes control characters and replaces line breaks, so that a name can neither control the
/// terminal nor break a line.
pub(crate) fn escape_cell(text: String) -> String {
    match text.contains(is_unsafe) {
        true => escape_line(&text.replace(['\n', '\t', '\r'], " ")).into_owned(),
        false => text,
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(value: T) -> Cell {
        Cell::new(value.to_string(), Tone::Plain)
    }
}

/// The cell for a missing value.
pub(crate) fn empty_cell() -> Cell {
    Cell::new("-", Tone::Faint)
}

/// A cell for an optional value.
pub(crate) fn optional_cell(value: Option<impl ToString>) -> Cell {
    value.map_or_else(empty_cell, Cell::from)
}

impl Screen {
    pub(crate) fn stdout() -> Screen {
        Screen::from_stream(&std::io::stdout())
    }

    pub(crate) fn stderr() -> Screen {
        Screen::from_stream(&std::io::stderr())
    }

    fn from_stream(stream: &(impl std::io::IsTerminal + std::os::fd::AsFd)) -> Screen {
        let terminal = stream.is_terminal();
        let size = terminal_size::terminal_size_of(stream).filter(|_| terminal);
        let (width, height) = size.map_or((80, 24), |(width, height)| (width.0, height.0));
        let set = |name: &str| std::env::var(name).unwrap_or_default();
        let colour = terminal && set("NO_COLOR").is_empty() && set("TERM") != "dumb";
        let width = terminal.then_some(usize::from(width).max(20));
        Screen { width, height: usize::from(height), color: colour, now: Clock::system().now() }
    }

    pub(crate) fn paint(&self, text: &str, tone: Tone) -> String {
        let code = match tone {
            _ if !self.color => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Busy => "34",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Critical => "1;31",
            Tone::Faint => "2",
            Tone::Title => "1",
        };
        format!("{}{text}{}", output::control(&format!("{code}m")), output::control("0m"))
    }

    /// Formats a time: relative on a terminal, absolute elsewhere.
    pub(crate) fn time(&self, at: Timestamp) -> Cell {
        match self.width {
            Some(_) => Cell::from(relative_time(at, self.now)),
            None => Cell::from(format!("{at:.0}")),
        }
    }

    pub(crate) fn optional_time(&self, at: Option<Timestamp>) -> Cell {
        at.map_or_else(empty_cell, |at| self.time(at))
    }

    /// Formats names and values, one pair per line.
    pub(crate) fn properties(&self, facts: &[(&str, Cell)]) -> String {
        let wide = facts.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, cell) in facts {
            let value = match self.width {
                Some(width) => truncate(&cell.text, width.saturating_sub(wide + GAP.len())),
                None => cell.text.clone(),
            };
            let name = match self.width {
                Some(_) => self.paint(&pad(name, wide, false), Tone::Faint) + GAP,
                None => format!("{name}\t"),
            };
            let _ = writeln!(text, "{name}{}", self.paint(&value, cell.tone));
        }
        text
    }

    pub(crate) fn table(&self, columns: &[Column], rows: &[Vec<Cell>]) -> String {
        Table::new(*self, columns).page(rows)
    }

    pub(crate) fn heading(&self, text: &str) -> String {
        format!("\n{}\n", self.paint(text, Tone::Title))
    }
}

/// A table printed page by page, each as soon as it arrives. The first page determines the column
/// widths.
pub(crate) struct Table {
    screen: Screen,
    columns: Vec<Column>,
    widths: Option<Vec<usize>>,
}

impl Table {
    pub(crate) fn new(screen: Screen, columns: &[Column]) -> Table {
        Table { screen, columns: columns.to_vec(), widths: None }
    }

    /// Formats the next rows; the first page includes the header.
    pub(crate) fn page(&mut self, rows: &[Vec<Cell>]) -> String {
        let first = self.widths.is_none();
        let widths = self.widths.take().unwrap_or_else(|| self.column_widths(rows));
        let mut text = String::new();
        if first {
            let titles: Vec<Cell> =
                self.columns.iter().map(|c| Cell::new(c.title, Tone::Title)).collect();
            self.line(&titles, &widths, &mut text);
        }
        for row in rows {
            self.line(row, &widths, &mut text);
        }
        self.widths = Some(widths);
        text
    }

    fn line(&self, row: &[Cell], widths: &[usize], text: &mut String) {
        let Some(_) = self.screen.width else {
            let cells: Vec<&str> = row.iter().map(|cell| cell.text.as_str()).collect();
            let _ = writeln!(text, "{}", cells.join("\t"));
            return;
        };
        let mut line = String::new();
        let shown = row.iter().zip(widths).zip(&self.columns).filter(|((_, width), _)| **width > 0);
        let last = shown.clone().count().saturating_sub(1);
        for (place, ((cell, width), column)) in shown.enumerate() {
            let cut = truncate(&cell.text, *width);
            // No trailing spaces.
            let wide = if place == last && !column.right { 0 } else { *width };
            let lead = if place == 0 { "" } else { GAP };
            line.push_str(lead);
            line.push_str(&self.screen.paint(&pad(&cut, wide, column.right), cell.tone));
        }
        let _ = writeln!(text, "{line}");
    }

    /// The width of each column; 0 means omitted.
    fn column_widths(&self, rows: &[Vec<Cell>]) -> Vec<usize> {
        let natural = |place: usize| {
            let cells = rows.iter().map(|row| row[place].text.width());
            cells.chain([self.columns[place].title.width()]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(natural).collect();
        let Some(max) = self.screen.width else { return widths };
        let total = |widths: &[usize]| {
            let shown = widths.iter().filter(|width| **width > 0).count();
            widths.iter().sum::<usize>() + GAP.len() * shown.saturating_sub(1)
        };
        let comfortable = |widths: &[usize]| {
            let cut = |(width, column): (&usize, &Column)| match column.fit {
                Fit::Truncate => TRUNCATED_WIDTH_PREFERRED.min(*width),
                _ => *width,
            };
            total(&widths.iter().zip(&self.columns).map(cut).collect::<Vec<_>>())
        };
        for place in (0..widths.len()).rev().filter(|p| self.columns[*p].fit == Fit::Omit) {
            if comfortable(&widths) > max {
                widths[place] = 0;
            }
        }
        // Shrink the widest column first. Shrink full columns only when no other can shrink, and
        // never numbers: half a number is a different number.
        for may_give in [Fit::Truncate, Fit::Full] {
            while total(&widths) > max {
                let gives = |place: &usize| {
                    let column = self.columns[*place];
                    column.fit == may_give && !column.right && widths[*place] > TRUNCATED_WIDTH_MIN
                };
                let widest = (0..widths.len()).filter(gives).max_by_key(|place| widths[*place]);
                let Some(widest) = widest else { break };
                widths[widest] -= 1;
            }
        }
        for place in (1..widths.len()).rev() {
            if total(&widths) > max {
                widths[place] = 0;
            }
        }
        widths
    }
}

fn pad(text: &str, width: usize, right: bool) -> String {
    let space = " ".repeat(width.saturating_sub(text.width()));
    if right { format!("{space}{text}") } else { format!("{text}{space}") }
}

/// Shortens text to a width, with an ellipsis if something is missing.
pub(crate) fn truncate(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut wide = 1;
    for c in text.chars() {
        wide += c.width().unwrap_or(0);
        if wide > width {
            break;
        }
        cut.push(c);
    }
    cut + "…"
}

/// A rough relative time, such as "2 h ago".
pub(crate) fn relative_time(at: Timestamp, now: Timestamp) -> String {
    let seconds = at.duration_since(now).as_secs();
    match seconds {
        -1..=1 => "now".to_owned(),
        2.. => format!("in {}", format_duration(seconds.unsigned_abs())),
        _ => format!("{} ago", format_duration(seconds.unsigned_abs())),
    }
}

/// A rough duration, such as "3 min".
pub(crate) fn format_duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A number with the singular or plural noun.
pub(crate) fn pluralize(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Formats a number with commas: `1,204`.
pub(crate) fn group_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests;
