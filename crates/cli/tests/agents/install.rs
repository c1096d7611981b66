//! The command that installs an agent from the service: a real script, run by a real shell on
//! systems with real service managers and package managers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::machine::Machine;
use lab::root::{Base, CommandOutput, Root, can_create_roots, new_dir, run_command};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::hosts::{Service, agent};
use crate::lifecycle::certificate;
use crate::service::Dir;
use crate::support::Fleet;

pub(crate) const PROGRAM: &str = "/usr/local/bin/fleetmend-agent";
const UNIT: &str = "/etc/systemd/system/fleetmend-agent.service";

/// What an agent that was built without the key of a publisher contains in its place.
const NO_RELEASE_KEY: &str = "NO-RELEASE-KEY-NO-RELEASE-KEY-NO-RELEASE-KEY";

/// The key of the publisher of the agents in these tests.
fn publisher() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

/// A directory with an agent for the service to carry, as its publisher built it.
fn agent_dir() -> PathBuf {
    let dir = new_dir("agents");
    let program = dir.join("fleetmend-agent-test");
    fs::copy(agent(), &program).unwrap();
    patch_program(&program, NO_RELEASE_KEY, &STANDARD.encode(publisher().public_key()));
    dir
}

/// Signs an agent as `by`.
fn sign(program: &Path, version: &str, by: &Ed25519KeyPair) {
    let digest = ring::digest::digest(&ring::digest::SHA256, &fs::read(program).unwrap());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let text = wire::agent::release_signing_text(version, std::env::consts::ARCH, &hex);
    let signature = STANDARD.encode(by.sign(text.as_bytes()));
    let mut file = program.as_os_str().to_owned();
    file.push(".sig");
    fs::write(file, signature).unwrap();
}

/// Writes a copy of the agent that is the same program with another version.
pub(crate) fn write_newer_agent(to: &Path, version: &str) {
    let release = |version: &str| format!("fleetmend-agent release {version} (end of release)");
    let (old, new) = (release(env!("CARGO_PKG_VERSION")), release(version));
    assert_eq!(old.len(), new.len(), "the version is replaced in place");
    let mut program = fs::read(agent()).unwrap();
    let at = program.windows(old.len()).position(|part| part == old.as_bytes());
    let at = at.expect("the agent announces its release");
    program[at..at + new.len()].copy_from_slice(new.as_bytes());
    fs::write(to, program).unwrap();
    make_executable(to);
}

