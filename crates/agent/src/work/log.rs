//! The log of an order. It only grows, so that it can be uploaded in chunks while the order runs,
//! and its size is limited.
//!
//! Each job writes to its own file, which is copied here. Once the log is full, only the end of
//! each job's output is added when the job ends: the middle is cut.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::files;
use super::supervise::Job;

/// Once the log has this size, only the end of each job's output is added.
const HEAD_BYTES: u64 = 6 * 1024 * 1024;
/// How much of the end of a job's output is added in that case.
const TAIL_BYTES: u64 = 128 * 1024;
/// How much is copied at once.
const CHUNK_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Clone)]
pub(super) struct Log {
    path: PathBuf,
}

impl Log {
    pub(super) fn in_directory(dir: &Path) -> Log {
        Log { path: dir.join("log") }
    }

    /// The size in bytes.
    pub(super) fn length(&self) -> u64 {
        files::length(&self.path)
    }

    /// At most `max` bytes from `offset`.
    pub(super) fn read_from(&self, offset: u64, max: usize) -> Vec<u8> {
        files::read_range(&self.path, offset, max as u64)
    }

    /// Adds a line written by the agent, between two jobs.
    pub(super) fn write_line(&self, line: &str) -> io::Result<()> {
        self.append(format!("fleetmend: {line}\n").as_bytes())
    }

    /// Copies a job's new output. How much of it is already here follows from the log's current
    /// length and its length before the job, so nothing is copied twice, even after a crash.
    pub(super) fn copy_new_output(&self, job_dir: &Path) -> io::Result<bool> {
        let Some(job) = files::read_json::<Job>(&job_dir.join("job.json"))? else {
            return Ok(false);
        };
        let mut grew = false;
        loop {
            let length = self.length();
            let capacity = HEAD_BYTES.saturating_sub(length).min(CHUNK_BYTES);
            let copied = length.saturating_sub(job.log_from);
            let bytes = files::read_range(&job_dir.join("output"), copied, capacity);
            if bytes.is_empty() {
                return Ok(grew);
            }
            self.append(&bytes)?;
            grew = true;
        }
    }

    /// Copies the rest of an ended job's output.
    pub(super) fn copy_remaining_output(&self, job_dir: &Path) -> io::Result<()> {
        self.copy_new_output(job_dir)?;
        let Some(job) = files::read_json::<Job>(&job_dir.join("job.json"))? else { return Ok(()) };
        let length = self.length();
        let output = job_dir.join("output");
        let left = files::length(&output).saturating_sub(length.saturating_sub(job.log_from));
        if left == 0 || length > HEAD_BYTES.max(job.log_from) {
            return Ok(());
        }
        let cut = left.saturating_sub(TAIL_BYTES);
        if cut > 0 {
            self.append(format!("\nfleetmend: {cut} bytes omitted here\n").as_bytes())?;
        }
        let from = files::length(&output).saturating_sub(left.min(TAIL_BYTES));
        self.append(&files::read_range(&output, from, TAIL_BYTES))
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
        files::create_directory(&dir).unwrap();
        let (commands, log_from) = (Vec::new(), log.length());
        let job = Job { commands, keep_going: false, seconds_max: None, log_from };
        files::write_json(&dir.join("job.json"), &job).unwrap();
        std::fs::write(dir.join("output"), output).unwrap();
        dir
    }

    fn text(log: &Log) -> String {
        String::from_utf8(log.read_from(0, usize::MAX >> 1)).unwrap()
    }

    #[test]
    fn job_output_is_copied_once() {
        let dir = super::super::tests::directory("log-once");
        let log = Log::in_directory(&dir);
        log.write_line("begins").unwrap();
        let first = job(&dir, "first", &log, b"one\n");
        assert!(log.copy_new_output(&first).unwrap());
        assert!(!log.copy_new_output(&first).unwrap());
        std::fs::write(first.join("output"), b"one\ntwo\n").unwrap();
        log.copy_remaining_output(&first).unwrap();
        log.copy_remaining_output(&first).unwrap();
        let second = job(&dir, "second", &log, b"three\n");
        log.copy_remaining_output(&second).unwrap();
        assert_eq!(text(&log), "fleetmend: begins\none\ntwo\nthree\n");
    }

    #[test]
    fn overlong_log_is_cut_in_the_middle_with_a_note() {
        let dir = super::super::tests::directory("log-cut");
        let log = Log::in_directory(&dir);
        let mut output = vec![b'x'; 9 * 1024 * 1024];
        output.extend(b"\nthe end\n");
        let loud = job(&dir, "loud", &log, &output);
        log.copy_remaining_output(&loud).unwrap();
        log.copy_remaining_output(&loud).unwrap();
        let last = job(&dir, "last", &log, b"and the next job\n");
        log.copy_remaining_output(&last).unwrap();
        let text = text(&log);
        assert!(text.len() < 7 * 1024 * 1024, "{}", text.len());
        assert_eq!(text.matches("bytes omitted here").count(), 1);
        assert!(text.ends_with("\nthe end\nand the next job\n"));
    }
}
