//! The email address and the notification rules of a user.

use async_recursion::async_recursion as boxed;
use store::notifications;
pub use store::notifications::{EmailAddress, Rhythm, Rule};
use store::users::User;

use crate::{App, Result};

/// The address of a user, and their rules.
#[boxed]
pub async fn of_user(app: &App, user: &User) -> Result<(Option<EmailAddress>, Vec<Rule>)> {
    let mut reader = app.db.snapshot().await?;
    let address = notifications::address(&mut reader, user.id).await?;
    Ok((address, notifications::rules(&mut reader, user.id).await?))
}
