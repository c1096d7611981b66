//! Child processes that can always be stopped.
//!
//! Each child leads its own process group, so that stopping it also stops the processes that it
//! started. Exits of children, their output and the signals sent to us arrive on one channel: a
//! single wait covers all of them, with a timeout and without polling. This crate starts every
//! process through this module.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, PipeReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::unistd::{Pid, getpgrp, tcsetpgrp};

use crate::clock;

/// How long to wait for more output after the leader of a group has exited.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// Why a task stopped early.
#[derive(Debug)]
pub(crate) enum TaskError {
    /// Ctrl-C, SIGTERM or SIGHUP.
    Interrupted,
    /// The error message for the user.
    Failed(String),
}

/// A child that is running or has exited. Its id is also the id of its process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process(Pid);

/// One step of stopping a child: the signal, its recipient, and how long to wait for the exit.
pub(crate) struct StopStep {
    signal: Signal,
    whole_group: bool,
    timeout: Duration,
}

impl StopStep {
    const fn new(signal: Signal, whole_group: bool, seconds: u64) -> StopStep {
        StopStep { signal, whole_group, timeout: Duration::from_secs(seconds) }
    }

    fn send(&self, process: Process) {
        let _ = match self.whole_group {
            true => killpg(process.0, self.signal),
            false => kill(process.0, self.signal),
        };
    }
}

/// For most children: terminates the whole group.
pub(crate) const TERMINATE_GROUP: &[StopStep] = &[StopStep::new(Signal::SIGTERM, true, 5)];

/// For a package manager: after the signal it still finishes the current package.
pub(crate) const INTERRUPT_AND_WAIT: &[StopStep] = &[StopStep::new(Signal::SIGINT, false, 180)];

/// PostgreSQL's "fast" shutdown, then its "immediate" one.
pub(crate) const POSTGRES_SHUTDOWN: &[StopStep] =
    &[StopStep::new(Signal::SIGINT, false, 10), StopStep::new(Signal::SIGQUIT, false, 5)];

enum Event {
    Interrupted,
    Line(Process, String),
    OutputClosed(Process),
    Ended(Process, ExitStatus),
}

pub(crate) enum WaitResult {
    Ended,
    Interrupted,
    TimedOut,
}

/// News of a child whose output is read.
pub(crate) enum News {
    Line(Process, String),
    /// The child has exited, and all its output was reported.
    Ended(Process, ExitStatus),
}

/// All children, and the signals sent to us.
pub(crate) struct Processes {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
    exit_statuses: HashMap<Process, ExitStatus>,
    /// The children whose output is read, until `News::Ended`.
    read: HashMap<Process, ReadChild>,
}

/// How much of a child whose output is read has ended.
#[derive(Default)]
struct ReadChild {
    output_closed: bool,
    exited: Option<(ExitStatus, Instant)>,
}

impl Processes {
    /// Installs handlers for SIGINT, SIGTERM and SIGHUP. Must be called once, by the main thread.
    pub(crate) fn new() -> Result<Processes, TaskError> {
        let processes = Processes::without_signals();
        let interrupts = processes.sender.clone();
        ctrlc::set_handler(move || {
            // The receiver is gone only when the program is about to exit.
            let _ = interrupts.send(Event::Interrupted);
        })
        .map_err(|error| {
            TaskError::Failed(format!("cannot install the signal handler: {error}"))
        })?;
        Ok(processes)
    }

    /// For tests, which share a process: it has only one set of signal handlers.
    pub(crate) fn without_signals() -> Processes {
        let (sender, receiver) = channel();
        Processes { sender, receiver, exit_statuses: HashMap::new(), read: HashMap::new() }
    }

