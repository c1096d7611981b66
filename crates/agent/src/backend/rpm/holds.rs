//! Packages that the administrator holds back: version locks and excludes of dnf.

use vocab::BlockedBy;

use super::nevra::split_epoch;

/// A dnf pattern: `bash`, `kernel*`, `bash-0:5.1.8-4.el9.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(pub(crate) String);

impl Pattern {
    /// Whether it matches this package, in any of the forms that dnf accepts.
    pub(crate) fn matches(&self, name: &str, evr: &str, arch: &str) -> bool {
        let (epoch, version_release) = split_epoch(evr);
        let version = version_release.split('-').next().unwrap_or_default();
        [
            name.to_owned(),
            format!("{name}.{arch}"),
            format!("{name}-{version}"),
            format!("{name}-{version_release}"),
            format!("{name}-{version_release}.{arch}"),
            format!("{name}-{epoch}:{version_release}"),
            format!("{name}-{epoch}:{version_release}.{arch}"),
            format!("{epoch}:{name}-{version_release}.{arch}"),
        ]
        .iter()
        .any(|form| glob(&self.0, form))
    }
}

/// A version lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lock {
    /// dnf 4: a pattern of allowed versions.
    Only(Pattern),
    /// dnf 4, with a leading `!`: a pattern of forbidden versions.
    Not(Pattern),
    /// dnf 5: a name, and the conditions that an allowed version must meet.
    Conditions { name: String, conditions: Vec<Condition> },
}

/// A condition of dnf 5: `evr < 5.2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) key: String,
    pub(crate) comparator: String,
    pub(crate) value: String,
}

/// All locks and excludes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) locks: Vec<Lock>,
    /// Excluded from every repository.
    pub(crate) excludes: Vec<Pattern>,
    /// Excluded from one repository. Another may still provide updates, so these do not hold a
    /// package.
    pub(crate) repository_excludes: Vec<Pattern>,
}

impl Holds {
    /// Whether the administrator holds this installed package at its version.
    pub(crate) fn is_held(&self, name: &str, evr: &str, arch: &str) -> bool {
        self.is_excluded(name, evr, arch)
            || self.locks.iter().any(|lock| match lock {
                Lock::Only(pattern) => pattern.matches(name, evr, arch),
                Lock::Not(_) => false,
                Lock::Conditions { name: locked, conditions } => {
                    glob(locked, name) && meets_conditions(conditions, evr, arch)
                }
            })
    }

    /// Why this update of a package with the installed version `from` is blocked, if it is.
    pub(crate) fn block_reason(
        &self,
        name: &str,
        from: &str,
        to: &str,
        arch: &str,
    ) -> Option<BlockedBy> {
        let elsewhere = self.repository_excludes.iter().any(|p| p.matches(name, to, arch));
        if elsewhere || self.is_excluded(name, to, arch) {
            return Some(BlockedBy::Excluded);
        }
        let forbidden = self.locks.iter().any(|lock| match lock {
            Lock::Not(pattern) => pattern.matches(name, to, arch),
            Lock::Only(_) => false,
            Lock::Conditions { name: locked, conditions } => {
                glob(locked, name) && !meets_conditions(conditions, to, arch)
            }
        });
        // An allow list forbids all other versions of the same package. Which package a pattern
        // refers to is only clear if it matches something: here, the installed version.
        if self.is_held(name, from, arch) {
            return Some(BlockedBy::Held);
        }
        forbidden.then_some(BlockedBy::Pinned)
    }

    fn is_excluded(&self, name: &str, evr: &str, arch: &str) -> bool {
        self.excludes.iter().any(|pattern| pattern.matches(name, evr, arch))
    }
}

fn meets_conditions(conditions: &[Condition], evr: &str, arch: &str) -> bool {
    conditions.iter().all(|condition| {
        let order = match condition.key.as_str() {
            "arch" => return (condition.comparator == "=") == (condition.value == arch),
            "evr" => pkgver::rpm::compare(evr, &condition.value),
            "epoch" => pkgver::rpm::compare(split_epoch(evr).0, &condition.value),
            // Unknown keys are ignored.
            _ => return true,
        };
        match condition.comparator.as_str() {
            "=" => order.is_eq(),
            "!=" => order.is_ne(),
            "<" => order.is_lt(),
            "<=" => order.is_le(),
            ">" => order.is_gt(),
            ">=" => order.is_ge(),
            _ => true,
        }
    })
}

/// Parses the list of dnf 4's plugin: one pattern per line, with a leading `!` if forbidden.
pub(crate) fn parse_lock_list(text: &str) -> Vec<Lock> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| match line.strip_prefix('!') {
            Some(rest) => Lock::Not(Pattern(rest.trim().to_owned())),
            None => Lock::Only(Pattern(line.to_owned())),
        })
        .collect()
}

