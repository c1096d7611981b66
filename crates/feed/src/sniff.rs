//! What a file most likely holds, told by how it begins.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use jiff::Timestamp;

use crate::{FeedError, Kind};

/// How much of the beginning is looked at.
const HEAD_BYTES: u64 = 8 * 1024;

/// What a file most likely holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sniffed {
    /// What it holds; none where a person must say, because the file does not: Debian's list is
    /// read for one release.
    pub kind: Option<Kind>,
    /// Of when it is, where it says so at its beginning.
    pub as_of: Option<Timestamp>,
}

/// Looks at the beginning of what is at `path`. A directory and an archive hold OSV's form.
pub fn sniff(path: &Path) -> Result<Sniffed, FeedError> {
    let failed = |source| FeedError::Open { path: path.to_owned(), source };
    let osv = Sniffed { kind: Some(Kind::Osv), as_of: None };
    if path.is_dir() {
        return Ok(osv);
    }
    let mut input = BufReader::new(File::open(path).map_err(failed)?);
    let start = input.fill_buf().map_err(failed)?;
    if start.starts_with(b"PK") {
        return Ok(osv);
    }
    let mut head = Vec::new();
    // What is cut off or broken is refused with more to say when it is read.
    let _ = match start.starts_with(&[0x1f, 0x8b]) {
        true => MultiGzDecoder::new(input).take(HEAD_BYTES).read_to_end(&mut head),
        false => input.take(HEAD_BYTES).read_to_end(&mut head),
    };
    Ok(of_text(&String::from_utf8_lossy(&head)))
}

fn of_text(head: &str) -> Sniffed {
    let has = |word: &str| head.contains(word);
    let (kind, as_of) = if head.starts_with("#model_version") || head.starts_with("cve,epss") {
        let stated = head.lines().next().and_then(|line| line.split("score_date:").nth(1));
        (Some(Kind::Epss), stated.and_then(stamp))
    } else if has("\"catalogVersion\"") || has("\"dateReleased\"") {
        let stated = head.split("\"dateReleased\"").nth(1);
        (Some(Kind::Kev), stated.and_then(|rest| rest.split('"').nth(1)).and_then(stamp))
    } else if has("\"distroversion\"") || has("\"reponame\"") {
        (Some(Kind::Secdb), None)
    } else if head.starts_with("CVE-") {
        (None, None)
    } else {
        (Some(Kind::Osv), None)
    };
    Sniffed { kind, as_of }
}

/// A time as feeds write them: some leave the colon out of the offset.
fn stamp(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    text.parse().ok().or_else(|| Timestamp::strptime("%Y-%m-%dT%H:%M:%S%z", text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_tells_what_a_file_holds_and_of_when_it_is() {
        let kinds = [
            (
                "#model_version:v1,score_date:2026-11-14T00:00:00+0000\ncve,epss,percentile\n",
                Some(Kind::Epss),
            ),
            ("cve,epss,percentile\n", Some(Kind::Epss)),
            (
                r#"{"title": "x", "catalogVersion": "1", "dateReleased": "2026-11-14T00:00:00.000Z""#,
                Some(Kind::Kev),
            ),
            (r#"{"apkurl": "x", "distroversion": "v3.22""#, Some(Kind::Secdb)),
            (r#"{"id": "DSA-1-1""#, Some(Kind::Osv)),
            ("CVE-2026-0001 (x)\n", None),
            ("", Some(Kind::Osv)),
        ];
        for (head, kind) in &kinds {
            assert_eq!(of_text(head).kind, *kind, "{head}");
        }
        let day = Some("2026-11-14T00:00:00Z".parse().unwrap());
        assert_eq!((of_text(kinds[0].0).as_of, of_text(kinds[2].0).as_of), (day, day));
        assert_eq!(of_text(kinds[1].0).as_of, None);
    }
}
