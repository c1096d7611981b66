//! Tests of the apt back end with real apt and dpkg in their own roots: its queries, and the
//! effects of its commands.

mod apt {
    mod commands;
    mod queries;
}

use std::collections::BTreeMap;
use std::time::Duration;

use agent::backend::apt::Apt;
use agent::backend::{Backend as _, Choice};
use agent::command::{Command, CommandOutput};
use agent::root::Root;
use lab::apt::Server;
use vocab::listing::{Installed, Pending};

fn apt_backend(server: &Server) -> Apt {
    Apt::new(Root::under(server.root.dir()))
}

#[track_caller]
fn find_package<'a>(installed: &'a [Installed], name: &str) -> &'a Installed {
    let found = installed.iter().find(|package| package.name == name);
    found.unwrap_or_else(|| panic!("{name} is not listed"))
}

/// The pending updates in short form: `sec 1.0 > 1.1 security held`.
fn format_pending(pending: &[Pending]) -> Vec<String> {
    let line = |update: &Pending| {
        let security = if update.security { " security" } else { "" };
        let blocked = update.blocked_by.map(|by| format!(" {by}")).unwrap_or_default();
        format!("{} {} > {}{security}{blocked}", update.name, update.installed, update.candidate)
    };
    pending.iter().map(line).collect()
}

/// Updates of these packages, as offered on the server.
fn choices(server: &Server, names: &[&str]) -> Vec<Choice> {
    let apt = apt_backend(server);
    let installed = apt.installed().expect("dpkg succeeds");
    let pending = apt.pending(&installed).expect("apt succeeds");
    let by_name: BTreeMap<&str, &Pending> =
        pending.iter().map(|update| (update.name.as_str(), update)).collect();
    let choice = |name: &&str| {
        let update = by_name.get(name).unwrap_or_else(|| panic!("{name} is not pending"));
        Choice {
            name: update.name.clone(),
            arch: update.arch.clone(),
            from: update.installed.clone(),
            to: update.candidate.clone(),
        }
    };
    names.iter().map(choice).collect()
}

/// Runs the commands, up to the first that fails, and returns the output of the last one.
fn run_commands(commands: &[Command]) -> CommandOutput {
    let mut last = None;
    for command in commands {
        let output = command.query(Duration::from_secs(60)).expect("the command ends in time");
        let failed = output.exit != Some(0);
        last = Some(output);
        if failed {
            break;
        }
    }
    last.expect("there is at least one command")
}

fn full_output(output: &CommandOutput) -> String {
    format!("{}{}", output.stdout, output.stderr)
}
