//! Tests of host facts with real processes in their own root.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use agent::backend::apt::Apt;
use agent::host::Host;
use agent::root::Root;
use lab::root::Base;

/// Replaces a file as package managers do: a new file takes its name.
fn replace(root: &lab::root::Root, path: &str) {
    root.run_successfully("cp", &["--preserve=mode", path, "/new"]);
    root.run_successfully("mv", &["/new", path]);
}

#[test]
fn process_with_replaced_files_is_listed_with_packages() {
    let Some(lab) = lab::root::Root::from_base(Base::Apt) else { return };
    let root = Root::under(lab.dir());
    let host = Host::new(root.clone());
    let apt = Apt::new(root);
    let mut shell = lab.command("sh");
    shell.args(["-c", "echo ready; read end"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    assert_eq!(host.outdated_processes(&apt), [], "all running code is on disk");

    replace(&lab, "/usr/bin/dash");
    let libraries = lab.run_successfully("sh", &["-c", "ls /usr/lib/*/libc.so.6"]);
    replace(&lab, libraries.trim());
    let reported: Vec<(String, String)> = host
        .outdated_processes(&apt)
        .iter()
        .map(|old| {
            let package = old.package.as_ref().map_or("?", |package| package.as_str());
            (package.to_owned(), old.process.to_string())
        })
        .collect();
    let expected = ["dash", "libc6"].map(|package| (package.to_owned(), "sh".to_owned()));
    assert_eq!(reported, expected, "no process outside the root is listed");

    drop(shell.stdin.take());
    shell.wait().unwrap();
    assert_eq!(host.outdated_processes(&apt), [], "an ended process is not listed");
}
