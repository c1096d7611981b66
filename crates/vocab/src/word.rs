//! Words from a closed list: severities, policies, roles. One spelling each, in lower case.

use crate::text::shown;

/// Why a text is not a word of a closed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordError {
    /// What was asked for, with its article: "a severity".
    pub what: &'static str,
    /// What was said instead, shortened.
    pub found: String,
    /// The word that was probably meant.
    pub nearest: Option<&'static str>,
    /// Every word that would do.
    pub known: &'static [&'static str],
}

impl WordError {
    pub(crate) fn new(what: &'static str, found: &str, known: &'static [&'static str]) -> Self {
        let nearest = crate::nearest(found, known.iter().copied());
        Self { what, found: shown(found), nearest, known }
    }
}

impl std::fmt::Display for WordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not {}: ", self.found, self.what)?;
        match self.nearest {
            Some(nearest) => write!(f, "did you mean `{nearest}`?"),
            None => write!(f, "it is one of {}", self.known.join(", ")),
        }
    }
}

impl std::error::Error for WordError {}

macro_rules! words {
    ($(
        $(#[$doc:meta])*
        $name:ident ($what:literal) {
            $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every word of the list, in its order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            const TEXTS: &'static [&'static str] = &[$($text,)*];

            /// The word as it is spelled.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = WordError;
            fn from_str(text: &str) -> Result<Self, WordError> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(WordError::new($what, text, Self::TEXTS)),
                }
            }
        }

        crate::text::serde_as_text!($name);
    )*};
}
pub(crate) use words;

words! {
    /// How bad a flaw is. The worst is the greatest, so `max` of several is the worst of them.
    Severity ("a severity") {
        /// Nobody who should know has said.
        Unknown = "unknown",
        /// Of little consequence.
        Low = "low",
        /// In need of attention.
        Medium = "medium",
        /// Serious.
        High = "high",
        /// As bad as it gets.
        Critical = "critical",
    }

    /// What an update is for.
    UpdateType ("a type of update") {
        /// It fixes a security flaw.
        Security = "security",
        /// It fixes a fault.
        Bugfix = "bugfix",
        /// It adds something.
        Enhancement = "enhancement",
        /// The distribution does not say.
        Other = "other",
    }

    /// Whether a server may be rebooted after its updates.
    RebootPolicy ("a reboot policy") {
        /// Leave the machine and its services running as they are.
        Never = "never",
        /// Reboot if the system says that it needs one, also if it did so before the updates.
        IfRequired = "if_required",
        /// Reboot in any case.
        Always = "always",
        /// Restart the services that run old code, never the machine.
        ServicesOnly = "services_only",
    }

    /// What a caller may do. A greater role may do all that a lesser one may.
    Role ("a role") {
        /// Reads.
        Viewer = "viewer",
        /// Also patches, refreshes, runs, and writes schedules.
        Operator = "operator",
        /// Also removes servers and manages keys, tokens, users and webhooks.
        Admin = "admin",
    }

    /// Whether a server is heard from. `domain::server` has the one definition.
    Status ("a status") {
        /// It was heard from lately.
        Online = "online",
        /// It was not.
        Offline = "offline",
    }

    /// Why a pending update would not be installed.
    BlockedBy ("a reason to hold an update back") {
        /// The administrator holds the package.
        Held = "held",
        /// The distribution rolls the update out in phases, and this server's has not come.
        Phased = "phased",
        /// It would need a package to be removed, or cannot be resolved.
        KeptBack = "kept_back",
        /// The order or the host's own limits exclude it.
        Excluded = "excluded",
        /// A pin prefers another version.
        Pinned = "pinned",
    }

    /// Why a run of a schedule was skipped.
    SkipReason ("a reason to skip a run") {
        /// The run before it was not finished.
        Overlap = "overlap",
        /// The service was down and came back too late.
        Missed = "missed",
        /// No server matched the schedule's targets.
        NoServers = "no_servers",
    }

    /// The program that installs packages on a server.
    PackageManager ("a package manager") {
        /// Debian, Ubuntu and their kin.
        Apt = "apt",
        /// Fedora, RHEL and their kin.
        Dnf = "dnf",
        /// SUSE.
        Zypper = "zypper",
        /// Alpine.
        Apk = "apk",
        /// Arch.
        Pacman = "pacman",
    }
}

impl PackageManager {
    /// Whose rules order the versions of its packages.
    pub const fn scheme(self) -> pkgver::Scheme {
        match self {
            Self::Apt => pkgver::Scheme::Deb,
            Self::Dnf | Self::Zypper => pkgver::Scheme::Rpm,
            Self::Apk => pkgver::Scheme::Apk,
            Self::Pacman => pkgver::Scheme::Pacman,
        }
    }
}

impl Default for RebootPolicy {
    /// Nothing reboots by omission.
    fn default() -> Self {
        Self::Never
    }
}

impl Role {
    /// Whether this role may do what `needed` may.
    pub fn may(self, needed: Role) -> bool {
        self >= needed
    }
}

impl SkipReason {
    /// The reason as people read it: "Skipped: …".
    pub fn text(self) -> &'static str {
        match self {
            SkipReason::Overlap => "the previous run had not finished",
            SkipReason::Missed => "the service was down at that time",
            SkipReason::NoServers => "no server matches the schedule's targets",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_severity_is_the_greatest_and_unknown_is_the_least() {
        assert_eq!(Severity::ALL.iter().max(), Some(&Severity::Critical));
        assert_eq!(Severity::ALL.iter().min(), Some(&Severity::Unknown));
        assert!(Severity::High > Severity::Medium && Severity::Medium > Severity::Low);
    }

    #[test]
    fn an_admin_may_do_what_a_viewer_may_and_not_the_other_way_round() {
        assert!(Role::Admin.may(Role::Viewer) && Role::Operator.may(Role::Operator));
        assert!(!Role::Viewer.may(Role::Operator) && !Role::Operator.may(Role::Admin));
    }

    #[test]
    fn nothing_reboots_by_omission() {
        assert_eq!(RebootPolicy::default(), RebootPolicy::Never);
    }

    #[test]
    fn a_refusal_suggests_the_word_that_was_meant_or_lists_all() {
        let refusal = |text: &str| text.parse::<RebootPolicy>().unwrap_err().to_string();
        assert_eq!(
            refusal("if-required"),
            "`if-required` is not a reboot policy: did you mean `if_required`?"
        );
        assert_eq!(
            refusal("tomorrow"),
            "`tomorrow` is not a reboot policy: it is one of never, if_required, always, services_only"
        );
        assert_eq!(refusal("Never"), "`Never` is not a reboot policy: did you mean `never`?");
    }

    #[test]
    fn a_refusal_never_repeats_what_a_terminal_would_obey() {
        let said = "\u{1b}[2J".to_owned() + &"x".repeat(5000);
        let refusal = said.parse::<Severity>().unwrap_err().to_string();
        assert!(refusal.starts_with("`\\u{1b}[2Jxxx"), "{refusal}");
        assert!(refusal.chars().count() < 200, "{refusal}");
    }

    #[test]
    fn every_word_prints_what_it_parses() {
        for word in Severity::ALL {
            assert_eq!(word.to_string().parse(), Ok(*word));
        }
        for word in PackageManager::ALL {
            assert_eq!(serde_json::to_string(word).unwrap(), format!("\"{word}\""));
            assert_eq!(
                serde_json::from_str::<PackageManager>(&format!("\"{word}\"")).unwrap(),
                *word
            );
        }
    }
}
