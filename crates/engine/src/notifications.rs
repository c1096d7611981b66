//! Sends notifications by email, while this process leads.
//!
//! A rule reads the events after its position, sends one message about all of them, and stores its
//! new position. If the process dies in between, the next leader sends the message again, with the
//! same id. A message that could not be sent is tried again later, with what happened meanwhile.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::leases::{self, Lease};
use store::notifications::{self, EmailAddress, Rhythm, Rule};
use store::users::{self, User};
use store::{Conn, StoreError, events, organizations};
use tokio::sync::watch;

use crate::{LeaderLease, log_error, wait_for_lead};
use service::attention::Facts;
use service::audit::Action;
use service::auth::caller::{Caller, CallerId};
use service::commands::notifications::next_digest;
use service::mail::{self, Collected, Digest, MailError, MailErrorKind, Mailer, Message};
use service::queries::events as event_queries;
use service::{App, ServiceError, record};

/// The number of rules that are read at a time.
const RULES_CHUNK: u32 = 200;
/// The number of events that are read at a time.
const EVENTS_CHUNK: u32 = 1_000;
/// The time between two messages of a rule: what happens meanwhile comes with the second.
const PAUSE: SignedDuration = SignedDuration::from_secs(60);
/// The pause of a rule whose user was removed or whose address is not confirmed any more.
const PAUSE_WITHOUT_RECIPIENT: SignedDuration = SignedDuration::from_hours(1);
/// The pause after the SMTP server could not be reached.
const PAUSE_UNAVAILABLE: Duration = Duration::from_secs(30);
/// The delays before the next attempts to send a message; the last one is repeated.
const RETRY_DELAYS: [SignedDuration; 4] = [
    SignedDuration::from_mins(1),
    SignedDuration::from_mins(5),
    SignedDuration::from_mins(30),
    SignedDuration::from_hours(2),
];
/// After this time without a message that could be sent, an address must be confirmed again.
const STOP_AFTER: SignedDuration = SignedDuration::from_hours(5 * 24);

/// Sends messages while this process leads. Runs until it is aborted.
pub(super) async fn run(app: App, poll: Duration, mut lead: watch::Receiver<LeaderLease>) {
    let Some(settings) = app.settings.mail.clone() else {
        return std::future::pending().await;
    };
    let mailer = match Mailer::new(&settings) {
        Ok(mailer) => mailer,
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "notifications are not sent");
            return std::future::pending().await;
        }
    };
    loop {
        let lease = wait_for_lead(&mut lead).await;
        let sender = Sender { app: app.clone(), mailer: &mailer, lease: (*lease).clone() };
        let pause = match sender.send_due().await {
            Ok(Outcome::Done) => poll,
            Ok(Outcome::Unavailable) => poll.max(PAUSE_UNAVAILABLE),
            Err(ServiceError::Unavailable(error)) => {
                log_error("notifications", &error);
                poll
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "notifications failed; retrying later"
                );
                poll
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The SMTP server could not be reached, so nothing else was tried.
    Unavailable,
}

struct Sender<'a> {
    app: App,
    mailer: &'a Mailer,
    lease: Lease,
}

/// Whom a rule belongs to.
struct Recipient {
    address: EmailAddress,
    user: User,
    organization: String,
}

