//! A broken, truncated or empty feed is rejected before it can change anything, and the error names
//! the file and the record.

use feed::{FeedError, FeedKind, FeedReadError};

use crate::support::{Folder, chain, check, gzip, record, zip};

#[track_caller]
fn refusal(path: &std::path::Path, kind: FeedKind) -> String {
    let error = check(path, kind).expect_err("the feed is broken");
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let message = chain(&error);
    let start = message.find(&name).unwrap_or_else(|| panic!("{message} does not name {name}"));
    message[start..].to_owned()
}

fn tracker() -> FeedKind {
    FeedKind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() }
}

#[test]
fn broken_record_is_reported_by_its_number() {
    let folder = Folder::new("broken-record");
    let lines = |third: &str| format!("{}\n{}\n{third}\n{}\n", record(1), record(2), record(4));
    let path = folder.write("a.jsonl", lines("{\"id\":7}"));
    assert!(refusal(&path, FeedKind::Osv).starts_with("a.jsonl: record 3 cannot be parsed: "));
    let path = folder.write("b.jsonl", lines("{}"));
    assert!(refusal(&path, FeedKind::Osv).starts_with("b.jsonl: record 3 cannot be parsed: "));
    let path = folder.write("c.jsonl", lines("{\"id\":\"\"}"));
    assert_eq!(refusal(&path, FeedKind::Osv), "c.jsonl: record 3: the advisory has no id");
    let array = format!("[{},{},{{\"id\":7}}]", record(1), record(2));
    let path = folder.write("d.json", array);
    assert!(refusal(&path, FeedKind::Osv).starts_with("d.json: record 3 cannot be parsed: "));
    let path = folder.write("e.zip", zip(&[("x.json", b"nonsense")]));
    assert!(
        refusal(&path, FeedKind::Osv).starts_with("e.zip (x.json): record 1 cannot be parsed: ")
    );
}

#[test]
fn feed_truncated_at_any_byte_is_refused() {
    let folder = Folder::new("cut-off");
    let lines: String = (0..20).map(|number| record(number) + "\n").collect();
    let array = format!("[{},{}]", record(1), record(2));
    let archive = zip(&[("a.json", record(1).as_bytes()), ("b.json", record(2).as_bytes())]);
    for (name, bytes) in [
        ("a.gz", gzip(lines.as_bytes())),
        ("b.json", array.into_bytes()),
        ("c.zip", archive),
        ("d.json", record(1).replace(',', ",\n").into_bytes()),
    ] {
        assert!(check(&folder.write(name, &bytes), FeedKind::Osv).is_ok(), "{name} unmodified");
        for keep in (1..bytes.len()).step_by(1 + bytes.len() / 40).chain([bytes.len() - 1]) {
            let path = folder.write(name, &bytes[..keep]);
            assert!(check(&path, FeedKind::Osv).is_err(), "{name}: {keep} of {}", bytes.len());
        }
    }
    let path = folder.write("e.jsonl", &lines[..lines.len() - 20]);
    assert_eq!(refusal(&path, FeedKind::Osv), "e.jsonl is truncated");
    let table = "cve,epss,percentile\nCVE-2026-0001,0.1,0.25";
    assert_eq!(refusal(&folder.write("f.csv", table), FeedKind::Epss), "f.csv is truncated");
    let list = "CVE-2026-0001 (x)\n\t- tar 1.34-1";
    assert_eq!(refusal(&folder.write("g.list", list), tracker()), "g.list is truncated");
}

#[test]
fn corrupt_archive_or_stream_is_refused() {
    let folder = Folder::new("damaged");
    let lines: String = (0..2_000).map(|number| record(number) + "\n").collect();
    let mut packed = gzip(lines.as_bytes());
    let end = packed.len() - 6;
    packed[end] ^= 0xff;
    assert!(check(&folder.write("a.gz", packed), FeedKind::Osv).is_err());
    let mut archive = zip(&[("a.json", lines.as_bytes())]);
    let middle = archive.len() / 2;
    archive[middle] ^= 0xff;
    assert!(check(&folder.write("b.zip", archive), FeedKind::Osv).is_err());
}

