//! A compliance report as a page, and the verification of both forms.
//!
//! The page contains the signed report and what a reader sees. The visible part is a function of the
//! report alone, so a verifier renders it again and compares: a page whose figures were edited is
//! not verified, although its signature is.

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use ring::signature::{ED25519, UnparsedPublicKey};
use wire::v1::{
    ComplianceReport, ReportedPolicy, ServerCompliance, SignedReport, report_signing_text,
};

use super::super::policies::describe_rule;
use super::super::table::pluralize;

/// Before and after the signed report in a page.
const START: &str = "<script type=\"application/json\" id=\"fleetmend-report\">";
const END: &str = "</script>";

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem;color:#1a1a1a}table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}\
th,td{text-align:left;padding:.25rem .5rem;border-bottom:1px solid #ccc;vertical-align:top}\
td.n,th.n{text-align:right}h2{margin-top:2rem}code{word-break:break-all}\
@media print{h2{break-after:avoid}tr{break-inside:avoid}body{margin:0}}";

/// Renders a report as a page.
pub(super) fn to_html(signed: &SignedReport) -> anyhow::Result<String> {
    let report: ComplianceReport =
        serde_json::from_str(&signed.report).context("the report cannot be read")?;
    // No text can end the element early.
    let data = serde_json::to_string(signed)?.replace('<', "\\u003c");
    let title = format!("Compliance report of {}", report.organization);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{0}</title>\n\
         <style>{STYLE}</style>\n<h1>{0}</h1>\n",
        escape(&title)
    );
    page += &scope(&report);
    for policy in &report.policies {
        page += &policy_section(policy);
    }
    page += &exceptions(&report);
    page += &format!(
        "<h2>Signature</h2>\n<p>This report is signed with the Ed25519 key \
         <code>{}</code> of the installation. To verify it:</p>\n\
         <p><code>fleetmend compliance verify FILE --trust {}</code></p>\n\
         <p>Ask the operator of the installation for the key in another way than this report. The \
         signature covers everything above.</p>\n",
        escape(&signed.key),
        escape(&signed.key)
    );
    page += &format!("{START}{data}{END}\n</html>\n");
    Ok(page)
}

/// Verifies a report in either form. Returns what was verified, for a person.
pub(super) fn verify(text: &str, trust: Option<&str>) -> anyhow::Result<String> {
    let (data, is_page) = match text.find(START) {
        Some(start) => {
            let rest = &text[start + START.len()..];
            let end = rest.find(END).context("the signed report in the page is incomplete")?;
            (&rest[..end], true)
        }
        None => (text, false),
    };
    let signed: SignedReport = serde_json::from_str(data)
        .context("this is not a report of `fleetmend compliance report`")?;
    if let Some(trust) = trust
        && trust != signed.key
    {
        bail!("it is signed with another key than the trusted one: {}", signed.key);
    }
    let key = STANDARD.decode(&signed.key).context("the key in it cannot be read")?;
    let signature = STANDARD.decode(&signed.signature).context("the signature cannot be read")?;
    let is_valid = UnparsedPublicKey::new(&ED25519, key)
        .verify(&report_signing_text(&signed.report), &signature)
        .is_ok();
    ensure!(is_valid, "its signature does not match its content: it was altered");
    if is_page {
        let shown_is_signed = to_html(&signed)? == text;
        ensure!(
            shown_is_signed,
            "the page does not show what was signed: it was altered, or another version of \
             fleetmend wrote it; verify the JSON form instead"
        );
    }
    let report: ComplianceReport =
        serde_json::from_str(&signed.report).context("the report cannot be read")?;
    let trusted = match trust {
        Some(_) => "It is signed with the trusted key.".to_owned(),
        None => format!(
            "Nobody checked whose key this is: {}\nTo accept only reports of an installation that \
             you know, add --trust with its key.",
            signed.key
        ),
    };
    Ok(format!(
        "The signature is valid.\nReport of {}, created at {:.0}, {}.\n{trusted}\n",
        report.organization,
        report.created_at,
        pluralize(report.policies.len(), "policy", "policies")
    ))
}

