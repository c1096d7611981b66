//! `cargo xtask package`: builds .deb and .rpm packages of the agent and the server.
//!
//! `contents` lays out the files, which are the same for both formats; `deb` and `rpm` build the
//! packages with dpkg-deb and rpmbuild. The agent is one static program, so that a single package
//! works on every release of every distribution. The server is dynamically linked and built without
//! the feature `demo`.

mod contents;
mod deb;
mod elf;
mod release_key;
mod rpm;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::args::{PackageFormat, PackageOptions};
use crate::process::{Processes, TERMINATE_GROUP, TaskError};
use crate::requirements;
use crate::screen::Screen;
use crate::workspace::Workspace;
pub(crate) use contents::{Product, copy, create_dir};
use release_key::ReleaseKey;

/// The compiler flags of a static program.
const STATIC: &str = "-C target-feature=+crt-static";

/// One package to build.
struct Job<'a> {
    product: Product,
    version: &'static str,
    /// The root of the workspace.
    root: &'a Path,
    /// The working directory.
    work: &'a Path,
    /// The output directory.
    out: &'a Path,
    /// The version of the C library that the program needs. `None` if it is static.
    libc: Option<String>,
    /// Whether a .deb package is compressed.
    compressed: bool,
}

/// Builds both programs, unless prebuilt ones are given, and packages them. Returns the paths of the
/// programs.
pub(crate) fn build_packages(
    workspace: &Workspace,
    options: &PackageOptions,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<Vec<(Product, PathBuf)>, TaskError> {
    requirements::ensure_installed(&requirements::for_packaging(), processes, screen)?;
    let work = workspace.target().join("package");
    let out = options
        .out
        .as_ref()
        .map_or_else(|| work.join("packages"), |out| workspace.started_in().join(out));
    create_dir(&out)?;
    let release_key = match &options.release_key {
        Some(file) => Some(release_key::load_or_create(&workspace.started_in().join(file))?),
        None => None,
    };
    let mut programs = Vec::new();
    let mut agents: Vec<(PathBuf, String)> = Vec::new();
    for path in options
        .agents
        .iter()
        .flat_map(|dir| crate::workspace::directory_entries(&workspace.started_in().join(dir)))
    {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        agents.push((path, name));
    }
    for product in Product::ALL {
        let program = match &options.programs {
            Some(folder) => workspace.started_in().join(folder).join(product.name()),
            None => build(workspace, product, release_key.as_ref(), processes, screen)?,
        };
        let stage = stage_dir(workspace, product);
        product.stage(workspace.root(), &program, &agents, &stage)?;
        if product == Product::Agent {
            // The server's package carries it, so that servers can install it from the service.
            let name = format!("fleetmend-agent-{}", std::env::consts::ARCH);
            agents.push((program.clone(), name.clone()));
            if let Some(key) = &release_key {
                let file = work.join(format!("{name}.sig"));
                contents::write(&file, &key.sign(&program)?, 0o644)?;
                agents.push((file, format!("{name}.sig")));
            }
        }
        let libc = match elf::is_dynamically_linked(&program)? {
            true => Some(local_glibc_version(processes)?),
            false => None,
        };
        let job = Job {
            product,
            version: env!("CARGO_PKG_VERSION"),
            root: workspace.root(),
            work: &work,
            out: &out,
            libc,
            compressed: !options.uncompressed,
        };
        for format in [PackageFormat::Deb, PackageFormat::Rpm] {
            if options.format.is_some_and(|wanted| wanted != format) {
                continue;
            }
            let (mut make, package) = match format {
                PackageFormat::Deb => deb::prepare(&job, &stage)?,
                PackageFormat::Rpm => rpm::prepare(&job, &stage)?,
            };
            run(&mut make, processes)?;
            screen.line(&package.display().to_string());
        }
        programs.push((product, program));
    }
    Ok(programs)
}

/// Where the contents of a package are laid out.
fn stage_dir(workspace: &Workspace, product: Product) -> PathBuf {
    workspace.target().join("package/stage").join(product.name())
}

/// The directory with the agents, and their signatures, that the server's package carries. It exists
/// after [`build_packages`].
pub(crate) fn staged_agents(workspace: &Workspace) -> PathBuf {
    stage_dir(workspace, Product::Server).join(contents::AGENTS_DIR)
}

/// Builds the agent as it is shipped.
pub(crate) fn build_agent(
    workspace: &Workspace,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<PathBuf, TaskError> {
    build(workspace, Product::Agent, None, processes, screen)
}

/// Builds the server as a static program, for an image that contains nothing else.
pub(crate) fn build_static_server(
    workspace: &Workspace,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<PathBuf, TaskError> {
    screen.show_activity("building fleetmend for the container");
    let triple = host_triple(processes)?;
    let own = workspace.target().join("package/static");
    let (package, features) = Product::Server.cargo_package();
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--release", "-p", package, "--bin", Product::Server.name()]);
    cargo.args(features).args(["--target", &triple, "--target-dir"]).arg(&own);
    run(cargo.env("RUSTFLAGS", STATIC), processes)?;
    Ok(own.join(triple).join("release").join(Product::Server.name()))
}

/// Builds a program as it is shipped, and returns its path.
fn build(
    workspace: &Workspace,
    product: Product,
    release_key: Option<&ReleaseKey>,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<PathBuf, TaskError> {
    screen.show_activity(&format!("building {}", product.name()));
    let mut cargo = workspace.cargo();
    let target = workspace.target();
    let (package, features) = product.cargo_package();
    let built = match product {
        Product::Agent => {
            // With an explicit target, the flags apply to the program but not to procedural macros,
            // which cannot be static.
            let triple = host_triple(processes)?;
            let own = target.join("package/agent");
            cargo.args(["build", "--profile", "agent", "-p", package, "--bin", product.name()]);
            cargo.args(features).args(["--target", &triple, "--target-dir"]).arg(&own);
            cargo.env("RUSTFLAGS", STATIC);
            if let Some(key) = release_key {
                cargo.env("FLEETMEND_RELEASE_PUBLIC_KEY", key.public());
            }
            own.join(triple).join("agent")
        }
        Product::Server => {
            cargo.args(["build", "--release", "-p", package, "--bin", product.name()]);
            cargo.args(features);
            target.join("release")
        }
    };
    run(&mut cargo, processes)?;
    Ok(built.join(product.name()))
}

/// Runs a command that must succeed. The error contains its output.
fn run(command: &mut Command, processes: &mut Processes) -> Result<(), TaskError> {
    run_for_output(command, processes).map(drop)
}

pub(crate) fn run_for_output(
    command: &mut Command,
    processes: &mut Processes,
) -> Result<String, TaskError> {
    let mut text = String::new();
    let status =
        processes.run_with_lines(command.stdin(Stdio::null()), TERMINATE_GROUP, &mut |line| {
            text.push_str(line);
            text.push('\n');
        })?;
    let program = command.get_program().to_string_lossy();
    match status.success() {
        true => Ok(text),
        false => Err(TaskError::Failed(format!("{program} failed ({status}):\n{text}"))),
    }
}

/// The target triple of this machine.
pub(crate) fn host_triple(processes: &mut Processes) -> Result<String, TaskError> {
    let text = run_for_output(Command::new("rustc").arg("-vV"), processes)?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned)
        .ok_or_else(|| TaskError::Failed("`rustc -vV` prints no host".to_owned()))
}

/// The version of the local C library, which a program that is built here may need.
fn local_glibc_version(processes: &mut Processes) -> Result<String, TaskError> {
    let text = run_for_output(Command::new("getconf").arg("GNU_LIBC_VERSION"), processes)?;
    let version = text.trim().strip_prefix("glibc ").map(str::to_owned);
    version.ok_or_else(|| {
        TaskError::Failed(format!("unexpected output of getconf: `{}`", text.trim()))
    })
}
