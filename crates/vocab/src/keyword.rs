//! Enumerations with a fixed spelling: severities, policies, roles. One lowercase keyword per
//! value.

use crate::text::quote_input;

/// Error returned when parsing a keyword.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordError {
    /// The expected type, with its article: "a severity".
    pub what: &'static str,
    /// The text, shortened.
    pub found: String,
    /// The keyword that was probably intended.
    pub nearest: Option<&'static str>,
    /// All valid keywords.
    pub allowed: &'static [&'static str],
}

impl WordError {
    pub(crate) fn new(what: &'static str, found: &str, known: &'static [&'static str]) -> Self {
        let nearest = crate::nearest(found, known.iter().copied());
        Self { what, found: quote_input(found), nearest, allowed: known }
    }
}

impl std::fmt::Display for WordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not {}: ", self.found, self.what)?;
        match self.nearest {
            Some(nearest) => write!(f, "did you mean `{nearest}`?"),
            None => write!(f, "use one of {}", self.allowed.join(", ")),
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
            /// Every value, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            const TEXTS: &'static [&'static str] = &[$($text,)*];

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
    /// Severity of a vulnerability. The most severe is the greatest, so `max` returns the worst.
    Severity ("a severity") {
        /// The distribution assigned no severity, and there is no CVSS score.
        Unknown = "unknown",
        Low = "low",
        Medium = "medium",
        High = "high",
        Critical = "critical",
    }

    /// Type of an update.
    UpdateType ("a type of update") {
        /// Fixes a vulnerability.
        Security = "security",
        /// Fixes a bug.
        Bugfix = "bugfix",
        /// Adds a feature.
        Enhancement = "enhancement",
        /// The distribution does not say.
        Other = "other",
    }

    /// Whether a server may be rebooted after its updates.
    RebootPolicy ("a reboot policy") {
        /// Do not reboot and do not restart services.
        Never = "never",
        /// Reboot if the system requires it, even if it already did before the updates.
        IfRequired = "if_required",
        Always = "always",
        /// Restart the services that run old code, but never reboot.
        ServicesOnly = "services_only",
    }

    /// Permissions of a caller. A greater role includes all permissions of a lesser one.
    Role ("a role") {
        Viewer = "viewer",
        /// Also patches and refreshes servers, and runs and edits schedules.
        Operator = "operator",
        /// Also removes servers and manages keys, tokens, users and webhooks.
        Admin = "admin",
    }

    /// Whether a server is online. `domain::server` defines when it is.
    Status ("a status") {
        /// The agent reported recently.
        Online = "online",
        /// The agent did not report recently.
        Offline = "offline",
    }

    /// Why a pending update would not be installed.
    BlockedBy ("a reason to block an update") {
        /// The administrator holds the package.
        Held = "held",
        /// The distribution rolls out the update in phases, and this server's phase has not
        /// started.
        Phased = "phased",
        /// It would require the removal of a package, or cannot be resolved.
        KeptBack = "kept_back",
        /// The batch or the host limits exclude it.
        Excluded = "excluded",
        /// A pin prefers another version.
        Pinned = "pinned",
    }

    /// Why a run of a schedule was skipped.
    SkipReason ("a reason to skip a run") {
        /// The previous run had not finished.
        Overlap = "overlap",
        /// The service was down and came back too late.
        Missed = "missed",
        /// No server matched the schedule's targets.
        NoServers = "no_servers",
        /// Every server that matched was frozen.
        Freeze = "freeze",
    }

    /// The package manager of a server.
    PackageManager ("a package manager") {
        /// Debian, Ubuntu and derivatives.
        Apt = "apt",
        /// Fedora, RHEL and derivatives.
        Dnf = "dnf",
        Zypper = "zypper",
        Apk = "apk",
        Pacman = "pacman",
    }
}

impl PackageManager {
    /// Returns the version scheme of its packages.
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
    /// Omitting the policy must never cause a reboot.
    fn default() -> Self {
        Self::Never
    }
}

impl Role {
    /// Whether this role includes the permissions of `needed`.
    pub fn includes(self, needed: Role) -> bool {
        self >= needed
    }
}

impl SkipReason {
    /// The reason for display, after "Skipped: ".
    pub fn description(self) -> &'static str {
        match self {
            SkipReason::Overlap => "the previous run had not finished",
            SkipReason::Missed => "the service was down at that time",
            SkipReason::NoServers => "no server matches the schedule's targets",
            SkipReason::Freeze => "all servers were frozen",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_is_greatest_severity_and_unknown_is_least() {
        assert_eq!(Severity::ALL.iter().max(), Some(&Severity::Critical));
        assert_eq!(Severity::ALL.iter().min(), Some(&Severity::Unknown));
        assert!(Severity::High > Severity::Medium && Severity::Medium > Severity::Low);
    }

    #[test]
    fn greater_role_includes_lesser_one_but_not_vice_versa() {
        assert!(Role::Admin.includes(Role::Viewer) && Role::Operator.includes(Role::Operator));
        assert!(!Role::Viewer.includes(Role::Operator) && !Role::Operator.includes(Role::Admin));
    }

    #[test]
    fn default_reboot_policy_is_never() {
        assert_eq!(RebootPolicy::default(), RebootPolicy::Never);
    }

    #[test]
    fn error_suggests_closest_keyword_or_lists_all() {
        let refusal = |text: &str| text.parse::<RebootPolicy>().unwrap_err().to_string();
        assert_eq!(
            refusal("if-required"),
            "`if-required` is not a reboot policy: did you mean `if_required`?"
        );
        assert_eq!(
            refusal("tomorrow"),
            "`tomorrow` is not a reboot policy: use one of never, if_required, always, services_only"
        );
        assert_eq!(refusal("Never"), "`Never` is not a reboot policy: did you mean `never`?");
    }

    #[test]
    fn error_escapes_and_shortens_the_input() {
        let input = "\u{1b}[2J".to_owned() + &"x".repeat(5000);
        let refusal = input.parse::<Severity>().unwrap_err().to_string();
        assert!(refusal.starts_with("`\\u{1b}[2Jxxx"), "{refusal}");
        assert!(refusal.chars().count() < 200, "{refusal}");
    }

    #[test]
    fn every_keyword_round_trips_through_text() {
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
