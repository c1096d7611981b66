//! The command and the script that install an agent from this service.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::App;
use crate::agent_releases::Architecture;

const SCRIPT: &str = include_str!("../../../packaging/install.sh");
const SYSTEMD_UNIT: &str = include_str!("../../../packaging/systemd/fleetmend-agent.service");
const OPENRC_SCRIPT: &str = include_str!("../../../packaging/openrc/fleetmend-agent");

/// How the service manager starts an agent that can replace its own program.
const EXEC_START: &str = "\
# If the host went down during an upgrade of the agent, the previous agent is put back first.
ExecStartPre=-/usr/local/bin/fleetmend-agent.previous restore
ExecStart=/usr/local/bin/fleetmend-agent run";

/// The longest host name with a port.
const HOST_CHARS_MAX: usize = 261;

/// The address at which a client reaches this service, from the headers `Host` and
/// `X-Forwarded-Proto` of its request. `None` if there is no usable host. Only characters of host
/// names and addresses are accepted, because the address becomes part of shell commands.
pub fn public_url(app: &App, host: Option<&str>, forwarded_proto: Option<&str>) -> Option<String> {
    let host = host?;
    let valid = |c: char| c.is_ascii_alphanumeric() || ".-:[]_".contains(c);
    if host.is_empty()
        || host.starts_with('-')
        || host.len() > HOST_CHARS_MAX
        || !host.chars().all(valid)
    {
        return None;
    }
    let secure = app.settings.certificate_sha256.is_some() || forwarded_proto == Some("https");
    Some(format!("{}://{host}", if secure { "https" } else { "http" }))
}

/// The command that installs the agent on a server and enrolls the server. `None` if this service
/// carries no agent: the agent must then be installed from a package.
pub fn install_command(app: &App, url: &str, token: &str) -> Option<String> {
    app.settings.agents.list().next()?;
    // With a certificate that only this installation trusts, curl verifies the service by its
    // public key.
    let verify = match app.untrusted_public_key() {
        Some(sha256) => format!(" -k --pinnedpubkey 'sha256//{}'", STANDARD.encode(sha256)),
        None => String::new(),
    };
    Some(format!("curl -fsSL{verify} {url}/install.sh | sudo sh -s -- {token}"))
}

/// The script, for a client that reaches this service at `url`.
pub fn script(app: &App, url: &str) -> String {
    let agents = &app.settings.agents;
    let sha256 = |architecture| agents.get(architecture).map_or("", |release| &release.sha256);
    let version = agents.list().next().map_or("", |release| &release.version);
    let unit = SYSTEMD_UNIT.replace("ExecStart=/usr/bin/fleetmend-agent run", EXEC_START);
    let verify = if app.untrusted_public_key().is_some() { "no" } else { "yes" };
    SCRIPT
        .replace("@SERVER@", url)
        .replace("@VERSION@", version)
        .replace("@SHA256_X86_64@", sha256(Architecture::X86_64))
        .replace("@SHA256_AARCH64@", sha256(Architecture::Aarch64))
        .replace("@VERIFY_CERTIFICATE@", verify)
        .replace("@SYSTEMD_UNIT@", unit.trim_end())
        .replace("@OPENRC_SCRIPT@", OPENRC_SCRIPT.trim_end())
}
