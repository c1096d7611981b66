//! `fleetmend events`: shows what happens.

use std::time::Duration;

use clap::{Args, Subcommand};
use wire::v1::{Event, EventList};

use super::api::{ApiError, ApiResponse, EventStream, Query};
use super::credentials::Connection;
use super::table::{Tone, escape_cell};
use super::{Session, print, print_message};

/// The pause before a broken stream is opened again.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);
/// How many times in a row the stream may fail to open, about two minutes: services restart.
const ATTEMPTS_MAX: u32 = 60;

/// Show what happens.
#[derive(Args)]
pub(crate) struct Events {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the latest events, and follow new ones
    #[command(after_help = "\
Examples:
  fleetmend events tail
  fleetmend events tail --type 'batch.*,server.offline'
  fleetmend events tail --after 1204 --json >> events.jsonl")]
    Tail(Tail),
}

#[derive(Args)]
struct Tail {
    /// Types of events, separated by commas; `batch.*` is a group of them [default: all]
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only events about the resource with this ID
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Start after this sequence number [default: follow new events only]
    #[arg(long, value_name = "SEQUENCE")]
    after: Option<u64>,
    /// Exit after the events that there are, instead of waiting for new ones
    #[arg(long)]
    no_follow: bool,
}

impl Events {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        match self.command {
            Command::Tail(tail) if tail.no_follow => tail.print_stored(&session).await,
            Command::Tail(tail) => tail.follow(&session).await,
        }
    }
}

impl Tail {
    fn query(&self) -> Query {
        Query::default().with_all("type", &self.types).with("subject", self.subject.as_ref())
    }

    async fn print_stored(&self, session: &Session) -> anyhow::Result<()> {
        let mut after = self.after;
        loop {
            let query = self.query().with("after", after).with("limit", Some(500));
            let part: EventList = session.api.get_with_query(&["events"], &query).await?.read()?;
            for event in &part.data {
                print_event(session, event)?;
            }
            if part.meta.last >= part.meta.latest {
                return Ok(());
            }
            after = Some(part.meta.last);
        }
    }

    async fn follow(&self, session: &Session) -> anyhow::Result<()> {
        let mut last = self.after;
        let mut failures = 0;
        let mut is_first = true;
        loop {
            let opened = match last {
                Some(_) => self.open(session, last).await,
                // If the stream breaks before its first event, nothing since the start is missed.
                None => match latest(session).await {
                    Ok(body) => {
                        last = Some(body.read::<EventList>()?.meta.latest);
                        self.open(session, last).await
                    }
                    Err(error) => Err(error),
                },
            };
            match opened {
                Ok(mut stream) => {
                    if is_first && self.after.is_none() && session.screen.width.is_some() {
                        print_message("Waiting for events; end with Ctrl-C.")?;
                    }
                    (failures, is_first) = (0, false);
                    while let Some(event) = stream.next().await? {
                        print_event(session, &event)?;
                        last = Some(event.sequence);
                    }
                }
                Err(error) if error.is_temporary() && failures < ATTEMPTS_MAX => failures += 1,
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
    }

    async fn open(&self, session: &Session, after: Option<u64>) -> Result<EventStream, ApiError> {
        session.api.event_stream(&self.query().with("after", after)).await
    }
}

/// A response with the sequence number of the latest event.
async fn latest(session: &Session) -> Result<ApiResponse, ApiError> {
    session.api.get_with_query(&["events"], &Query::default().with("limit", Some(1))).await
}

fn print_event(session: &Session, event: &Event) -> anyhow::Result<()> {
    if session.json {
        return print(&format!("{}\n", serde_json::to_string(event)?));
    }
    let screen = &session.screen;
    let name = event.actor.name.as_deref().unwrap_or(&event.actor.id);
    let details: Vec<String> = ["state", "reason", "message", "failure_code", "count", "servers"]
        .into_iter()
        .filter_map(|field| Some((field, event.data.get(field)?)))
        .filter(|(_, value)| !value.is_null())
        .map(|(field, value)| match value.as_str() {
            Some(text) => format!("{field}={}", escape_cell(text.to_owned())),
            None => format!("{field}={value}"),
        })
        .collect();
    print(&format!(
        "{:>6}  {}  {:<30}  {}  {}  {}\n",
        event.sequence,
        screen.time(event.occurred_at).text(),
        event.kind,
        escape_cell(event.subject.name.clone()),
        screen.paint(&format!("by {}", escape_cell(name.to_owned())), Tone::Faint),
        details.join(" "),
    ))
}
