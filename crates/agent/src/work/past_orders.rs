//! The ids of past orders, kept for as long as the orders are valid.
//!
//! An order whose result is still kept has a directory. When that is deleted, its id is stored
//! here, so that a signed order that is sent again, for whatever reason, is never executed twice.
//! Times are the service's, by which the validity of orders is judged.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use vocab::TaskId;

use super::files;
use super::journal::Journal;

const FILE_NAME: &str = "past";
/// Maximum number of ids. Enough for a week at one order per minute.
const IDS_MAX: usize = 10_000;
/// How long an id is kept after its order expired. A service clock that was ahead for a while and
/// was set back must not make a deleted order valid again.
const EXPIRY_MARGIN: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The assumed validity of an order whose expiry was not stored.
const ASSUMED_VALIDITY: SignedDuration = SignedDuration::from_hours(31 * 24);

/// The ids, with the expiry of each order.
#[derive(Clone)]
pub(super) struct PastOrders {
    path: PathBuf,
    ids: BTreeMap<TaskId, Timestamp>,
    pub(super) ids_max: usize,
}

impl PastOrders {
    /// Reads the ids from the orders directory.
    pub(super) fn open(dir: &Path) -> io::Result<PastOrders> {
        let path = dir.join(FILE_NAME);
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let read = |line: &str| {
            let (id, expires_at) = line.split_once(' ')?;
            Some((id.parse().ok()?, expires_at.parse().ok()?))
        };
        let ids = text.lines().filter_map(read).collect();
        Ok(PastOrders { path, ids, ids_max: IDS_MAX })
    }

    pub(super) fn contains(&self, id: TaskId) -> bool {
        self.ids.contains_key(&id)
    }

    pub(super) fn is_full(&self) -> bool {
        self.ids.len() >= self.ids_max
    }

    /// Adds an order. Returns false if there is no room for it.
    pub(super) fn insert(&mut self, journal: &Journal) -> bool {
        if self.is_full() && !self.contains(journal.id) {
            return false;
        }
        let assumed = || journal.taken_at.checked_add(ASSUMED_VALIDITY).unwrap_or(Timestamp::MAX);
        self.ids.insert(journal.id, journal.expires_at.unwrap_or_else(assumed));
        true
    }

    /// Deletes the ids of orders that can no longer be valid.
    pub(super) fn drop_expired(&mut self, server_time: Timestamp) {
        let since = server_time.saturating_sub(EXPIRY_MARGIN).unwrap_or(Timestamp::MIN);
        self.ids.retain(|_, expires_at| *expires_at >= since);
    }

    pub(super) fn save(&self) -> io::Result<()> {
        let mut text = String::new();
        for (id, expires_at) in &self.ids {
            text.push_str(&format!("{id} {expires_at}\n"));
        }
        files::write(&self.path, text.as_bytes())
    }
}