/// Parses dnf 5's `versionlock.toml`: tables `[[packages]]` with `name`, each with
/// `[[packages.conditions]]` of `key`, `comparator` and `value`. dnf writes the file itself, one
/// value per line; anything else is skipped.
pub(crate) fn parse_lock_toml(text: &str) -> Vec<Lock> {
    let mut locks: Vec<(String, Vec<Condition>)> = Vec::new();
    for line in text.lines().map(str::trim) {
        let last = locks.last_mut();
        match (line, last) {
            ("[[packages]]", _) => locks.push((String::new(), Vec::new())),
            ("[[packages.conditions]]", Some((_, conditions))) => conditions.push(Condition {
                key: String::new(),
                comparator: String::new(),
                value: String::new(),
            }),
            (line, Some((name, conditions))) => {
                let Some((key, value)) = line.split_once('=') else { continue };
                let value = value.trim().trim_matches(['"', '\'']).to_owned();
                match (key.trim(), conditions.last_mut()) {
                    ("name", None) => *name = value,
                    ("key", Some(condition)) => condition.key = value,
                    ("comparator", Some(condition)) => condition.comparator = value,
                    ("value", Some(condition)) => condition.value = value,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    locks
        .into_iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, conditions)| Lock::Conditions { name, conditions })
        .collect()
}

/// The values of `keys` in an ini file, from every section that `wanted` accepts. Indented lines
/// continue a value.
pub(crate) fn ini_values(text: &str, wanted: impl Fn(&str) -> bool, keys: &[&str]) -> Vec<String> {
    let mut values = Vec::new();
    let (mut in_section, mut in_value) = (false, false);
    for line in text.lines() {
        let goes_on = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            (in_section, in_value) = (wanted(section), false);
            continue;
        }
        let value = match line.split_once('=') {
            _ if goes_on && in_value => line,
            Some((key, value)) => {
                in_value = in_section && keys.contains(&key.trim());
                value
            }
            None => continue,
        };
        if in_value {
            let words = value.split([',', ' ', '\t']).filter(|word| !word.is_empty());
            values.extend(words.map(str::to_owned));
        }
    }
    values
}

/// Whether a pattern with `*`, `?` and `[…]` matches this text.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    crate::backend::glob::matches(pattern, text, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_a_package_in_any_form() {
        let bash =
            |pattern: &str| Pattern(pattern.to_owned()).matches("bash", "5.1.8-4.el9", "x86_64");
        for yes in [
            "bash",
            "ba*",
            "b?sh",
            "[a-c]ash",
            "bash.x86_64",
            "bash-5.1.8",
            "bash-5.1.8-4.el9",
            "bash-0:5.1.8-4.el9.*",
            "bash-0:5.1.8-4.el9",
            "0:bash-5.1.8-4.el9.x86_64",
            "*",
        ] {
            assert!(bash(yes), "{yes}");
        }
        for no in ["bas", "bash-5.1.9*", "bash-1:5.1.8-4.el9", "bash.i686", "[!b]ash", "[bash", ""]
        {
            assert!(!bash(no), "{no}");
        }
    }

    #[test]
    fn dnf4_lock_holds_and_pins_versions() {
        let list = "# added\nbash-0:5.1.8-4.el9.*\n\n!zlib-0:1.3-1.*\n";
        let holds = Holds { locks: parse_lock_list(list), ..Holds::default() };
        assert!(holds.is_held("bash", "5.1.8-4.el9", "x86_64"));
        assert!(!holds.is_held("bash", "5.1.8-3.el9", "x86_64"));
        assert_eq!(
            holds.block_reason("bash", "5.1.8-4.el9", "5.1.8-6.el9", "x86_64"),
            Some(BlockedBy::Held)
        );
        assert_eq!(holds.block_reason("zlib", "1.2-1", "1.3-1", "x86_64"), Some(BlockedBy::Pinned));
        assert_eq!(holds.block_reason("zlib", "1.2-1", "1.4-1", "x86_64"), None);
    }

    /// As written by dnf5 5.4.
    #[test]
    fn dnf5_lock_holds_by_conditions() {
        let toml = "version = \"1.0\"\n\n[[packages]]\nname = \"bash\"\n\
                    comment = \"Added by 'versionlock add' command on 2026-11-15 07:37:34\"\n\n\
                    [[packages.conditions]]\nkey = \"evr\"\ncomparator = \"=\"\nvalue = \"5.1.8-4.el9\"\n\
                    \n[[packages]]\nname = \"zlib\"\n[[packages.conditions]]\nkey = \"evr\"\n\
                    comparator = \"<\"\nvalue = \"1.3\"\n";
        let holds = Holds { locks: parse_lock_toml(toml), ..Holds::default() };
        assert_eq!(holds.locks.len(), 2);
        assert!(holds.is_held("bash", "5.1.8-4.el9", "noarch"));
        assert_eq!(
            holds.block_reason("bash", "5.1.8-3.el9", "5.1.8-6.el9", "noarch"),
            Some(BlockedBy::Pinned)
        );
        assert_eq!(holds.block_reason("bash", "5.1.8-3.el9", "5.1.8-4.el9", "noarch"), None);
        assert!(holds.is_held("zlib", "1.2-9", "noarch"));
        assert!(!holds.is_held("other", "5.1.8-4.el9", "noarch"));
    }

    #[test]
    fn multiline_excludes_are_read_from_their_sections() {
        let conf =
            "[main]\ngpgcheck=1\nexclude = kernel*, bash\n  zlib\nbest=True\n[other]\nexclude=no\n";
        let of_main = ini_values(conf, |section| section == "main", &["exclude", "excludepkgs"]);
        assert_eq!(of_main, ["kernel*", "bash", "zlib"]);
        let excludes = of_main.into_iter().map(Pattern).collect();
        let holds = Holds { excludes, ..Holds::default() };
        assert!(holds.is_held("kernel-core", "5-1", "x86_64"));
        assert_eq!(holds.block_reason("bash", "1-1", "2-1", "x86_64"), Some(BlockedBy::Excluded));
        let elsewhere = vec![Pattern("postgresql*".to_owned())];
        let holds = Holds { repository_excludes: elsewhere, ..Holds::default() };
        assert!(!holds.is_held("postgresql-server", "13-1", "x86_64"));
        let reason = holds.block_reason("postgresql-server", "13-1", "14-1", "x86_64");
        assert_eq!(reason, Some(BlockedBy::Excluded));
    }
}