fn scope(report: &ComplianceReport) -> String {
    let environments = match &report.environments {
        None => "all environments".to_owned(),
        Some(some) => {
            let names: Vec<&str> = some.iter().map(vocab::Environment::as_str).collect();
            format!("only {}", names.join(", "))
        }
    };
    format!(
        "<p>Created at {}. Scope: {}, {}.</p>\n\
         <p>Every server is in exactly one state. <em>Compliant</em>: nothing is overdue, and \
         nothing is due within 48 hours. <em>Due soon</em>: a fix is due within 48 hours. \
         <em>Breaching</em>: a fix is overdue. <em>Unknown</em>: it cannot be determined, because \
         the server was not scanned, no feed covers it, or its last scan is too old; never counted \
         as compliant. The time of a fix starts when it became available to the server, and ends \
         when it is installed and running.</p>\n",
        time(report.created_at),
        pluralize(report.policies.len(), "policy", "policies"),
        escape(&environments)
    )
}

fn policy_section(policy: &ReportedPolicy) -> String {
    let mut text = format!("<h2>{}</h2>\n", escape(&policy.name));
    if !policy.description.is_empty() {
        text += &format!("<p>{}</p>\n", escape(&policy.description));
    }
    let rules: Vec<String> = policy.rules.iter().map(describe_rule).collect();
    text += &format!(
        "<p>Rules: {}. Applies to {}.</p>\n",
        escape(&rules.join(", ")),
        escape(&policy.targets.to_string())
    );
    text += "<table>\n<tr><th>Environment<th class=\"n\">Servers<th class=\"n\">Compliant\
             <th class=\"n\">Due soon<th class=\"n\">Breaching<th class=\"n\">Unknown\
             <th>Oldest breach\n";
    for row in &policy.figures {
        let environment = row.environment.as_ref().map_or("none", vocab::Environment::as_str);
        text += &format!("<tr><td>{}", escape(environment));
        for number in [row.servers, row.compliant, row.due_soon, row.breaching, row.unknown] {
            text += &format!("<td class=\"n\">{number}");
        }
        text += &format!("<td>{}\n", row.oldest_breach_at.map(time).unwrap_or_default());
    }
    text += "</table>\n";
    text += &servers("Servers in breach", &policy.breaches);
    text += &servers("Servers whose state is unknown", &policy.unknown);
    text
}

fn servers(title: &str, servers: &[ServerCompliance]) -> String {
    if servers.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "<h3>{title}</h3>\n<table>\n<tr><th>Server<th>Environment<th>Due<th class=\"n\">Overdue\
         <th>Reason\n"
    );
    for server in servers {
        let environment = server.environment.as_ref().map_or("none", vocab::Environment::as_str);
        text += &format!(
            "<tr><td>{}<td>{}<td>{}<td class=\"n\">{}<td>{}\n",
            escape(server.server_name()),
            escape(environment),
            server.due_at.map(time).unwrap_or_default(),
            server.overdue,
            server.unknown_reason.map(|why| why.as_str().replace('_', " ")).unwrap_or_default()
        );
    }
    text + "</table>\n"
}