/// Replaces every occurrence of a text in a program by another one of the same length.
fn patch_program(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut program = fs::read(path).unwrap();
    let places: Vec<usize> = (0..program.len() - from.len())
        .filter(|at| program[*at..].starts_with(from.as_bytes()))
        .collect();
    assert!(!places.is_empty(), "{from} is not in the program");
    for at in places {
        program[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    fs::write(path, program).unwrap();
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A machine with systemd, shut down on drop.
pub(crate) struct Booted {
    pub(crate) machine: Machine,
    child: Child,
}

impl Booted {
    async fn new() -> Option<Booted> {
        Some(Booted::boot(Machine::new()?.share_network()).await)
    }

    /// Boots a machine and waits until its services have started.
    pub(crate) async fn boot(mut machine: Machine) -> Booted {
        let child = machine.boot();
        let booted = Booted { machine, child };
        for _ in 0..3_000 {
            if booted.machine.command(&booted.child, "true").is_some()
                && booted.shell("systemctl is-system-running --wait").exit.is_some()
            {
                return booted;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the machine does not boot");
    }

    /// A program inside it.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.machine.command(&self.child, program).expect("the machine runs")
    }

    fn shell(&self, script: &str) -> CommandOutput {
        run_command(self.command("sh").args(["-c", script]))
    }

    #[track_caller]
    pub(crate) fn succeed(&self, script: &str) -> String {
        let CommandOutput { exit, text } = self.shell(script);
        assert_eq!(exit, Some(0), "{script}\n{text}");
        text
    }

    fn exists(&self, path: &str) -> bool {
        self.machine.root.path(path).symlink_metadata().is_ok()
    }

    fn agent_process(&self) -> String {
        self.succeed("systemctl show -P MainPID fleetmend-agent")
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command that the service shows, without sudo, which the test's machines do not have.
async fn install_command(service: &Service) -> String {
    let made = service.post("/v1/enrollment-tokens", json!({"environment": "staging"})).await;
    let command = made["install_command"].as_str().expect("the service carries an agent");
    assert!(command.contains(&format!("{}/install.sh | sudo sh -s -- fme_", service.url)));
    command.replace("| sudo sh", "| sh")
}

/// A machine whose agent was installed by the command, and a service that then carries the agent
/// that `prepare` makes of a copy of version 0.9.9.
async fn installed_then_newer(prepare: impl FnOnce(&Path)) -> Option<(Booted, Service, String)> {
    Base::Systemd.dir()?;
    lab::network::isolate();
    let agents = agent_dir();
    let flags = ["--agent-dir", agents.to_str().unwrap()];
    let service = Service::start_with(&flags);
    let host = Booted::new().await?;
    host.succeed(&install_command(&service).await);
    // A shorter time for a broken agent.
    let short = format!("[Service]\nExecStart=\nExecStart={PROGRAM} run --upgrade-timeout 6\n");
    let drop_in = "/etc/systemd/system/fleetmend-agent.service.d/test.conf";
    host.machine.root.write(drop_in, &short);
    host.succeed("systemctl daemon-reload && systemctl restart fleetmend-agent");
    let new = agents.join("fleetmend-agent-new");
    write_newer_agent(&new, "0.9.9");
    patch_program(&new, NO_RELEASE_KEY, &STANDARD.encode(publisher().public_key()));
    sign(&new, "0.9.9", &publisher());
    prepare(&new);
    let service = service.restart(&flags);
    let seen = service.until("/v1/servers", || (), |seen| seen["data"][0]["status"] == "online");
    let seen = seen.await;
    let server = only_server(&seen);
    assert_eq!(
        (&server["agent_version"], &server["agent_outdated"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!(true))
    );
    let path = format!("/v1/servers/{}", server["id"].as_str().unwrap());
    Some((host, service, path))
}

/// Orders the upgrade and waits for its end. Returns the server.
async fn upgrade(service: &Service, path: &str) -> Value {
    let done = service.post("/v1/agents/upgrade", json!({"targets": {"all": true}})).await;
    assert_eq!(done, json!({"requested": 1, "current": 0, "no_release": 0}));
    let ended = |seen: &Value| {
        let upgrade = &seen["agent_upgrade"];
        !upgrade.is_null() && upgrade["state"] != "pending"
    };
    service.until(path, || (), ended).await
}

/// The agent works: it answers a request to scan.
async fn assert_agent_scans(service: &Service, path: &str) {
    let asked = service.post(&format!("{path}/refresh"), json!({})).await;
    let refresh = format!("{path}/refreshes/{}", asked["id"].as_str().unwrap());
    let seen = service.until(&refresh, || (), |seen| seen["state"] != "pending").await;
    assert_eq!(seen["state"], "completed", "{seen}");
}

#[tokio::test]
async fn agent_upgrades_itself_from_the_service() {
    let Some((host, service, path)) = installed_then_newer(|_| ()).await else { return };
    let process = host.agent_process();
    let server = upgrade(&service, &path).await;
    assert_eq!(server["agent_upgrade"]["state"], "completed", "{server}");
    let seen = service.until(&path, || (), |seen| seen["agent_version"] == "0.9.9").await;
    assert_eq!(seen["agent_outdated"], false);
    assert_eq!(host.succeed(&format!("{PROGRAM} --version")).trim(), "fleetmend-agent 0.9.9");
    let previous = host.succeed(&format!("{PROGRAM}.previous --version"));
    assert_eq!(previous.trim(), concat!("fleetmend-agent ", env!("CARGO_PKG_VERSION")));
    assert_eq!(host.agent_process(), process, "the service manager saw no restart");
    assert_agent_scans(&service, &path).await;
    let agents = service.get("/v1/agents").await;
    assert_eq!((&agents["outdated"], &agents["upgrades_pending"]), (&json!(0), &json!(0)));

    // If the host goes down before an upgrade is confirmed, the next boot puts the previous one back.
    let pending = format!("{{\"program\": \"{PROGRAM}\", \"boot_id\": \"an earlier boot\"}}");
    host.machine.root.write("/var/lib/fleetmend-agent/upgrade.json", &pending);
    host.succeed("systemctl restart fleetmend-agent");
    let restored = host.succeed(&format!("{PROGRAM} --version"));
    assert_eq!(restored.trim(), concat!("fleetmend-agent ", env!("CARGO_PKG_VERSION")));
    assert!(!host.exists("/var/lib/fleetmend-agent/upgrade.json"));
}

/// A new agent that runs and never reaches the service.
#[tokio::test]
async fn agent_that_does_not_sync_is_replaced_by_the_previous_one() {
    let broken = |path: &Path| {
        patch_program(path, "/agent/v1/sync", "/agent/v1/sinc");
        sign(path, "0.9.9", &publisher());
    };
    let Some((host, service, path)) = installed_then_newer(broken).await else { return };
    let server = upgrade(&service, &path).await;
    let upgrade = &server["agent_upgrade"];
    assert_eq!(upgrade["state"], "failed", "{server}");
    let message = upgrade["message"].as_str().unwrap();
    assert!(message.contains("0.9.9 did not reach the service within 6 seconds"), "{message}");
    assert!(message.contains(concat!(env!("CARGO_PKG_VERSION"), " was restored")), "{message}");
    assert_eq!(server["agent_version"], env!("CARGO_PKG_VERSION"));
    assert!(!host.exists("/var/lib/fleetmend-agent/upgrade.json"));
    assert_agent_scans(&service, &path).await;
}

/// A new agent that ends immediately after its start.
#[tokio::test]
async fn agent_that_crashes_is_replaced_by_the_previous_one() {
    let broken = |path: &Path| {
        patch_program(path, "identity.json", "identitx.json");
        sign(path, "0.9.9", &publisher());
    };
    let Some((_host, service, path)) = installed_then_newer(broken).await else { return };
    let server = upgrade(&service, &path).await;
    assert_eq!(server["agent_upgrade"]["state"], "failed", "{server}");
    assert_eq!(server["agent_version"], env!("CARGO_PKG_VERSION"));
    assert_agent_scans(&service, &path).await;
}

/// A hostile control plane has the keys of the service, and not that of the agent's publisher.
#[tokio::test]
async fn agent_that_its_publisher_did_not_sign_is_not_installed() {
    let forged = |path: &Path| {
        let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
        sign(path, "0.9.9", &other);
    };
    let Some((host, service, path)) = installed_then_newer(forged).await else { return };
    let before = host.succeed(&format!("sha256sum {PROGRAM}"));
    let server = upgrade(&service, &path).await;
    assert_eq!(server["agent_upgrade"]["state"], "failed", "{server}");
    let message = server["agent_upgrade"]["message"].as_str().unwrap();
    assert!(message.contains("not signed by the publisher"), "{message}");
    assert_eq!(host.succeed(&format!("sha256sum {PROGRAM}")), before);
    assert!(!host.exists(&format!("{PROGRAM}.previous")));
}

#[tokio::test]
async fn host_limits_forbid_an_upgrade_of_the_agent() {
    let Some((host, service, path)) = installed_then_newer(|_| ()).await else { return };
    host.machine.root.write("/etc/fleetmend/limits.toml", "never_upgrade_agent = true\n");
    let server = upgrade(&service, &path).await;
    assert_eq!(server["agent_upgrade"]["state"], "failed", "{server}");
    let message = server["agent_upgrade"]["message"].as_str().unwrap();
    assert!(message.contains("`never_upgrade_agent` is set"), "{message}");
    let version = host.succeed(&format!("{PROGRAM} --version"));
    assert_eq!(version.trim(), concat!("fleetmend-agent ", env!("CARGO_PKG_VERSION")));
}

fn only_server(seen: &Value) -> &Value {
    assert_eq!(seen["meta"]["total"], 1, "{seen}");
    &seen["data"][0]
}

#[tokio::test]
async fn one_command_installs_repairs_upgrades_and_uninstalls_under_systemd() {
    // Built before the network is isolated.
    if Base::Systemd.dir().is_none() {
        return;
    }
    lab::network::isolate();
    let agents = agent_dir();
    let flags = ["--agent-dir", agents.to_str().unwrap()];
    let service = Service::start_with(&flags);
    let Some(host) = Booted::new().await else { return };
    let install = install_command(&service).await;
    let again = format!("curl -fsSL {}/install.sh | sh -s --", service.url);

    // Nothing changes with --dry-run.
    let text = host.succeed(&format!("{install} --dry-run"));
    assert!(text.contains(&format!("would download {}/agent/v1/releases/", service.url)), "{text}");
    assert!(text.contains("Nothing was changed"), "{text}");
    assert!(!host.exists(PROGRAM) && !host.exists(UNIT) && !host.exists("/etc/fleetmend"));
    // Without a token, the script asks for one.
    let refused = host.shell(&again);
    assert_eq!(refused.exit, Some(1));
    assert!(refused.text.contains("add an enrollment token"), "{}", refused.text);

    let text = host.succeed(&install);
    assert!(text.contains("Debian GNU/Linux 12") && text.contains("running"), "{text}");
    let seen = service.until("/v1/servers", || (), |seen| seen["data"][0]["status"] == "online");
    let seen = seen.await;
    let server = only_server(&seen);
    assert_eq!(server["environment"], "staging");
    assert_eq!(host.succeed("systemctl is-enabled fleetmend-agent").trim(), "enabled");
    assert!(host.exists("/etc/fleetmend/hooks/pre-install.d"));
    let id = server["id"].clone();

    // A script that was cut off while it was downloaded does nothing.
    let cut = "head -c -10 | sh -s -- uninstall";
    host.shell(&format!("curl -fsSL {}/install.sh | {cut}", service.url));
    assert!(host.exists(PROGRAM));

    // Again: nothing to do, and the agent is not restarted.
    let process = host.agent_process();
    let text = host.succeed(&again);
    assert!(text.contains("already installed") && text.contains("already enrolled"), "{text}");
    assert_eq!(host.agent_process(), process);

    // A damaged installation is repaired.
    host.succeed(&format!("rm {UNIT} && : > {PROGRAM}.new && mv {PROGRAM}.new {PROGRAM}"));
    host.succeed(&again);
    assert_ne!(host.agent_process(), process);
    host.succeed(&format!("{PROGRAM} status --wait 30"));

    // A newer agent of a restarted service.
    write_newer_agent(&agents.join("fleetmend-agent-new"), "0.9.9");
    let service = service.restart(&flags);
    let again = format!("curl -fsSL {}/install.sh | sh -s -- --server {0}", service.url);
    let text = host.succeed(&again);
    assert!(text.contains("Downloading the agent 0.9.9"), "{text}");
    let seen = service
        .until("/v1/servers", || (), |seen| seen["data"][0]["agent_version"] == "0.9.9")
        .await;
    assert_eq!(only_server(&seen)["id"], id, "it is still the same server");

    // Uninstalling removes everything except what the administrator made.
    host.succeed("echo frozen = true > /etc/fleetmend/limits.toml");
    let text = host.succeed(&format!("{again} uninstall"));
    assert!(text.contains("fleetmend servers remove"), "{text}");
    for path in [PROGRAM, UNIT, "/var/lib/fleetmend-agent", "/etc/fleetmend/hooks"] {
        assert!(!host.exists(path), "{path}");
    }
    assert!(host.exists("/etc/fleetmend/limits.toml"));
    assert_ne!(host.shell("systemctl status fleetmend-agent").exit, Some(0));
}

/// A system without a service manager that is not Debian: this machine's programs with the database
/// of another package manager. `database` creates it.
pub(crate) fn other_system(os_release: &str, database: &str) -> Option<Root> {
    let programs = [("curl", "curl"), ("busybox", "busybox-static")];
    if !can_create_roots() || !lab::has_programs(&programs) {
        return None;
    }
    let root = Root::from_dir(Path::new("/"));
    for file in ["/usr/bin/systemctl", "/etc/os-release", "/var/lib/dpkg/status"] {
        let _ = fs::remove_file(root.path(file));
    }
    root.write("/etc/os-release", os_release);
    root.run_successfully("/bin/sh", &["-c", database]);
    Some(root)
}

/// Installs the agent, repeats that, scans, upgrades, and uninstalls.
async fn install_on_other_system(manager: &str, os_release: &str, database: &str, scans: bool) {
    let Some(root) = other_system(os_release, database) else { return };
    lab::network::isolate();
    let agents = agent_dir();
    let flags = ["--agent-dir", agents.to_str().unwrap()];
    let service = Service::start_with(&flags);
    let shell = |script: &str| {
        let CommandOutput { exit, text } =
            run_command(root.command("/bin/sh").args(["-c", script]));
        assert_eq!(exit, Some(0), "{script}\n{text}");
        text
    };
    let install = install_command(&service).await;
    let text = shell(&install);
    assert!(text.contains(&format!("with {manager}, service manager: none")), "{text}");
    assert!(text.contains("Start `/usr/local/bin/fleetmend-agent run`"), "{text}");
    let seen = service.get("/v1/servers").await;
    assert_eq!(only_server(&seen)["package_manager"], manager, "{seen}");
    if scans {
        shell(&format!("{PROGRAM} scan --no-refresh --json"));
    }
    let text = shell(&install);
    assert!(text.contains("already installed") && text.contains("already enrolled"), "{text}");
    // A newer agent of a restarted service.
    write_newer_agent(&agents.join("fleetmend-agent-new"), "0.9.9");
    let service = service.restart(&flags);
    let script = format!("curl -fsSL {}/install.sh | sh -s -- --server {0}", service.url);
    let text = shell(&script);
    assert!(text.contains("Downloading the agent 0.9.9"), "{text}");
    assert_eq!(shell(&format!("{PROGRAM} --version")).trim(), "fleetmend-agent 0.9.9");
    shell(&format!("{script} uninstall"));
    assert!(!root.path(PROGRAM).exists() && !root.path("/var/lib/fleetmend-agent").exists());
}

#[tokio::test]
async fn one_command_installs_on_dnf_systems() {
    if !lab::has_programs(&[("dnf", "dnf"), ("rpm", "rpm")]) {
        return;
    }
    let release = "NAME=\"Rocky Linux\"\nID=rocky\nID_LIKE=\"rhel fedora\"\nVERSION_ID=9.4\n";
    let database = "rpm --initdb --dbpath /var/lib/rpm && rm -rf /usr/bin/zypper /etc/zypp";
    install_on_other_system("dnf", release, database, true).await;
}

#[tokio::test]
async fn one_command_installs_on_zypper_systems() {
    if !lab::has_programs(&[("zypper", "zypper"), ("rpm", "rpm")]) {
        return;
    }
    let release = "NAME=openSUSE\nID=opensuse-leap\nID_LIKE=suse\nVERSION_ID=15.6\n";
    let database = "rpm --initdb --dbpath /var/lib/rpm";
    install_on_other_system("zypper", release, database, true).await;
}

#[tokio::test]
async fn one_command_installs_on_pacman_systems() {
    if !lab::has_programs(&[("pacman", "pacman-package-manager")]) {
        return;
    }
    let database = "mkdir -p /var/lib/pacman/local /var/cache/fleetmend/pacman\n\
                    echo 9 > /var/lib/pacman/local/ALPM_DB_VERSION\n\
                    ln -s /var/lib/pacman/local /var/cache/fleetmend/pacman/local\n\
                    printf '[options]\\n[core]\\nServer = file:///srv\\n' > /etc/pacman.conf";
    install_on_other_system("pacman", "NAME=\"Arch Linux\"\nID=arch\n", database, true).await;
}

/// OpenRC as on Alpine, with wget instead of curl.
#[tokio::test]
async fn one_command_installs_and_uninstalls_under_openrc() {
    let Some(root) = Root::from_base(Base::OpenRc) else { return };
    lab::network::isolate();
    let agents = agent_dir();
    let service = Service::start_with(&["--agent-dir", agents.to_str().unwrap()]);
    let shell = |script: &str| run_command(root.command("/bin/sh").args(["-c", script]));
    let succeed = |script: &str| {
        let CommandOutput { exit, text } = shell(script);
        assert_eq!(exit, Some(0), "{script}\n{text}");
        text
    };
    // As after a boot: the services of this run level are started.
    succeed("mkdir -p /run/openrc && rc-status -a >/dev/null 2>&1; touch /run/openrc/softlevel");
    let install = install_command(&service).await.replace("curl -fsSL", "wget -qO-");
    let text = succeed(&install);
    assert!(text.contains("with apt, service manager: openrc"), "{text}");
    assert!(text.contains("running"), "{text}");
    let seen = service.until("/v1/servers", || (), |seen| seen["data"][0]["status"] == "online");
    only_server(&seen.await);
    assert!(succeed("rc-update show default").contains("fleetmend-agent"));
    let text = succeed(&install);
    assert!(text.contains("already installed") && text.contains("already enrolled"), "{text}");
    succeed(&format!("wget -qO- {}/install.sh | sh -s -- uninstall", service.url));
    assert!(!root.path(PROGRAM).exists() && !root.path("/etc/init.d/fleetmend-agent").exists());
    assert_ne!(shell("rc-service fleetmend-agent status").exit, Some(0));
}

/// With the programs of Alpine: the shell, wget and the other tools are those of busybox. Debian has
/// no apk, so the agent is not asked to scan.
#[tokio::test]
async fn one_command_installs_on_apk_systems() {
    let database = "mkdir -p /lib/apk/db && printf 'P:musl\\nV:1.2.5-r0\\nA:x86_64\\n\\n' > /lib/apk/db/installed\n\
                    for tool in sh wget sha256sum cut uname mktemp mkdir mv rm rmdir cat chmod id ls grep; do\n\
                    ln -sf /bin/busybox /usr/bin/$tool; done";
    let release = "NAME=\"Alpine Linux\"\nID=alpine\nVERSION_ID=3.20.0\n";
    install_on_other_system("apk", release, database, false).await;
}

/// curl verifies a service with a self-signed certificate by its public key, and the agent by
/// the hash in the token.
#[test]
fn one_command_verifies_a_self_signed_service() {
    if !can_create_roots() || !lab::has_programs(&[("curl", "curl")]) {
        return;
    }
    let agents = agent_dir();
    let dir = Dir::new();
    let secure = |name: &str| {
        let (der, cert, key) = certificate(&dir, name);
        let ours = [reqwest::Certificate::from_der(&der).unwrap()];
        let client = reqwest::Client::builder().tls_certs_only(ours);
        let flags =
            ["--tls-cert", &cert, "--tls-key", &key, "--agent-dir", agents.to_str().unwrap()];
        Fleet::with(&flags, client)
    };
    let (fleet, impostor) = (secure("ours"), secure("theirs"));
    let root = Root::from_dir(Path::new("/"));
    let _ = fs::remove_file(root.path("/usr/bin/systemctl"));
    let shell = |script: &str| run_command(root.command("/bin/sh").args(["-c", script]));
    let made = fleet.post("/v1/enrollment-tokens", &json!({}));
    let install = made["install_command"].as_str().unwrap().replace("| sudo sh", "| sh");
    assert!(install.starts_with("curl -fsSL -k --pinnedpubkey 'sha256//"), "{install}");

    let misled = install.replace(&fleet.service.address, &impostor.service.address);
    let CommandOutput { text, .. } = shell(&misled);
    assert!(text.contains("public key does not match"), "{text}");
    assert!(!root.path(PROGRAM).exists(), "{text}");
    assert_eq!(impostor.get("/v1/servers")["meta"]["total"], 0);

    let CommandOutput { exit, text } = shell(&install);
    assert_eq!(exit, Some(0), "{text}");
    assert_eq!(fleet.get("/v1/servers")["meta"]["total"], 1);
}

/// The programs that the script uses exist on a minimal system too.
#[test]
fn script_is_valid_posix_shell() {
    if !lab::has_programs(&[("shellcheck", "shellcheck")]) {
        return;
    }
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let mut check = Command::new("shellcheck");
    check.args(["--shell=sh", "--severity=style"]).arg(packaging.join("install.sh"));
    let CommandOutput { exit, text } = run_command(&mut check);
    assert_eq!(exit, Some(0), "{text}");
}
