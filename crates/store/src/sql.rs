//! The text of SQL. Nothing that a user said can get into it.
//!
//! `sqlx` takes a `&'static str` or whatever is wrapped in `AssertSqlSafe`, and its `QueryBuilder`
//! takes anything that prints. Here text is joined from `&'static str` alone, and every value is
//! bound. A test keeps both of `sqlx`'s doors out of every other module.

use sqlx::database::HasStatementCache;
use sqlx::{AssertSqlSafe, Database, Encode, QueryBuilder, Type};

/// How many rows go into one statement. SQLite takes 32,766 values in one statement and PostgreSQL
/// 65,535; 500 rows of our widest table (26 columns) are 13,000. Larger chunks measured no faster.
pub(crate) const ROWS_MAX: usize = 500;

/// Joins pieces of SQL that the compiler has seen.
pub(crate) fn join(pieces: &[&'static str]) -> AssertSqlSafe<String> {
    let text = pieces.concat();
    #[cfg(test)]
    spy::note(&text);
    AssertSqlSafe(text)
}

/// The little that the two engines spell differently.
pub(crate) struct Dialect {
    /// Keeps other writers off the rows that a statement reads. SQLite has one writer at a time
    /// anyway.
    pub(crate) for_update: &'static str,
    /// Others may read and lock so too, but not change.
    pub(crate) for_share: &'static str,
    pub(crate) types: &'static [(&'static str, &'static str)],
}

pub(crate) const SQLITE: Dialect = Dialect {
    for_update: "",
    for_share: "",
    types: &[
        ("{{text}}", "TEXT"),
        ("{{int}}", "INTEGER"),
        ("{{bool}}", "INTEGER"),
        ("{{bytes}}", "BLOB"),
        ("{{time}}", "INTEGER"),
        ("{{strict}}", "STRICT"),
        ("{{clustered}}", "STRICT, WITHOUT ROWID"),
    ],
};

pub(crate) const POSTGRES: Dialect = Dialect {
    for_update: " for update",
    for_share: " for share",
    types: &[
        // One order of text in both engines, whatever the locale of the cluster.
        ("{{text}}", "text collate \"C\""),
        ("{{int}}", "bigint"),
        ("{{bool}}", "boolean"),
        ("{{bytes}}", "bytea"),
        ("{{time}}", "timestamptz"),
        ("{{strict}}", ""),
        ("{{clustered}}", ""),
    ],
};

impl Dialect {
    /// A migration's text in this engine's words.
    pub(crate) fn migration(&self, text: &'static str) -> AssertSqlSafe<String> {
        let spelled = |sql: String, (word, meaning): &(&str, &str)| sql.replace(word, meaning);
        AssertSqlSafe(self.types.iter().fold(text.to_owned(), spelled))
    }
}

/// A statement whose shape depends on what was asked: optional filters, many rows.
pub(crate) struct Text<DB: Database> {
    builder: QueryBuilder<DB>,
    rows: usize,
}

impl<DB: Database> Text<DB> {
    pub(crate) fn new(sql: &'static str) -> Self {
        Self { builder: QueryBuilder::new(sql), rows: 0 }
    }

    pub(crate) fn add(&mut self, sql: &'static str) -> &mut Self {
        self.builder.push(sql);
        self
    }

    pub(crate) fn bind<'v, T: Encode<'v, DB> + Type<DB>>(&mut self, value: T) -> &mut Self {
        self.builder.push_bind(value);
        self
    }

    /// `values (…), (…)`, one pair of parentheses an item.
    pub(crate) fn rows<I: IntoIterator>(
        &mut self,
        items: I,
        each: impl Fn(&mut Tuple<'_, DB>, I::Item),
    ) -> &mut Self {
        self.builder.push("values ");
        for (place, item) in items.into_iter().enumerate() {
            self.builder.push(if place == 0 { "(" } else { ", (" });
            each(&mut Tuple { builder: &mut self.builder, first: true }, item);
            self.builder.push(")");
            self.rows += 1;
        }
        self
    }

    /// `(…, …)`, for the right side of `set (…) =`.
    pub(crate) fn tuple(&mut self, each: impl Fn(&mut Tuple<'_, DB>)) -> &mut Self {
        self.builder.push("(");
        each(&mut Tuple { builder: &mut self.builder, first: true });
        self.builder.push(")");
        self
    }

    /// `(…, …)`, for `in`.
    pub(crate) fn list<'v, T: Encode<'v, DB> + Type<DB>>(
        &mut self,
        items: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        self.builder.push("(");
        let mut tuple = Tuple { builder: &mut self.builder, first: true };
        for item in items {
            tuple.bind(item);
            self.rows += 1;
        }
        self.builder.push(")");
        self
    }

    pub(crate) fn build(&mut self) -> sqlx::query::Query<'_, DB, DB::Arguments>
    where
        DB: HasStatementCache,
    {
        #[cfg(test)]
        spy::note(self.builder.sql().as_str());
        let worth_keeping = self.worth_keeping();
        self.builder.build().persistent(worth_keeping)
    }

    pub(crate) fn build_as<'q, T: sqlx::FromRow<'q, DB::Row>>(
        &'q mut self,
    ) -> sqlx::query::QueryAs<'q, DB, T, DB::Arguments>
    where
        DB: HasStatementCache,
    {
        #[cfg(test)]
        spy::note(self.builder.sql().as_str());
        let worth_keeping = self.worth_keeping();
        self.builder.build_query_as().persistent(worth_keeping)
    }

    /// Whether the connection should keep the prepared statement: the odd last chunk of a long list
    /// comes in 500 sizes and would push useful statements out of the cache.
    fn worth_keeping(&self) -> bool {
        self.rows == 0 || self.rows == ROWS_MAX
    }
}

/// One row of a `values` clause.
pub(crate) struct Tuple<'b, DB: Database> {
    builder: &'b mut QueryBuilder<DB>,
    first: bool,
}

impl<DB: Database> Tuple<'_, DB> {
    pub(crate) fn bind<'v, T: Encode<'v, DB> + Type<DB>>(&mut self, value: T) -> &mut Self {
        if !std::mem::take(&mut self.first) {
            self.builder.push(", ");
        }
        self.builder.push_bind(value);
        self
    }
}

/// What a function really asks, so that a test can ask the engine how it would go about it.
#[cfg(test)]
pub(crate) mod spy {
    use std::cell::RefCell;

    thread_local! {
        static TEXTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    pub(crate) fn note(text: &str) {
        TEXTS.with_borrow_mut(|texts| texts.push(text.to_owned()));
    }

    /// The texts of this thread since the last call.
    pub(crate) fn take() -> Vec<String> {
        TEXTS.take()
    }
}
