//! Which findings a pending update closes.

use std::borrow::Cow;

use pkgver::Scheme;

use crate::advisory::{Family, Names};

use super::version::{Rule, without_epoch};
use super::{Binary, Finding};

/// Whether installing `candidate` of the package `name` closes a finding. None where that cannot be
/// said, because a pending update does not tell its source's version and it cannot be inferred.
///
/// This is also what makes an update a security update: a fix lies between what is installed and
/// what is offered, wherever the offer comes from.
pub fn closes(finding: &Finding, family: Family, name: &str, candidate: &str) -> Option<bool> {
    let scheme = family.scheme()?;
    let binary = finding.package.binaries.iter().find(|binary| binary.name == name)?;
    let Some(fixed) = &finding.fixed_version else { return Some(false) };
    let rule = Rule { scheme, epochs: family.writes_epochs() && !finding.package.epoch_unknown };
    let by_source = finding.found.names == Names::Source && finding.package.kernel.is_none();
    let candidate = match by_source {
        true => source_version(scheme, binary, &finding.package.version, candidate)?,
        false => Cow::Borrowed(candidate),
    };
    Some(rule.compare(&candidate, fixed).is_ge())
}

/// The version of the source that `candidate` was most likely built from: what turns the installed
/// version into its source's does the same with the candidate.
fn source_version<'a>(
    scheme: Scheme,
    installed: &Binary,
    source: &str,
    candidate: &'a str,
) -> Option<Cow<'a, str>> {
    let plain = |version: &'a str| match scheme {
        Scheme::Deb => without_rebuild(version),
        _ => version,
    };
    let own = match scheme {
        Scheme::Deb => without_rebuild(&installed.version),
        _ => installed.version.as_str(),
    };
    if own == source {
        return Some(Cow::Borrowed(plain(candidate)));
    }
    // Some packages have another epoch than their source.
    (without_epoch(own) == without_epoch(source)).then(|| {
        let epoch = source.split_once(':').map_or("0", |(epoch, _)| epoch);
        Cow::Owned(format!("{epoch}:{}", without_epoch(plain(candidate))))
    })
}

/// `1.2-3` of `1.2-3+b1`: a rebuild of the same source.
fn without_rebuild(version: &str) -> &str {
    match version.rsplit_once("+b") {
        Some((rest, count)) if !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()) => {
            rest
        }
        _ => version,
    }
}
