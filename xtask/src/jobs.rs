//! Runs commands side by side, and reports what they print.
//!
//! A job belongs to a lane. Jobs start in the order in which they are given, as soon as their lane
//! has a free slot. Jobs of different lanes do not wait for each other, except for those that run
//! alone: give these first, because they start only when no other job runs. This module knows
//! nothing about tests; `steps` decides what runs and what the output means.

use std::collections::HashMap;
use std::process::{Command, ExitStatus};

use crate::process::{News, Process, Processes, StopStep, TERMINATE_GROUP, TaskError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Test programs. Each uses all cores, but many wait most of the time: for package managers, a
    /// browser, or a timeout. Two at a time use the cores that one leaves idle, and more would
    /// only prolong what single tests take.
    TestPrograms,
    /// Commands that may lock cargo's target directory, so that they would block each other.
    Cargo,
    /// Tests that need the whole machine: no job of any lane runs next to one of these.
    Alone,
}

impl Lane {
    fn slots(self) -> usize {
        match self {
            Lane::TestPrograms => 2,
            Lane::Cargo | Lane::Alone => 1,
        }
    }

    /// Whether a job of this lane may start next to jobs of these lanes.
    fn may_start(self, running: impl Iterator<Item = Lane>) -> bool {
        let mut same = 0;
        for lane in running {
            if lane == Lane::Alone || self == Lane::Alone {
                return false;
            }
            same += usize::from(lane == self);
        }
        same < self.slots()
    }
}

