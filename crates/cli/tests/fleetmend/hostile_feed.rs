//! Feeds that are small on disk and huge in memory: rejected with the name of the limit, in bounded
//! memory.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::support::{Dir, first_key, fleetmend};

/// Maximum memory of an import. About 60 MiB of it is the program itself, built for tests.
const MIB_MAX: u64 = 400;

/// Imports a feed. Returns whether it succeeded, its output, and its peak memory in MiB.
fn import(data: &Path, feed: &Path, more: &[&str]) -> (bool, String, u64) {
    let args = ["feeds", "import", "--data-dir", data.to_str().unwrap(), feed.to_str().unwrap()];
    let mut child = fleetmend(&[&args[..], more].concat())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The peak of a process that has ended can no longer be read, so read it while the process
    // runs.
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) / 1024);
        std::thread::yield_now();
    }
    let done = child.wait_with_output().unwrap();
    let output = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&output).into_owned(), peak)
}

/// Writes a start, a repeated part, and an end.
fn repeat(
    to: &mut impl Write,
    start: &str,
    again: &str,
    bytes: usize,
    end: &str,
) -> io::Result<()> {
    to.write_all(start.as_bytes())?;
    let block = again.repeat(1 + 65_536 / again.len());
    for _ in 0..bytes / block.len() {
        to.write_all(block.as_bytes())?;
    }
    to.write_all(end.as_bytes())
}

fn gzip(path: &Path, start: &str, again: &str, bytes: usize, end: &str) {
    let file = fs::File::create(path).unwrap();
    let mut to = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    repeat(&mut to, start, again, bytes, end).unwrap();
    to.finish().unwrap();
}

fn zstd(path: &Path, start: &str, again: &str, bytes: usize, end: &str) {
    let mut to = zstd::Encoder::new(fs::File::create(path).unwrap(), 1).unwrap();
    repeat(&mut to, start, again, bytes, end).unwrap();
    to.finish().unwrap();
}

const ID: &str = r#""id":"X-1","modified":"2026-11-01T00:00:00Z""#;

#[test]
fn feed_bombs_are_rejected_in_bounded_memory() {
    let dir = Dir::new();
    first_key(&dir.data());
    let mib = 1 << 20;
    let osv = |rest: &str| format!("{{{ID},{rest}");
    let cases: [(&str, &str, String, &str, usize, &str, &str); 10] = [
        // One very long line, and one very long string.
        ("line.jsonl.gz", "osv", String::new(), "a", 80 * mib, "", "64 MiB per record"),
        ("text.json.gz", "osv", osv("\"summary\":\""), "a", 80 * mib, "\"}", "64 MiB per record"),
        // The same inside an array, which is read element by element.
        ("array.json.gz", "osv", format!("[{}", osv("\"summary\":\"")), "a", 80 * mib, "\"}]", "64 MiB per record"),
        // Three bytes become a struct of hundreds.
        ("objects.json.gz", "osv", osv("\"affected\":["), "{},", 60 * mib, "{}]}", "250000 JSON objects per record"),
        ("elements.json.gz", "osv", format!("[{}", osv("\"affected\":[")), "{},", 60 * mib, "{}]}]", "250000 JSON objects per record"),
        ("values.json.gz", "osv", osv("\"aliases\":["), "\"\",", 60 * mib, "\"\"]}", "1000000 JSON values per record"),
        ("kev.json.gz", "kev", "{\"count\":1,\"vulnerabilities\":[".to_owned(), "{},", 60 * mib, "{}]}", "250000 JSON objects per record"),
        ("secdb.json.gz", "secdb", "{\"distroversion\":\"v3\",\"reponame\":\"main\",\"packages\":[{\"pkg\":{\"name\":\"a\",\"secfixes\":{\"1\":[\"".to_owned(), "A-1 ", 60 * mib, "\"]}}}]}", "100 ids per entry per record"),
        ("epss.csv.gz", "epss", "cve,epss,percentile\n".to_owned(), "C", 80 * mib, "\n", "1 MiB per line"),
        ("csaf.json.gz", "csaf", "{\"document\":{\"category\":\"csaf_vex\",\"publisher\":{\"name\":\"SUSE\"},\"tracking\":{\"id\":\"a\"}},\"vulnerabilities\":[".to_owned(), "{},", 60 * mib, "{}]}", "250000 JSON objects per record"),
    ];
    for (name, kind, start, again, bytes, end, limit) in &cases {
        let path = dir.0.join(name);
        gzip(&path, start, again, *bytes, end);
        assert!(path.metadata().unwrap().len() < 2 << 20, "{name} is too large for this test");
        let (done, output, peak) = import(&dir.data(), &path, &["--kind", kind]);
        assert!(
            !done && output.contains(&format!("exceeds the limit of {limit}")),
            "{name}: {output}"
        );
        assert!(peak < MIB_MAX, "{name} took {peak} MiB");
    }
    // A bundle is compressed with zstd and has its own format.
    let path = dir.0.join("bundle.zst");
    zstd(
        &path,
        "{\"fleetmend\":{\"form\":2,\"exported_at\":\"2026-11-01T00:00:00Z\",\"feeds\":[",
        "{},",
        60 * mib,
        "{}]}}\n",
    );
    let (done, output, peak) = import(&dir.data(), &path, &[]);
    assert!(!done && output.contains("limit of 250000 JSON objects per record"), "{output}");
    assert!(peak < MIB_MAX, "the bundle took {peak} MiB");
}

/// Each record is below its limit; all records that wait for the database must also stay below one.
#[test]
fn large_records_do_not_accumulate_during_import() {
    let dir = Dir::new();
    first_key(&dir.data());
    let path = dir.0.join("many.jsonl.gz");
    let file = fs::File::create(&path).unwrap();
    let mut to = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    for number in 0..16 {
        let start = format!("{{\"id\":\"X-{number}\",\"summary\":\"");
        repeat(&mut to, &start, "a", 10 << 20, "\"}\n").unwrap();
    }
    to.finish().unwrap();
    let (done, output, peak) = import(&dir.data(), &path, &[]);
    assert!(done, "{output}");
    assert!(peak < MIB_MAX, "it took {peak} MiB");
}
