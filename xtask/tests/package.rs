//! Installs and removes our own packages with the real dpkg and rpm on separate test systems.
//!
//! The packaged programs are stand-ins, so that nothing has to be built: the tests cover everything
//! around them.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::root::{Base, Root, new_dir, run_successfully};
use lab::rpm::{Manager, Package, Repo, Server};

/// The paths of the server's completions, and their contents: the stand-in prints its arguments.
const COMPLETIONS: [(&str, &str); 4] = [
    ("/usr/share/bash-completion/completions/fleetmend", "completions bash"),
    ("/usr/share/zsh/vendor-completions/_fleetmend", "completions zsh"),
    ("/usr/share/zsh/site-functions/_fleetmend", "completions zsh"),
    ("/usr/share/fish/vendor_completions.d/fleetmend.fish", "completions fish"),
];

/// Packages stand-ins, and returns the paths of the packages: agent and server, each as .deb and
/// .rpm.
fn packages() -> [PathBuf; 4] {
    packages_with_agent("/usr/bin/true")
}

/// Packages stand-ins, with this program as the agent.
fn packages_with_agent(agent: &str) -> [PathBuf; 4] {
    let programs = new_dir("programs");
    let out = new_dir("packages");
    for (name, program) in [("fleetmend", "/usr/bin/echo"), ("fleetmend-agent", agent)] {
        fs::copy(program, programs.join(name)).unwrap();
    }
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.arg("package").arg("--programs").arg(&programs).arg("--out").arg(&out);
    // A separate directory: other tests, or a developer, may build real packages at the same time.
    let output = run_successfully(xtask.env("CARGO_TARGET_DIR", new_dir("target")));
    let lines: Vec<PathBuf> = output.lines().map(PathBuf::from).collect();
    let [agent_deb, agent_rpm, server_deb, server_rpm] = <[PathBuf; 4]>::try_from(lines).unwrap();
    [agent_deb, agent_rpm, server_deb, server_rpm]
}

/// A test system that looks booted, with a stand-in for systemctl that logs its arguments.
fn test_system() -> Option<Root> {
    let root = Root::from_base(Base::Apt)?;
    root.write("/usr/bin/systemctl", "#!/bin/sh\necho \"$*\" >> /systemctl.log\n");
    let program = root.path("/usr/bin/systemctl");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(root.path("/run/systemd/system")).unwrap();
    Some(root)
}

fn systemctl_calls(root: &Root) -> Vec<String> {
    let path = root.path("/systemctl.log");
    let lines = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    lines.lines().map(str::to_owned).collect()
}

fn copy_into(root: &Root, package: &Path) -> String {
    let name = package.file_name().unwrap().to_str().unwrap();
    fs::copy(package, root.path("/tmp").join(name)).unwrap();
    format!("/tmp/{name}")
}

fn mode(root: &Root, path: &str) -> u32 {
    fs::metadata(root.path(path)).unwrap().permissions().mode() & 0o7777
}

const HOOKS: &str = "/etc/fleetmend/hooks/pre-install.d";
const STATE: &str = "/var/lib/fleetmend-agent/identity";

#[test]
fn debian_packages_install_without_starting_and_remove_cleanly() {
    let Some(root) = test_system() else { return };
    if !lab::has_programs(&[("rpmbuild", "rpm")]) {
        return;
    }
    let [agent, _, server, _] = packages();
    let agent = copy_into(&root, &agent);
    root.run_successfully("dpkg", &["-i", &agent]);
    assert_eq!(
        systemctl_calls(&root),
        ["daemon-reload", "--no-block try-restart fleetmend-agent.service"]
    );
    assert_eq!(mode(&root, "/usr/bin/fleetmend-agent"), 0o755);
    assert_eq!(mode(&root, "/usr/lib/systemd/system/fleetmend-agent.service"), 0o644);
    assert!(root.path(HOOKS).is_dir());
    root.write(STATE, "secret");
    root.run_successfully("dpkg", &["-i", &agent]);
    assert_eq!(systemctl_calls(&root).len(), 2, "an upgrade stops and disables nothing");
    root.run_successfully("dpkg", &["-r", "fleetmend-agent"]);
    assert_eq!(
        systemctl_calls(&root),
        ["--no-reload disable --now fleetmend-agent.service", "daemon-reload"]
    );
    assert!(!root.path("/usr/bin/fleetmend-agent").exists() && root.path(STATE).exists());
    root.run_successfully("dpkg", &["-P", "fleetmend-agent"]);
    assert!(!root.path("/var/lib/fleetmend-agent").exists(), "purging removes the host's identity");

    root.run_successfully("dpkg", &["-i", &copy_into(&root, &server)]);
    assert_eq!(
        root.run_successfully("stat", &["-c", "%U %a", "/var/lib/fleetmend"]),
        "fleetmend 700\n"
    );
    assert!(root.read("/etc/passwd").contains("fleetmend:"));
    let carried = format!("/usr/lib/fleetmend/agents/fleetmend-agent-{}", std::env::consts::ARCH);
    assert_eq!(mode(&root, &carried), 0o755, "servers install the agent from the service");
    for (path, text) in COMPLETIONS {
        assert_eq!((root.read(path).trim(), mode(&root, path)), (text, 0o644), "{path}");
    }
    root.write("/var/lib/fleetmend/root.key", "secret");
    root.run_successfully("dpkg", &["-P", "fleetmend"]);
    assert_eq!(root.read("/var/lib/fleetmend/root.key"), "secret", "purging does not delete data");
    assert!(!root.path("/usr/bin/fleetmend").exists());
    assert!(COMPLETIONS.iter().all(|(path, _)| !root.path(path).exists()));
}