impl Sender<'_> {
    async fn send_due(&self) -> service::Result<Outcome> {
        let now = self.app.clock.now();
        let due = notifications::due(&mut *self.app.db.read().await?, now, RULES_CHUNK).await?;
        for rule in due {
            if self.send_rule(&rule).await? == Outcome::Unavailable {
                return Ok(Outcome::Unavailable);
            }
        }
        Ok(Outcome::Done)
    }

    async fn send_rule(&self, rule: &Rule) -> service::Result<Outcome> {
        let now = self.app.clock.now();
        let mut reader = self.app.db.read().await?;
        let recipient = recipient(&mut reader, rule).await?;
        drop(reader);
        let Some(recipient) = recipient else {
            // Not again at once: rules of others are waiting.
            let later = now.checked_add(PAUSE_WITHOUT_RECIPIENT).ok();
            self.store(rule, rule.position, later, rule.attempts, Effect::None).await?;
            return Ok(Outcome::Done);
        };
        let (collected, position) = self.collect(rule, &recipient.user).await?;
        let message = match rule.rhythm {
            Rhythm::Immediate => (collected.total > 0).then(|| {
                let zone = &recipient.address.timezone;
                mail::immediate(&self.app, &recipient.organization, rule, zone, &collected)
            }),
            Rhythm::Daily | Rhythm::Weekly => {
                self.digest(rule, &recipient, &collected, now).await?
            }
        };
        let Some(message) = message else {
            let next_at = next_digest(rule.rhythm, &recipient.address.timezone, now);
            self.store(rule, position, next_at, 0, Effect::None).await?;
            return Ok(Outcome::Done);
        };
        self.send(rule, &recipient, &message, position).await
    }

    /// Reads the events of a rule that its user may see. Returns them with the new position.
    async fn collect(&self, rule: &Rule, user: &User) -> service::Result<(Collected, i64)> {
        let mut kinds = event_queries::kinds(&rule.types);
        kinds.retain(|kind| user.role.includes(kind.subject().readable_by()));
        let mut reader = self.app.db.read().await?;
        let latest = events::latest(&mut reader, rule.org_id).await?;
        drop(reader);
        let (mut collected, mut position) = (Collected::default(), rule.position);
        let filter = events::Filter::default();
        while position < latest {
            let mut reader = self.app.db.read().await?;
            let org = rule.org_id;
            let found = events::after(&mut reader, org, position, &filter, EVENTS_CHUNK).await?;
            let last = found.last().map_or(latest, |event| event.sequence);
            let targets = rule.targets.as_ref();
            let found = event_queries::select(&mut reader, org, &kinds, targets, found).await?;
            for event in found {
                collected.add(event_queries::to_wire(&self.app, event));
            }
            position = last;
        }
        Ok((collected, position))
    }

    /// The digest; `None` if there is nothing to say. A weekly report is always sent, so that its
    /// reader can tell that it works.
    async fn digest(
        &self,
        rule: &Rule,
        recipient: &Recipient,
        collected: &Collected,
        now: Timestamp,
    ) -> service::Result<Option<Message>> {
        let User { id, org_id, role, .. } = recipient.user;
        let caller = Caller { org: org_id, id: CallerId::User(id), role, environments: None };
        let days = if rule.rhythm == Rhythm::Weekly { 7 } else { 1 };
        let span = SignedDuration::from_hours(24 * days);
        let from = now.saturating_sub(span).unwrap_or(now).max(rule.created_at);
        let digest = Digest {
            organization: &recipient.organization,
            rule,
            zone: &recipient.address.timezone,
            from,
            to: now,
            collected,
            facts: &Facts::load(&self.app, &caller, 6).await?,
        };
        let is_sent = rule.rhythm == Rhythm::Weekly || !digest.is_empty();
        Ok(is_sent.then(|| mail::digest(&self.app, &digest)))
    }

    async fn send(
        &self,
        rule: &Rule,
        recipient: &Recipient,
        message: &Message,
        position: i64,
    ) -> service::Result<Outcome> {
        let Recipient { address, .. } = recipient;
        let sent = self.mailer.send(&address.address, message).await;
        let now = self.app.clock.now();
        match sent {
            Ok(_) => {
                let next_at = match rule.rhythm {
                    Rhythm::Immediate => now.checked_add(PAUSE).ok(),
                    Rhythm::Daily | Rhythm::Weekly => {
                        next_digest(rule.rhythm, &address.timezone, now)
                    }
                };
                self.store(rule, position, next_at, 0, Effect::Sent(address)).await?;
                Ok(Outcome::Done)
            }
            Err(error) => {
                let attempts = rule.attempts.saturating_add(1);
                let place = (attempts as usize - 1).min(RETRY_DELAYS.len() - 1);
                let next_at = now.checked_add(RETRY_DELAYS[place]).ok();
                tracing::warn!(
                    rule = %rule.id,
                    error = &error as &dyn std::error::Error,
                    "a notification was not sent"
                );
                let effect = Effect::Failed(recipient, &error);
                self.store(rule, rule.position, next_at, attempts, effect).await?;
                Ok(match error.kind {
                    MailErrorKind::Unavailable => Outcome::Unavailable,
                    MailErrorKind::Refused => Outcome::Done,
                })
            }
        }
    }

    /// Stores the new position of a rule, and what happened to the address.
    async fn store(
        &self,
        rule: &Rule,
        position: i64,
        next_at: Option<Timestamp>,
        attempts: u32,
        effect: Effect<'_>,
    ) -> service::Result<()> {
        let now = self.app.clock.now();
        let mut tx = self.app.db.begin().await?;
        leases::fence(&mut tx, &self.lease).await?;
        if !notifications::advance(&mut tx, rule.id, position, next_at, attempts).await? {
            return Ok(());
        }
        match effect {
            Effect::None => {}
            Effect::Sent(address) => notifications::record_sent(&mut tx, address, now).await?,
            Effect::Failed(Recipient { address, user, .. }, error) => {
                // If the server is unavailable, that is not the fault of the address.
                let since = match error.kind {
                    MailErrorKind::Refused => Some(address.failing_since.unwrap_or(now)),
                    MailErrorKind::Unavailable => address.failing_since,
                };
                let text = error.to_string();
                notifications::record_failure(&mut tx, address, &text, since).await?;
                if error.kind == MailErrorKind::Refused
                    && since.is_some_and(|since| now.duration_since(since) >= STOP_AFTER)
                {
                    let error = Some(text);
                    let next = EmailAddress {
                        confirmed_at: None,
                        link_sent_at: None,
                        error,
                        ..address.clone()
                    };
                    notifications::save_address(&mut tx, &next).await?;
                    let detail = json!({"address": address.address, "error": next.error});
                    record(
                        &mut tx,
                        user.org_id,
                        now,
                        "engine",
                        Action::EmailStop,
                        user.id,
                        &detail,
                    );
                }
            }
        }
        Ok(tx.commit().await?)
    }
}

/// What an attempt means for the address.
enum Effect<'a> {
    None,
    Sent(&'a EmailAddress),
    Failed(&'a Recipient, &'a MailError),
}

/// Whom a rule belongs to; `None` if the user was removed or the address is not confirmed.
async fn recipient(conn: &mut Conn, rule: &Rule) -> store::Result<Option<Recipient>> {
    let address = notifications::address(conn, rule.user_id).await?;
    let Some(address) = address.filter(|address| address.confirmed_at.is_some()) else {
        return Ok(None);
    };
    let user = match users::get(conn, rule.org_id, rule.user_id).await {
        Ok(user) => user,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let organization = organizations::get(conn, rule.org_id).await?.name;
    Ok(Some(Recipient { address, user, organization }))
}
