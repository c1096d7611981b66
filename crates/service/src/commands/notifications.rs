//! Commands on notifications: a user's email address, and the rules about what is sent to it.
//!
//! Nothing is sent to an address before its owner has confirmed it, except the link to do so.

use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::notifications::{self, EmailAddress, Rhythm, Rule};
use store::users::{self, User};
use store::{events, organizations};
use vocab::{Cron, NotificationRuleId, Role, Selector, Zone};

use crate::audit::Action;
use crate::auth::opaque_token;
use crate::auth::users::actor;
use crate::clock::{Stopwatch, random_u128};
use crate::mail::{self, MailError, MailSettings, Mailer, Message};
use crate::{Actor, App, FieldError, Result, ServiceError, audit};

/// The maximum number of rules of a user.
pub const RULES_MAX: usize = 20;
const LINK_PURPOSE: &str = "fleetmend email link v1";
const LINK_RANDOM_BYTES: usize = 16;
/// How long a link that confirms an address is valid.
const LINK_TTL: SignedDuration = SignedDuration::from_hours(24);
/// The time between two links, so that nobody can flood an address.
const LINK_PAUSE: SignedDuration = SignedDuration::from_mins(2);

/// When the next message of a rule is due: in the morning of the person's time zone.
pub fn next_digest(rhythm: Rhythm, zone: &Zone, after: Timestamp) -> Option<Timestamp> {
    let cron = match rhythm {
        Rhythm::Immediate => return None,
        Rhythm::Daily => "0 7 * * *",
        Rhythm::Weekly => "0 7 * * 1",
    };
    let cron: Cron = cron.parse().ok()?;
    domain::schedule::next_after(&cron, zone, after)
}

/// Sets the address of a user, and sends a link to it that confirms it. An address that is already
/// confirmed stays confirmed.
#[boxed]
pub async fn set_address(app: &App, user: &User, address: &str, timezone: &str) -> Result<()> {
    let mail = mail_settings(app)?;
    let mut errors = Vec::new();
    let address = mail::check_address(address)
        .map_err(|wrong| errors.push(FieldError::new("/address", "invalid_address", wrong)));
    let zone: Result<Zone, _> = timezone.parse().map_err(|wrong: vocab::ZoneError| {
        errors.push(FieldError::new("/timezone", "invalid_timezone", wrong));
    });
    let (Ok(address), Ok(zone)) = (address, zone) else {
        return Err(ServiceError::Invalid(errors));
    };
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let seen = notifications::address(&mut tx, user.id).await?;
    let mut next = match seen {
        Some(seen) if seen.address == address => EmailAddress { timezone: zone, ..seen },
        seen => EmailAddress {
            user_id: user.id,
            org_id: user.org_id,
            address,
            timezone: zone,
            confirmed_at: None,
            link_hash: None,
            // A link that was not sent does not count.
            link_sent_at: (seen.as_ref())
                .filter(|seen| seen.error.is_none())
                .and_then(|seen| seen.link_sent_at),
            failing_since: None,
            error: None,
            sent_at: None,
            generation: seen.map_or(0, |seen| seen.generation),
        },
    };
    let mut link = None;
    if next.confirmed_at.is_none() {
        check_pause(&next, now)?;
        let (token, hash) = opaque_token::mint::<LINK_RANDOM_BYTES>(&app.secrets, LINK_PURPOSE);
        let (link_hash, link_sent_at) = (Some(hash), Some(now));
        next = EmailAddress { link_hash, link_sent_at, error: None, ..next };
        link = Some(token);
    }
    notifications::save_address(&mut tx, &next).await?;
    for rule in notifications::rules(&mut tx, user.id).await? {
        if let Some(at) = next_digest(rule.rhythm, &next.timezone, now) {
            notifications::move_rule(&mut tx, rule.id, at).await?;
        }
    }
    let detail = json!({"address": next.address, "timezone": next.timezone});
    audit::record(app, &mut tx, &actor(user), Action::EmailSet, user.id, detail);
    let organization = organizations::get(&mut tx, user.org_id).await?.name;
    tx.commit().await?;
    let Some(token) = link else { return Ok(()) };
    let path = format!("/confirm-email/{token}");
    let message = mail::confirmation(app, &user.name, &organization, &path);
    let saved = EmailAddress { generation: next.generation + 1, ..next };
    if let Err(error) = send(mail, &saved.address, &message).await {
        let mut tx = app.db.begin().await?;
        notifications::record_failure(&mut tx, &saved, &error.to_string(), None).await?;
        tx.commit().await?;
    }
    Ok(())
}

