//! Creates and upgrades the tables when the database is opened.
//!
//! There is one series of migrations, forward only. Both engines get the same text, in which
//! `{{time}}`, `{{bytes}}` and a few more placeholders stand for column types. All migrations run
//! in one transaction under a lock, so replicas that start at the same time migrate once. A
//! database that was written by a newer release, or migrated with other texts, is rejected before
//! anything is changed.

use crate::db::{Conn, Db, Wire, on};
use crate::error::{Result, StoreError};
use crate::sql::{Dialect, POSTGRES, SQLITE};
use crate::tx::Tx;

mod schema;

pub(crate) use schema::{Column, ColumnType, Table};

struct Migration {
    version: i64,
    name: &'static str,
    text: &'static str,
}

macro_rules! series {
    ($($version:literal $name:literal,)*) => {
        &[$(Migration {
            version: $version,
            name: $name,
            text: include_str!(concat!("../migrations/", $name, ".sql")),
        },)*]
    };
}

const MIGRATIONS: &[Migration] = series! {
    1 "0001_baseline",
};

/// The newest schema that this binary knows.
pub const SCHEMA_VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// Key of the PostgreSQL advisory lock that replicas take to migrate. An arbitrary constant.
const MIGRATION_LOCK: i64 = 0x666c_6565_746d_6e64;

impl Migration {
    fn info(&self) -> MigrationInfo {
        MigrationInfo { version: self.version, name: self.name }
    }

    /// The checksum of the text before placeholders are replaced, so both engines store the same
    /// one. It covers comments too: a released migration must never be edited.
    fn checksum(&self) -> Vec<u8> {
        vocab::Digest::compute(self.text.as_bytes()).as_bytes().to_vec()
    }
}

/// A migration's version and name, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationInfo {
    pub version: i64,
    pub name: &'static str,
}

/// Brings the database up to the schema of this release, or fails without changes. Returns the
/// migrations that were applied.
pub(crate) async fn run(db: &Db) -> Result<Vec<MigrationInfo>> {
    // A normal start finds nothing to migrate and takes no lock.
    let mut reader = db.writer_connection().await?;
    let applied = applied(&mut reader).await?;
    drop(reader);
    check(&applied)?;
    if applied.len() == MIGRATIONS.len() {
        return Ok(Vec::new());
    }
    let mut tx = db.begin().await?;
    lock(&mut tx).await?;
    let done = apply_missing(&mut tx).await?;
    tx.commit().await?;
    Ok(done)
}

/// The migrations that [`run`] would apply.
pub(crate) async fn pending(conn: &mut Conn) -> Result<Vec<MigrationInfo>> {
    let applied = applied(conn).await?;
    check(&applied)?;
    Ok(MIGRATIONS[applied.len()..].iter().map(Migration::info).collect())
}

/// The version of the last migration that was applied to this database; 0 if none was.
pub(crate) async fn version(conn: &mut Conn) -> Result<i64> {
    Ok(applied(conn).await?.last().map_or(0, |(version, ..)| *version))
}

/// The tables that exist after this migration. A table comes after those that it references.
pub(crate) fn tables(version: i64) -> Vec<&'static str> {
    schema(version).iter().map(|table| table.name).collect()
}

/// The tables that exist after this migration, with their columns. A table comes after those that
/// it references.
pub(crate) fn schema(version: i64) -> Vec<Table> {
    let first = std::iter::once(MIGRATIONS_TABLE).take(usize::from(version > 0));
    let series = MIGRATIONS.iter().filter(|migration| migration.version <= version);
    schema::read(first.chain(series.map(|migration| migration.text)))
}

/// Creates the tables as of this migration, in a database that has none of them.
pub(crate) async fn create_at_version(tx: &mut Tx, version: i64) -> Result<()> {
    if version > SCHEMA_VERSION {
        return Err(StoreError::NewerDatabase { found: version, known: SCHEMA_VERSION });
    }
    create_migrations_table(tx).await?;
    let until = MIGRATIONS.iter().take_while(|migration| migration.version <= version).count();
    apply(tx, &MIGRATIONS[..until]).await
}

/// The table that records which migrations were applied.
const MIGRATIONS_TABLE: &str = "create table if not exists schema_migrations (
    version {{int}} primary key, name {{text}} not null, checksum {{bytes}} not null
) {{strict}}";

async fn create_migrations_table(tx: &mut Tx) -> Result<()> {
    run_sql(tx, MIGRATIONS_TABLE).await
}

/// Checks whether this release can open the database. Only reads.
pub(crate) async fn check_compatible(conn: &mut Conn) -> Result<()> {
    check(&applied(conn).await?)
}

