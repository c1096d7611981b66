//! The messages that people get: confirmation, test, events as they happen, and digests.

use std::collections::BTreeMap;

use jiff::Timestamp;
use store::notifications::{Rhythm, Rule};
use vocab::{NotificationRuleId, Zone};
use wire::v1::Event;

use super::{Block, Content, Line, Message};
use crate::attention::{self, Facts, Urgency, number, plural};
use crate::clock::random_u128;
use crate::webhooks::sentence;
use crate::{App, EventKind};

/// The maximum number of events that a message lists; it counts the others.
const LINES_MAX: usize = 20;
const SUBJECT_CHARS_MAX: usize = 120;

const UNSUBSCRIBE_PURPOSE: &str = "fleetmend unsubscribe v1";
const UNSUBSCRIBE_TAG_BYTES: usize = 16;

/// The path of the page that ends the messages of a rule. It works without signing in, and as long
/// as the rule exists.
pub fn unsubscribe_path(app: &App, rule: NotificationRuleId) -> String {
    let tag = app.secrets.tag(UNSUBSCRIBE_PURPOSE, &[rule.to_string().as_bytes()]);
    let tag: String =
        tag.iter().take(UNSUBSCRIBE_TAG_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("/unsubscribe/{rule}.{tag}")
}

/// The rule that a token from a message belongs to; `None` if this service did not create it.
pub(crate) fn unsubscribed_rule(app: &App, token: &str) -> Option<NotificationRuleId> {
    let (rule, tag) = token.split_once('.')?;
    let rule: NotificationRuleId = rule.parse().ok()?;
    if tag.len() != 2 * UNSUBSCRIBE_TAG_BYTES || !tag.is_ascii() {
        return None;
    }
    let byte = |place: usize| u8::from_str_radix(tag.get(2 * place..2 * place + 2)?, 16).ok();
    let tag: Vec<u8> = (0..UNSUBSCRIBE_TAG_BYTES).map(byte).collect::<Option<_>>()?;
    let parts = rule.to_string();
    app.secrets
        .verifies(UNSUBSCRIBE_PURPOSE, &[parts.as_bytes()], UNSUBSCRIBE_TAG_BYTES, &tag)
        .then_some(rule)
}

/// Asks the owner of an address to confirm it.
pub fn confirmation(app: &App, user: &str, organization: &str, path: &str) -> Message {
    let content = Content {
        title: "Confirm your email address".into(),
        blocks: vec![
            Block::Paragraph(format!(
                "The user {user} of {organization} wants to get notifications about servers at \
                 this address. Confirm it if that is you."
            )),
            Block::Button(Line::link("Confirm this address", app.page_url(path))),
            Block::Paragraph("The link works for 24 hours.".into()),
        ],
        footer: vec![Line::new(
            "If you do not know what this is about, ignore this message: you will get no others.",
        )],
    };
    message(
        app,
        "Confirm your email address".into(),
        content,
        None,
        format!("{:032x}", random_u128()),
    )
}

/// Shows that messages arrive.
pub fn test(app: &App, organization: &str) -> Message {
    let content = Content {
        title: "Email works".into(),
        blocks: vec![
            Block::Paragraph(format!(
                "This is a test message of {organization}. Notifications will look like this one."
            )),
            Block::Button(Line::link("Open the dashboard", app.page_url("/"))),
        ],
        footer: vec![Line::new("Sent because someone asked for a test message.")],
    };
    let subject = format!("[{organization}] Test message");
    message(app, subject, content, None, format!("{:032x}", random_u128()))
}

/// The events that a message is about. Its size does not depend on their number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Collected {
    pub total: u64,
    counts: BTreeMap<EventKind, u64>,
    /// The first problems, and the first other events.
    problems: Vec<Event>,
    others: Vec<Event>,
}

impl Collected {
    pub fn add(&mut self, event: Event) {
        let Some(kind) = EventKind::parse(&event.kind) else { return };
        self.total += 1;
        *self.counts.entry(kind).or_default() += 1;
        let list = if kind.is_problem() { &mut self.problems } else { &mut self.others };
        if list.len() < LINES_MAX {
            list.push(event);
        }
    }

    fn problem_count(&self) -> u64 {
        self.counts.iter().filter(|(kind, _)| kind.is_problem()).map(|(_, count)| count).sum()
    }
}

/// What just happened.
pub fn immediate(
    app: &App,
    organization: &str,
    rule: &Rule,
    zone: &Zone,
    collected: &Collected,
) -> Message {
    let problems = collected.problem_count();
    let first = collected.problems.first().or(collected.others.first());
    let title = match (first, collected.total) {
        (Some(event), 1) => sentence(event),
        (_, total) if problems > 0 => format!(
            "{} events, {} of them {}",
            number(total),
            number(problems),
            plural(problems, "a problem", "problems")
        ),
        (_, total) => format!("{} events", number(total)),
    };
    let shown = collected.problems.iter().chain(&collected.others).take(LINES_MAX);
    let mut lines: Vec<Line> = shown.map(|event| event_line(event, zone)).collect();
    push_rest(app, &mut lines, collected.total);
    let mut blocks = vec![Block::List(lines)];
    if collected.total > LINES_MAX as u64 {
        blocks.push(Block::Heading("All events".into()));
        blocks.push(counts(collected));
    }
    let subject = format!("[{organization}] {title}");
    let id = format!("{}.{}", rule.id, rule.position);
    finish(app, rule, subject, Content { title, blocks, footer: Vec::new() }, id)
}

