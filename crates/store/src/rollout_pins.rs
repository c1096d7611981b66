//! The versions that the first wave of a rollout installed, per kind of system. Later waves install
//! exactly these. Written once, when the first wave has passed.

use async_recursion::async_recursion as boxed;
use domain::rollout::pins::PinnedVersion;
use jiff::Timestamp;
use vocab::BatchId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::seals;
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;

row! {
    /// The versions for servers with one system.
    pub struct PinSet in "rollout_pins" by "rollout_id" {
        pub rollout_id: BatchId,
        /// The name of the system: `debian 12 apt x86_64`.
        pub system: String,
        pub versions: Vec<PinnedVersion>,
        pub created_at: Timestamp,
        /// Its authentication code; see [`crate::seals`]. Set by this module.
        pub seal: crate::seals::SealCode,
    }
}

/// Adds the versions of a rollout, with their seals. Versions that are already stored stay.
#[boxed]
pub async fn create(tx: &mut Tx, sets: &[PinSet]) -> Result<()> {
    let seal = &tx.seal().clone();
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, sets, |chunk| {
            let mut text = Text::new(
                "insert into rollout_pins (rollout_id, system, versions, created_at, seal) ",
            );
            text.rows(chunk, |row, set| {
                row.bind(put(&set.rollout_id)).bind(set.system.clone()).bind(put(&set.versions));
                row.bind(put(&set.created_at)).bind(seals::pins(seal, set).to_vec());
            });
            text.add(" on conflict do nothing");
            text
        })
        .await
    })?;
    Ok(())
}

/// The versions of a rollout.
#[boxed]
pub async fn all(conn: &mut Conn, rollout: BatchId) -> Result<Vec<PinSet>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            PinSet::COLUMNS,
            " from rollout_pins where rollout_id = $1 order by system",
        ]))
        .bind(put(&rollout))
        .fetch_all(c)
        .await
    })?)
}
