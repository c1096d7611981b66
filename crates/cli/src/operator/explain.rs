//! `fleetmend explain`: says why an update or a CVE on a server is not patched.

use clap::Args;
use wire::v1::{ExplainedPolicy, Explanation};

use super::credentials::Connection;
use super::table::{Cell, Screen, Tone, optional_cell};
use super::{Session, toned_cell};

/// Explain why an update or a CVE on a server is not patched.
#[derive(Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    connection: Connection,
    /// Server ID or name
    server: String,
    /// Package name or CVE ID
    subject: String,
}

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        let server = session.resolve_server(&self.server).await?;
        let kind = if is_cve(&self.subject) { "cves" } else { "updates" };
        let body = session.api.get(&["servers", &server, kind, &self.subject]).await?;
        session.show(&body, |screen| Ok(format_explanation(&body.read()?, screen)))
    }
}

/// Whether the text is the ID of a CVE or of an advisory, and not the name of a package.
fn is_cve(subject: &str) -> bool {
    const PREFIXES: [&str; 8] =
        ["CVE-", "DSA-", "DLA-", "USN-", "ALPINE-", "RHSA-", "RLSA-", "ALSA-"];
    PREFIXES.iter().any(|prefix| subject.starts_with(prefix))
}

fn format_explanation(explanation: &Explanation, screen: &Screen) -> String {
    let versions = explanation.packages.iter().map(|package| match &package.available_version {
        Some(available) => format!("{} {} → {available}", package.name, package.installed_version),
        None => format!("{} {}", package.name, package.installed_version),
    });
    let versions: Vec<String> = versions.collect();
    let mut properties = vec![
        ("server", explanation.server_name().into()),
        ("subject", (&explanation.subject).into()),
        ("packages", optional_cell((!versions.is_empty()).then(|| versions.join(", ")))),
        ("state", toned_cell(explanation.state)),
        ("next run", screen.optional_time(explanation.next.as_ref().map(|next| next.at))),
        ("schedule", optional_cell(explanation.next.as_ref().map(|next| &next.schedule))),
        ("batch", optional_cell(explanation.batch_id)),
    ];
    if let Some(policy) = &explanation.policy {
        properties.push(("policy", (&policy.policy).into()));
        properties.push(("due", due(policy, screen)));
    }
    let mut text = screen.properties(&properties);
    if !explanation.reasons.is_empty() {
        text += &screen.heading("Reasons");
        for reason in &explanation.reasons {
            text += &format!("- {}\n  {}\n", reason.detail, reason.remedy);
        }
    }
    text
}

/// By when a policy requires it.
fn due(policy: &ExplainedPolicy, screen: &Screen) -> Cell {
    match policy.breach {
        true => Cell::new(format!("{} (overdue)", screen.time(policy.due_at).text()), Tone::Bad),
        false => screen.time(policy.due_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advisory_ids_are_not_package_names() {
        assert!(is_cve("CVE-2026-1234"));
        assert!(is_cve("DSA-5000-1"));
        assert!(!is_cve("openssl"));
        assert!(!is_cve("cve-bin-tool"));
    }
}
