//! Package names as allowed in an order, and the patterns that exclude packages from it.
//!
//! A package manager reads far more into an argument than a name: `bash-` removes a package,
//! `./x.deb` installs a file, `?upgradable` selects everything. Only plain names pass this module.
//! It is only the first line of defense: `ba.h` is a valid name that apt would read as a regular
//! expression, so the agent also requires that the package is installed.

use std::fmt;
use std::str::FromStr;

use crate::keyword::PackageManager;
use crate::text::quote_input;

/// Maximum number of characters of a name or pattern; no repository has a name anywhere near it.
const CHARS_MAX: usize = 128;

/// Architecture suffixes that rpm tools strip from a name.
const RPM_ARCHES: [&str; 8] =
    [".x86_64", ".noarch", ".i686", ".i586", ".aarch64", ".ppc64le", ".s390x", ".src"];

/// The name of a package, without version, architecture or repository.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackageName(Box<str>);

/// Error returned when parsing a package name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackageNameError {
    /// The text is empty, or a single character for apt.
    #[error("a package name must have at least {min} character{}", if *min == 1 { "" } else { "s" })]
    TooShort { min: usize },
    #[error("a package name must have at most 128 characters (got {found})")]
    TooLong { found: usize },
    /// It starts with a character that package managers read as an operator.
    #[error("`{name}`: a package name must not start with `{}`", found.escape_debug())]
    Start {
        /// The text, shortened.
        name: String,
        found: char,
    },
    /// It ends with a hyphen, which makes apt remove the package.
    #[error("`{name}`: a package name must not end with `-`")]
    End {
        /// The text, shortened.
        name: String,
    },
    #[error("`{name}`: `{}` is not allowed in a package name{}", found.escape_debug(), hint(*found))]
    Character {
        /// The text, shortened.
        name: String,
        found: char,
    },
    /// It ends with an architecture, which rpm tools do not treat as part of the name.
    #[error("`{name}`: remove the architecture `{arch}` from the name")]
    Architecture {
        /// The text, shortened.
        name: String,
        arch: &'static str,
    },
}

/// Explains why the character that the user probably wrote on purpose is not allowed.
fn hint(found: char) -> &'static str {
    match found {
        '=' | '<' | '>' | '~' => "; versions cannot be selected",
        ':' => "; remove the architecture",
        '/' => "; files and repositories cannot be selected",
        '*' | '?' | '[' => "; patterns are allowed in `exclude` only",
        'A'..='Z' => "; apt package names are lowercase",
        _ => "",
    }
}

