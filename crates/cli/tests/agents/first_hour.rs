//! The first hour of an operator: the commands of `docs/production.md` on a bare Debian 12, then
//! servers of three distributions, until each of them shows its CVEs.
//!
//! The page's commands are taken from the page itself. Nothing is installed except our own package,
//! and the only network is a loopback interface.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lab::machine::Machine;
use lab::root::{Base, CommandOutput, Root, new_dir, run_command, run_successfully};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use testkit::publisher::{Publisher, ok};
use tokio::runtime::Runtime;

use crate::hosts::{agent, workspace_program};
use crate::install::{Booted, PROGRAM, other_system};

/// The name of the service in the page.
const NAME: &str = "fleet.example";
const ADDRESS: &str = "127.0.0.1:7600";
const TRUST_STORE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Stands for the DNS.
const HOSTS: &str = "127.0.0.1 localhost fleet.example\n";

/// Number of polls before giving up: about two minutes.
const POLLS_MAX: u32 = 1_200;
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The marker of a block that the tests do not run. The reason follows.
const NOT_RUN: &str = "<!-- not run by the tests:";

/// The blocks of a page to run, in order, each with its line number. Every other fenced block must
/// have the marker and a reason above it.
fn blocks_to_run(page: &str) -> Result<Vec<(usize, String)>, String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().zip(1..);
    let mut above = "";
    while let Some((line, number)) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            above = line;
            continue;
        };
        let inside = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```");
        let text: String = inside.flat_map(|line| [line, "\n"]).collect();
        match above.strip_prefix(NOT_RUN).map(|rest| rest.trim_end_matches("-->").trim()) {
            Some("") => return Err(format!("line {number}: the marker has no reason")),
            Some(_) => {}
            None if kind == "sh" => blocks.push((number, text)),
            None => return Err(format!("line {number}: neither a shell block nor marked")),
        }
    }
    Ok(blocks)
}

#[test]
fn marked_blocks_of_a_page_are_not_run() {
    let page = "a\n\n```sh\none\ntwo\n```\n\n<!-- not run by the tests: why -->\n```\nthree\n```\n";
    assert_eq!(blocks_to_run(page), Ok(vec![(3, "one\ntwo\n".to_owned())]));
    for unclear in ["```\nx\n```\n", "<!-- not run by the tests: -->\n```sh\nx\n```\n"] {
        assert!(blocks_to_run(unclear).is_err(), "{unclear}");
    }
}

/// One shell for all blocks, as the page demands. It ends at the first command that fails.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    const END: &str = "--- end of block ---";

    fn new(host: &Booted) -> Shell {
        let mut command = host.command("timeout");
        command.args(["600", "bash"]).env("HOME", "/root").env("TERM", "dumb");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "exec 2>&1; set -euo pipefail; cd /root").unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Shell { child, input, output }
    }

    /// Runs a block, which must succeed. Returns its output.
    fn run(&mut self, host: &Booted, line: usize, block: &str) -> String {
        // From a file: a command that reads its input must not read the next commands.
        let file = format!("/root/line-{line}.sh");
        host.machine.root.write(&file, block);
        // The shell may have ended already; then reading shows why.
        let _ = writeln!(self.input, ". {file} </dev/null; echo '{}'", Shell::END);
        let mut text = String::new();
        while self.output.read_line(&mut text).unwrap() > 0 {
            if let Some(shown) = text.strip_suffix(&format!("{}\n", Shell::END)) {
                return shown.to_owned();
            }
        }
        panic!("docs/production.md, line {line}, does not work:\n{block}\nOutput:\n{text}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell command on a system that is not booted, under its own host name.
fn shell_command(root: &Root, script: &str) -> Command {
    let mut command = root.command("unshare");
    let script = format!("hostname \"$(cat /etc/hostname)\" && {script}");
    command.args(["--uts", "/bin/sh", "-c", &script]);
    command
}

/// The agent of a system without a service manager, ended on drop.
struct Supervised(Child);

impl Supervised {
    fn start(root: &Root) -> Supervised {
        let mut command = shell_command(root, &format!("exec {PROGRAM} run"));
        Supervised(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds the package of the server from the programs under test, with the code of
/// `cargo xtask package`, and the same package with a higher version. Returns their paths.
fn build_packages(newer: &str) -> [PathBuf; 2] {
    let (programs, out) = (new_dir("programs"), new_dir("packages"));
    let server = PathBuf::from(env!("CARGO_BIN_EXE_fleetmend"));
    for (name, program) in [("fleetmend", server), ("fleetmend-agent", agent())] {
        // As shipped: without debug information.
        let mut strip = Command::new("strip");
        run_successfully(strip.arg("-g").arg("-o").arg(programs.join(name)).arg(program));
    }
    let mut package = Command::new(workspace_program("xtask", "xtask"));
    // Compressing takes longer than the rest of the test.
    package.args(["package", "--format", "deb", "--uncompressed", "--programs"]).arg(programs);
    package.arg("--out").arg(&out).env("CARGO_TARGET_DIR", new_dir("target"));
    // It is that of this test's crate.
    package.env_remove("CARGO_MANIFEST_DIR");
    let shown = run_successfully(&mut package);
    let current = shown.lines().map(PathBuf::from).find(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("fleetmend_")
    });
    let current = current.expect("the package of the server was built");

    let content = new_dir("content").join("package");
    run_successfully(Command::new("dpkg-deb").arg("-R").arg(&current).arg(&content));
    let control = content.join("DEBIAN/control");
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    let text = fs::read_to_string(&control).unwrap();
    assert!(text.contains(&version), "{text}");
    fs::write(&control, text.replace(&version, &format!("Version: {newer}\n"))).unwrap();
    let name = current.file_name().unwrap().to_str().unwrap();
    let next = out.join(name.replacen(env!("CARGO_PKG_VERSION"), newer, 1));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Znone", "--build"]);
    run_successfully(build.arg(&content).arg(&next));
    [current, next]
}

/// A certificate authority that every machine of the test trusts, and a certificate for the
/// service.
struct Certificates {
    authority: String,
    certificate: String,
    key: String,
}

impl Certificates {
    fn new() -> Certificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Example Authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        Certificates {
            authority: authority.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// Connects a system to the network of the test: it can resolve the name of the service, and
    /// trusts the authority.
    fn prepare(&self, root: &Root, hostname: &str) {
        root.write("/etc/hosts", HOSTS);
        root.write("/etc/hostname", &format!("{hostname}\n"));
        root.write(TRUST_STORE, &self.authority);
    }
}

/// A client of the API, with the key that the page's commands stored.
struct Api<'a> {
    runtime: &'a Runtime,
    http: reqwest::Client,
    key: String,
}

impl Api<'_> {
    fn new<'a>(runtime: &'a Runtime, host: &Booted, certificates: &Certificates) -> Api<'a> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let stored = host.machine.root.read("/root/.config/fleetmend/credentials.toml");
        let key = stored.lines().find_map(|line| line.strip_prefix("api_key = \""));
        let key = key.and_then(|rest| rest.strip_suffix('"')).expect("a key was stored").to_owned();
        let authority = reqwest::Certificate::from_pem(certificates.authority.as_bytes()).unwrap();
        let address: SocketAddr = ADDRESS.parse().unwrap();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([authority]);
        let http = client.resolve(NAME, address).pool_max_idle_per_host(0).build().unwrap();
        Api { runtime, http, key }
    }

    fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("https://{NAME}:7600{path}")).bearer_auth(&self.key);
        self.runtime.block_on(async { request.send().await.unwrap().json().await.unwrap() })
    }

    /// Polls until `enough` returns true. Returns the response.
    fn until(&self, path: &str, enough: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..POLLS_MAX {
            let seen = self.get(path);
            if enough(&seen) {
                return seen;
            }
            self.runtime.block_on(async { tokio::time::sleep(POLL_INTERVAL).await });
        }
        panic!("the expected state was never reached: {:#}", self.get(path));
    }
}

/// What a server must show in the end.
struct Expected {
    hostname: &'static str,
    package_manager: &'static str,
    /// The source package.
    package: &'static str,
    cve: &'static str,
    severity: &'static str,
}

const EXPECTED: [Expected; 3] = [
    Expected {
        hostname: "debian-1",
        package_manager: "apt",
        package: "curl",
        cve: "CVE-2026-1001",
        severity: "critical",
    },
    Expected {
        hostname: "rocky-1",
        package_manager: "dnf",
        package: "sudo",
        cve: "CVE-2026-1002",
        severity: "high",
    },
    Expected {
        hostname: "arch-1",
        package_manager: "pacman",
        package: "openssl-base",
        cve: "CVE-2026-1003",
        severity: "medium",
    },
];

/// A record as osv.dev publishes it.
fn osv(id: &str, cve: &str, ecosystem: &str, package: &str, fixed: &str, cvss: &str) -> String {
    let ranges = json!([{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]);
    json!({
        "id": id, "published": "2026-11-12T00:00:00Z", "modified": "2026-11-13T00:00:00Z",
        "upstream": [cve], "severity": [{"type": "CVSS_V3", "score": cvss}],
        "affected": [{"package": {"ecosystem": ecosystem, "name": package}, "ranges": ranges}],
    })
    .to_string()
}

/// Publishes a vulnerability of each server, as their distributions would.
fn publish(publisher: &Publisher, installed_curl: &str) {
    let [debian, rocky, arch] = EXPECTED.map(|expected| expected.cve);
    let fixed = format!("{installed_curl}.1");
    let critical = "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H";
    let high = "CVSS:3.1/AV:L/AC:L/PR:L/UI:N/S:U/C:H/I:H/A:H";
    let record = osv("DEBIAN-CVE-2026-1001", debian, "Debian:12", "curl", &fixed, critical);
    publisher.serve("/Debian/all.zip", ok("", record));
    let record = osv("RLSA-2026:1002", rocky, "Rocky Linux:9", "sudo", "0:1.9.5p2-10.el9", high);
    publisher.serve("/Rocky%20Linux/all.zip", ok("", record));
    let group = json!([{
        "name": "AVG-1003", "packages": ["openssl"], "status": "Fixed", "severity": "Medium",
        "type": "denial of service", "affected": "3.3.0-1", "fixed": "3.3.1-1", "ticket": null,
        "issues": [arch], "advisories": [],
    }]);
    publisher.serve("/security.archlinux.org/all.json", ok("", group.to_string()));
    let kev = json!({
        "title": "list", "catalogVersion": "1", "dateReleased": "2026-11-13T00:00:00Z", "count": 1,
        "vulnerabilities": [{
            "cveID": debian, "dateAdded": "2026-11-12", "knownRansomwareCampaignUse": "Unknown",
        }],
    });
    publisher.serve("/known_exploited_vulnerabilities.json", ok("", kev.to_string()));
    let epss = format!(
        "#model_version:v1,score_date:2026-11-13T00:00:00Z\ncve,epss,percentile\n{debian},0.25,0.9\n"
    );
    publisher.serve("/epss_scores-current.csv.gz", ok("", epss));
}

/// A system with dnf and one package that has an update.
fn rocky() -> Option<Root> {
    use lab::rpm::{Package, Repo};
    let package = |version: &str| {
        Package::new("sudo", version).vendor("Rocky Enterprise Software Foundation")
    };
    let repo = Repo::with(&[package("1.9.5p2-9.el9"), package("1.9.5p2-10.el9")], &[])?;
    let release = "NAME=\"Rocky Linux\"\nID=rocky\nID_LIKE=\"rhel fedora\"\nVERSION_ID=9.4\n";
    let database = "rpm --initdb --dbpath /var/lib/rpm && rm -rf /usr/bin/zypper /etc/zypp";
    let mut root = other_system(release, database)?;
    root.bind(repo.dir(), "/srv/lab");
    let settings = "[lab]\nname=lab\nbaseurl=file:///srv/lab\nenabled=1\ngpgcheck=0\n";
    root.write("/etc/yum.repos.d/lab.repo", settings);
    let install = "rpm -i --force-debian --nodeps /srv/lab/sudo-1.9.5p2-9.*.rpm";
    root.run_successfully("/bin/sh", &["-c", install]);
    Some(root)
}

/// Makes a system that is an overlay of this machine one with pacman and no service manager.
fn disguise_as_arch(root: &Root) {
    for file in ["/usr/bin/systemctl", "/etc/os-release"] {
        let _ = fs::remove_file(root.path(file));
    }
    root.write("/etc/os-release", "NAME=\"Arch Linux\"\nID=arch\n");
    root.write("/var/lib/dpkg/status", "");
}

/// The command that `fleetmend tokens create` printed, without sudo, which the test's systems do
/// not have.
fn install_command(shown: &str) -> String {
    let line = shown.lines().find(|line| line.contains("/install.sh | sudo sh"));
    line.expect("the command is printed").trim().replace("| sudo sh", "| sh")
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the duration is printed, and nothing depends on it")]
fn commands_of_the_production_page_lead_to_cves_of_three_distributions() {
    let programs = [
        ("strip", "binutils"),
        ("dpkg-deb", "dpkg"),
        ("dnf", "dnf"),
        ("curl", "curl"),
        ("busybox", "busybox-static"),
    ];
    // The base system is built before the network is isolated.
    if Base::Systemd.dir().is_none() || !lab::has_programs(&programs) {
        return;
    }
    let arch_package = |version: &str| lab::pacman::Package::new("openssl", version);
    let Some(arch_repository) = lab::pacman::Repository::with(&[arch_package("3.3.0-1")]) else {
        return;
    };
    let Some(rocky) = rocky() else { return };
    let arch = lab::pacman::Server::with_installed(&arch_repository, &["openssl"]);
    arch_repository.add(&[arch_package("3.3.1-1")]);
    disguise_as_arch(arch.root());

    lab::network::isolate();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // Its threads are started here, so they are in the isolated network.
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let certificates = Certificates::new();
    certificates.prepare(&rocky, "rocky-1");
    certificates.prepare(arch.root(), "arch-1");
    let Some(debian) = Machine::new() else { return };
    certificates.prepare(&debian.root, "debian-1");
    let version_of_curl = ["-W", "-f", "${Version}", "curl"];
    let installed_curl = debian.root.run_successfully("dpkg-query", &version_of_curl);
    let publisher = runtime.block_on(Publisher::new());
    publish(&publisher, &installed_curl);

    // The machine of the service has what the page lists under "You need".
    let Some(machine) = Machine::new() else { return };
    certificates.prepare(&machine.root, "fleet");
    machine.root.write("/root/cert.pem", &certificates.certificate);
    machine.root.write("/root/key.pem", &certificates.key);
    let newer = format!("{}+next", env!("CARGO_PKG_VERSION"));
    for package in build_packages(&newer) {
        let name = package.file_name().unwrap().to_str().unwrap();
        fs::copy(&package, machine.root.path("/root").join(name)).unwrap();
    }
    // Step 6: "For a mirror, see feeds.md".
    let mirror = format!("FLEETMEND_FEED_MIRROR={}\n", publisher.url("feeds"));
    machine.root.write("/etc/fleetmend/server.env", &mirror);

    let architecture = run_successfully(Command::new("dpkg").arg("--print-architecture"));
    let placeholders = [
        ("VERSION=0.1.0", format!("VERSION={}", env!("CARGO_PKG_VERSION"))),
        ("VERSION=0.1.1", format!("VERSION={newer}")),
        ("_amd64.deb", format!("_{}.deb", architecture.trim())),
    ];
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/production.md");
    let mut page = fs::read_to_string(page).unwrap();
    for (placeholder, value) in &placeholders {
        assert!(page.contains(placeholder), "the page no longer contains {placeholder}");
        page = page.replace(placeholder, value);
    }

    let began = Instant::now();
    let host = runtime.block_on(Booted::boot(machine.share_network()));
    let debian = runtime.block_on(Booted::boot(debian.share_network()));
    let mut shell = Shell::new(&host);
    let mut agents = Vec::new();
    let mut all_assessed = Duration::ZERO;
    for (line, block) in blocks_to_run(&page).unwrap() {
        let shown = shell.run(&host, line, &block);
        if block.contains("fleetmend tokens create") {
            let install = install_command(&shown);
            assert!(!install.contains("--pinnedpubkey"), "the authority is trusted: {install}");
            let text = debian.succeed(&install);
            assert!(text.contains("Debian GNU/Linux 12") && text.contains("Done."), "{text}");
            for (root, manager) in [(&rocky, "dnf"), (arch.root(), "pacman")] {
                let CommandOutput { exit, text } = run_command(&mut shell_command(root, &install));
                assert_eq!(exit, Some(0), "{text}");
                assert!(text.contains(&format!("with {manager}")), "{text}");
                // The script asks for this where there is no service manager.
                assert!(text.contains(&format!("Start `{PROGRAM} run`")), "{text}");
                agents.push(Supervised::start(root));
            }
            let api = Api::new(&runtime, &host, &certificates);
            wait_for_assessment(&api);
            all_assessed = began.elapsed();
            assert_cves_are_shown(&api, &host);
        }
    }
    println!(
        "first hour: all servers showed their CVEs after {:.1} s, and the page took {:.1} s",
        all_assessed.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    assert_eq!(agents.len(), 2, "the page creates one enrollment token");
    assert_eq!(host.succeed("dpkg-query -W -f '${Version}' fleetmend"), newer);
    // The page ends with an upgrade, after which everything is as before.
    let api = Api::new(&runtime, &host, &certificates);
    wait_for_assessment(&api);
    assert_cves_are_shown(&api, &host);
    let text =
        host.succeed("runuser -u fleetmend -- fleetmend doctor --data-dir /var/lib/fleetmend");
    assert!(!text.contains("PROBLEM"), "{text}");
    // The process of the unit is visible to its user, and has no flag for the mirror.
    assert!(!text.contains("cannot read the flags"), "{text}");
    assert!(text.contains("feed_mirror: /etc/fleetmend/server.env"), "{text}");
}

/// Waits until every feed is imported, and every server is online and has CVEs of known severity.
fn wait_for_assessment(api: &Api<'_>) {
    api.until("/v1/feeds", |seen| {
        let feeds = seen["data"].as_array().unwrap();
        // Those of the three distributions, KEV and EPSS.
        feeds.len() == 5 && feeds.iter().all(|feed| feed["state"] == "current")
    });
    let is_assessed = |row: &&Value| {
        let count = |severity| row["summary"]["cves"][severity].as_u64().unwrap();
        let known = ["critical", "high", "medium", "low"].map(count);
        (row["assessment"] == "assessed" || row["assessment"] == "partial")
            && row["status"] == "online"
            && known.iter().sum::<u64>() > 0
    };
    api.until("/v1/servers", |seen| {
        seen["data"].as_array().unwrap().iter().filter(is_assessed).count() == EXPECTED.len()
    });
}

/// The API and the command line show the CVE of each server with its severity.
fn assert_cves_are_shown(api: &Api<'_>, host: &Booted) {
    let seen = api.get("/v1/servers");
    let listed = host.succeed("HOME=/root fleetmend cves list");
    for expected in EXPECTED {
        let rows = seen["data"].as_array().unwrap();
        let row = rows.iter().find(|row| row["hostname"] == expected.hostname);
        let row = row.unwrap_or_else(|| panic!("{} is missing: {seen:#}", expected.hostname));
        assert_eq!(row["package_manager"], expected.package_manager);
        assert_eq!(row["environment"], "production");
        let by_api = api.get(&format!("/v1/servers/{}", row["id"].as_str().unwrap()));
        let show = format!("HOME=/root fleetmend servers show {} --json", expected.hostname);
        let by_cli: Value = serde_json::from_str(&host.succeed(&show)).unwrap();
        for detail in [by_api, by_cli] {
            let cves = detail["cves"].as_array().unwrap();
            let cve = cves.iter().find(|cve| cve["id"] == expected.cve);
            let cve = cve.unwrap_or_else(|| panic!("no {}: {detail:#}", expected.cve));
            assert_eq!(
                (&cve["severity"], &cve["package"], &cve["state"]),
                (&json!(expected.severity), &json!(expected.package), &json!("open"))
            );
        }
        let line = listed.lines().find(|line| line.starts_with(expected.cve));
        assert!(line.is_some_and(|line| line.contains(expected.severity)), "{listed}");
    }
}
