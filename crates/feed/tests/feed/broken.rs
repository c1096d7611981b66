//! A broken, truncated or empty feed is refused before it can change anything, and the error names
//! the file and the record.

use feed::{FeedError, Kind, Stopped};

use crate::support::{Folder, chain, check, gzip, record, zip};

#[track_caller]
fn refusal(path: &std::path::Path, kind: Kind) -> String {
    let error = check(path, kind).expect_err("the feed is broken");
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let told = chain(&error);
    let start = told.find(&name).unwrap_or_else(|| panic!("{told} does not name {name}"));
    told[start..].to_owned()
}

fn tracker() -> Kind {
    Kind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() }
}

#[test]
fn broken_record_is_reported_by_its_number() {
    let folder = Folder::new("broken-record");
    let lines = |third: &str| format!("{}\n{}\n{third}\n{}\n", record(1), record(2), record(4));
    let path = folder.write("a.jsonl", lines("{\"id\":7}"));
    assert!(refusal(&path, Kind::Osv).starts_with("a.jsonl: record 3 cannot be parsed: "));
    let path = folder.write("b.jsonl", lines("{}"));
    assert!(refusal(&path, Kind::Osv).starts_with("b.jsonl: record 3 cannot be parsed: "));
    let path = folder.write("c.jsonl", lines("{\"id\":\"\"}"));
    assert_eq!(refusal(&path, Kind::Osv), "c.jsonl: record 3: the advisory has no id");
    let array = format!("[{},{},{{\"id\":7}}]", record(1), record(2));
    let path = folder.write("d.json", array);
    assert!(refusal(&path, Kind::Osv).starts_with("d.json: record 3 cannot be parsed: "));
    let path = folder.write("e.zip", zip(&[("x.json", b"nonsense")]));
    assert!(refusal(&path, Kind::Osv).starts_with("e.zip (x.json): record 1 cannot be parsed: "));
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
        assert!(check(&folder.write(name, &bytes), Kind::Osv).is_ok(), "{name} unmodified");
        for keep in (1..bytes.len()).step_by(1 + bytes.len() / 40).chain([bytes.len() - 1]) {
            let path = folder.write(name, &bytes[..keep]);
            assert!(check(&path, Kind::Osv).is_err(), "{name}: {keep} of {}", bytes.len());
        }
    }
    let path = folder.write("e.jsonl", &lines[..lines.len() - 20]);
    assert_eq!(refusal(&path, Kind::Osv), "e.jsonl is cut off");
    let table = "cve,epss,percentile\nCVE-2026-0001,0.1,0.25";
    assert_eq!(refusal(&folder.write("f.csv", table), Kind::Epss), "f.csv is cut off");
    let list = "CVE-2026-0001 (x)\n\t- tar 1.34-1";
    assert_eq!(refusal(&folder.write("g.list", list), tracker()), "g.list is cut off");
}

#[test]
fn corrupt_archive_or_stream_is_refused() {
    let folder = Folder::new("damaged");
    let lines: String = (0..2_000).map(|number| record(number) + "\n").collect();
    let mut packed = gzip(lines.as_bytes());
    let end = packed.len() - 6;
    packed[end] ^= 0xff;
    assert!(check(&folder.write("a.gz", packed), Kind::Osv).is_err());
    let mut archive = zip(&[("a.json", lines.as_bytes())]);
    let middle = archive.len() / 2;
    archive[middle] ^= 0xff;
    assert!(check(&folder.write("b.zip", archive), Kind::Osv).is_err());
}

#[test]
fn empty_feed_is_refused_in_every_format() {
    let folder = Folder::new("empty");
    for (name, bytes, kind) in [
        ("a.jsonl", Vec::new(), Kind::Osv),
        ("b.jsonl", b"\n\n".to_vec(), Kind::Osv),
        ("c.json", b"[]".to_vec(), Kind::Osv),
        ("d.gz", gzip(b""), Kind::Osv),
        ("e.zip", zip(&[]), Kind::Osv),
        ("f.zip", zip(&[("README.md", b"hello")]), Kind::Osv),
        ("g.csv", b"cve,epss,percentile\n".to_vec(), Kind::Epss),
        ("h.json", br#"{"count":0,"vulnerabilities":[]}"#.to_vec(), Kind::Kev),
        (
            "i.json",
            br#"{"distroversion":"v3.22","reponame":"main","packages":[]}"#.to_vec(),
            Kind::Secdb,
        ),
        ("j.list", b"# nothing\n".to_vec(), tracker()),
    ] {
        let told = refusal(&folder.write(name, bytes), kind);
        assert_eq!(told, format!("{name} contains no records"));
    }
    std::fs::create_dir(folder.path().join("nothing")).unwrap();
    assert_eq!(refusal(&folder.path().join("nothing"), Kind::Osv), "nothing contains no records");
    assert!(
        refusal(&folder.path().join("absent"), Kind::Osv).starts_with("absent cannot be opened")
    );
}

#[test]
fn feed_of_another_format_is_refused() {
    let folder = Folder::new("kinds");
    let html = folder.write("error.html", "<html>502 Bad Gateway</html>\n");
    for kind in [Kind::Osv, Kind::Secdb, Kind::Kev, Kind::Epss, tracker()] {
        refusal(&html, kind);
    }
    let osv = folder.write("osv.json", record(1));
    for kind in [Kind::Secdb, Kind::Kev, Kind::Epss] {
        refusal(&osv, kind);
    }
}

#[test]
fn catalog_with_missing_entries_is_refused() {
    let folder = Folder::new("catalog");
    let catalog =
        r#"{"count":2,"vulnerabilities":[{"cveID":"CVE-2026-0001","dateAdded":"2026-01-27"}]}"#;
    assert_eq!(
        refusal(&folder.write("kev.json", catalog), Kind::Kev),
        "kev.json: record 1: the catalog declares 2 entries but contains 1"
    );
    let table = "cve,epss,percentile\nCVE-2026-0001,2,0.5\n";
    assert_eq!(
        refusal(&folder.write("epss.csv", table), Kind::Epss),
        "epss.csv: record 2: `2` is not a number from 0 to 1"
    );
}

#[test]
fn feed_changed_after_check_is_reported() {
    let folder = Folder::new("changed");
    let path = folder.write("a.jsonl", format!("{}\n{}\n", record(1), record(2)));
    let checked = check(&path, Kind::Osv).unwrap();
    folder.write("a.jsonl", format!("{}\n{}\n", record(1), record(3)));
    let read = checked.read(&mut |_| {}, |_| Ok::<(), ()>(()));
    assert!(matches!(read, Err(Stopped::Feed(FeedError::Changed { .. }))), "{read:?}");
}

#[test]
fn callback_error_stops_the_read() {
    let folder = Folder::new("stop");
    let path = folder.write("a.jsonl", format!("{}\n{}\n", record(1), record(2)));
    let array = folder.write("b.json", format!("[{},{}]", record(1), record(2)));
    for path in [path, array] {
        let mut taken = 0;
        let read = check(&path, Kind::Osv).unwrap().read(&mut |_| {}, |_| {
            taken += 1;
            Err("the disk is full")
        });
        assert!(matches!(read, Err(Stopped::Taker("the disk is full"))), "{read:?}");
        assert_eq!(taken, 1);
    }
}
