//! Creating, migrating, sharing and checking the database itself.

use std::path::Path;
use std::time::Duration;

use sqlx::{Connection, PgConnection, SqliteConnection};
use store::{Db, Options, SCHEMA_VERSION, StoreError, api_keys, organizations};
use vocab::Role;

use testkit::TestDatabase;

use crate::support::{Open as _, at, nth, org, seal};

const NEWER_MIGRATION: &str =
    "create table schema_migrations (version bigint primary key, name text, checksum BYTES);
     insert into schema_migrations (version, name, checksum) values (99, '0099_tomorrow', X)";

fn newer_migration(database: &TestDatabase) -> String {
    match database.is_sqlite() {
        true => NEWER_MIGRATION.replace("BYTES", "BLOB").replace(", X)", ", x'00')"),
        false => NEWER_MIGRATION.replace("BYTES", "bytea").replace(", X)", ", '\\x00')"),
    }
}

/// Every table with its columns in order.
async fn tables(database: &TestDatabase) -> Vec<(String, Vec<String>)> {
    let columns: Vec<(String, String)> = if database.is_sqlite() {
        let mut hand = SqliteConnection::connect(&database.url).await.unwrap();
        sqlx::query_as(
            "select t.name, c.name from sqlite_schema t, pragma_table_info(t.name) c
              where t.type = 'table' and t.name not like 'sqlite_%' order by t.name, c.cid",
        )
        .fetch_all(&mut hand)
        .await
        .unwrap()
    } else {
        let mut hand = PgConnection::connect(&database.url).await.unwrap();
        sqlx::query_as(
            "select table_name::text, column_name::text from information_schema.columns
              where table_schema = 'public' order by table_name collate \"C\", ordinal_position",
        )
        .fetch_all(&mut hand)
        .await
        .unwrap()
    };
    let mut tables: Vec<(String, Vec<String>)> = Vec::new();
    for (table, column) in columns {
        match tables.last_mut() {
            Some((last, columns)) if *last == table => columns.push(column),
            _ => tables.push((table, vec![column])),
        }
    }
    tables
}

async fn replicas_starting_together_create_tables_once(empty: TestDatabase) {
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let place = empty.clone();
            tokio::spawn(async move { place.open().await })
        })
        .collect();
    for start in starts {
        start.await.unwrap().ping().await.unwrap();
    }
    assert!(tables(&empty).await.iter().any(|(table, _)| table == "rollout_tasks"));
    empty.open().await.ping().await.unwrap();
}

async fn newer_database_is_refused_and_unchanged(empty: TestDatabase) {
    empty.execute_sql(&newer_migration(&empty)).await;
    let refused = Db::open(&empty.options()).await.err().unwrap();
    assert!(
        matches!(refused, StoreError::NewerDatabase { found: 99, known: SCHEMA_VERSION }),
        "{refused}"
    );
    let names: Vec<_> = tables(&empty).await.into_iter().map(|(table, _)| table).collect();
    assert_eq!(names, ["schema_migrations"]);
    if empty.is_sqlite() {
        let file = empty.url.trim_start_matches("sqlite:");
        let header = std::fs::read(file).unwrap();
        assert_eq!(header[18], 1, "not even WAL mode was turned on");
    }
}

async fn edited_migration_is_refused(database: TestDatabase) {
    database.open().await.close().await;
    let zeros = if database.is_sqlite() { "x'00'" } else { "'\\x00'" };
    database
        .execute_sql(&format!("update schema_migrations set checksum = {zeros} where version = 1"))
        .await;
    let refused = Db::open(&database.options()).await.err().unwrap();
    assert!(
        matches!(&refused, StoreError::MigrationChanged { version: 1, name }
            if name == "0001_baseline"),
        "{refused}"
    );
}

