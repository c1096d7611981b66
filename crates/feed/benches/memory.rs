//! Measures the peak memory of reading a large feed: `cargo xtask bench memory`.
//!
//! Writes a feed of 300,000 records to disk and reads it. Peak memory must not grow with the size
//! of the feed.

#![expect(clippy::print_stdout, reason = "the benchmark prints its result")]
#![expect(clippy::disallowed_methods, reason = "the benchmark measures elapsed time")]

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use feed::{Feed, FeedKind};

const RECORDS: u32 = 300_000;
/// Maximum additional memory during the read. An archive's table of contents must be kept in
/// memory.
const MIB_MAX: u64 = 24;
const MIB_MAX_ARCHIVE: u64 = 256;

fn main() -> io::Result<()> {
    // `cargo test --benches` only checks that the program starts.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let folder =
        std::env::temp_dir().join(format!("fleetmend-bench-memory-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = measure(&folder);
    fs::remove_dir_all(&folder)?;
    outcome
}

fn measure(folder: &Path) -> io::Result<()> {
    let lines = folder.join("feed.jsonl");
    let mut file = BufWriter::new(File::create(&lines)?);
    (0..RECORDS).try_for_each(|number| writeln!(file, "{}", record(number)))?;
    file.flush()?;
    let archive = folder.join("feed.zip");
    let mut writer = zip::ZipWriter::new(File::create(&archive)?);
    for number in 0..RECORDS {
        let options = zip::write::SimpleFileOptions::default();
        writer.start_file(format!("DEBIAN-CVE-2026-{number}.json"), options)?;
        writer.write_all(record(number).as_bytes())?;
    }
    writer.finish()?;
    report("lines", &lines, MIB_MAX)?;
    report("archive", &archive, MIB_MAX_ARCHIVE)
}

fn record(number: u32) -> String {
    format!(
        r#"{{"id":"DEBIAN-CVE-2026-{number}","details":"{}","modified":"2026-11-01T00:00:00Z","upstream":["CVE-2026-{number}"],"affected":[{{"package":{{"name":"source{}","ecosystem":"Debian:12"}},"ranges":[{{"type":"ECOSYSTEM","events":[{{"introduced":"0"}},{{"fixed":"1.{number}-1"}}]}}]}}]}}"#,
        "A vulnerability was found in a component. ".repeat(12),
        number % 3_500
    )
}

fn report(what: &str, path: &Path, mib_max: u64) -> io::Result<()> {
    // Resets the peak (VmHWM).
    fs::write("/proc/self/clear_refs", "5")?;
    let before = peak_kib()?;
    let start = Instant::now();
    let checked = Feed::new(path, FeedKind::Osv).check(&mut |_| {}).map_err(io::Error::other)?;
    let seconds = start.elapsed().as_secs_f64();
    let grown = peak_kib()?.saturating_sub(before) / 1024;
    let size = fs::metadata(path)?.len() >> 20;
    println!(
        "{what}: {} records, {size} MiB on disk: {seconds:.1} s per pass, {:.0} records per second, {grown} MiB additional memory",
        checked.summary().records,
        f64::from(RECORDS) / seconds,
    );
    match grown <= mib_max {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "used {grown} MiB of additional memory, the limit is {mib_max} MiB"
        ))),
    }
}

fn peak_kib() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let figure = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    figure.ok_or_else(|| io::Error::other("/proc/self/status has no VmHWM line"))
}
