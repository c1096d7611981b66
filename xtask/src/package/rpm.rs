//! Builds an rpm package with rpmbuild.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Job;
use super::contents::{Product, ScriptEvent, create_dir, write};
use crate::process::TaskError;

/// Writes the spec file. Returns the build command and the path of the package.
pub(crate) fn prepare(job: &Job<'_>, stage: &Path) -> Result<(Command, PathBuf), TaskError> {
    let top = job.work.join("rpmbuild").join(job.product.name());
    create_dir(&top)?;
    let recipe = top.join("package.spec");
    write(&recipe, &spec(job, stage)?, 0o644)?;
    let arch = std::env::consts::ARCH;
    let name = format!("{}-{}-1.{arch}.rpm", job.product.name(), job.version);
    let mut make = Command::new("rpmbuild");
    make.args(["-bb", "--quiet", "--target", arch]);
    for (key, value) in [("_topdir", top.as_path()), ("_rpmdir", job.out)] {
        make.arg("--define").arg(format!("{key} {}", value.display()));
    }
    // Directly in the output directory, not in a subdirectory for the architecture.
    make.args(["--define", "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"]);
    make.arg(recipe);
    Ok((make, job.out.join(name)))
}

fn spec(job: &Job<'_>, stage: &Path) -> Result<String, TaskError> {
    let product = job.product;
    let script_for = |moment| product.script(job.root, moment);
    // A static program has no dependencies; for any other, rpmbuild detects them.
    let mut requires = String::from(if job.libc.is_none() { "AutoReqProv: no\n" } else { "" });
    if let Product::Server = product {
        // Dependencies of its script, by path, because package names differ between distributions.
        requires.push_str("Requires(post): /usr/bin/install, /usr/bin/getent, /usr/sbin/useradd\n");
    }
    let stage = stage.display();
    Ok(format!(
        "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n\
         %global _build_id_links none\n\
         Name: {name}\nVersion: {version}\nRelease: 1\nSummary: {summary}\n\
         License: Apache-2.0\n{requires}\n%description\n{description}\n\n\
         %install\nmkdir -p %{{buildroot}}\ncp -a {stage}/. %{{buildroot}}/\n\
         rm -rf %{{buildroot}}/DEBIAN\n\n\
         %post\n{installed}\n\n\
         %preun\nif [ \"$1\" = 0 ]; then\n{removing}\nfi\n\n\
         %postun\nif [ \"$1\" = 0 ]; then\n{removed}\nfi\n\n\
         %files\n%defattr(-,root,root,-)\n{files}",
        name = product.name(),
        version = job.version,
        summary = product.summary(),
        description = product.description(),
        installed = script_for(ScriptEvent::Installed)?,
        removing = script_for(ScriptEvent::Removing)?,
        removed = script_for(ScriptEvent::Removed)?,
        files = files(&job.work.join("stage").join(product.name())),
    ))
}

/// The files that the package owns, and the directories that belong only to it.
fn files(stage: &Path) -> String {
    let mut lines = Vec::new();
    collect(stage, stage, &mut lines);
    lines.sort();
    lines.concat()
}

fn collect(stage: &Path, directory: &Path, lines: &mut Vec<String>) {
    let entries = crate::workspace::directory_entries(directory);
    for path in &entries {
        let inside = path.strip_prefix(stage).unwrap_or(path).display();
        let ours = ["etc/fleetmend", "usr/share/doc/fleetmend"];
        if path.is_dir() {
            if ours.iter().any(|start| inside.to_string().starts_with(start)) {
                lines.push(format!("%dir /{inside}\n"));
            }
            if !path.ends_with("DEBIAN") {
                collect(stage, path, lines);
            }
        } else {
            lines.push(format!("/{inside}\n"));
        }
    }
}
