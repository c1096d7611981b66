//! Helpers that write feeds to disk and read them back.

use std::convert::Infallible;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use domain::advisory::Advisory;
use feed::{CheckedFeed, Feed, FeedError, FeedKind, Record};

/// A temporary directory for one test. Removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("feed-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether a program is installed. If not, prints a skip message, or fails the test if
/// FLEETMEND_TEST_REQUIRE_TOOLS is set.
pub(crate) fn has_program(program: &str, debian_package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
        return true;
    }
    let missing = format!("{program} is not installed (Debian package {debian_package})");
    let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some_and(|set| set == "1");
    assert!(!required, "{missing}");
    println!("skipped: {missing}");
    false
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = zip::write::SimpleFileOptions::default();
        archive.start_file(*name, options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

pub(crate) fn check(path: &Path, kind: FeedKind) -> Result<CheckedFeed, FeedError> {
    Feed::new(path, kind).check(&mut |_| {})
}

pub(crate) fn all(checked: &CheckedFeed) -> Vec<Record> {
    let mut records = Vec::new();
    checked
        .read(&mut |_| {}, |record| {
            records.push(record);
            Ok::<(), Infallible>(())
        })
        .unwrap();
    assert_eq!(records.len() as u64, checked.summary().records);
    records
}

pub(crate) fn records(path: &Path, kind: FeedKind) -> Vec<Record> {
    all(&check(path, kind).unwrap_or_else(|error| panic!("{}: {}", path.display(), chain(&error))))
}

pub(crate) fn advisories(path: &Path, kind: FeedKind) -> Vec<Advisory> {
    let advisory = |record| match record {
        Record::Advisory(advisory) => *advisory,
        other => panic!("{other:?}"),
    };
    records(path, kind).into_iter().map(advisory).collect()
}

/// Parses one OSV record into its advisory.
pub(crate) fn osv(test: &str, text: &str) -> Advisory {
    let folder = Folder::new(test);
    let mut all = advisories(&folder.write("one.json", text), FeedKind::Osv);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// An error followed by its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// A small OSV record.
pub(crate) fn record(number: u32) -> String {
    format!(
        r#"{{"id":"DSA-{number}-1","modified":"2026-11-01T00:00:00Z","upstream":["CVE-2026-{number:04}"],"affected":[{{"package":{{"ecosystem":"Debian:12","name":"package{number}"}},"ranges":[{{"type":"ECOSYSTEM","events":[{{"introduced":"0"}},{{"fixed":"1.{number}-1"}}]}}]}}]}}"#
    )
}
