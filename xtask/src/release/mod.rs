//! `cargo xtask release`: creates everything that is published with a release in `target/dist`.
//!
//! Packages and agents come from `package`. This module adds the context of the container image, the
//! deployment examples, a software bill of materials of each program (`sbom`), and the checksums of
//! all files. It publishes nothing.

mod sbom;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

use crate::args::{PackageOptions, ReleaseOptions};
use crate::package::{self, Product, copy, create_dir, run_for_output};
use crate::process::{Processes, TaskError};
use crate::screen::Screen;
use crate::workspace::{Workspace, directory_entries};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const ARCH: &str = std::env::consts::ARCH;
const CHECKSUMS: &str = "SHA256SUMS";

pub(crate) fn create(
    workspace: &Workspace,
    options: &ReleaseOptions,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<ExitCode, TaskError> {
    let dist = workspace.target().join("dist");
    // Files of an earlier release must not be published with this one.
    if dist.exists() {
        fs::remove_dir_all(&dist).map_err(|error| failed("remove", &dist, &error))?;
    }
    create_dir(&dist)?;
    let packages = PackageOptions {
        programs: options.programs.clone(),
        agents: options.agents.clone(),
        release_key: options.release_key.clone(),
        out: Some(dist.clone()),
        ..PackageOptions::default()
    };
    let programs = package::build_packages(workspace, &packages, processes, screen)?;
    // The agents of all architectures, as in the package of the server.
    let agents = package::staged_agents(workspace);
    for agent in directory_entries(&agents) {
        let name = file_name(&agent);
        copy(&agent, &dist.join(&name))?;
    }
    let container = match &options.programs {
        Some(dir) => workspace.started_in().join(dir).join("fleetmend-static"),
        None => package::build_static_server(workspace, processes, screen)?,
    };
    let context = stage_container(workspace, &container, &agents)?;
    let time = commit_time(workspace, processes);
    for (dir, entries, archive) in [
        (context.as_path(), &["."][..], format!("fleetmend-container-{VERSION}-{ARCH}.tar.gz")),
        (workspace.root(), &["deploy"], format!("fleetmend-deploy-{VERSION}.tar.gz")),
    ] {
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go=rX"]);
        tar.arg(format!("--mtime={}", time.as_deref().unwrap_or("@0")));
        tar.arg("-C").arg(dir).arg("-czf").arg(dist.join(archive)).args(entries);
        run_for_output(&mut tar, processes)?;
    }
    for (product, program) in &programs {
        let document = bill_of_materials(workspace, *product, program, time.as_deref(), processes)?;
        let path = dist.join(format!("{}-{VERSION}-{ARCH}.cdx.json", product.name()));
        let text = format!("{document:#}\n");
        fs::write(&path, text).map_err(|error| failed("write", &path, &error))?;
    }
    let sums = checksums(&dist)?;
    let path = dist.join(CHECKSUMS);
    fs::write(&path, sums).map_err(|error| failed("write", &path, &error))?;
    let mut files: Vec<PathBuf> = directory_entries(&dist);
    files.sort();
    files.iter().for_each(|file| screen.line(&file.display().to_string()));
    Ok(ExitCode::SUCCESS)
}

/// Lays out the directory in which the image is built, with the paths that the Containerfile uses.
fn stage_container(
    workspace: &Workspace,
    program: &Path,
    agents: &Path,
) -> Result<PathBuf, TaskError> {
    const CONTAINERFILE: &str = "deploy/container/Containerfile";
    let stage = workspace.target().join("package/stage/container");
    let _ = fs::remove_dir_all(&stage);
    let image = stage.join("target/container/usr");
    copy(&workspace.path(CONTAINERFILE), &stage.join(CONTAINERFILE))?;
    copy(program, &image.join("bin/fleetmend"))?;
    for agent in directory_entries(agents) {
        copy(&agent, &image.join("lib/fleetmend/agents").join(file_name(&agent)))?;
    }
    Ok(stage)
}

fn bill_of_materials(
    workspace: &Workspace,
    product: Product,
    program: &Path,
    created: Option<&str>,
    processes: &mut Processes,
) -> Result<Value, TaskError> {
    let triple = package::host_triple(processes)?;
    let (package, features) = product.cargo_package();
    let mut metadata = workspace.cargo();
    metadata.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &triple]);
    let output = run_for_output(&mut metadata, processes)?;
    // Cargo may write messages before it.
    let json = output.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let metadata: Value = serde_json::from_str(json)
        .map_err(|error| TaskError::Failed(format!("cannot read cargo metadata: {error}")))?;
    let lock = workspace.path("Cargo.lock");
    let text = fs::read_to_string(&lock).map_err(|error| failed("read", &lock, &error))?;
    let lock = text.parse().map_err(|error| failed("read", &lock, &error))?;
    let mut tree = |edges: &str| -> Result<BTreeSet<sbom::PackageKey>, TaskError> {
        let mut tree = workspace.cargo();
        tree.args(["tree", "--locked", "--package", package, "--target", &triple]);
        tree.args(["--prefix", "none", "--format", "{p}", "--edges", edges]).args(features);
        Ok(sbom::parse_tree(&run_for_output(&mut tree, processes)?))
    };
    let linked = tree("normal,no-proc-macro")?;
    let needed = tree("normal,build")?;
    let dependencies =
        sbom::Dependencies { metadata: &metadata, lock: &lock, linked: &linked, needed: &needed };
    let program = sbom::Program {
        name: product.name(),
        version: VERSION,
        sha256: &sha256(program)?,
        package,
    };
    sbom::document(&program, &dependencies, created).map_err(TaskError::Failed)
}

/// The time of the current commit, so that the same commit gives the same files. `None` outside of
/// a clone.
fn commit_time(workspace: &Workspace, processes: &mut Processes) -> Option<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"]);
    git.env("TZ", "UTC").current_dir(workspace.root());
    let time = run_for_output(&mut git, processes).ok()?;
    Some(time.trim().to_owned()).filter(|time| !time.is_empty())
}

/// The digests of all files of a directory, in the format of `sha256sum`.
fn checksums(dir: &Path) -> Result<String, TaskError> {
    let mut files = directory_entries(dir);
    files.sort();
    files.iter().map(|file| Ok(format!("{}  {}\n", sha256(file)?, file_name(file)))).collect()
}

fn sha256(file: &Path) -> Result<String, TaskError> {
    let bytes = fs::read(file).map_err(|error| failed("read", file, &error))?;
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    Ok(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn failed(action: &str, path: &Path, error: &dyn std::fmt::Display) -> TaskError {
    TaskError::Failed(format!("cannot {action} {}: {error}", path.display()))
}
