//! Tests of the file formats in which feeds are published.

use feed::{Feed, FeedKind, Progress, Record};

use crate::support::{Folder, advisories, all, check, gzip, record, records, zip};

fn ids(path: &std::path::Path) -> Vec<String> {
    advisories(path, FeedKind::Osv).into_iter().map(|advisory| advisory.id).collect()
}

#[test]
fn same_advisories_are_read_from_every_file_format() {
    let folder = Folder::new("forms");
    let lines = format!("{}\n\n{}\r\n{}", record(1), record(2), record(3));
    let expected = ["DSA-1-1", "DSA-2-1", "DSA-3-1"];
    let array = format!("[{},\n{},{}]\n", record(1), record(2), record(3));
    for (name, bytes) in [
        ("a.jsonl", lines.clone().into_bytes()),
        ("b.jsonl.gz", gzip(lines.as_bytes())),
        ("c.json", array.clone().into_bytes()),
        ("d.json", format!("[\n{}", &array[1..]).into_bytes()),
        ("e.json.gz", gzip(array.as_bytes())),
        // Detected by its first bytes, not by its name.
        ("f", gzip(lines.as_bytes())),
        (
            "g.zip",
            zip(&[
                ("DSA-1-1.json", record(1).as_bytes()),
                ("debian/", b""),
                ("README.md", b"not a feed"),
                ("debian/DSA-2-1.json", record(2).as_bytes()),
                ("debian/DSA-3-1.json", record(3).as_bytes()),
            ]),
        ),
    ] {
        assert_eq!(ids(&folder.write(name, bytes)), expected, "{name}");
    }
    let both = [gzip(format!("{}\n", record(1)).as_bytes()), gzip(record(2).as_bytes())].concat();
    assert_eq!(ids(&folder.write("several-streams.gz", both)), expected[..2]);
}

#[test]
fn record_can_span_many_lines() {
    let folder = Folder::new("pretty");
    let pretty = record(1).replace(',', ",\n  ").replace('{', "{\n");
    assert_eq!(ids(&folder.write("pretty.json", pretty)), ["DSA-1-1"]);
}

#[test]
fn directory_is_read_in_name_order() {
    let folder = Folder::new("directory");
    folder.write("2026/b.json", record(3));
    folder.write("2026/a.json.gz", gzip(record(2).as_bytes()));
    folder.write("1999/x.jsonl", record(1));
    folder.write("zz.zip", zip(&[("y.json", record(4).as_bytes())]));
    folder.write("notes.txt", "not a feed");
    folder.write(".git/config", "not a feed");
    assert_eq!(ids(folder.path()), ["DSA-1-1", "DSA-2-1", "DSA-3-1", "DSA-4-1"]);
    let checked = check(folder.path(), FeedKind::Osv).unwrap();
    assert_eq!(checked.summary().files, 4);
}

#[test]
fn reading_twice_gives_identical_records() {
    let folder = Folder::new("twice");
    let path = folder.write("a.jsonl", format!("{}\n{}\n", record(1), record(2)));
    let checked = check(&path, FeedKind::Osv).unwrap();
    assert_eq!(all(&checked), all(&checked));
}

#[test]
fn progress_counts_bytes_and_ends_at_total() {
    let folder = Folder::new("progress");
    let lines: String = (0..8_000).map(|number| record(number) + "\n").collect();
    for (name, bytes) in [("a.jsonl", lines.clone().into_bytes()), ("b.gz", gzip(lines.as_bytes()))]
    {
        let total = bytes.len() as u64;
        let path = folder.write(name, bytes);
        let mut reports: Vec<Progress> = Vec::new();
        Feed::new(&path, FeedKind::Osv).check(&mut |now| reports.push(now)).unwrap();
        assert_eq!(reports.last(), Some(&Progress { bytes: total, total }), "{name}");
        assert!(reports.windows(2).all(|pair| pair[0].bytes <= pair[1].bytes), "{name}");
        assert!(name != "a.jsonl" || reports.len() > 4, "{} times", reports.len());
    }
}

#[test]
fn record_with_unknown_ecosystem_is_kept() {
    let folder = Folder::new("unknown");
    let strange = record(1).replace("Debian:12", "Hannah Montana Linux:1");
    let path = folder.write("a.jsonl", format!("{strange}\n{}\n", record(2)));
    assert_eq!(ids(&path), ["DSA-1-1", "DSA-2-1"]);
    let kept = &advisories(&path, FeedKind::Osv)[0].affected[0];
    assert_eq!(kept.ecosystem.as_str(), "Hannah Montana Linux:1");
}

#[test]
fn unexpected_publisher_fields_do_not_break_a_record() {
    let folder = Folder::new("own-places");
    for odd in ["null", "7", "true", "\"x\"", "[1,{}]", "{\"urgency\":[1],\"cves_map\":3,\"x\":{}}"]
    {
        let text = record(1).replace(
            "\"ranges\"",
            &format!("\"ecosystem_specific\":{odd},\"database_specific\":{odd},\"ranges\""),
        );
        let path = folder.write("a.json", text);
        assert_eq!(advisories(&path, FeedKind::Osv)[0].affected[0].spans.len(), 1, "{odd}");
    }
}

#[test]
fn exploited_cves_are_read() {
    let folder = Folder::new("kev");
    let catalog = r#"{"title":"KEV","count":2,"vulnerabilities":[
        {"cveID":"CVE-2026-0001","dateAdded":"2026-01-27","dueDate":"2026-01-30","knownRansomwareCampaignUse":"Known","product":"x"},
        {"cveID":"CVE-2026-0002","dateAdded":"2026-01-28","knownRansomwareCampaignUse":"Unknown"}]}"#;
    let shown: Vec<String> = records(&folder.write("kev.json", catalog), FeedKind::Kev)
        .into_iter()
        .map(|record| match record {
            Record::Exploited(it) => {
                format!("{} {} {:?} {}", it.cve, it.added, it.due, it.ransomware)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        shown,
        ["CVE-2026-0001 2026-01-27 Some(2026-01-30) true", "CVE-2026-0002 2026-01-28 None false"]
    );
}

#[test]
fn exploit_prediction_scores_are_read() {
    let folder = Folder::new("epss");
    let table = "#model_version:v2026,score_date:2026-08-16\ncve,epss,percentile\n\
                 CVE-2005-2541,0.03992,0.89630\n";
    let [Record::Epss(estimate)] = &records(&folder.write("e.csv", table), FeedKind::Epss)[..]
    else {
        panic!("one estimate");
    };
    assert_eq!((estimate.cve.as_str(), estimate.score()), ("CVE-2005-2541", 0.03992));
}
