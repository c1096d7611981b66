//! Counts the servers that the targets of a schedule match, and explains why there are none.
//!
//! Only reads. `requests::schedules` decides whether a schedule without servers is rejected.

use async_recursion::async_recursion as boxed;
use store::server_labels::{self, ServerLabels};
use store::server_list::{self, Filter};
use store::{Conn, Result};
use vocab::{Criteria, Environment, OrgId, Selector, nearest};

use super::Scope;
use crate::App;

/// The maximum number of tags that are compared with an unknown one.
const TAGS_COMPARED_MAX: u32 = 5_000;

/// Targets that match no server now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedTargets {
    /// The reason in sentences, with a suggestion for a name that was probably mistyped.
    pub reason: String,
    /// The caller can see no server at all, so a typo cannot be distinguished from servers that
    /// will be added later.
    pub no_fleet: bool,
}

/// How many servers match a selector now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetCount {
    Servers(u64),
    /// None, for this reason.
    None(UnmatchedTargets),
}

/// Counts the servers that `targets` match and the reader may see.
#[boxed]
pub async fn count(app: &App, scope: &Scope, targets: &Selector) -> crate::Result<TargetCount> {
    let visible = scope.environments.as_deref();
    let mut reader = app.db.snapshot().await?;
    if let Some(reason) = explain_unmatched(&mut reader, scope.org, visible, targets).await? {
        return Ok(TargetCount::None(reason));
    }
    let environments = visible.map(<[Environment]>::to_vec);
    let filter = Filter { environments, ..Filter::from(targets) };
    Ok(TargetCount::Servers(server_list::count(&mut reader, scope.org, &filter).await?))
}

/// Why `targets` match no server; `None` if they match one. Only servers in the environments
/// `visible` are considered, including for suggestions; `None` means all.
#[boxed]
pub async fn explain_unmatched(
    conn: &mut Conn,
    org: OrgId,
    visible: Option<&[Environment]>,
    targets: &Selector,
) -> Result<Option<UnmatchedTargets>> {
    let everyone =
        Filter { environments: visible.map(<[Environment]>::to_vec), ..Filter::default() };
    let matching = Filter { environments: everyone.environments.clone(), ..Filter::from(targets) };
    if server_list::any(conn, org, &matching).await? {
        return Ok(None);
    }
    let criteria = match targets {
        Selector::Matching(criteria) if server_list::any(conn, org, &everyone).await? => criteria,
        _ => {
            let reason = match visible {
                Some(_) => "No server is enrolled in the environments of this API key.",
                None => "No server is enrolled yet.",
            };
            return Ok(Some(UnmatchedTargets { reason: reason.to_owned(), no_fleet: true }));
        }
    };
    let mut sentences = unknown_labels(conn, org, visible, &everyone, criteria).await?;
    let ids = criteria.server_ids();
    if !ids.is_empty() {
        let named = Filter { ids: ids.to_vec(), ..everyone };
        if !server_list::any(conn, org, &named).await? {
            sentences.push(match ids {
                [_] => "The selected server does not exist.".to_owned(),
                _ => format!("None of the {} selected servers exists.", ids.len()),
            });
        }
    }
    if sentences.is_empty() {
        sentences
            .push(format!("No server matches all of: {}.", describe_criteria(criteria).join(", ")));
    }
    Ok(Some(UnmatchedTargets { reason: sentences.join(" "), no_fleet: false }))
}

/// One sentence each for an environment, a system and a tag that no server has.
async fn unknown_labels(
    conn: &mut Conn,
    org: OrgId,
    visible: Option<&[Environment]>,
    everyone: &Filter,
    criteria: &Criteria,
) -> Result<Vec<String>> {
    let mut sentences = Vec::new();
    let mut groups = server_labels::groups(conn, org).await?;
    groups.retain(|group| {
        visible.is_none_or(|visible| visible.iter().any(|one| one.as_str() == group.environment))
    });
    if let Some(environment) = criteria.environment() {
        let known = |group: &ServerLabels| group.environment == environment.as_str();
        if !groups.iter().any(known) {
            let names = groups.iter().map(|group| group.environment.as_str());
            let what = format!("No server has the environment \"{environment}\".");
            sentences.push(with_suggestion(what, environment.as_str(), names));
        }
    }
    if let Some(os) = criteria.os() {
        let filter = Filter { os: Some(os.clone()), ..everyone.clone() };
        if !server_list::any(conn, org, &filter).await? {
            let names = groups.iter().flat_map(|group| [&*group.os_id, &*group.os_release]);
            sentences.push(with_suggestion(
                format!("No server runs \"{os}\"."),
                os.as_str(),
                names,
            ));
        }
    }
    let mut tags = None;
    for tag in criteria.tags() {
        let filter = Filter { tags: vec![tag.clone()], ..everyone.clone() };
        if server_list::any(conn, org, &filter).await? {
            continue;
        }
        if tags.is_none() {
            // Tags are not stored by environment, so a key that is limited to environments gets no
            // suggestions.
            tags = Some(match visible {
                Some(_) => Vec::new(),
                None => server_labels::tags(conn, org, TAGS_COMPARED_MAX).await?,
            });
        }
        let names = tags.iter().flatten().map(String::as_str);
        sentences.push(with_suggestion(
            format!("No server has the tag \"{tag}\"."),
            tag.as_str(),
            names,
        ));
    }
    Ok(sentences)
}

/// The sentence, with the name most similar to `word` as a suggestion if there is one.
fn with_suggestion<'a>(
    sentence: String,
    word: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> String {
    match nearest(word, names) {
        Some(name) => format!("{sentence} Did you mean \"{name}\"?"),
        None => sentence,
    }
}

fn describe_criteria(criteria: &Criteria) -> Vec<String> {
    let mut parts = Vec::new();
    parts.extend(criteria.environment().map(|name| format!("environment \"{name}\"")));
    parts.extend(criteria.os().map(|os| format!("system \"{os}\"")));
    parts.extend(criteria.tags().iter().map(|tag| format!("tag \"{tag}\"")));
    match criteria.server_ids() {
        [] => {}
        [_] => parts.push("the selected server".to_owned()),
        ids => parts.push(format!("the {} selected servers", ids.len())),
    }
    parts
}
