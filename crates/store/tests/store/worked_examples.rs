//! The worked examples in the documentation of `server_list` show the SQL that the store sends.
//!
//! If this test fails after a change to `server_list`, check the plans on both databases and
//! correct the examples. `query_plans` checks that frequent queries use an index.

use store::server_list::{Filter, Sort};
use store::servers::Server;
use store::{Db, Page, Tx, recorded_sql, server_list, servers};
use vocab::OrgId;

use crate::query_plans;
use crate::support::org;

const PAGE: &str = include_str!("../../src/server_list.rs");

/// A tenth of the fleet in the examples, with the same shares of tags, environments and reboots, so
/// that each example takes the path that its text describes.
const FLEET: u32 = 2_000;

fn server(org_id: OrgId, n: u32) -> Server {
    let web = n.is_multiple_of(2).then(|| "web".to_owned());
    let tags = [Some(format!("rack={}", n % 40)), web];
    Server {
        tags: tags.into_iter().flatten().map(|tag| tag.parse().unwrap()).collect(),
        reboot_required: n.is_multiple_of(37),
        security_updates: n % 13,
        ..query_plans::server(org_id, n)
    }
}

/// One per block of SQL in the examples.
fn examples() -> [(Filter, Sort, u64); 7] {
    let tagged = |tag: &str| Filter { tags: vec![tag.parse().unwrap()], ..Filter::default() };
    let named = Filter { q: Some("b-199".into()), ..Filter::default() };
    let reboot = Filter {
        environment: Some("production".parse().unwrap()),
        reboot_required: Some(true),
        ..Filter::default()
    };
    [
        (Filter::default(), Sort::Hostname, 0),
        (tagged("rack=7"), Sort::Hostname, 0),
        (tagged("web"), Sort::Hostname, 0),
        (named, Sort::Hostname, 0),
        (reboot, Sort::Hostname, 0),
        (Filter::default(), Sort::SecurityUpdates, 0),
        (Filter::default(), Sort::Hostname, 1_500),
    ]
}

/// A statement, and the steps of SQLite's plan for it.
#[derive(Debug, Default, PartialEq)]
struct Statement {
    sql: String,
    steps: Vec<String>,
}

/// The statements in each block of SQL in the examples.
fn documented_statements() -> Vec<Vec<Statement>> {
    let mut blocks = Vec::new();
    let mut block: Option<Vec<Statement>> = None;
    let mut next = Statement::default();
    for line in PAGE.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim) {
        match (line, &mut block) {
            ("```sql", _) => block = Some(Vec::new()),
            ("```", _) => blocks.extend(block.take()),
            (_, Some(statements)) => {
                if let Some(step) = line.strip_prefix("-- SQLite: ") {
                    next.steps.push(step.to_owned());
                } else if !line.starts_with("--") {
                    next.sql = format!("{} {line}", next.sql).trim().to_owned();
                }
                if let Some(sql) = next.sql.strip_suffix(';') {
                    statements.push(Statement { sql: sql.to_owned(), steps: next.steps });
                    next = Statement::default();
                }
            }
            (_, None) => {}
        }
    }
    blocks
}

/// Converts SQL to PostgreSQL's form, as the examples describe it.
fn for_postgres(sql: &str) -> String {
    let index = |name: &str| format!(" indexed by {name}");
    sql.replace(&index("server_index_id"), "")
        .replace(&index("server_index_security"), "")
        .replace("in (?, …)", "= any(?)")
}

/// The statements that one list sends, written as in the examples: without repetitions, and without
/// the last one, which reads the rows.
async fn sent_statements(
    tx: &mut Tx,
    ours: OrgId,
    (filter, sort, offset): (Filter, Sort, u64),
) -> Vec<Statement> {
    recorded_sql();
    let page = Page { limit: 50, offset };
    let listed = server_list::list(tx, ours, &filter, sort, page).await.unwrap();
    assert!(!listed.items.is_empty(), "{filter:?}");
    let mut texts = recorded_sql();
    let rows = texts.pop().unwrap();
    assert!(rows.contains(" from servers join presence "), "{rows}");
    texts.dedup();
    let mut statements = Vec::new();
    for text in texts {
        let steps = query_plans::steps(tx, &text).await;
        let mut sql = (1..=9).fold(text, |sql, n| sql.replace(&format!("${n}"), "?"));
        while sql.contains("?, ?") {
            sql = sql.replace("?, ?", "?");
        }
        statements.push(Statement { sql: sql.replace("in (?)", "in (?, …)"), steps });
    }
    statements
}

async fn worked_examples_show_the_sql_that_is_sent(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let fleet: Vec<_> = (0..FLEET).map(|n| server(ours, n)).collect();
    servers::enroll_all(&mut tx, &fleet).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = db.begin().await.unwrap();
    let is_sqlite = matches!(*tx, store::Conn::SqliteTx(_));
    let blocks = documented_statements();
    assert_eq!(blocks.len(), examples().len());
    for (n, (mut block, example)) in blocks.into_iter().zip(examples()).enumerate() {
        let mut sent = sent_statements(&mut tx, ours, example).await;
        // Only the first example shows the statement for the size of the fleet.
        if n > 0 {
            let size = sent.remove(0);
            assert!(size.sql.ends_with("from server_counts where org_id = ?"), "{size:?}");
        }
        if !is_sqlite {
            for statement in &mut block {
                *statement = Statement { sql: for_postgres(&statement.sql), steps: Vec::new() };
            }
        }
        assert_eq!(block, sent, "left: block {} in the documentation of server_list", n + 1);
    }
}

testkit::both!(
    crate::support::db:
    worked_examples_show_the_sql_that_is_sent,
);