#[test]
fn rpm_packages_install_without_starting_and_remove_cleanly() {
    let Some(root) = test_system() else { return };
    if !lab::has_programs(&[("rpmbuild", "rpm"), ("rpm", "rpm")]) {
        return;
    }
    let [_, agent, _, server] = packages();
    // The system is Debian; its libraries are not in the rpm database.
    let rpm = |args: &[&str], package: &str| {
        let mut rpm = Command::new("rpm");
        run_successfully(rpm.arg("--root").arg(root.dir()).args(args).arg("--nodeps").arg(package))
    };
    rpm(&["-i"], agent.to_str().unwrap());
    assert_eq!(
        systemctl_calls(&root),
        ["daemon-reload", "--no-block try-restart fleetmend-agent.service"]
    );
    let mut query = Command::new("rpm");
    let owned =
        run_successfully(query.arg("--root").arg(root.dir()).args(["-ql", "fleetmend-agent"]));
    assert!(owned.lines().any(|path| path == HOOKS), "{owned}");
    assert!(
        !owned.lines().any(|path| path == "/usr/bin"),
        "the package must not own system directories: {owned}"
    );
    rpm(&["-U", "--replacepkgs"], agent.to_str().unwrap());
    assert_eq!(systemctl_calls(&root).len(), 2, "an upgrade stops and disables nothing");
    rpm(&["-e"], "fleetmend-agent");
    assert_eq!(
        systemctl_calls(&root),
        ["--no-reload disable --now fleetmend-agent.service", "daemon-reload"]
    );
    assert!(!root.path("/usr/bin/fleetmend-agent").exists());
    rpm(&["-i"], server.to_str().unwrap());
    assert_eq!(
        root.run_successfully("stat", &["-c", "%U %a", "/var/lib/fleetmend"]),
        "fleetmend 700\n"
    );
    for (path, text) in COMPLETIONS {
        assert_eq!(root.read(path).trim(), text, "{path}");
    }
    rpm(&["-e"], "fleetmend");
    assert!(COMPLETIONS.iter().all(|(path, _)| !root.path(path).exists()));
    assert!(root.path("/var/lib/fleetmend").is_dir() && !root.path("/usr/bin/fleetmend").exists());
}

/// A pure rpm system: everything that is installed is in its database, and dnf resolves
/// dependencies.
#[test]
fn agent_rpm_needs_only_a_shell_and_works_with_dnf() {
    if !lab::root::can_create_roots()
        || !lab::has_programs(&[("rpmbuild", "rpm"), ("busybox", "busybox-static")])
    {
        return;
    }
    let Some(repo) = Repo::with(&[Package::new("other", "1-1")], &[]) else { return };
    let Some(server) = Server::with_installed(Manager::Dnf, &repo, &[]) else { return };
    let before = server.database();
    // A static program, like the real agent.
    let [_, agent, _, service] = packages_with_agent("/usr/bin/busybox");
    let needs = |package: &Path| run_successfully(Command::new("rpm").args(["-qpR"]).arg(package));
    let of_agent = needs(&agent);
    let mut more = of_agent.lines().filter(|line| !line.starts_with("rpmlib("));
    assert!(more.all(|line| line == "/bin/sh"), "{of_agent}");
    let of_service = needs(&service);
    for path in ["/usr/bin/install", "/usr/bin/getent", "/usr/sbin/useradd"] {
        assert!(of_service.lines().any(|line| line == path), "{of_service}");
    }

    let dnf = |args: &[&str]| {
        let mut dnf = Command::new("dnf");
        run_successfully(dnf.arg("--installroot").arg(server.dir()).args(["-q", "-y"]).args(args))
    };
    dnf(&["install", agent.to_str().unwrap()]);
    assert!(server.database().iter().any(|line| line.starts_with("fleetmend-agent ")));
    assert!(server.path(HOOKS).is_dir() && server.path("/usr/bin/fleetmend-agent").is_file());
    dnf(&["remove", "fleetmend-agent"]);
    assert_eq!(server.database(), before);
    assert!(!server.path("/usr/bin/fleetmend-agent").exists() && !server.path(HOOKS).exists());
}
