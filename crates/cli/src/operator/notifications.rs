//! `fleetmend notifications`: tests the email that people get.

use anyhow::bail;
use clap::{Args, Subcommand};
use wire::v1::{NotificationTest, TestNotification};

use super::credentials::Connection;
use super::table::escape_cell;
use super::{Session, print, print_message};

/// Test notifications by email.
///
/// People choose their own notifications in the dashboard, under Account.
#[derive(Args)]
pub(crate) struct Notifications {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send a test message; exits with 1 if the mail server does not accept it
    #[command(after_help = "Example:\n  fleetmend notifications test ann@example.com")]
    Test {
        /// Address that the message is sent to
        #[arg(value_name = "ADDRESS")]
        to: String,
    },
}

impl Notifications {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let session = Session::open(&self.connection)?;
        let Command::Test { to } = self.command;
        let request = TestNotification { to: to.clone() };
        let body = session.api.post(&["notifications", "test"], Some(&request)).await?;
        let result: NotificationTest = body.read()?;
        if session.json {
            print(&format!("{}\n", body.text))?;
        }
        if !result.sent {
            let error = result.error.unwrap_or_default();
            bail!("the message was not sent: {}", escape_cell(error));
        }
        match session.json {
            true => Ok(()),
            false => print_message(&format!(
                "The mail server accepted the message to {}: {}",
                escape_cell(to),
                escape_cell(result.response.unwrap_or_default()),
            )),
        }
    }
}
