//! The name of a batch that was created without one: what it installs, and where.
//!
//! Pure. `commands::batches` looks up the servers and stores the name, so a name never changes
//! afterwards.

use vocab::{Environment, Line};

use crate::OrderOptions;

/// Maximum number of characters of a name.
pub const CHARS_MAX: usize = 200;

/// The servers of a batch, as far as its name needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchServers {
    /// One server, with its name.
    One(String),
    /// All servers of an environment.
    WholeEnvironment(Environment),
    /// Some servers of one environment.
    InEnvironment(u64, Environment),
    Several(u64),
}

/// The name of a batch, such as `Security updates · production` or `openssl · 12 servers`.
pub fn derive(order: &OrderOptions, servers: &BatchServers) -> Line {
    let packages: Vec<String> = order.packages.iter().map(ToString::to_string).collect();
    let what = match packages.as_slice() {
        [] if order.security_only => "Security updates".to_owned(),
        [] => "All updates".to_owned(),
        [one] => one.clone(),
        [one, two] => format!("{one}, {two}"),
        [one, rest @ ..] => format!("{one} and {} more", rest.len()),
    };
    let place = match servers {
        BatchServers::One(name) => name.clone(),
        BatchServers::WholeEnvironment(environment) => environment.to_string(),
        BatchServers::InEnvironment(count, environment) => {
            format!("{count} servers in {environment}")
        }
        BatchServers::Several(count) => format!("{count} servers"),
    };
    let suffix = if order.dry_run { " (dry run)" } else { "" };
    shortened(&format!("{what} · {place}"), suffix)
}

/// The name of the batches of a schedule.
pub fn for_schedule(name: &str) -> Line {
    shortened(name, " (schedule)")
}

/// The name of a retry. A retry of a retry has the same name.
pub fn for_retry(name: &str) -> Line {
    const SUFFIX: &str = " (retry)";
    shortened(name.strip_suffix(SUFFIX).unwrap_or(name), SUFFIX)
}

/// The name with a suffix. A name that would be too long is cut, not the suffix.
fn shortened(name: &str, suffix: &str) -> Line {
    let room = CHARS_MAX - suffix.chars().count();
    let kept: String = match name.chars().count() > room {
        true => name.chars().take(room - 1).chain(['…']).collect(),
        false => name.to_owned(),
    };
    Line::sanitize(&format!("{kept}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(packages: &[&str], security_only: bool) -> OrderOptions {
        let packages = packages.iter().map(|name| name.parse().unwrap()).collect();
        OrderOptions { packages, security_only, ..OrderOptions::default() }
    }

    #[test]
    fn name_says_what_is_installed_and_where() {
        let production = || "production".parse::<Environment>().unwrap();
        for (order, servers, expected) in [
            (
                order(&[], true),
                BatchServers::WholeEnvironment(production()),
                "Security updates · production",
            ),
            (order(&["openssl"], false), BatchServers::Several(12), "openssl · 12 servers"),
            (order(&["curl", "jq"], true), BatchServers::One("web-1".into()), "curl, jq · web-1"),
            (
                order(&["curl", "jq", "vim"], false),
                BatchServers::InEnvironment(3, production()),
                "curl and 2 more · 3 servers in production",
            ),
            (
                OrderOptions { dry_run: true, ..order(&[], false) },
                BatchServers::Several(2),
                "All updates · 2 servers (dry run)",
            ),
        ] {
            assert_eq!(derive(&order, &servers).as_str(), expected);
        }
    }

    #[test]
    fn schedule_and_retry_are_marked() {
        assert_eq!(for_schedule("Nightly").as_str(), "Nightly (schedule)");
        assert_eq!(for_retry("Nightly (schedule)").as_str(), "Nightly (schedule) (retry)");
        assert_eq!(for_retry("openssl · web-1 (retry)").as_str(), "openssl · web-1 (retry)");
    }

    #[test]
    fn long_name_is_cut_but_keeps_its_suffix() {
        let long = for_schedule(&"ä".repeat(200));
        assert_eq!(long.as_str().chars().count(), CHARS_MAX);
        assert!(long.as_str().ends_with("ä… (schedule)"), "{long}");
        assert_eq!(for_schedule(&"x".repeat(189)).as_str().chars().count(), 200);
    }
}
