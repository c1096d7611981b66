//! The log of an order: only ever longer, so that it can be sent in chunks while it grows, and bounded.
//!
//! Each job writes into a file of its own, and this copies it. Once the log is full, only the end of what a job said
//! is added when the job is over: what is cut is the middle.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::files;
use super::supervise::Job;

/// From how many bytes on only the ends are added.
const HEAD_BYTES: u64 = 6 * 1024 * 1024;
/// How much of a job's end is added then.
const TAIL_BYTES: u64 = 128 * 1024;
/// How much is copied at once.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// The log of one order.
#[derive(Debug, Clone)]
pub(super) struct Log {
    path: PathBuf,
}

impl Log {
    /// The log in an order's directory.
    pub(super) fn in_directory(dir: &Path) -> Log {
        Log { path: dir.join("log") }
    }

    /// How many bytes it has.
    pub(super) fn length(&self) -> u64 {
        files::length(&self.path)
    }

    /// A part of it.
    pub(super) fn after(&self, offset: u64, most: usize) -> Vec<u8> {
        files::part(&self.path, offset, most as u64)
    }

    /// Adds a line of the agent's own, between two jobs.
    pub(super) fn say(&self, line: &str) -> io::Result<()> {
        self.append(format!("fleetmend: {line}\n").as_bytes())
    }

    /// Adds what a job has said since. How much of it is here already is the log's own length less
    /// what it was before the job; so nothing comes twice, whoever dies in between.
    pub(super) fn follow(&self, job_dir: &Path) -> io::Result<bool> {
        let Some(job) = files::read_json::<Job>(&job_dir.join("job.json"))? else {
            return Ok(false);
        };
        let mut grew = false;
        loop {
            let length = self.length();
            let room = HEAD_BYTES.saturating_sub(length).min(CHUNK_BYTES);
            let copied = length.saturating_sub(job.log_from);
            let bytes = files::part(&job_dir.join("output"), copied, room);
            if bytes.is_empty() {
                return Ok(grew);
            }
            self.append(&bytes)?;
            grew = true;
        }
    }

    /// Adds the rest of what an ended job said.
    pub(super) fn finish(&self, job_dir: &Path) -> io::Result<()> {
        self.follow(job_dir)?;
        let Some(job) = files::read_json::<Job>(&job_dir.join("job.json"))? else { return Ok(()) };
        let length = self.length();
        let output = job_dir.join("output");
        let left = files::length(&output).saturating_sub(length.saturating_sub(job.log_from));
        if left == 0 || length > HEAD_BYTES.max(job.log_from) {
            return Ok(());
        }
        let cut = left.saturating_sub(TAIL_BYTES);
        if cut > 0 {
            self.append(format!("\nfleetmend: {cut} bytes were left out here\n").as_bytes())?;
        }
        let from = files::length(&output).saturating_sub(left.min(TAIL_BYTES));
        self.append(&files::part(&output, from, TAIL_BYTES))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().create(true).append(true).open(&self.path)?.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(dir: &Path, name: &str, log: &Log, output: &[u8]) -> PathBuf {
        let dir = dir.join(name);
        files::make_directory(&dir).unwrap();
        let (commands, log_from) = (Vec::new(), log.length());
        let job = Job { commands, keep_going: false, seconds_max: None, log_from };
        files::write_json(&dir.join("job.json"), &job).unwrap();
        std::fs::write(dir.join("output"), output).unwrap();
        dir
    }

    fn text(log: &Log) -> String {
        String::from_utf8(log.after(0, usize::MAX >> 1)).unwrap()
    }

    #[test]
    fn what_a_job_says_comes_once_however_often_it_is_followed() {
        let dir = super::super::tests::directory("log-once");
        let log = Log::in_directory(&dir);
        log.say("begins").unwrap();
        let first = job(&dir, "first", &log, b"one\n");
        assert!(log.follow(&first).unwrap());
        assert!(!log.follow(&first).unwrap());
        std::fs::write(first.join("output"), b"one\ntwo\n").unwrap();
        log.finish(&first).unwrap();
        log.finish(&first).unwrap();
        let second = job(&dir, "second", &log, b"three\n");
        log.finish(&second).unwrap();
        assert_eq!(text(&log), "fleetmend: begins\none\ntwo\nthree\n");
    }

    #[test]
    fn a_log_that_is_too_long_is_cut_in_the_middle_and_says_so() {
        let dir = super::super::tests::directory("log-cut");
        let log = Log::in_directory(&dir);
        let mut said = vec![b'x'; 9 * 1024 * 1024];
        said.extend(b"\nthe end\n");
        let loud = job(&dir, "loud", &log, &said);
        log.finish(&loud).unwrap();
        log.finish(&loud).unwrap();
        let last = job(&dir, "last", &log, b"and the next job\n");
        log.finish(&last).unwrap();
        let text = text(&log);
        assert!(text.len() < 7 * 1024 * 1024, "{}", text.len());
        assert_eq!(text.matches("bytes were left out here").count(), 1);
        assert!(text.ends_with("\nthe end\nand the next job\n"));
    }
}
