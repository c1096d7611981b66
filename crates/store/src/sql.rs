//! Builds SQL text. User input must never become part of it.
//!
//! `sqlx` accepts a `&'static str` or anything wrapped in `AssertSqlSafe`, and its `QueryBuilder`
//! accepts any text. Here SQL is joined from `&'static str` only, and every value is bound. A test
//! keeps `AssertSqlSafe` and `QueryBuilder` out of all other modules.

use std::cell::{Cell, RefCell};

use sqlx::database::HasStatementCache;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo};
use sqlx::{
    AssertSqlSafe, Connection, Database, Encode, Executor, FromRow, IntoArguments, Postgres,
    QueryBuilder, Sqlite, Type,
};

/// Maximum number of rows in one statement. SQLite accepts 32,766 values per statement and
/// PostgreSQL 65,535; 500 rows of our widest table (26 columns) are 13,000. Larger chunks were no
/// faster in measurements, except in [`in_chunks`].
pub(crate) const ROWS_MAX: usize = 500;

/// Joins constant pieces of SQL.
pub(crate) fn join(pieces: &[&'static str]) -> AssertSqlSafe<String> {
    let text = pieces.concat();
    record(&text);
    AssertSqlSafe(text)
}

/// What the two engines spell differently.
pub(crate) struct Dialect {
    /// Locks the rows that a statement reads against other writers. SQLite has one writer at a time
    /// anyway.
    pub(crate) for_update: &'static str,
    /// Locks the rows against changes; other transactions may read them and take the same lock.
    pub(crate) for_share: &'static str,
    /// Expands the numbers in the column `kinds` to one row each, as `value`.
    pub(crate) each_kind: &'static str,
    pub(crate) types: &'static [(&'static str, &'static str)],
}

pub(crate) const SQLITE: Dialect = Dialect {
    for_update: "",
    for_share: "",
    each_kind: "json_each(k.kinds)",
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
    each_kind: "json_array_elements_text(cast(k.kinds as json))",
    types: &[
        // The same sort order in both engines, whatever the locale of the cluster.
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
    /// A migration's text with this engine's column types.
    pub(crate) fn migration(&self, text: &'static str) -> AssertSqlSafe<String> {
        let spelled = |sql: String, (word, meaning): &(&str, &str)| sql.replace(word, meaning);
        AssertSqlSafe(self.types.iter().fold(text.to_owned(), spelled))
    }
}

/// How an engine accepts many rows. SQLite gets `values (…), (…)`. PostgreSQL would take longer to
/// parse and plan such a text than to write the rows, so it gets one array per column: one short
/// text for any number of rows, which is planned once.
pub(crate) trait BulkRows: Database {
    /// Number of rows that [`in_chunks`] puts into one statement.
    const CHUNK: usize;

    /// Picks the first text for SQLite, the second for PostgreSQL.
    fn pick(words: [&'static str; 2]) -> &'static str;

    /// The values that are collected until the last row was added.
    type Columns: Default;

    /// Adds one value of one row.
    fn push_value<'v, T: Encode<'v, Self> + Type<Self>>(
        builder: &mut QueryBuilder<Self>,
        columns: &mut Self::Columns,
        row_and_column: (usize, usize),
        value: T,
    );

    /// ` in (…)` for hundreds of ids. PostgreSQL gets an array of them between the two texts of
    /// `these`.
    fn push_ids<'v, T: Encode<'v, Self> + Type<Self>>(
        builder: &mut QueryBuilder<Self>,
        items: impl Iterator<Item = T>,
        these: [&'static str; 2],
    ) -> usize;

    /// Ends the list of rows.
    fn finish_rows(builder: &mut QueryBuilder<Self>, columns: Self::Columns);

    /// Whether to cache the prepared statement with this many rows and list items. Only sizes that
    /// occur often are worth caching.
    fn should_cache(rows: usize, listed: usize) -> bool;
}

impl BulkRows for Sqlite {
    const CHUNK: usize = ROWS_MAX;

    fn pick([words, _]: [&'static str; 2]) -> &'static str {
        words
    }

    type Columns = ();

    fn push_value<'v, T: Encode<'v, Self> + Type<Self>>(
        builder: &mut QueryBuilder<Self>,
        (): &mut (),
        (row, column): (usize, usize),
        value: T,
    ) {
        builder.push(match (row, column) {
            (0, 0) => "values (",
            (_, 0) => "), (",
            _ => ", ",
        });
        builder.push_bind(value);
    }

    fn push_ids<'v, T: Encode<'v, Self> + Type<Self>>(
        builder: &mut QueryBuilder<Self>,
        items: impl Iterator<Item = T>,
        _: [&'static str; 2],
    ) -> usize {
        let mut listed = 0;
        for item in items {
            builder.push(if listed == 0 { " in (" } else { ", " }).push_bind(item);
            listed += 1;
        }
        builder.push(")");
        listed
    }

    fn finish_rows(builder: &mut QueryBuilder<Self>, (): ()) {
        builder.push(")");
    }

    /// The last chunk of a long list can have 500 different sizes, and would push useful statements
    /// out of the cache. One or two items are the common case.
    fn should_cache(rows: usize, listed: usize) -> bool {
        let items = rows + listed;
        items <= 2 || items == ROWS_MAX
    }
}

impl BulkRows for Postgres {
    /// PostgreSQL joins the rows with a table of some thousands by reading the whole table, once
    /// per statement.
    const CHUNK: usize = 2_500;

    fn pick([_, words]: [&'static str; 2]) -> &'static str {
        words
    }

    type Columns = Vec<PgArray>;

    fn push_value<'v, T: Encode<'v, Self> + Type<Self>>(
        _: &mut QueryBuilder<Self>,
        columns: &mut Vec<PgArray>,
        (_, column): (usize, usize),
        value: T,
    ) {
        if columns.len() == column {
            columns.push(PgArray::default());
        }
        columns[column].push(value);
    }

    fn push_ids<'v, T: Encode<'v, Self> + Type<Self>>(
        builder: &mut QueryBuilder<Self>,
        items: impl Iterator<Item = T>,
        [before, after]: [&'static str; 2],
    ) -> usize {
        let mut array = PgArray::default();
        items.for_each(|item| array.push(item));
        builder.push(before).push_bind(array).push(after);
        0
    }

    fn finish_rows(builder: &mut QueryBuilder<Self>, columns: Vec<PgArray>) {
        builder.push("select * from unnest(");
        for (place, column) in columns.into_iter().enumerate() {
            if place > 0 {
                builder.push(", ");
            }
            builder.push_bind(column);
        }
        builder.push(")");
    }

    fn should_cache(_: usize, listed: usize) -> bool {
        listed <= 2 || listed == ROWS_MAX
    }
}

/// A statement whose text depends on the call: optional filters, many rows.
pub(crate) struct Text<DB: Database> {
    builder: QueryBuilder<DB>,
    rows: usize,
    listed: usize,
}

impl<DB: BulkRows> Text<DB> {
    pub(crate) fn new(sql: &'static str) -> Self {
        Self { builder: QueryBuilder::new(sql), rows: 0, listed: 0 }
    }

    pub(crate) fn add(&mut self, sql: &'static str) -> &mut Self {
        self.builder.push(sql);
        self
    }

    /// Adds the first text for SQLite or the second for PostgreSQL. Both have the same meaning; each
    /// is the faster one on its engine.
    pub(crate) fn add_for_engine(&mut self, words: [&'static str; 2]) -> &mut Self {
        self.add(DB::pick(words))
    }

    pub(crate) fn bind<'v, T: Encode<'v, DB> + Type<DB>>(&mut self, value: T) -> &mut Self {
        self.builder.push_bind(value);
        self
    }

    /// Adds a table with one row per item, in the engine's form: see [`BulkRows`]. There must be at
    /// least one item.
    pub(crate) fn rows<I: IntoIterator>(
        &mut self,
        items: I,
        each: impl Fn(&mut Tuple<'_, DB>, I::Item),
    ) -> &mut Self {
        let mut columns = DB::Columns::default();
        for (row, item) in items.into_iter().enumerate() {
            let place = TupleTarget::Row(row, &mut columns);
            each(&mut Tuple { builder: &mut self.builder, target: place, column: 0 }, item);
            self.rows += 1;
        }
        DB::finish_rows(&mut self.builder, columns);
        self
    }

    /// Adds `(…, …)`, for the right side of `set (…) =`.
    pub(crate) fn tuple(&mut self, each: impl Fn(&mut Tuple<'_, DB>)) -> &mut Self {
        self.builder.push("(");
        each(&mut Tuple { builder: &mut self.builder, target: TupleTarget::Single, column: 0 });
        self.builder.push(")");
        self
    }

    /// Adds ` in (…)` for hundreds of ids, at least one. PostgreSQL gets a joined table in a text
    /// that is planned once.
    pub(crate) fn in_ids<'v, T: Encode<'v, DB> + Type<DB>>(
        &mut self,
        items: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        let joined = [" in (select unnest(", "))"];
        self.listed += DB::push_ids(&mut self.builder, items.into_iter(), joined);
        self
    }

    /// Like [`Text::in_ids`], for the last column of an index whose other columns are given: each
    /// id is looked up by the whole key. With a join, PostgreSQL might first read every row that
    /// matches the other columns.
    pub(crate) fn equals_any<'v, T: Encode<'v, DB> + Type<DB>>(
        &mut self,
        items: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        self.listed += DB::push_ids(&mut self.builder, items.into_iter(), [" = any(", ")"]);
        self
    }

    /// Adds `(…, …)`, for `in`.
    pub(crate) fn list<'v, T: Encode<'v, DB> + Type<DB>>(
        &mut self,
        items: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        self.builder.push("(");
        let mut tuple =
            Tuple { builder: &mut self.builder, target: TupleTarget::Single, column: 0 };
        for item in items {
            tuple.bind(item);
            self.listed += 1;
        }
        self.builder.push(")");
        self
    }

    pub(crate) fn build(&mut self) -> sqlx::query::Query<'_, DB, DB::Arguments>
    where
        DB: HasStatementCache,
    {
        record(self.builder.sql().as_str());
        let worth_keeping = DB::should_cache(self.rows, self.listed);
        self.builder.build().persistent(worth_keeping)
    }

    pub(crate) fn build_as<'q, T: FromRow<'q, DB::Row>>(
        &'q mut self,
    ) -> sqlx::query::QueryAs<'q, DB, T, DB::Arguments>
    where
        DB: HasStatementCache,
    {
        record(self.builder.sql().as_str());
        let worth_keeping = DB::should_cache(self.rows, self.listed);
        self.builder.build_query_as().persistent(worth_keeping)
    }
}

/// Runs one statement per [`BulkRows::CHUNK`] items and returns the rows of all of them. It builds
/// the next statement while the database runs the current one: with many rows, both take about as
/// long.
pub(crate) async fn in_chunks<C: Connection, T, R>(
    conn: &mut C,
    items: &[T],
    text: impl Fn(&[T]) -> Text<C::Database>,
) -> sqlx::Result<Vec<R>>
where
    C::Database: BulkRows + HasStatementCache,
    <C::Database as Database>::Arguments: IntoArguments<C::Database>,
    for<'c> &'c mut C: Executor<'c, Database = C::Database>,
    R: for<'r> FromRow<'r, <C::Database as Database>::Row> + Send + Unpin,
{
    let mut texts = items.chunks(C::Database::CHUNK).map(text);
    let (mut found, mut next) = (Vec::new(), texts.next());
    while let Some(mut text) = next {
        let carried_out = text.build_as().fetch_all(&mut *conn);
        let (rows, after) = tokio::join!(biased; carried_out, async { texts.next() });
        found.append(&mut rows?);
        next = after;
    }
    Ok(found)
}

/// Collects the values of one row of a table, or of a single tuple.
pub(crate) struct Tuple<'b, DB: BulkRows> {
    builder: &'b mut QueryBuilder<DB>,
    target: TupleTarget<'b, DB>,
    column: usize,
}

enum TupleTarget<'b, DB: BulkRows> {
    Single,
    Row(usize, &'b mut DB::Columns),
}

impl<DB: BulkRows> Tuple<'_, DB> {
    pub(crate) fn bind<'v, T: Encode<'v, DB> + Type<DB>>(&mut self, value: T) -> &mut Self {
        match &mut self.target {
            TupleTarget::Row(row, columns) => {
                DB::push_value(self.builder, columns, (*row, self.column), value);
            }
            TupleTarget::Single => {
                if self.column > 0 {
                    self.builder.push(", ");
                }
                self.builder.push_bind(value);
            }
        }
        self.column += 1;
        self
    }
}

/// One column of many rows, encoded as a PostgreSQL array.
#[derive(Default)]
pub(crate) struct PgArray {
    element: Oid,
    length: i32,
    cells: PgArgumentBuffer,
}

/// The length by which PostgreSQL marks a null value.
const NULL_LENGTH: i32 = -1;

impl PgArray {
    fn push<'v, T: Encode<'v, Postgres> + Type<Postgres>>(&mut self, value: T) {
        self.element = T::type_info().oid().unwrap_or_default();
        self.length += 1;
        let start = self.cells.len();
        self.cells.extend_from_slice(&NULL_LENGTH.to_be_bytes());
        let encoded = value.encode(&mut self.cells).expect("values of our types can be encoded");
        if matches!(encoded, IsNull::No) {
            let bytes = self.cells.len() - start - NULL_LENGTH.to_be_bytes().len();
            let length = i32::try_from(bytes).expect("a value is smaller than two gigabytes");
            self.cells[start..start + NULL_LENGTH.to_be_bytes().len()]
                .copy_from_slice(&length.to_be_bytes());
        }
    }
}

impl Type<Postgres> for PgArray {
    fn type_info() -> PgTypeInfo {
        <Vec<String> as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for PgArray {
    fn produces(&self) -> Option<PgTypeInfo> {
        // The types of our columns, as the placeholders of a migration name them.
        Some(match self.element.0 {
            16 => <Vec<bool> as Type<Postgres>>::type_info(),
            17 => <Vec<Vec<u8>> as Type<Postgres>>::type_info(),
            20 => <Vec<i64> as Type<Postgres>>::type_info(),
            1184 => PgTypeInfo::with_oid(Oid(1185)),
            _ => <Self as Type<Postgres>>::type_info(),
        })
    }

    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let (dimensions, flags, first) = (1_i32, 0_i32, 1_i32);
        buffer.extend_from_slice(&dimensions.to_be_bytes());
        buffer.extend_from_slice(&flags.to_be_bytes());
        buffer.extend_from_slice(&self.element.0.to_be_bytes());
        buffer.extend_from_slice(&self.length.to_be_bytes());
        buffer.extend_from_slice(&first.to_be_bytes());
        buffer.extend_from_slice(&self.cells);
        Ok(IsNull::No)
    }
}

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(false) };
    static RECORDED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn record(text: &str) {
    if RECORDING.get() {
        RECORDED.with_borrow_mut(|texts| texts.push(text.to_owned()));
    }
}

/// Returns the SQL texts built on this thread since the last call. The first call returns nothing
/// and starts recording.
///
/// Public only for `tests/store`, which asks the database to explain the texts that the store
/// really sends. An integration test links the ordinary library, so `cfg(test)` cannot provide
/// this. A thread that never calls this function records nothing.
#[doc(hidden)]
pub fn recorded_sql() -> Vec<String> {
    RECORDING.set(true);
    RECORDED.take()
}

/// `%text%` in lower case, with the special characters of `like` escaped.
pub(crate) fn like_pattern(q: &str) -> String {
    format!("%{}%", escape_like(&q.to_lowercase()))
}

/// The text with the special characters of `like` escaped.
pub(crate) fn escape_like(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