fn exceptions(report: &ComplianceReport) -> String {
    let mut text = "<h2>Exceptions</h2>\n".to_owned();
    if report.suppressions.is_empty() && report.freezes.is_empty() {
        return text + "<p>None.</p>\n";
    }
    if !report.suppressions.is_empty() {
        text += "<h3>Suppressed CVEs</h3>\n<p>They do not count while they are suppressed.</p>\n\
                 <table>\n<tr><th>CVE<th>Package<th>Environment<th>Reason<th>Until\n";
        for one in &report.suppressions {
            text += &format!(
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}\n",
                escape(&one.cve),
                escape(one.package.as_deref().unwrap_or("all")),
                escape(one.environment.as_ref().map_or("all", vocab::Environment::as_str)),
                escape(&one.reason),
                one.expires_at.map_or_else(|| "no end".to_owned(), time)
            );
        }
        text += "</table>\n";
    }
    if !report.freezes.is_empty() {
        text += "<h3>Freezes</h3>\n<p>Times in which nothing is installed. They do not stop the \
                 time.</p>\n<table>\n<tr><th>Freeze<th>Servers<th>Reason<th>Active\n";
        for one in &report.freezes {
            text += &format!(
                "<tr><td>{}<td>{}<td>{}<td>{}\n",
                escape(&one.name),
                escape(&one.targets.to_string()),
                escape(&one.reason),
                if one.active { "yes" } else { "no" }
            );
        }
        text += "</table>\n";
    }
    text
}

fn time(at: Timestamp) -> String {
    format!("{at:.0}")
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::json;

    use super::*;

    fn signed(organization: &str) -> SignedReport {
        let report = json!({"organization": organization, "created_at": "2026-11-15T04:00:00Z",
            "environments": null, "freezes": [], "suppressions": [{"cve": "CVE-2026-1",
                "package": null, "environment": null, "reason": "</script><b>", "expires_at": null,
                "created_at": "2026-11-15T04:00:00Z"}],
            "policies": [{"id": "pol_01jcqk3m8ye0fr5cq0k6s8v2xw", "name": "Baseline",
                "description": "", "targets": {"all": true},
                "rules": [{"match": {"severity": "critical"}, "within_days": 7}],
                "figures": [{"environment": null, "servers": 3, "compliant": 1, "due_soon": 0,
                    "breaching": 1, "unknown": 1, "oldest_breach_at": "2026-11-14T04:00:00Z"}],
                "breaches": [], "unknown": []}]});
        let report = report.to_string();
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        SignedReport {
            key: STANDARD.encode(pair.public_key()),
            signature: STANDARD.encode(pair.sign(&report_signing_text(&report))),
            report,
        }
    }

    #[test]
    fn both_forms_are_verified_with_and_without_a_trusted_key() {
        let signed = signed("default");
        for text in [serde_json::to_string(&signed).unwrap(), to_html(&signed).unwrap()] {
            assert!(verify(&text, None).unwrap().contains("Nobody checked whose key"));
            let verified = verify(&text, Some(&signed.key)).unwrap();
            assert!(verified.contains("Report of default"), "{verified}");
            let error = verify(&text, Some("other")).unwrap_err();
            assert!(error.to_string().contains("another key"), "{error}");
        }
    }

    #[test]
    fn altered_reports_are_rejected() {
        let signed = signed("default");
        let mut other = signed.clone();
        other.report = other.report.replace("\"breaching\":1", "\"breaching\":0");
        assert_ne!(other.report, signed.report);
        for text in [serde_json::to_string(&other).unwrap(), to_html(&other).unwrap()] {
            let error = verify(&text, None).unwrap_err();
            assert!(error.to_string().contains("was altered"), "{error}");
        }
        // The signed report is intact, but the page shows another number.
        let page = to_html(&signed).unwrap();
        let shown = page.replacen("<td class=\"n\">3", "<td class=\"n\">0", 1);
        assert_ne!(shown, page);
        let error = verify(&shown, Some(&signed.key)).unwrap_err();
        assert!(error.to_string().contains("does not show what was signed"), "{error}");
        assert!(verify("", None).is_err());
        assert!(verify(&page[..page.len() - 20], None).is_err());
    }

    #[test]
    fn text_of_users_cannot_change_the_page() {
        let page = to_html(&signed("<script>alert(1)</script>")).unwrap();
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert!(page.contains("&lt;/script&gt;&lt;b&gt;"), "{page}");
    }
}
