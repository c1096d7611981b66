//! Checks that the mail server can be used: connects and signs in, without sending a message.

use service::mail::Mailer;

use super::Findings;
use crate::settings::SettingsFile;

pub(super) async fn check(file: &SettingsFile, findings: &mut Findings) {
    let settings = match file.mail() {
        Ok(Some(settings)) => settings,
        // Email is optional.
        Ok(None) => return,
        Err(error) => {
            let remedy = "fix the setting: the service does not start with it";
            return findings.problem("email", format!("{error:#}"), remedy);
        }
    };
    let checked = match Mailer::new(&settings) {
        Ok(mailer) => mailer.check().await,
        Err(error) => Err(error),
    };
    match checked {
        Ok(()) => {
            findings.ok("email", format!("the mail server accepts us ({})", settings.describe()));
        }
        Err(error) => findings.problem(
            "email",
            format!("the mail server cannot be used ({}): {error}", settings.describe()),
            "check host, port, encryption, user and password in the setting smtp; notifications \
             are kept and sent later",
        ),
    }
}
