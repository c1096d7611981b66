//! Measures the throughput of reading a feed: `cargo xtask bench reading`.
//!
//! The records are synthetic, with the size and structure of osv.dev's records for Debian: one CVE,
//! four releases, and a paragraph of text that is ignored.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use feed::{Feed, FeedKind};

const RECORDS: u32 = 20_000;

fn main() {
    divan::main();
}

fn record(number: u32) -> String {
    let affected: Vec<String> = (11..15)
        .map(|release| {
            format!(
                r#"{{"package":{{"name":"source{}","ecosystem":"Debian:{release}","purl":"pkg:deb/debian/x?arch=source"}},"ranges":[{{"type":"ECOSYSTEM","events":[{{"introduced":"0"}},{{"fixed":"1.{number}-1"}}]}}],"ecosystem_specific":{{"urgency":"not yet assigned"}}}}"#,
                number % 3_500
            )
        })
        .collect();
    format!(
        r#"{{"id":"DEBIAN-CVE-2026-{number}","details":"{}","modified":"2026-11-01T00:00:00Z","published":"2026-10-01T00:00:00Z","upstream":["CVE-2026-{number}"],"affected":[{}],"severity":[{{"type":"CVSS_V3","score":"CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H"}}]}}"#,
        "A vulnerability was found in a component. ".repeat(12),
        affected.join(",")
    )
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("fleetmend-bench-feed-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("create a temporary directory");
    folder
}

fn lines() -> Vec<u8> {
    (0..RECORDS).flat_map(|number| (record(number) + "\n").into_bytes()).collect()
}

fn pass(bencher: Bencher<'_, '_>, name: &str, bytes: &[u8], unpacked: usize) {
    let folder = folder();
    let path = folder.join(name);
    fs::write(&path, bytes).expect("write the feed");
    bencher.counter(ItemsCount::new(RECORDS)).counter(BytesCount::new(unpacked)).bench_local(
        || {
            let checked =
                Feed::new(&path, FeedKind::Osv).check(&mut |_| {}).expect("the feed is valid");
            assert_eq!(checked.summary().records, u64::from(RECORDS));
        },
    );
    fs::remove_dir_all(&folder).expect("remove the temporary directory");
}

/// One pass. An import makes two passes and writes the records of the second one.
#[divan::bench(sample_count = 5)]
fn pass_over_jsonl(bencher: Bencher<'_, '_>) {
    let lines = lines();
    pass(bencher, "feed.jsonl", &lines, lines.len());
}

#[divan::bench(sample_count = 5)]
fn pass_over_gzipped_jsonl(bencher: Bencher<'_, '_>) {
    let lines = lines();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&lines).expect("memory");
    pass(bencher, "feed.jsonl.gz", &packed.finish().expect("memory"), lines.len());
}

#[divan::bench(sample_count = 5)]
fn pass_over_zip_archive(bencher: Bencher<'_, '_>) {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let mut unpacked = 0;
    for number in 0..RECORDS {
        let record = record(number);
        unpacked += record.len();
        let options = zip::write::SimpleFileOptions::default();
        archive.start_file(format!("{number}.json"), options).expect("memory");
        archive.write_all(record.as_bytes()).expect("memory");
    }
    let archive = archive.finish().expect("memory").into_inner();
    pass(bencher, "feed.zip", &archive, unpacked);
}
