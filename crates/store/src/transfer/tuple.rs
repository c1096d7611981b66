//! The binary format of PostgreSQL's `COPY`: rows as bytes, the same for both engines.
//!
//! A row is the number of its values (two bytes), and for each value its length (four bytes, -1 for
//! null) and its bytes. Numbers are big-endian; times are microseconds since the year 2000.

use sqlx::Row as _;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Sqlite, query::Query};

use crate::error::{Cause, Result, StoreError};
use crate::migrate::{Column, ColumnType, Table};
use crate::row::EPOCH_2000_MICROS;

/// The signature, no flags, and a header extension of no bytes.
pub(super) const HEADER: [u8; 19] = *b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// The end of the rows: a row of -1 values.
pub(super) const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();

const COUNT_BYTES: usize = size_of::<i16>();
const LENGTH_BYTES: usize = size_of::<i32>();

/// Appends a row of SQLite.
pub(super) fn encode(row: &SqliteRow, table: &Table, out: &mut Vec<u8>) -> Result<()> {
    let count = i16::try_from(table.columns.len()).map_err(|error| corrupt(table, error))?;
    out.extend_from_slice(&count.to_be_bytes());
    for (place, column) in table.columns.iter().enumerate() {
        let number = || row.try_get::<Option<i64>, _>(place);
        let value = match column.kind {
            ColumnType::Text => {
                row.try_get::<Option<&str>, _>(place).map(|text| put(text.map(str::as_bytes), out))
            }
            ColumnType::Bytes => {
                row.try_get::<Option<&[u8]>, _>(place).map(|bytes| put(bytes, out))
            }
            ColumnType::Int => number().map(|n| put(n.map(i64::to_be_bytes), out)),
            ColumnType::Bool => number().map(|n| put(n.map(|n| [u8::from(n != 0)]), out)),
            ColumnType::Time => number().map(|n| {
                let since_2000 = n.map(|n| n.saturating_sub(EPOCH_2000_MICROS));
                put(since_2000.map(i64::to_be_bytes), out);
            }),
        };
        value.map_err(|error| corrupt(table, error))?;
    }
    Ok(())
}

fn put(value: Option<impl AsRef<[u8]>>, out: &mut Vec<u8>) {
    let Some(value) = value else { return out.extend_from_slice(&(-1_i32).to_be_bytes()) };
    let value = value.as_ref();
    // SQLite's own limit for a value is one gigabyte.
    let length = i32::try_from(value.len()).unwrap_or(i32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(value);
}

/// Binds the values of a row to a statement of SQLite.
pub(super) fn bind<'q>(
    mut query: Query<'q, Sqlite, SqliteArguments>,
    row: &[u8],
    table: &Table,
) -> Result<Query<'q, Sqlite, SqliteArguments>> {
    let mut rest = row.get(COUNT_BYTES..).unwrap_or_default();
    for Column { kind, .. } in &table.columns {
        let (value, more) = take_value(rest).ok_or_else(|| corrupt(table, "it is cut off"))?;
        rest = more;
        let number = || -> Result<Option<i64>> {
            let Some(value) = value else { return Ok(None) };
            let bytes = value.try_into().map_err(|error| corrupt(table, error))?;
            Ok(Some(i64::from_be_bytes(bytes)))
        };
        query = match kind {
            ColumnType::Text => {
                let text = value.map(std::str::from_utf8).transpose();
                query.bind(text.map_err(|error| corrupt(table, error))?.map(str::to_owned))
            }
            ColumnType::Bytes => query.bind(value.map(<[u8]>::to_vec)),
            ColumnType::Int => query.bind(number()?),
            ColumnType::Bool => query.bind(value.map(|value| value != [0])),
            ColumnType::Time => {
                query.bind(number()?.map(|micros| micros.saturating_add(EPOCH_2000_MICROS)))
            }
        };
    }
    Ok(query)
}

fn corrupt(table: &Table, source: impl Into<Cause>) -> StoreError {
    StoreError::Corrupt { table: table.name, id: "?".to_owned(), source: source.into() }
}

/// The next value and the bytes after it; `None` if it is cut off.
fn take_value(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    // A negative length is null.
    let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
        return Some((None, rest));
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((Some(value), rest))
}

/// The bytes of the next row; `None` if it is cut off.
fn row_length(bytes: &[u8]) -> Option<usize> {
    let (count, mut rest) = bytes.split_first_chunk::<COUNT_BYTES>()?;
    for _ in 0..i16::from_be_bytes(*count) {
        rest = take_value(rest)?.1;
    }
    Some(bytes.len() - rest.len())
}

/// The rows of a chunk, which contains only whole ones.
pub(super) fn split(mut chunk: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (row, rest) = chunk.split_at_checked(row_length(chunk)?)?;
        chunk = rest;
        Some(row)
    })
}

/// Splits the output of `COPY` into rows, however it was cut into pieces.
#[derive(Default)]
pub(super) struct Splitter {
    bytes: Vec<u8>,
    /// The start of the bytes that were not returned yet.
    start: usize,
    has_header: bool,
    ended: bool,
}

pub(super) enum Next<'b> {
    Tuple(&'b [u8]),
    /// More bytes are needed, or none will come.
    None,
}

impl Splitter {
    pub(super) fn add(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(piece);
    }

    pub(super) fn next(&mut self) -> Next<'_> {
        if !self.has_header {
            if self.bytes.len() < HEADER.len() {
                return Next::None;
            }
            // The header has a separate length, which PostgreSQL leaves at 0.
            self.has_header = true;
            self.start = HEADER.len();
        }
        let rest = &self.bytes[self.start..];
        if self.ended || rest.starts_with(&TRAILER) {
            self.ended = true;
            return Next::None;
        }
        let Some(length) = row_length(rest) else { return Next::None };
        let start = self.start;
        self.start += length;
        Next::Tuple(&self.bytes[start..self.start])
    }

    /// Checks that the rows are complete.
    pub(super) fn finish(&self, table: &'static str) -> Result<()> {
        match self.ended {
            true => Ok(()),
            false => {
                let source = "PostgreSQL's output ends too early".into();
                Err(StoreError::Corrupt { table, id: "?".to_owned(), source })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_wherever_the_output_is_cut() {
        let mut rows = Vec::new();
        for number in 0..3_i64 {
            let mut row = 3_i16.to_be_bytes().to_vec();
            put(Some(number.to_be_bytes()), &mut row);
            put(None::<[u8; 0]>, &mut row);
            put(Some(vec![0xff; 5]), &mut row);
            rows.push(row);
        }
        let output = [&HEADER[..], &rows.concat(), &TRAILER].concat();
        for size in 1..output.len() {
            let (mut splitter, mut found) = (Splitter::default(), Vec::new());
            for piece in output.chunks(size) {
                assert!(splitter.finish("t").is_err());
                splitter.add(piece);
                while let Next::Tuple(row) = splitter.next() {
                    found.push(row.to_vec());
                }
            }
            assert_eq!(found, rows, "{size}");
            splitter.finish("t").unwrap();
        }
        assert_eq!(split(&rows.concat()).collect::<Vec<_>>(), rows);
    }
}