/// What a digest is about.
#[derive(Debug)]
pub struct Digest<'a> {
    pub organization: &'a str,
    pub rule: &'a Rule,
    pub zone: &'a Zone,
    pub from: Timestamp,
    pub to: Timestamp,
    pub collected: &'a Collected,
    /// The state at the end.
    pub facts: &'a Facts,
}

impl Digest<'_> {
    /// Whether there is something to say.
    pub fn is_empty(&self) -> bool {
        self.collected.total == 0 && attention::items(self.facts).is_empty()
    }
}

/// What changed, and what needs a person now.
pub fn digest(app: &App, it: &Digest<'_>) -> Message {
    let name = match it.rule.rhythm {
        Rhythm::Weekly => "Weekly report",
        Rhythm::Daily | Rhythm::Immediate => "Daily digest",
    };
    let items = attention::items(it.facts);
    let (_, verdict) = attention::verdict(it.facts);
    let day = |at| local_time(at, it.zone, "%a %-d %b, %H:%M");
    let mut blocks = vec![
        Block::Paragraph(verdict),
        Block::Paragraph(format!("{} to {} ({})", day(it.from), day(it.to), it.zone)),
        Block::Heading("Needs attention now".into()),
    ];
    if items.is_empty() {
        blocks.push(Block::Paragraph("Nothing.".into()));
    } else {
        let line = |item: &attention::Item| Line {
            is_problem: item.urgency == Urgency::Bad,
            ..Line::link(item.text.clone(), app.page_url(&item.path))
        };
        blocks.push(Block::List(items.iter().map(line).collect()));
    }
    let problems = it.collected.problem_count();
    if problems > 0 {
        blocks.push(Block::Heading("What went wrong".into()));
        let shown = it.collected.problems.iter();
        let mut lines: Vec<Line> = shown.map(|event| event_line(event, it.zone)).collect();
        push_rest(app, &mut lines, problems);
        blocks.push(Block::List(lines));
    }
    blocks.push(Block::Heading("What changed".into()));
    blocks.push(match it.collected.total {
        0 => Block::Paragraph("No event of the types that you chose.".into()),
        _ => counts(it.collected),
    });
    let need = items.len() as u64;
    let title = match need {
        0 => format!("{name}: nothing needs attention"),
        _ => format!(
            "{name}: {} {} attention",
            number(need),
            plural(need, "thing needs", "things need")
        ),
    };
    let subject = format!("[{}] {title}", it.organization);
    let id = format!("{}.{}", it.rule.id, it.to.as_second());
    finish(app, it.rule, subject, Content { title, blocks, footer: Vec::new() }, id)
}

fn event_line(event: &Event, zone: &Zone) -> Line {
    Line {
        label: Some(local_time(event.occurred_at, zone, "%a %H:%M")),
        is_problem: EventKind::parse(&event.kind).is_some_and(EventKind::is_problem),
        ..Line::link(sentence(event), event.url.clone())
    }
}

/// Says how many are not listed.
fn push_rest(app: &App, lines: &mut Vec<Line>, total: u64) {
    let more = total.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(Line::link(format!("and {} more", number(more)), app.page_url("/")));
    }
}

/// The number of events of each type, the most frequent first.
fn counts(collected: &Collected) -> Block {
    let mut rows: Vec<(u64, String)> = collected
        .counts
        .iter()
        .map(|(kind, count)| (*count, kind.description().to_owned()))
        .collect();
    rows.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    Block::Counts(rows)
}

fn local_time(at: Timestamp, zone: &Zone, format: &str) -> String {
    at.to_zoned(zone.time_zone().clone()).strftime(format).to_string()
}

/// Adds the reason for the message and the ways to stop it.
fn finish(app: &App, rule: &Rule, subject: String, mut content: Content, id: String) -> Message {
    let unsubscribe = app.page_url(&unsubscribe_path(app, rule.id));
    content.footer = vec![
        Line::new(match rule.rhythm {
            Rhythm::Immediate => "You get this when something happens that you chose.",
            Rhythm::Daily => "You get this every day.",
            Rhythm::Weekly => "You get this every week.",
        }),
        Line::link("Change notifications", app.page_url("/account/notifications")),
        Line::link("Unsubscribe", unsubscribe.clone()),
    ];
    message(app, subject, content, Some(unsubscribe), id)
}

fn message(
    app: &App,
    subject: String,
    content: Content,
    unsubscribe_url: Option<String>,
    id: String,
) -> Message {
    let mut short: String = subject.chars().take(SUBJECT_CHARS_MAX).collect();
    if short.len() < subject.len() {
        short.push('…');
    }
    // A title may quote what an agent reported, and must stay one line.
    let content = Content { title: content.title.replace(char::is_control, " "), ..content };
    let (text, html, at) = (content.text(), content.html(), app.clock.now());
    Message { subject: short, text, html, id, at, unsubscribe_url }
}
