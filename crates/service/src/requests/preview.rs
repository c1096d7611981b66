//! Preview of a batch or a retry.

use async_recursion::async_recursion as boxed;
use vocab::{BatchId, ServerId};
use wire::v1::{Preview, PreviewRequest};

use super::{Body, batches, validate};
use crate::auth::caller::Caller;
use crate::commands;
use crate::queries::{convert, preview};
use crate::{App, Result};

/// The preview of a batch. `shown` is the maximum number of servers that are listed individually.
#[boxed]
pub async fn preview_order(
    app: &App,
    caller: &Caller,
    (body, mut errors): Body<PreviewRequest>,
    shown: usize,
) -> Result<Preview> {
    let scope = caller.scope();
    let options = match body.targets.is_some() {
        true => validate::options(&mut errors, "", body.options()),
        false => validate::batch_options(&mut errors, body.options()),
    };
    let (mut named, mut selector) = (Vec::new(), None);
    match (&body.server_ids, &body.targets) {
        (Some(ids), None) => {
            let mut reader = app.db.read().await?;
            named = batches::find_named_servers(&mut reader, &scope, &mut errors, ids).await?;
        }
        (None, Some(targets)) => selector = validate::targets(&mut errors, targets),
        (Some(_), Some(_)) | (None, None) => {
            errors.add("", "one_of", "either `server_ids` or `targets` is required, and not both");
        }
    }
    errors.into_result()?;
    match selector {
        Some(selector) => preview::preview_targets(app, &scope, &options, &selector, shown).await,
        None => preview::preview_servers(app, &scope, &options, &named, shown).await,
    }
}

/// The servers that a retry of a batch would patch, and the preview of the retry.
#[boxed]
pub async fn preview_retry(
    app: &App,
    caller: &Caller,
    id: BatchId,
    shown: usize,
) -> Result<(Vec<ServerId>, Preview)> {
    let mut reader = app.db.snapshot().await?;
    let now = app.clock.now();
    let (row, servers) =
        commands::batches::retryable(app, &mut reader, caller.org, id, now).await?;
    drop(reader);
    let (options, _) = convert::stored_options("rollouts", row.id, &row.options)?;
    let preview = preview::preview_servers(app, &caller.scope(), &options, &servers, shown).await?;
    Ok((servers, preview))
}