    /// Starts a child. It runs until it exits or is stopped.
    pub(crate) fn start(&mut self, command: &mut Command) -> Result<Process, TaskError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error| TaskError::Failed(format!("cannot run {name}: {error}"));
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let id = i32::try_from(child.id())
            .map_err(|error| TaskError::Failed(format!("process id of {name}: {error}")))?;
        let process = Process(Pid::from_raw(id));
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = sender.send(Event::Ended(process, status));
            }
        });
        Ok(process)
    }

    /// Starts a child whose output is read: `next_news` reports each line that it writes to stdout
    /// or stderr, and its exit.
    pub(crate) fn start_with_lines(&mut self, command: &mut Command) -> Result<Process, TaskError> {
        let no_pipe = |error| TaskError::Failed(format!("cannot create a pipe: {error}"));
        let (reader, writer) = std::io::pipe().map_err(no_pipe)?;
        let second = writer.try_clone().map_err(no_pipe)?;
        command.stdin(Stdio::null()).stdout(writer).stderr(second);
        let started = self.start(command);
        // The pipe closes when its last writer is closed, and the command still holds two of them.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = started?;
        self.read.insert(process, ReadChild::default());
        let sender = self.sender.clone();
        std::thread::spawn(move || forward_lines(process, reader, &sender));
        Ok(process)
    }

    /// Waits for news of the children that `start_with_lines` started. At least one of them must
    /// not have ended.
    pub(crate) fn next_news(&mut self) -> Result<News, TaskError> {
        loop {
            let ended = self.read.iter().find_map(|(process, child)| match child {
                ReadChild { output_closed: true, exited: Some((status, _)) } => {
                    Some((*process, *status))
                }
                _ => None,
            });
            if let Some((process, status)) = ended {
                self.read.remove(&process);
                return Ok(News::Ended(process, status));
            }
            // A running child has no time limit; only output after its exit has one.
            let exits = self.read.iter().filter_map(|(process, child)| {
                child.exited.map(|(_, at)| (at + OUTPUT_GRACE, *process))
            });
            let event = match exits.min_by_key(|(until, _)| *until) {
                None => self.receiver.recv().ok(),
                Some((until, process)) => {
                    let event = self.receiver.recv_timeout(until.duration_since(clock::now())).ok();
                    if event.is_none() {
                        // Its children still hold the pipe.
                        let _ = killpg(process.0, Signal::SIGKILL);
                        self.close_output(process);
                    }
                    event
                }
            };
            match event {
                Some(Event::Line(who, line)) if self.read.contains_key(&who) => {
                    return Ok(News::Line(who, line));
                }
                Some(Event::OutputClosed(who)) => self.close_output(who),
                Some(Event::Ended(who, status)) => self.record_exit(who, status),
                Some(Event::Interrupted) => return Err(TaskError::Interrupted),
                Some(Event::Line(..)) | None => {}
            }
        }
    }

    fn close_output(&mut self, process: Process) {
        if let Some(child) = self.read.get_mut(&process) {
            child.output_closed = true;
        }
    }

    fn record_exit(&mut self, process: Process, status: ExitStatus) {
        self.exit_statuses.insert(process, status);
        if let Some(child) = self.read.get_mut(&process) {
            child.exited = Some((status, clock::now()));
        }
    }

    /// Runs a child until it exits. Its output goes wherever the command directs it.
    pub(crate) fn run(&mut self, command: &mut Command) -> Result<ExitStatus, TaskError> {
        let process = self.start(command)?;
        self.wait_for_exit(process, TERMINATE_GROUP)
    }

    /// Runs a child until it exits, and passes each line that it writes to stdout or stderr to
    /// `on_line`, in order. `stop_steps` defines how the child is stopped if we are interrupted.
    pub(crate) fn run_with_lines(
        &mut self,
        command: &mut Command,
        stop_steps: &[StopStep],
        on_line: &mut dyn FnMut(&str),
    ) -> Result<ExitStatus, TaskError> {
        let process = self.start_with_lines(command)?;
        loop {
            match self.next_news() {
                Ok(News::Line(_, line)) => on_line(&line),
                Ok(News::Ended(_, status)) => return Ok(status),
                Err(halt) => {
                    self.stop(process, stop_steps);
                    return Err(halt);
                }
            }
        }
    }

    /// Runs a child as the terminal's foreground process, like a shell: Ctrl-C goes to the child.
    pub(crate) fn run_in_foreground(
        &mut self,
        command: &mut Command,
    ) -> Result<ExitStatus, TaskError> {
        let process = self.start(command)?;
        let terminal = std::io::stdin();
        let _ = tcsetpgrp(&terminal, process.0);
        // The child may have used the terminal too early and been stopped for it.
        let _ = killpg(process.0, Signal::SIGCONT);
        let status = self.wait_for_exit(process, TERMINATE_GROUP);
        // A background process that takes back the terminal receives SIGTTOU, which would stop it.
        let mut background = SigSet::empty();
        background.add(Signal::SIGTTOU);
        let _ = background.thread_block();
        let _ = tcsetpgrp(&terminal, getpgrp());
        status
    }

    /// Waits until a child exits, at most for `timeout`.
    pub(crate) fn wait(&mut self, process: Process, timeout: Duration) -> WaitResult {
        if self.exit_statuses.contains_key(&process) {
            return WaitResult::Ended;
        }
        let until = clock::now().checked_add(timeout);
        loop {
            let left = until.map_or(timeout, |until| until.duration_since(clock::now()));
            match self.receiver.recv_timeout(left) {
                Ok(Event::Interrupted) => return WaitResult::Interrupted,
                Ok(Event::Ended(who, status)) => {
                    self.record_exit(who, status);
                    if who == process {
                        return WaitResult::Ended;
                    }
                }
                Ok(Event::Line(..) | Event::OutputClosed(_)) => {}
                Err(_) => return WaitResult::TimedOut,
            }
        }
    }

    /// The exit status of a child, if it has already exited.
    pub(crate) fn exit_status(&mut self, process: Process) -> Option<ExitStatus> {
        while let Ok(event) = self.receiver.try_recv() {
            match event {
                Event::Ended(who, status) => self.record_exit(who, status),
                Event::Interrupted => {
                    // Keep the interrupt for the next wait.
                    let _ = self.sender.send(Event::Interrupted);
                    break;
                }
                Event::Line(..) | Event::OutputClosed(_) => {}
            }
        }
        self.exit_statuses.get(&process).copied()
    }

    /// Stops several children at the same time.
    pub(crate) fn stop_all(&mut self, all: &[Process], stop_steps: &[StopStep]) {
        let first = stop_steps.first();
        for process in all.iter().filter(|process| !self.exit_statuses.contains_key(process)) {
            if let Some(step) = first {
                step.send(*process);
            }
        }
        all.iter().for_each(|process| self.stop(*process, stop_steps));
    }

    /// Stops a child: tries each step in turn, and finally kills the whole group. An interrupt
    /// during a step moves on to the next one.
    pub(crate) fn stop(&mut self, process: Process, stop_steps: &[StopStep]) {
        self.read.remove(&process);
        for step in stop_steps {
            if self.exit_statuses.contains_key(&process) {
                break;
            }
            step.send(process);
            self.wait(process, step.timeout);
        }
        let group = stop_steps.iter().any(|step| step.whole_group);
        if group || !self.exit_statuses.contains_key(&process) {
            // Even if the leader has exited: its children may have ignored the signal.
            let _ = killpg(process.0, Signal::SIGKILL);
            self.wait(process, OUTPUT_GRACE);
        }
    }

    fn wait_for_exit(
        &mut self,
        process: Process,
        stop_steps: &[StopStep],
    ) -> Result<ExitStatus, TaskError> {
        loop {
            if let Some(status) = self.exit_statuses.get(&process) {
                return Ok(*status);
            }
            match self.receiver.recv() {
                Ok(Event::Ended(who, status)) => self.record_exit(who, status),
                Ok(Event::Interrupted) => {
                    self.stop(process, stop_steps);
                    return Err(TaskError::Interrupted);
                }
                // We hold a sender, so the channel stays open.
                Ok(Event::Line(..) | Event::OutputClosed(_)) | Err(_) => {}
            }
        }
    }
}

fn forward_lines(process: Process, pipe: PipeReader, sender: &Sender<Event>) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while let Ok(1..) = pipe.read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
        line.clear();
        if sender.send(Event::Line(process, text)).is_err() {
            return;
        }
    }
    let _ = sender.send(Event::OutputClosed(process));
}
