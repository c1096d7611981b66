//! Detects the format of a feed from its first bytes, so that an operator does not have to name it.

use std::io::Read as _;
use std::path::Path;

use jiff::Timestamp;

use crate::error::PassError;
use crate::{FeedError, FeedKind, source};

/// How many bytes are read from the start of the file.
const HEAD_BYTES: u64 = 8 * 1024;

/// The most likely format of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SniffResult {
    /// `None` if the operator must choose: Debian's list and updateinfo files do not name the
    /// release to read them for.
    pub kind: Option<FeedKind>,
    /// The publication time, if the first bytes contain it.
    pub as_of: Option<Timestamp>,
}

/// Reads the start of the file at `path`, or of the first file in a directory or archive.
pub fn sniff(path: &Path) -> Result<SniffResult, FeedError> {
    let mut head = Vec::new();
    let walked = source::walk(path, &mut |_| {}, &mut |input, _| {
        // A truncated file is reported later, with a better message, when the feed is read.
        let _ = input.take(HEAD_BYTES).read_to_end(&mut head);
        Err(PassError::Stopped)
    });
    match walked {
        Err(PassError::Feed(error)) if matches!(*error, FeedError::Open { .. }) => Err(*error),
        // Any other error is reported when the feed is read.
        _ => Ok(sniff_text(&String::from_utf8_lossy(&head))),
    }
}

fn sniff_text(head: &str) -> SniffResult {
    let has = |word: &str| head.contains(word);
    let (kind, as_of) = if head.starts_with("#model_version") || head.starts_with("cve,epss") {
        let stated = head.lines().next().and_then(|line| line.split("score_date:").nth(1));
        (Some(FeedKind::Epss), stated.and_then(parse_timestamp))
    } else if has("\"catalogVersion\"") || has("\"dateReleased\"") {
        let stated = head.split("\"dateReleased\"").nth(1);
        (
            Some(FeedKind::Kev),
            stated.and_then(|rest| rest.split('"').nth(1)).and_then(parse_timestamp),
        )
    } else if has("\"csaf_version\"") || has("\"csaf_vex\"") {
        (Some(FeedKind::Csaf), None)
    } else if has("\"AVG-") && has("\"packages\"") {
        (Some(FeedKind::Arch), None)
    } else if has("\"distroversion\"") || has("\"reponame\"") {
        (Some(FeedKind::Secdb), None)
    } else if head.starts_with("CVE-") || has("<updates") {
        (None, None)
    } else {
        (Some(FeedKind::Osv), None)
    };
    SniffResult { kind, as_of }
}

/// Parses a time as feeds write it: some omit the colon in the offset.
fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    text.parse().ok().or_else(|| Timestamp::strptime("%Y-%m-%dT%H:%M:%S%z", text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_identify_format_and_publication_time() {
        let kinds = [
            (
                "#model_version:v1,score_date:2026-11-14T00:00:00+0000\ncve,epss,percentile\n",
                Some(FeedKind::Epss),
            ),
            ("cve,epss,percentile\n", Some(FeedKind::Epss)),
            (
                r#"{"title": "x", "catalogVersion": "1", "dateReleased": "2026-11-14T00:00:00.000Z""#,
                Some(FeedKind::Kev),
            ),
            (r#"{"apkurl": "x", "distroversion": "v3.22""#, Some(FeedKind::Secdb)),
            (r#"{"id": "DSA-1-1""#, Some(FeedKind::Osv)),
            (
                r#"{"document": {"category": "csaf_vex", "csaf_version": "2.0""#,
                Some(FeedKind::Csaf),
            ),
            (r#"[{"name": "AVG-1", "packages": ["a"]"#, Some(FeedKind::Arch)),
            ("CVE-2026-0001 (x)\n", None),
            ("<?xml version=\"1.0\"?>\n<updates><update", None),
            ("", Some(FeedKind::Osv)),
        ];
        for (head, kind) in &kinds {
            assert_eq!(sniff_text(head).kind, *kind, "{head}");
        }
        let day = Some("2026-11-14T00:00:00Z".parse().unwrap());
        assert_eq!((sniff_text(kinds[0].0).as_of, sniff_text(kinds[2].0).as_of), (day, day));
        assert_eq!(sniff_text(kinds[1].0).as_of, None);
    }
}