pub(crate) struct Job {
    pub(crate) lane: Lane,
    pub(crate) command: Command,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JobEvent {
    Started,
    /// A line of its output.
    Line(String),
    Ended(ExitStatus),
}

/// How jobs are stopped if we are interrupted.
const STOP: &[StopStep] = TERMINATE_GROUP;

/// Runs all jobs. `on_event` gets the index of the job. A failed job does not affect the others.
pub(crate) fn run(
    jobs: Vec<Job>,
    processes: &mut Processes,
    on_event: &mut dyn FnMut(usize, JobEvent),
) -> Result<(), TaskError> {
    let mut running = HashMap::new();
    let result = run_until_done(jobs, &mut running, processes, on_event);
    if result.is_err() {
        processes.stop_all(&running.into_keys().collect::<Vec<_>>(), STOP);
    }
    result
}

fn run_until_done(
    jobs: Vec<Job>,
    running: &mut HashMap<Process, (usize, Lane)>,
    processes: &mut Processes,
    on_event: &mut dyn FnMut(usize, JobEvent),
) -> Result<(), TaskError> {
    let mut waiting: Vec<(usize, Job)> = jobs.into_iter().enumerate().collect();
    loop {
        let may_start = |lane: Lane, running: &HashMap<Process, (usize, Lane)>| {
            lane.may_start(running.values().map(|(_, lane)| *lane))
        };
        while let Some(next) = waiting.iter().position(|(_, job)| may_start(job.lane, running)) {
            let (index, mut job) = waiting.remove(next);
            running.insert(processes.start_with_lines(&mut job.command)?, (index, job.lane));
            on_event(index, JobEvent::Started);
        }
        if running.is_empty() {
            return Ok(());
        }
        match processes.next_news()? {
            News::Line(process, line) => {
                if let Some((index, _)) = running.get(&process) {
                    on_event(*index, JobEvent::Line(line));
                }
            }
            News::Ended(process, status) => {
                if let Some((index, _)) = running.remove(&process) {
                    on_event(index, JobEvent::Ended(status));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(lane: Lane, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { lane, command }
    }

    fn run_all(jobs: Vec<Job>) -> Vec<(usize, JobEvent)> {
        let mut events = Vec::new();
        let mut on_event = |index, event| events.push((index, event));
        run(jobs, &mut Processes::without_signals(), &mut on_event).unwrap();
        events
    }

    /// The largest number of these jobs that ran at the same time.
    fn most_at_once(events: &[(usize, JobEvent)], jobs: std::ops::Range<usize>) -> usize {
        let (mut running, mut most) = (0_usize, 0);
        for (_, event) in events.iter().filter(|(index, _)| jobs.contains(index)) {
            match event {
                JobEvent::Started => running += 1,
                JobEvent::Ended(_) => running -= 1,
                JobEvent::Line(_) => {}
            }
            most = most.max(running);
        }
        most
    }

    #[test]
    fn lane_never_runs_more_jobs_than_it_has_slots() {
        let programs = (0..5).map(|_| job(Lane::TestPrograms, "true"));
        let events = run_all(programs.chain((0..3).map(|_| job(Lane::Cargo, "true"))).collect());
        assert_eq!(most_at_once(&events, 0..5), 2);
        assert_eq!(most_at_once(&events, 5..8), 1);
        let ended = events.iter().filter(|(_, event)| matches!(event, JobEvent::Ended(_)));
        assert_eq!(ended.count(), 8);
    }

    #[test]
    fn jobs_that_run_alone_have_no_other_job_beside_them() {
        let lanes = [Lane::Alone, Lane::Alone, Lane::TestPrograms, Lane::Cargo, Lane::Alone];
        let events = run_all(lanes.iter().map(|lane| job(*lane, "true")).collect());
        let mut running: Vec<usize> = Vec::new();
        for (index, event) in &events {
            match event {
                JobEvent::Started => running.push(*index),
                JobEvent::Ended(_) => running.retain(|one| one != index),
                JobEvent::Line(_) => {}
            }
            let alone = running.iter().filter(|one| lanes[**one] == Lane::Alone).count();
            assert!(alone == 0 || running.len() == 1, "{running:?}");
        }
        assert_eq!(events.iter().filter(|(_, event)| *event == JobEvent::Started).count(), 5);
    }

    /// Each job waits for the next one, so all of them must run at the same time.
    #[test]
    fn jobs_run_side_by_side() {
        let directory = std::env::temp_dir().join(format!("xtask-jobs-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let pipe = |name: &str| directory.join(name).display().to_string();
        let made = Command::new("mkfifo").args([pipe("a"), pipe("b")]).status().unwrap();
        assert!(made.success());
        let events = run_all(vec![
            job(Lane::TestPrograms, &format!("cat {}", pipe("a"))),
            job(Lane::TestPrograms, &format!("cat {} > {}", pipe("b"), pipe("a"))),
            job(Lane::Cargo, &format!("echo passed on > {}", pipe("b"))),
        ]);
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(events.contains(&(0, JobEvent::Line("passed on".to_owned()))), "{events:?}");
    }

    #[test]
    fn output_is_reported_in_order_and_before_the_exit() {
        let events =
            run_all(vec![job(Lane::Cargo, "echo first; echo second >&2; printf third; exit 3")]);
        let [started, first, second, third, ended] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(started.1, JobEvent::Started);
        for (event, text) in [(first, "first"), (second, "second"), (third, "third")] {
            assert_eq!(event.1, JobEvent::Line(text.to_owned()));
        }
        assert!(matches!(ended.1, JobEvent::Ended(status) if status.code() == Some(3)));
    }

    /// The sleeping child holds the pipe of the job, which has exited.
    #[test]
    fn forgotten_child_of_a_job_is_killed() {
        let events =
            run_all(vec![job(Lane::Cargo, "sleep 1000 & exit 0"), job(Lane::Cargo, "true")]);
        assert!(matches!(events.last(), Some((1, JobEvent::Ended(_)))), "{events:?}");
    }

    #[test]
    fn program_that_does_not_exist_stops_the_others() {
        let absent = Job { lane: Lane::Cargo, command: Command::new("/does/not/exist") };
        let jobs = vec![job(Lane::TestPrograms, "exec sleep 1000"), absent];
        let result = run(jobs, &mut Processes::without_signals(), &mut |_, _| {});
        assert!(matches!(result, Err(TaskError::Failed(_))));
    }
}