impl PackageName {
    /// Parses a package name by the rules of `manager`.
    ///
    /// | manager | starts with | contains |
    /// |---|---|---|
    /// | apt | `a-z 0-9` | at least two of `a-z 0-9 + - .` |
    /// | dnf, zypper, apk | a letter, a digit, `_` | letters, digits, `+ - . _` |
    /// | pacman | a letter, a digit, `_` | letters, digits, `@ + - . _` |
    ///
    /// No name ends with `-`, has more than 128 characters, or ends with an architecture.
    pub fn parse(manager: PackageManager, text: &str) -> Result<Self, PackageNameError> {
        let lower = manager == PackageManager::Apt;
        let inside = match manager {
            PackageManager::Apt => "+-.",
            PackageManager::Dnf | PackageManager::Zypper | PackageManager::Apk => "+-._",
            PackageManager::Pacman => "@+-._",
        };
        let legal = |c: char| {
            inside.contains(c)
                || if lower { c.is_ascii_lowercase() } else { c.is_ascii_alphabetic() }
                || c.is_ascii_digit()
        };
        let name = || quote_input(text);
        let length = text.chars().count();
        let min = if lower { 2 } else { 1 };
        if length > CHARS_MAX {
            return Err(PackageNameError::TooLong { found: length });
        }
        let first = text.chars().next().ok_or(PackageNameError::TooShort { min })?;
        let word = |c: char| c.is_ascii_alphanumeric() || (c == '_' && !lower);
        if !word(first) {
            return Err(PackageNameError::Start { name: name(), found: first });
        }
        if let Some(found) = text.chars().find(|c| !legal(*c)) {
            return Err(PackageNameError::Character { name: name(), found });
        }
        if text.ends_with('-') {
            return Err(PackageNameError::End { name: name() });
        }
        if let Some(arch) = RPM_ARCHES.into_iter().find(|arch| text.ends_with(arch)) {
            return Err(PackageNameError::Architecture { name: name(), arch: &arch[1..] });
        }
        if length < min {
            return Err(PackageNameError::TooShort { min });
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Parses a name that any of the package managers allows, where the manager is not known, as in a
/// batch for a mixed fleet.
impl FromStr for PackageName {
    type Err = PackageNameError;
    fn from_str(text: &str) -> Result<Self, PackageNameError> {
        // pacman's rules include those of every other manager.
        Self::parse(PackageManager::Pacman, text)
    }
}

impl fmt::Display for PackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for PackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::text::serde_as_text!(PackageName);

/// A package name, or a glob over names: `*` matches any characters, `?` exactly one.
/// At most 128 characters, of which at most eight are `*`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackagePattern(Box<str>);

/// Error returned when parsing a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackagePatternError {
    #[error("a pattern must not be empty")]
    Empty,
    #[error("a pattern must have at most 128 characters (got {found})")]
    TooLong { found: usize },
    #[error("a pattern must have at most 8 `*` (got {found})")]
    Stars { found: usize },
    /// A character that is not allowed in a name and is neither `*` nor `?`.
    #[error("`{pattern}`: `{}` is not allowed in a pattern; use the characters of package names, `*` and `?`", found.escape_debug())]
    Character {
        /// The text, shortened.
        pattern: String,
        found: char,
    },
}

impl PackagePattern {
    const STARS_MAX: usize = 8;

    /// Whether the pattern matches the whole of `name`, case-sensitively.
    ///
    /// Only the last star is ever retried, because any characters that an earlier star could take,
    /// the last one can take as well. The cost is therefore at most the length of the name times
    /// the length of the pattern, and both are bounded.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        if name.len() > 4 * CHARS_MAX {
            return false;
        }
        let (mut p, mut n) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    retry = Some((p, n));
                    p += 1;
                }
                Some(c) if *c == b'?' || *c == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => {
                    let Some((star, taken)) = retry else { return false };
                    retry = Some((star, taken + 1));
                    p = star + 1;
                    n = taken + 1;
                }
            }
        }
        pattern[p..].iter().all(|c| *c == b'*')
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PackagePattern {
    type Err = PackagePatternError;
    fn from_str(text: &str) -> Result<Self, PackagePatternError> {
        let found = text.chars().count();
        if found == 0 {
            return Err(PackagePatternError::Empty);
        }
        if found > CHARS_MAX {
            return Err(PackagePatternError::TooLong { found });
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || "@+-._*?".contains(c);
        if let Some(found) = text.chars().find(|c| !legal(*c)) {
            return Err(PackagePatternError::Character { pattern: quote_input(text), found });
        }
        let found = text.matches('*').count();
        if found > Self::STARS_MAX {
            return Err(PackagePatternError::Stars { found });
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for PackagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for PackagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::text::serde_as_text!(PackagePattern);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Only plain names may reach a package manager, never its operators or options.
    #[test]
    fn package_manager_operators_are_not_names() {
        let hostile = [
            "bash-",
            "bash+-",
            "/tmp/x.deb",
            "./x.rpm",
            "?upgradable",
            "~i",
            "standard^",
            "bash=1",
            "bash/testing",
            "bash:amd64",
            "@core",
            "--force-yes",
            "-y",
            "+bash",
            "!bash",
            "ba*",
            "ba?h",
            "[ab]",
            "(a or b)",
            "bash>1",
            "bash<1",
            "bash 1",
            "bash\n",
            "",
            " ",
            "\u{1b}[2J",
            "https://x/y.rpm",
            "bash.x86_64",
            "bäsh",
            "a;b",
            "$(id)",
            "`id`",
            "bash\0",
            ".",
            "..",
            "bash,zsh",
            "patch:42",
            "tasksel%",
            "^bash$",
        ];
        for text in hostile {
            assert!(text.parse::<PackageName>().is_err(), "{text:?}");
            for manager in PackageManager::ALL {
                assert!(PackageName::parse(*manager, text).is_err(), "{manager} {text:?}");
            }
        }
    }

    #[test]
    fn each_manager_accepts_its_own_names() {
        let ok = |manager, text: &str| PackageName::parse(manager, text).is_ok();
        use PackageManager as M;
        for text in ["bash", "g++", "libstdc++6", "python3.11", "0ad", "linux-image-6.1.0-18-amd64"]
        {
            assert!(M::ALL.iter().all(|manager| ok(*manager, text)), "{text}");
        }
        for text in ["NetworkManager", "java_cup", "kernel-rt_core", "R"] {
            assert!(!ok(M::Apt, text) && ok(M::Dnf, text) && ok(M::Zypper, text), "{text}");
        }
        assert!(ok(M::Pacman, "nodejs@20") && !ok(M::Apk, "nodejs@20") && !ok(M::Dnf, "nodejs@20"));
        assert!(!ok(M::Apt, "x") && ok(M::Apk, "x"));
        assert!(ok(M::Apt, &"x".repeat(128)) && !ok(M::Apt, &"x".repeat(129)));
    }

    #[test]
    fn errors_say_what_to_write_instead() {
        let refusal = |text: &str| text.parse::<PackageName>().unwrap_err().to_string();
        assert_eq!(
            refusal("openssl=3.0"),
            "`openssl=3.0`: `=` is not allowed in a package name; versions cannot be selected"
        );
        assert_eq!(refusal("bash-"), "`bash-`: a package name must not end with `-`");
        assert_eq!(refusal("/tmp/x.deb"), "`/tmp/x.deb`: a package name must not start with `/`");
        assert_eq!(
            refusal("linux-*"),
            "`linux-*`: `*` is not allowed in a package name; patterns are allowed in `exclude` only"
        );
        assert_eq!(
            refusal("bash.x86_64"),
            "`bash.x86_64`: remove the architecture `x86_64` from the name"
        );
        assert_eq!(refusal(""), "a package name must have at least 1 character");
    }

    #[test]
    fn pattern_matches_the_whole_name() {
        let matches =
            |pattern: &str, name: &str| pattern.parse::<PackagePattern>().unwrap().matches(name);
        assert!(matches("linux-*", "linux-image-amd64") && !matches("linux-*", "util-linux"));
        assert!(matches("*kernel*", "linux-kernel-headers") && matches("bash", "bash"));
        assert!(matches("php8.?", "php8.2") && !matches("php8.?", "php8.10"));
        assert!(!matches("ba.h", "bash"), "a dot matches only a dot");
        assert!(matches("*", "x") && matches("**", "") && !matches("?", ""));
        assert!(matches("a*b*c", "aXbXbXc") && !matches("a*b*c", "aXbXbX"));
    }

    #[test]
    fn pattern_with_many_stars_is_cheap() {
        let pattern: PackagePattern = "*a*a*a*a*a*a*a*b".parse().unwrap();
        assert!(!pattern.matches(&"a".repeat(512)));
        assert_eq!(
            "*********".parse::<PackagePattern>(),
            Err(PackagePatternError::Stars { found: 9 })
        );
        assert!("linux [".parse::<PackagePattern>().is_err());
    }

    /// A naive matcher: slow but obviously correct.
    fn matches_naively(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => {
                matches_naively(rest, name)
                    || name.split_first().is_some_and(|(_, n)| matches_naively(pattern, n))
            }
            (Some((b'?', p)), Some((_, n))) => matches_naively(p, n),
            (Some((c, p)), Some((d, n))) if c == d => matches_naively(p, n),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matcher_agrees_with_naive_matcher(pattern in "[ab*?]{1,8}", name in "[ab]{0,10}") {
            let parsed: PackagePattern = pattern.parse().unwrap();
            prop_assert_eq!(parsed.matches(&name), matches_naively(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn no_text_panics_and_parsed_text_displays_unchanged(text in "\\PC{0,140}|[a-z+.*?-]{0,140}") {
            if let Ok(name) = text.parse::<PackageName>() { prop_assert_eq!(name.to_string(), text.clone()); }
            if let Ok(pattern) = text.parse::<PackagePattern>() { prop_assert_eq!(pattern.to_string(), text.clone()); }
        }

        #[test]
        fn api_accepts_names_of_every_manager(text in "[a-zA-Z0-9@+._-]{0,12}") {
            for manager in PackageManager::ALL {
                if PackageName::parse(*manager, &text).is_ok() {
                    prop_assert!(text.parse::<PackageName>().is_ok());
                }
            }
        }
    }
}
