//! Copies between databases of both engines, with at least one row in every table.

use super::*;
use crate::migrate::ColumnType;
use crate::test_support;
use testkit::TestDatabase;

/// The rows of each table: two full ones, one in which every optional column is null, and one more.
const ROWS: usize = 4;

/// A value of this kind as SQL of SQLite, different for each row.
///
/// Text is the same in all columns of a row, so that references lead to the row of the same number.
fn value(kind: ColumnType, row: usize) -> String {
    match kind {
        ColumnType::Text => format!("'{row} \u{fc}\u{1f600}\\N\t''\"\n'"),
        ColumnType::Int => [i64::MAX, i64::MIN, 0, -7][row].to_string().replace(
            &i64::MIN.to_string(),
            // SQLite reads the literal as a real number.
            "(-9223372036854775807 - 1)",
        ),
        ColumnType::Bool => (row % 2).to_string(),
        ColumnType::Bytes => format!("x'00ff0a{row:02x}'"),
        ColumnType::Time => ["1794753245883334", "-1", "946684799999999", "0"][row].to_owned(),
    }
}

/// Fills every table of a SQLite database.
async fn fill(database: &TestDatabase) {
    let db = test_support::open(database).await;
    let mut reader = db.read().await.unwrap();
    let Wire::Sqlite(c) = reader.wire() else { panic!("a path is SQLite") };
    let optional: Vec<(String, String)> = sqlx::query_as(
        "select t.name, c.name from sqlite_schema t, pragma_table_info(t.name) c
          where t.type = 'table' and c.\"notnull\" = 0 and c.pk = 0",
    )
    .fetch_all(c)
    .await
    .unwrap();
    drop(reader);
    db.close().await;
    for table in migrate::schema(SCHEMA_VERSION) {
        if table.name == "schema_migrations" {
            continue;
        }
        for row in 0..ROWS {
            let names: Vec<_> = table.columns.iter().map(|column| column.name).collect();
            let values = table.columns.iter().map(|column| {
                let name = (table.name.to_owned(), column.name.to_owned());
                match row == 2 && optional.contains(&name) {
                    true => "null".to_owned(),
                    false => value(column.kind, row),
                }
            });
            let values: Vec<_> = values.collect();
            let (names, values) = (names.join(", "), values.join(", "));
            let text = format!("insert into {} ({names}) values ({values})", table.name);
            database.execute_sql(&text).await;
        }
    }
}

/// Every value of a SQLite database, as SQLite itself spells it.
async fn dump(database: &TestDatabase) -> Vec<String> {
    let db = test_support::open(database).await;
    let mut reader = db.read().await.unwrap();
    let mut lines = Vec::new();
    for table in migrate::schema(SCHEMA_VERSION) {
        let values = table.columns.iter().flat_map(|c| [" || ' ' || quote(", c.name, ")"]);
        let text: Vec<_> = ["select ''"]
            .into_iter()
            .chain(values)
            .chain([" as line from ", table.name, " order by line"])
            .collect();
        let Wire::Sqlite(c) = reader.wire() else { panic!("a path is SQLite") };
        let rows: Vec<(String,)> = sqlx::query_as(join(&text)).fetch_all(c).await.unwrap();
        lines.extend(rows.into_iter().map(|(line,)| format!("{}:{line}", table.name)));
    }
    drop(reader);
    db.close().await;
    lines
}

async fn open_target(database: &TestDatabase) -> Db {
    Db::connect(&test_support::options(database)).await.unwrap()
}

/// Copies and verifies; returns the contents.
async fn copy_all(from: &TestDatabase, to: &TestDatabase) -> Vec<TableContent> {
    let mut source = Source::open(&test_support::options(from)).await.unwrap();
    let target = open_target(to).await;
    let mut tx = begin(&target).await.unwrap().unwrap();
    let (mut reported, mut observed) = (0, 0);
    let mut observe = |progress: Progress| {
        reported += usize::from(progress.phase == Phase::Verify);
        observed += progress.new_rows;
    };
    let copied = copy(&mut source, &mut tx, &mut observe).await.unwrap();
    verify(&mut tx, &copied, &mut observe).await.unwrap();
    tx.commit().await.unwrap();
    target.close().await;
    let counted = source.count_rows().await.unwrap();
    let rows: Vec<_> = copied.iter().map(|content| (content.table, content.rows)).collect();
    assert_eq!(counted, rows);
    assert_eq!(reported, copied.len());
    assert_eq!(observed, 2 * rows.iter().map(|(_, rows)| rows).sum::<u64>());
    source.close().await.unwrap();
    copied
}

