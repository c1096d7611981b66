//! Reads the tables and columns from the texts of the migrations, so that nothing else has to list
//! them.
//!
//! It understands the statements that migrations use to create, change and drop tables. A test
//! compares the result with the catalogs of both engines.

/// A table, with its columns in the order of their creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: Vec<Column>,
    /// The columns of the primary key.
    pub(crate) key: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: ColumnType,
}

/// What a column contains, independent of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Text,
    Int,
    Bool,
    Bytes,
    Time,
}

impl ColumnType {
    const ALL: [ColumnType; 5] =
        [ColumnType::Text, ColumnType::Int, ColumnType::Bool, ColumnType::Bytes, ColumnType::Time];

    /// The placeholder that stands for it in a migration.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            ColumnType::Text => "{{text}}",
            ColumnType::Int => "{{int}}",
            ColumnType::Bool => "{{bool}}",
            ColumnType::Bytes => "{{bytes}}",
            ColumnType::Time => "{{time}}",
        }
    }
}

/// The tables that exist after these migrations, in the order of their creation.
pub(super) fn read(texts: impl Iterator<Item = &'static str>) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for text in texts {
        let words = words(text);
        for statement in words.split(|word| *word == ";") {
            match statement {
                ["create", "table", "if", "not", "exists", name, rest @ ..]
                | ["create", "table", name, rest @ ..] => tables.push(table(name, rest)),
                ["drop", "table", name] => tables.retain(|table| table.name != *name),
                ["alter", "table", name, change @ ..] => {
                    let changed = tables.iter_mut().find(|table| table.name == *name);
                    changed.into_iter().for_each(|table| alter(table, change));
                }
                _ => {}
            }
        }
    }
    tables
}

/// Splits a text into words and punctuation, without comments.
fn words(text: &'static str) -> Vec<&'static str> {
    let mut words = Vec::new();
    for line in text.lines() {
        let mut rest = line.split("--").next().unwrap_or_default();
        loop {
            rest = rest.trim_start();
            let Some(first) = rest.chars().next() else { break };
            let is_separator = |c: char| c.is_whitespace() || "(),;".contains(c);
            let end = match is_separator(first) {
                true => first.len_utf8(),
                false => rest.find(is_separator).unwrap_or(rest.len()),
            };
            let (word, more) = rest.split_at(end);
            words.push(word);
            rest = more;
        }
    }
    words
}

/// Reads `( column kind …, … ) …`.
fn table(name: &'static str, definition: &[&'static str]) -> Table {
    let mut table = Table { name, columns: Vec::new(), key: Vec::new() };
    let (mut depth, mut start) = (0_usize, 0);
    for (place, word) in definition.iter().enumerate() {
        match *word {
            "(" => {
                depth += 1;
                start = if depth == 1 { place + 1 } else { start };
            }
            "," if depth == 1 => {
                add(&mut table, &definition[start..place]);
                start = place + 1;
            }
            ")" if depth == 1 => {
                add(&mut table, &definition[start..place]);
                return table;
            }
            ")" => depth -= 1,
            _ => {}
        }
    }
    table
}

/// Adds a column, or the primary key.
fn add(table: &mut Table, definition: &[&'static str]) {
    match definition {
        ["primary", "key", "(", columns @ .., ")"] => {
            table.key = columns.iter().copied().filter(|word| *word != ",").collect();
        }
        [name, word, rest @ ..] => {
            let Some(kind) = ColumnType::ALL.into_iter().find(|kind| kind.word() == *word) else {
                return;
            };
            table.columns.push(Column { name, kind });
            if rest.starts_with(&["primary", "key"]) {
                table.key = vec![name];
            }
        }
        _ => {}
    }
}

fn alter(table: &mut Table, change: &[&'static str]) {
    match change {
        ["add", "column", definition @ ..] => add(table, definition),
        ["drop", "column", name] => table.columns.retain(|column| column.name != *name),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_migrations_change_the_tables_of_earlier_ones() {
        let first = "-- create table no (x {{int}});\ncreate table a (\n    id {{text}} primary key,\n\
                     -- One; two.\n    at {{time}} not null, gone {{bool}}\n) {{strict}};\n\
                     create table b (a {{bytes}} references a (id), n {{int}}, primary key (n, a)) {{x}};\n\
                     create table c (x {{int}} primary key);";
        let second = "alter table a add column more {{int}} not null default 0;\n\
                      alter table a drop column gone;\ndrop table c;\n";
        let tables = read([first, second].into_iter());
        let columns = |table: &Table| {
            let columns = table.columns.iter();
            columns.map(|column| format!("{} {:?}", column.name, column.kind)).collect::<Vec<_>>()
        };
        assert_eq!(tables.iter().map(|table| table.name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(columns(&tables[0]), ["id Text", "at Time", "more Int"]);
        assert_eq!(columns(&tables[1]), ["a Bytes", "n Int"]);
        assert_eq!((&tables[0].key[..], &tables[1].key[..]), (&["id"][..], &["n", "a"][..]));
    }
}