#[test]
fn empty_feed_is_refused_in_every_format() {
    let folder = Folder::new("empty");
    for (name, bytes, kind) in [
        ("a.jsonl", Vec::new(), FeedKind::Osv),
        ("b.jsonl", b"\n\n".to_vec(), FeedKind::Osv),
        ("c.json", b"[]".to_vec(), FeedKind::Osv),
        ("d.gz", gzip(b""), FeedKind::Osv),
        ("e.zip", zip(&[]), FeedKind::Osv),
        ("f.zip", zip(&[("README.md", b"hello")]), FeedKind::Osv),
        ("g.csv", b"cve,epss,percentile\n".to_vec(), FeedKind::Epss),
        ("h.json", br#"{"count":0,"vulnerabilities":[]}"#.to_vec(), FeedKind::Kev),
        (
            "i.json",
            br#"{"distroversion":"v3.22","reponame":"main","packages":[]}"#.to_vec(),
            FeedKind::Secdb,
        ),
        ("j.list", b"# nothing\n".to_vec(), tracker()),
    ] {
        let message = refusal(&folder.write(name, bytes), kind);
        assert_eq!(message, format!("{name} contains no records"));
    }
    std::fs::create_dir(folder.path().join("nothing")).unwrap();
    assert_eq!(
        refusal(&folder.path().join("nothing"), FeedKind::Osv),
        "nothing contains no records"
    );
    assert!(
        refusal(&folder.path().join("absent"), FeedKind::Osv)
            .starts_with("absent cannot be opened")
    );
}

#[test]
fn feed_of_another_format_is_refused() {
    let folder = Folder::new("kinds");
    let html = folder.write("error.html", "<html>502 Bad Gateway</html>\n");
    for kind in [FeedKind::Osv, FeedKind::Secdb, FeedKind::Kev, FeedKind::Epss, tracker()] {
        refusal(&html, kind);
    }
    let osv = folder.write("osv.json", record(1));
    for kind in [FeedKind::Secdb, FeedKind::Kev, FeedKind::Epss] {
        refusal(&osv, kind);
    }
}

#[test]
fn catalog_with_missing_entries_is_refused() {
    let folder = Folder::new("catalog");
    let catalog =
        r#"{"count":2,"vulnerabilities":[{"cveID":"CVE-2026-0001","dateAdded":"2026-01-27"}]}"#;
    assert_eq!(
        refusal(&folder.write("kev.json", catalog), FeedKind::Kev),
        "kev.json: record 1: the catalog declares 2 entries but contains 1"
    );
    let table = "cve,epss,percentile\nCVE-2026-0001,2,0.5\n";
    assert_eq!(
        refusal(&folder.write("epss.csv", table), FeedKind::Epss),
        "epss.csv: record 2: `2` is not a number from 0 to 1"
    );
}

#[test]
fn feed_changed_after_check_is_reported() {
    let folder = Folder::new("changed");
    let path = folder.write("a.jsonl", format!("{}\n{}\n", record(1), record(2)));
    let checked = check(&path, FeedKind::Osv).unwrap();
    folder.write("a.jsonl", format!("{}\n{}\n", record(1), record(3)));
    let read = checked.read(&mut |_| {}, |_| Ok::<(), ()>(()));
    assert!(matches!(read, Err(FeedReadError::Feed(FeedError::Changed { .. }))), "{read:?}");
}

#[test]
fn callback_error_stops_the_read() {
    let folder = Folder::new("stop");
    let path = folder.write("a.jsonl", format!("{}\n{}\n", record(1), record(2)));
    let array = folder.write("b.json", format!("[{},{}]", record(1), record(2)));
    for path in [path, array] {
        let mut taken = 0;
        let read = check(&path, FeedKind::Osv).unwrap().read(&mut |_| {}, |_| {
            taken += 1;
            Err("the disk is full")
        });
        assert!(matches!(read, Err(FeedReadError::Consumer("the disk is full"))), "{read:?}");
        assert_eq!(taken, 1);
    }
}
