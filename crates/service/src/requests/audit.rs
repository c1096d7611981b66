//! Requests about the audit log: verify.

use async_recursion::async_recursion as boxed;
use wire::v1::{AuditVerification, VerifyAudit};

use super::Body;
use crate::auth::caller::Caller;
use crate::queries::audit::{self, VERIFY_MAX};
use crate::{App, Result};

/// Verifies a part of the log. Changes nothing.
#[boxed]
pub async fn verify(
    app: &App,
    caller: &Caller,
    (body, mut errors): Body<VerifyAudit>,
) -> Result<AuditVerification> {
    let after = body.after.unwrap_or(0);
    if after < 0 {
        errors.add("/after", "out_of_range", "must be 0 or greater");
    }
    let limit = body.limit.unwrap_or(i64::from(VERIFY_MAX));
    let limit = u32::try_from(limit).ok().filter(|limit| (1..=VERIFY_MAX).contains(limit));
    if limit.is_none() {
        errors.add("/limit", "out_of_range", format!("must be from 1 to {VERIFY_MAX}"));
    }
    errors.into_result()?;
    audit::verify(app, &caller.scope(), after, limit.unwrap_or(VERIFY_MAX)).await
}