/// The error names the corrupt row; the other rows are still served.
async fn corrupt_row_is_named(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    for n in 1..=2_u8 {
        let key = api_keys::ApiKey {
            id: nth!(KeyId, n),
            org_id: ours,
            name: "key".into(),
            hash: vec![n],
            role: Role::Viewer,
            environments: None,
            created_at: at(0),
            created_by: "init".into(),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
            generation: 1,
        };
        api_keys::create(&mut tx, &key).await.unwrap();
    }
    tx.commit().await.unwrap();
    let broken = nth!(KeyId, 1_u32);
    database.execute_sql(&format!("update api_keys set role = 'king' where id = '{broken}'")).await;
    let mut reader = db.read().await.unwrap();
    match api_keys::get(&mut reader, ours, broken).await {
        Err(StoreError::Corrupt { table: "api_keys", id, source }) => {
            assert_eq!(id, broken.to_string());
            assert!(source.to_string().contains("role"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    api_keys::get(&mut reader, ours, nth!(KeyId, 2_u32)).await.unwrap();
}

async fn second_of_two_concurrent_writers_is_stale(db: Db) {
    let id = org(&db).await;
    let mut reader = db.read().await.unwrap();
    let seen = organizations::get(&mut reader, id).await.unwrap();
    let writers: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|name| {
            let (db, seen) = (db.clone(), seen.clone());
            tokio::spawn(async move {
                let mut tx = db.begin().await.unwrap();
                let saved = organizations::rename(&mut tx, &seen, name).await;
                tx.commit().await.unwrap();
                saved
            })
        })
        .collect();
    let mut saved = 0;
    for writer in writers {
        match writer.await.unwrap() {
            Ok(()) => saved += 1,
            Err(StoreError::Stale) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(saved, 1);
}

/// Read, decide and write, from sixteen tasks over two replicas. A stale writer reads again.
async fn no_update_is_lost_between_two_replicas(database: TestDatabase) {
    let replicas = [database.open().await, database.open().await];
    let id = org(&replicas[0]).await;
    let writers: Vec<_> = (0..16)
        .map(|n| {
            let db = replicas[n % 2].clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    loop {
                        let mut tx = db.begin().await.unwrap();
                        let seen = organizations::get(&mut tx, id).await.unwrap();
                        let count: u32 = seen.name.trim_start_matches("Acme").parse().unwrap_or(0);
                        match organizations::rename(&mut tx, &seen, &format!("Acme{}", count + 1))
                            .await
                        {
                            Ok(()) => break tx.commit().await.unwrap(),
                            Err(StoreError::Stale) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut reader = replicas[0].read().await.unwrap();
    let end = organizations::get(&mut reader, id).await.unwrap();
    assert_eq!((end.name.as_str(), end.generation), ("Acme80", 81));
}

async fn commits_survive_closing_the_database(database: TestDatabase) {
    let db = database.open().await;
    let id = org(&db).await;
    db.close().await;
    let db = database.open().await;
    let mut reader = db.read().await.unwrap();
    assert_eq!(organizations::get(&mut reader, id).await.unwrap().created_at, at(0));
}

testkit::both!(
    crate::support::empty:
    replicas_starting_together_create_tables_once,
    newer_database_is_refused_and_unchanged,
);

testkit::both!(
    crate::support::database:
    edited_migration_is_refused,
    corrupt_row_is_named,
    no_update_is_lost_between_two_replicas,
    commits_survive_closing_the_database,
);

testkit::both!(
    crate::support::db:
    second_of_two_concurrent_writers_is_stale,
);

/// PostgreSQL has more types, so a mistake would show only there; the names must not differ.
#[tokio::test]
async fn both_engines_have_the_same_tables_and_columns() {
    let Some(postgres) = crate::support::migrated_postgres().await else { return };
    let sqlite = TestDatabase::sqlite();
    sqlite.open().await.close().await;
    let ours = tables(&sqlite).await;
    assert!(ours.len() > 15, "{ours:?}");
    assert_eq!(ours, tables(&postgres).await);
    sqlite.remove().await;
    postgres.remove().await;
}

#[tokio::test]
async fn invalid_address_is_refused_without_showing_its_password() {
    for url in
        ["", "mysql://root:secret@localhost/x", "sqlite::memory:", "postgres://u:secret@:x:y/z"]
    {
        let refused = Db::open(&Options::new(url, seal())).await.err().unwrap();
        assert!(matches!(refused, StoreError::BadAddress { .. }), "{url}: {refused:?}");
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }
}

/// A closed local port: the caller gets an error, and does not wait longer than the timeout.
#[tokio::test]
async fn unreachable_database_is_an_error_not_a_hang() {
    let mut options = Options::new("postgres://nobody@127.0.0.1:1/none", seal());
    options.timeout = Duration::from_millis(200);
    let refused = Db::open(&options).await.err().unwrap();
    assert!(matches!(refused, StoreError::Database(_)), "{refused:?}");
}

/// `sqlx` has two ways in which text from a user could become SQL. Only one module uses them, and
/// it accepts nothing but string literals.
#[test]
fn only_one_module_builds_sql_from_literals() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut modules = 0;
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            modules += 1;
            if path.file_name().unwrap() == "sql.rs" {
                assert!(text.contains("AssertSqlSafe"), "this test searches for the wrong text");
                continue;
            }
            for name in ["AssertSqlSafe", "QueryBuilder", "Box::leak", "String::leak", ".leak()"] {
                assert!(!text.contains(name), "{name} in {}", path.display());
            }
        }
    }
    assert!(modules > 15);
}
