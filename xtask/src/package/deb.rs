//! Builds a Debian package with dpkg-deb.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Job;
use super::contents::{Product, ScriptEvent, create_dir, write};
use crate::process::TaskError;

/// dpkg's name of this machine's architecture.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes the control files into the stage. Returns the build command and the path of the package.
pub(crate) fn prepare(job: &Job<'_>, stage: &Path) -> Result<(Command, PathBuf), TaskError> {
    let control = stage.join("DEBIAN");
    create_dir(&control)?;
    write(&control.join("control"), &fields(job), 0o644)?;
    for (name, text) in scripts(job)? {
        write(&control.join(name), &text, 0o755)?;
    }
    let name = format!("{}_{}_{}.deb", job.product.name(), job.version, architecture());
    let package = job.out.join(name);
    let mut make = Command::new("dpkg-deb");
    make.args(["--root-owner-group", if job.compressed { "-Zxz" } else { "-Znone" }]);
    make.arg("--build").arg(stage).arg(&package);
    Ok((make, package))
}

fn fields(job: &Job<'_>) -> String {
    let product = job.product;
    let libc = job.libc.as_ref().map(|version| format!("libc6 (>= {version}), libgcc-s1"));
    // The maintainer script creates a user.
    let users = (product == Product::Server).then(|| "passwd".to_owned());
    let needs: Vec<String> = [libc, users].into_iter().flatten().collect();
    let depends = match needs.is_empty() {
        true => String::new(),
        false => format!("Depends: {}\n", needs.join(", ")),
    };
    format!(
        "Package: {}\nVersion: {}\nArchitecture: {}\nSection: admin\nPriority: optional\n\
         Maintainer: The Fleetmend maintainers <maintainers@fleetmend.invalid>\n\
         {depends}Description: {}\n {}\n",
        product.name(),
        job.version,
        architecture(),
        product.summary(),
        product.description()
    )
}

/// The maintainer scripts, each with the dpkg arguments that it handles.
fn scripts(job: &Job<'_>) -> Result<Vec<(&'static str, String)>, TaskError> {
    let script_for = |moment| job.product.script(job.root, moment);
    let script = |cases: &[(&str, String)]| {
        let cases: String =
            cases.iter().map(|(word, text)| format!("{word})\n{text}\n;;\n")).collect();
        format!("#!/bin/sh\nset -e\ncase \"$1\" in\n{cases}esac\nexit 0\n")
    };
    Ok(vec![
        ("postinst", script(&[("configure", script_for(ScriptEvent::Installed)?)])),
        ("prerm", script(&[("remove", script_for(ScriptEvent::Removing)?)])),
        (
            "postrm",
            script(&[
                ("remove", script_for(ScriptEvent::Removed)?),
                ("purge", script_for(ScriptEvent::Purged)?),
            ]),
        ),
    ])
}
