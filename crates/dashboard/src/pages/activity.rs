//! The rows of the activity page: entries by day, with similar ones folded.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use service::queries::activity::{Entry, Resources};

use crate::pages::sentence::{folded_sentence, sentence};

/// Entries of the same actor and action are one row if no more time passed between two of them.
const FOLD_GAP: SignedDuration = SignedDuration::from_mins(5);

/// The entries of a day in UTC.
#[derive(Debug)]
pub struct ActivityDay {
    pub day: Date,
    pub rows: Vec<ActivityRow>,
}

impl ActivityDay {
    /// The day in words, such as `Wednesday, 18 November 2026`.
    pub fn heading(&self) -> String {
        self.day.strftime("%A, %-d %B %Y").to_string()
    }
}

/// One or several similar entries.
#[derive(Debug)]
pub struct ActivityRow {
    /// The newest.
    pub at: Timestamp,
    /// HTML.
    pub sentence: String,
    /// At least one.
    pub entries: Vec<ActivityEntry>,
}

#[derive(Debug)]
pub struct ActivityEntry {
    pub seq: i64,
    pub at: Timestamp,
    /// HTML.
    pub sentence: String,
    /// The stored entry as JSON.
    pub raw: String,
}

/// The ids of everything that an entry names: its actor, its subject, and ids in its detail.
pub fn named_ids(entry: &Entry) -> Vec<String> {
    let detail: Value = serde_json::from_str(&entry.detail).unwrap_or(Value::Null);
    let ids = ["server_id", "batch_id", "schedule_id", "retried_as"].into_iter();
    let ids = ids.filter_map(|name| detail[name].as_str().map(str::to_owned));
    ids.chain([entry.actor.clone(), entry.subject.clone()]).collect()
}

/// Groups entries, newest first, into days and rows.
pub fn days(entries: &[Entry], known: &Resources) -> Vec<ActivityDay> {
    let day_of = |entry: &Entry| entry.at.to_zoned(TimeZone::UTC).date();
    let is_similar = |a: &Entry, b: &Entry| {
        (&a.actor, &a.action) == (&b.actor, &b.action)
            && day_of(a) == day_of(b)
            && a.at.duration_since(b.at).abs() <= FOLD_GAP
    };
    let mut days: Vec<ActivityDay> = Vec::new();
    for similar in entries.chunk_by(is_similar) {
        let Some(first) = similar.first() else { continue };
        let row = ActivityRow {
            at: first.at,
            sentence: match similar.len() {
                1 => sentence(first, known),
                count => folded_sentence(first, count, known),
            },
            entries: similar.iter().map(|entry| activity_entry(entry, known)).collect(),
        };
        match days.last_mut().filter(|last| last.day == day_of(first)) {
            Some(last) => last.rows.push(row),
            None => days.push(ActivityDay { day: day_of(first), rows: vec![row] }),
        }
    }
    days
}

fn activity_entry(entry: &Entry, known: &Resources) -> ActivityEntry {
    let detail: Value =
        serde_json::from_str(&entry.detail).unwrap_or_else(|_| Value::String(entry.detail.clone()));
    let raw = serde_json::json!({
        "seq": entry.seq, "at": entry.at.to_string(), "actor": entry.actor,
        "action": entry.action, "subject": entry.subject, "detail": detail,
    });
    ActivityEntry {
        seq: entry.seq,
        at: entry.at,
        sentence: sentence(entry, known),
        raw: serde_json::to_string_pretty(&raw).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: i64, at: &str, actor: &str, action: &str) -> Entry {
        Entry {
            org_id: vocab::OrgId::new(Timestamp::UNIX_EPOCH, 1),
            seq,
            at: at.parse().unwrap(),
            actor: actor.into(),
            action: action.into(),
            subject: format!("srv_{seq}"),
            detail: "{}".into(),
            previous: vec![],
            hash: vec![],
        }
    }

    #[test]
    fn similar_entries_are_folded_and_days_are_separate() {
        let entries = [
            entry(9, "2026-11-18T00:10:00Z", "usr_1", "server.edit"),
            entry(8, "2026-11-18T00:06:00Z", "usr_1", "server.edit"),
            // More than five minutes earlier.
            entry(7, "2026-11-18T00:00:30Z", "usr_1", "server.edit"),
            // Another day.
            entry(6, "2026-11-17T23:59:59Z", "usr_1", "server.edit"),
            entry(5, "2026-11-17T23:59:00Z", "usr_1", "server.remove"),
            entry(4, "2026-11-17T23:58:00Z", "usr_2", "server.remove"),
        ];
        let days = days(&entries, &Resources::default());
        let shape: Vec<(String, Vec<Vec<i64>>)> = days
            .iter()
            .map(|day| {
                let seqs = |row: &ActivityRow| row.entries.iter().map(|one| one.seq).collect();
                (day.heading(), day.rows.iter().map(seqs).collect())
            })
            .collect();
        assert_eq!(
            shape,
            [
                ("Wednesday, 18 November 2026".to_owned(), vec![vec![9, 8], vec![7]]),
                ("Tuesday, 17 November 2026".to_owned(), vec![vec![6], vec![5], vec![4]]),
            ]
        );
        assert!(days[0].rows[0].sentence.ends_with("edited 2 servers"), "{:?}", days[0].rows[0]);
        assert!(days[1].rows[1].sentence.contains("removed server"), "{:?}", days[1].rows[1]);
    }
}