pub(crate) async fn lock(tx: &mut Tx) -> Result<()> {
    // A SQLite transaction starts with `begin immediate`, so it holds the lock already.
    if let Wire::Pg(c) = tx.wire() {
        sqlx::query("set local statement_timeout = 0").execute(&mut *c).await?;
        sqlx::query("select pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK).execute(c).await?;
    }
    Ok(())
}

pub(crate) async fn apply_missing(tx: &mut Tx) -> Result<Vec<MigrationInfo>> {
    // Check again under the lock: another replica may have migrated meanwhile, or be newer.
    let known = applied(tx).await?;
    check(&known)?;
    if known.is_empty() {
        create_migrations_table(tx).await?;
    }
    let missing = &MIGRATIONS[known.len()..];
    apply(tx, missing).await?;
    Ok(missing.iter().map(Migration::info).collect())
}

async fn apply(tx: &mut Tx, series: &[Migration]) -> Result<()> {
    for migration in series {
        run_sql(tx, migration.text).await?;
        on!(tx, |c| {
            sqlx::query(
                "insert into schema_migrations (version, name, checksum) values ($1, $2, $3)",
            )
            .bind(migration.version)
            .bind(migration.name)
            .bind(migration.checksum())
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(())
}

async fn run_sql(tx: &mut Tx, text: &'static str) -> Result<()> {
    let spelled = |dialect: &Dialect| sqlx::raw_sql(dialect.migration(text));
    match tx.wire() {
        Wire::Sqlite(c) => spelled(&SQLITE).execute(c).await.map(drop)?,
        Wire::Pg(c) => spelled(&POSTGRES).execute(c).await.map(drop)?,
    }
    Ok(())
}

type AppliedMigrations = Vec<(i64, String, Vec<u8>)>;

/// The migrations that were applied to this database, in order.
async fn applied(conn: &mut Conn) -> Result<AppliedMigrations> {
    let exists = match conn.wire() {
        Wire::Sqlite(c) => {
            sqlx::query("select 1 from sqlite_schema where name = 'schema_migrations'")
                .fetch_optional(c)
                .await?
                .is_some()
        }
        Wire::Pg(c) => sqlx::query(
            "select 1 from pg_catalog.pg_tables
                  where tablename = 'schema_migrations' and schemaname = current_schema()",
        )
        .fetch_optional(c)
        .await?
        .is_some(),
    };
    if !exists {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        sqlx::query_as("select version, name, checksum from schema_migrations order by version")
            .fetch_all(c)
            .await
    })?)
}

fn check(applied: &AppliedMigrations) -> Result<()> {
    if let Some((found, ..)) = applied.last()
        && *found > SCHEMA_VERSION
    {
        return Err(StoreError::NewerDatabase { found: *found, known: SCHEMA_VERSION });
    }
    for ((version, name, checksum), ours) in applied.iter().zip(MIGRATIONS) {
        if *version != ours.version || *checksum != ours.checksum() {
            return Err(StoreError::MigrationChanged { version: *version, name: name.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TestDatabase;

    use crate::test_support;

    /// Rows as the first release wrote them: an organization, and a server of it that has synced.
    const BASELINE_ROWS: &str = "
        insert into organizations (id, name, created_at, generation)
             values ('org_01m7ft1xqrfeztjv07xn79bb7q', 'old', {{then}}, 1);
        insert into servers (id, org_id, hostname, sort_name, tags, os, os_id, os_release, kernel, arch,
                agent_version, public_key, enrolled_at, reboot_required, reboot_reasons, activity,
                packages, updates, security_updates, facts, generation)
             values ('srv_01m7ft2cnverqb58v0qewag7sa', 'org_01m7ft1xqrfeztjv07xn79bb7q', 'Web-1', 'web-1', '[]',
                '{\"id\":\"debian\",\"version\":\"12\",\"name\":\"Debian\"}', 'debian', 'debian 12', '6.1',
                'x86_64', '0.1.0', {{key}}, {{then}}, {{false}}, '[]', 'idle', 0, 6, 4, '{}', 1);
        insert into presence (org, server_id, last_seen_at, counter)
             values ('org_01m7ft1xqrfeztjv07xn79bb7q', 'srv_01m7ft2cnverqb58v0qewag7sa', {{then}}, 7);
        insert into server_index (org_id, sort_name, id, os_id, os_release, reboot_required, security_updates)
             values ('org_01m7ft1xqrfeztjv07xn79bb7q', 'web-1', 'srv_01m7ft2cnverqb58v0qewag7sa', 'debian',
                'debian 12', {{false}}, 4);
        insert into server_counts (org_id, environment, os_id, os_release, servers)
             values ('org_01m7ft1xqrfeztjv07xn79bb7q', '', 'debian', 'debian 12', 1);
        insert into counters (name, value) values ('of old', 3)";

    /// [`BASELINE_ROWS`] in the SQL of one engine.
    fn baseline_rows_sql(is_sqlite: bool) -> String {
        let words = match is_sqlite {
            true => ["1794753245883334", "x'2a'", "0"],
            false => ["to_timestamp(1794753245)", "'\\x2a'", "false"],
        };
        let text = BASELINE_ROWS.replace("{{then}}", words[0]).replace("{{key}}", words[1]);
        text.replace("{{false}}", words[2])
    }

    async fn database_of_first_release_is_readable(database: &TestDatabase) {
        let older = Db::connect(&test_support::options(database)).await.unwrap();
        let mut tx = older.begin().await.unwrap();
        create_at_version(&mut tx, 1).await.unwrap();
        tx.commit().await.unwrap();
        older.close().await;
        database.execute_sql(&baseline_rows_sql(database.is_sqlite())).await;

        let db = test_support::open(database).await;
        let org = "org_01m7ft1xqrfeztjv07xn79bb7q".parse().unwrap();
        let mut reader = db.read().await.unwrap();
        assert_eq!(version(&mut reader).await.unwrap(), SCHEMA_VERSION);
        let id = "srv_01m7ft2cnverqb58v0qewag7sa".parse().unwrap();
        let server = crate::servers::get(&mut reader, org, id).await.unwrap();
        assert_eq!((server.hostname.as_str(), server.counter), ("Web-1", 7));
        let every = crate::server_list::Filter::default();
        assert_eq!(crate::server_list::count(&mut reader, org, &every).await.unwrap(), 1);
        let named = crate::server_list::Filter { q: Some("WEB".into()), ..every };
        assert_eq!(crate::server_list::count(&mut reader, org, &named).await.unwrap(), 1);
        let text = "select cast(security_updates as bigint) from server_index";
        let sorted_by: (i64,) = on!(reader, |c| sqlx::query_as(text).fetch_one(c).await).unwrap();
        assert_eq!((server.security_updates, sorted_by.0), (4, 4));
        drop(reader);
        db.close().await;
    }

    testkit::both!(
        crate::test_support:
        database_of_first_release_is_readable,
    );

    #[test]
    fn migrations_are_numbered_without_gaps() {
        for (place, migration) in (1..).zip(MIGRATIONS) {
            assert_eq!(migration.version, place);
            assert!(migration.name.starts_with(&format!("{place:04}_")), "{}", migration.name);
        }
    }

    #[test]
    fn both_engines_replace_every_placeholder() {
        for migration in MIGRATIONS {
            for dialect in [&SQLITE, &POSTGRES] {
                assert!(!dialect.migration(migration.text).0.contains("{{"), "{}", migration.name);
            }
        }
    }

    /// The columns of every table as this engine lists them: `table.column kind`, and `key` and
    /// the place of the column in the primary key.
    async fn columns_in_database(db: &Db) -> Vec<String> {
        let mut reader = db.read().await.unwrap();
        let rows: Vec<(String, String, String, i64)> = match reader.wire() {
            Wire::Sqlite(c) => sqlx::query_as(
                "select t.name, c.name, c.type, c.pk from sqlite_schema t, pragma_table_info(t.name) c
                  where t.type = 'table' and t.name not like 'sqlite_%'",
            )
            .fetch_all(c)
            .await
            .unwrap(),
            Wire::Pg(c) => sqlx::query_as(
                "select c.table_name::text, c.column_name::text, c.data_type::text,
                        coalesce(k.ordinal_position, 0)::bigint
                   from information_schema.columns c
                   left join information_schema.table_constraints t
                     on t.table_name = c.table_name and t.table_schema = c.table_schema
                        and t.constraint_type = 'PRIMARY KEY'
                   left join information_schema.key_column_usage k
                     on k.constraint_name = t.constraint_name and k.table_schema = c.table_schema
                        and k.column_name = c.column_name
                  where c.table_schema = current_schema()",
            )
            .fetch_all(c)
            .await
            .unwrap(),
        };
        drop(reader);
        let line = |(table, column, kind, key)| format!("{table}.{column} {kind} key {key}");
        let mut lines: Vec<_> = rows.into_iter().map(line).collect();
        lines.sort_unstable();
        lines
    }

    /// A backup of PostgreSQL, and a copy to another database, contain what [`schema`] returns.
    async fn schema_returns_every_column_of_every_table(database: &TestDatabase) {
        let db = test_support::open(database).await;
        let found = columns_in_database(&db).await;
        db.close().await;
        let dialect = if database.is_sqlite() { &SQLITE } else { &POSTGRES };
        let spelled =
            |kind: ColumnType| match dialect.types.iter().find(|(word, _)| *word == kind.word()) {
                Some((_, "timestamptz")) => "timestamp with time zone",
                Some((_, name)) => name.split(' ').next().unwrap(),
                None => panic!("{kind:?} has no type"),
            };
        let mut known: Vec<String> = Vec::new();
        for table in schema(SCHEMA_VERSION) {
            assert!(!table.key.is_empty(), "{} has no primary key", table.name);
            for column in &table.columns {
                let place = table.key.iter().position(|name| *name == column.name);
                let (kind, key) = (spelled(column.kind), place.map_or(0, |place| place + 1));
                known.push(format!("{}.{} {kind} key {key}", table.name, column.name));
            }
        }
        known.sort_unstable();
        assert_eq!(found, known);
    }

    testkit::both!(
        crate::test_support:
        schema_returns_every_column_of_every_table,
    );
}