fn check_pause(address: &EmailAddress, now: Timestamp) -> Result<()> {
    let next = address.link_sent_at.and_then(|sent| sent.checked_add(LINK_PAUSE).ok());
    if next.is_some_and(|next| now < next) && address.error.is_none() {
        let detail = "must wait: a link was sent less than two minutes ago";
        let error = FieldError::new("/address", "too_many_links", detail);
        return Err(ServiceError::Invalid(vec![error]));
    }
    Ok(())
}

/// The unconfirmed address of a link from a message, and its user; `None` if the link is not valid.
#[boxed]
pub async fn address_of_link(app: &App, link: &str) -> Result<Option<(EmailAddress, User)>> {
    let hash = opaque_token::recognize::<LINK_RANDOM_BYTES>(&app.secrets, LINK_PURPOSE, link);
    let Some(hash) = hash else { return Ok(None) };
    let mut reader = app.db.read().await?;
    let Some(found) = notifications::address_by_link(&mut reader, &hash).await? else {
        return Ok(None);
    };
    let until = found.link_sent_at.and_then(|sent| sent.checked_add(LINK_TTL).ok());
    if until.is_none_or(|until| until <= app.clock.now()) {
        return Ok(None);
    }
    match users::get(&mut reader, found.org_id, found.user_id).await {
        Ok(user) => Ok(Some((found, user))),
        Err(store::StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Confirms the address of a link. `None` if the link is not valid.
#[boxed]
pub async fn confirm(app: &App, link: &str) -> Result<Option<EmailAddress>> {
    let Some((seen, user)) = address_of_link(app, link).await? else { return Ok(None) };
    let next = EmailAddress {
        confirmed_at: Some(app.clock.now()),
        link_hash: None,
        link_sent_at: None,
        failing_since: None,
        error: None,
        ..seen
    };
    let mut tx = app.db.begin().await?;
    match notifications::save_address(&mut tx, &next).await {
        // A concurrent request used the link, or the user chose another address.
        Err(store::StoreError::Stale) => return Ok(None),
        saved => saved?,
    }
    let detail = json!({"address": next.address});
    audit::record(app, &mut tx, &actor(&user), Action::EmailConfirm, user.id, detail);
    tx.commit().await?;
    Ok(Some(next))
}

/// Deletes the address of a user and all their rules.
#[boxed]
pub async fn remove_address(app: &App, user: &User) -> Result<()> {
    let mut tx = app.db.begin().await?;
    let Some(seen) = notifications::address(&mut tx, user.id).await? else { return Ok(()) };
    notifications::delete_all(&mut tx, user.id).await?;
    let detail = json!({"address": seen.address});
    audit::record(app, &mut tx, &actor(user), Action::EmailRemove, user.id, detail);
    Ok(tx.commit().await?)
}

/// What a user chooses about a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleInput {
    pub types: Vec<String>,
    pub targets: Option<Selector>,
    pub rhythm: Rhythm,
}

/// Creates a rule. Messages are about events from now on.
#[boxed]
pub async fn create_rule(app: &App, user: &User, input: RuleInput) -> Result<Rule> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let Some(address) = notifications::address(&mut tx, user.id).await? else {
        return Err(ServiceError::conflict("conflict", "Add an email address first."));
    };
    if notifications::rules(&mut tx, user.id).await?.len() >= RULES_MAX {
        let detail = format!("You have {RULES_MAX} rules. Delete one of them first.");
        return Err(ServiceError::conflict("conflict", detail));
    }
    let rule = Rule {
        id: NotificationRuleId::new(now, random_u128()),
        org_id: user.org_id,
        user_id: user.id,
        types: input.types,
        targets: input.targets,
        rhythm: input.rhythm,
        position: events::latest(&mut tx, user.org_id).await?,
        next_at: next_digest(input.rhythm, &address.timezone, now),
        attempts: 0,
        created_at: now,
    };
    notifications::create_rule(&mut tx, &rule).await?;
    let action = Action::NotificationRuleCreate;
    audit::record(app, &mut tx, &actor(user), action, rule.id, details(&rule));
    tx.commit().await?;
    Ok(rule)
}

/// Deletes a rule of a user.
#[boxed]
pub async fn delete_rule(app: &App, user: &User, id: NotificationRuleId) -> Result<()> {
    let mut tx = app.db.begin().await?;
    let rule = notifications::rule(&mut tx, id).await?;
    if rule.user_id != user.id {
        let (kind, id) = ("notification rule", id.to_string());
        return Err(ServiceError::NotFound { kind, id });
    }
    notifications::delete_rule(&mut tx, id).await?;
    let action = Action::NotificationRuleDelete;
    audit::record(app, &mut tx, &actor(user), action, rule.id, details(&rule));
    Ok(tx.commit().await?)
}

/// The rule that a link in a message unsubscribes from; `None` if the link is not ours, or if the
/// rule is already deleted.
#[boxed]
pub async fn rule_of_link(app: &App, link: &str) -> Result<Option<Rule>> {
    let Some(id) = mail::unsubscribed_rule(app, link) else { return Ok(None) };
    match notifications::rule(&mut *app.db.read().await?, id).await {
        Ok(rule) => Ok(Some(rule)),
        Err(store::StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Deletes the rule of a link in a message. The holder of the link need not sign in.
#[boxed]
pub async fn unsubscribe(app: &App, link: &str) -> Result<()> {
    let Some(rule) = rule_of_link(app, link).await? else { return Ok(()) };
    let mut tx = app.db.begin().await?;
    if !notifications::delete_rule(&mut tx, rule.id).await? {
        return Ok(());
    }
    let mut detail = details(&rule);
    detail["by"] = json!("link");
    let actor = Actor { org: rule.org_id, id: rule.user_id.to_string(), role: Role::Viewer };
    let action = Action::NotificationRuleDelete;
    audit::record(app, &mut tx, &actor, action, rule.id, detail);
    Ok(tx.commit().await?)
}

/// The result of a test message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestResult {
    /// What the server answered, or why the message was not sent.
    pub response: Result<String, MailError>,
    pub duration_ms: u64,
}

/// Sends a test message once.
#[boxed]
pub async fn send_test(app: &App, actor: &Actor, to: &str) -> Result<TestResult> {
    let mail = mail_settings(app)?;
    let to = mail::check_address(to).map_err(|wrong| {
        ServiceError::Invalid(vec![FieldError::new("/to", "invalid_address", wrong)])
    })?;
    let mut tx = app.db.begin().await?;
    let organization = organizations::get(&mut tx, actor.org).await?.name;
    let detail = json!({"to": to});
    audit::record(app, &mut tx, actor, Action::NotificationTest, actor.org, detail);
    tx.commit().await?;
    let stopwatch = Stopwatch::start();
    let response = send(mail, &to, &mail::test(app, &organization)).await;
    Ok(TestResult { response, duration_ms: (stopwatch.seconds() * 1_000.0) as u64 })
}

fn mail_settings(app: &App) -> Result<&MailSettings> {
    app.settings.mail.as_ref().ok_or_else(|| {
        let detail =
            "This service sends no email: the settings `smtp` and `public_url` are missing.";
        ServiceError::conflict("email_not_configured", detail)
    })
}

async fn send(mail: &MailSettings, to: &str, message: &Message) -> Result<String, MailError> {
    Mailer::new(mail)?.send(to, message).await
}

fn details(rule: &Rule) -> serde_json::Value {
    json!({"types": rule.types, "targets": rule.targets, "rhythm": rule.rhythm.as_str()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_come_in_the_morning_of_the_time_zone() {
        let zone: Zone = "Europe/Berlin".parse().unwrap();
        let now: Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        let next = |rhythm| next_digest(rhythm, &zone, now).map(|at| at.to_string());
        assert_eq!(next(Rhythm::Immediate), None);
        assert_eq!(next(Rhythm::Daily).as_deref(), Some("2026-11-19T06:00:00Z"));
        assert_eq!(next(Rhythm::Weekly).as_deref(), Some("2026-11-23T06:00:00Z"));
    }
}