#[tokio::test]
async fn every_value_of_every_table_survives_both_directions() {
    let (from, back) = (TestDatabase::sqlite(), TestDatabase::sqlite());
    let Some(between) = TestDatabase::postgres().await else { return };
    let Some(other) = TestDatabase::postgres().await else { return };
    fill(&from).await;
    let file = from.dir.join("fleetmend.db");
    let bytes = std::fs::read(&file).unwrap();
    let copied = copy_all(&from, &between).await;
    assert_eq!(copied.len(), migrate::tables(SCHEMA_VERSION).len());
    assert!(copied.iter().all(|table| table.rows > 0), "{copied:?}");
    assert!(std::fs::read(&file).unwrap() == bytes, "the copy changed its source");
    let spelled = "update schedules set name = 'found' where enabled
                     and created_at = '1969-12-31T23:59:59.999999Z'
                     and description like '1 %' and seal = '\\x00ff0a01'
                     and generation = '-9223372036854775808'";
    assert_eq!(between.execute_sql(&format!("begin; {spelled}; rollback")).await, 1);
    assert_eq!(copy_all(&between, &other).await, copied);
    assert_eq!(copy_all(&other, &back).await, copied);
    assert_eq!(dump(&back).await, dump(&from).await);
    for database in [from, back, between, other] {
        database.remove().await;
    }
}

async fn rolled_back_copy_leaves_the_target_empty(to: &TestDatabase) {
    let from = TestDatabase::sqlite();
    fill(&from).await;
    let target = open_target(to).await;
    let mut source = Source::open(&test_support::options(&from)).await.unwrap();
    let mut tx = begin(&target).await.unwrap().unwrap();
    copy(&mut source, &mut tx, &mut |_| ()).await.unwrap();
    drop(tx);
    target.close().await;
    source.close().await.unwrap();
    let copied = copy_all(&from, to).await;
    assert!(copied.iter().all(|table| table.rows > 0));
    // The target has tables now.
    let target = open_target(to).await;
    assert!(begin(&target).await.unwrap().is_none());
    target.close().await;
    from.remove().await;
}

async fn changed_copy_is_detected(to: &TestDatabase) {
    let from = TestDatabase::sqlite();
    fill(&from).await;
    let target = open_target(to).await;
    let mut source = Source::open(&test_support::options(&from)).await.unwrap();
    let mut tx = begin(&target).await.unwrap().unwrap();
    let copied = copy(&mut source, &mut tx, &mut |_| ()).await.unwrap();
    for (change, table) in [
        ("update presence set counter = counter - 1 where counter = 0", "presence"),
        ("delete from task_logs where position = 0", "task_logs"),
    ] {
        on!(tx, |c| sqlx::query("savepoint change").execute(c).await.map(drop)).unwrap();
        on!(tx, |c| sqlx::query(change).execute(c).await.map(drop)).unwrap();
        let refused = verify(&mut tx, &copied, &mut |_| ()).await.unwrap_err();
        assert_eq!(refused.to_string(), StoreError::CopyDiffers { table }.to_string());
        on!(tx, |c| sqlx::query("rollback to change").execute(c).await.map(drop)).unwrap();
    }
    verify(&mut tx, &copied, &mut |_| ()).await.unwrap();
    drop(tx);
    target.close().await;
    source.close().await.unwrap();
    from.remove().await;
}

/// A SQLite source that changes is detected at the end; a PostgreSQL source cannot change.
async fn source_cannot_change_unnoticed(from: &TestDatabase) {
    test_support::open(from).await.close().await;
    let mut options = test_support::options(from);
    options.timeout = std::time::Duration::from_millis(200);
    let source = Source::open(&options).await.unwrap();
    let db = Db::open(&options).await.unwrap();
    let written = async {
        let mut tx = db.begin().await?;
        let text = "insert into counters (name, value) values ('written', 1)";
        on!(tx, |c| sqlx::query(text).execute(c).await.map(drop))?;
        tx.commit().await
    };
    let written: Result<()> = written.await;
    let closed = source.close().await;
    match from.is_sqlite() {
        true => {
            written.unwrap();
            assert!(matches!(closed, Err(StoreError::Stale)), "{closed:?}");
        }
        false => {
            written.unwrap_err();
            closed.unwrap();
        }
    }
    db.close().await;
}

testkit::both!(
    crate::test_support:
    rolled_back_copy_leaves_the_target_empty,
    changed_copy_is_detected,
    source_cannot_change_unnoticed,
);
