//! The servers of each tag, sorted by name. [`crate::server_list`] reads this table.

use std::collections::BTreeSet;

use vocab::{ServerId, Tag};

use crate::db::on;
use crate::error::Result;
use crate::row::{parse, put};
use crate::server_index::sort_name;
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text};
use crate::tx::Tx;

/// Adds the tags of servers.
pub(crate) async fn add<'a>(
    tx: &mut Tx,
    servers: impl IntoIterator<Item = &'a Server>,
) -> Result<()> {
    let tags = servers.into_iter().flat_map(|server| {
        let unique: BTreeSet<&Tag> = server.tags.iter().collect();
        unique.into_iter().map(move |tag| (server, tag))
    });
    let tags: Vec<_> = tags.collect();
    for (server, tag) in &tags {
        tx.adjust_tag_count((server.org_id, tag.as_str().to_owned()), 1);
    }
    for chunk in tags.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into server_tags (owner, tag, name, named) ")
                .rows(chunk, |row, (server, tag)| {
                    row.bind(put(&server.org_id)).bind(tag.as_str().to_owned());
                    row.bind(sort_name(server)).bind(put(&server.id));
                })
                .add(" on conflict do nothing")
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Removes all tags of servers, at most as many as fit into one statement.
pub(crate) async fn remove(tx: &mut Tx, ids: &[ServerId]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let removed: Vec<(String, String)> = on!(tx, |c| {
        let mut text = Text::new("delete from server_tags where named");
        text.in_ids(ids.iter().map(put)).add(" returning owner, tag");
        text.build_as().fetch_all(c).await
    })?;
    for (owner, tag) in removed {
        tx.adjust_tag_count((parse("server_tags", owner)?, tag), -1);
    }
    Ok(())
}
