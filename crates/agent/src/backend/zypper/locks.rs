//! Parses zypper's locks: `/etc/zypp/locks`, stanzas of `key: value`.

use crate::backend::rpm::holds::glob;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lock {
    names: Vec<String>,
    matching: String,
    ignores_case: bool,
    /// Comparison operator and version, if only some versions are locked.
    version: Option<(String, String)>,
}

impl Lock {
    /// Whether it locks this version of a package.
    pub(super) fn matches(&self, name: &str, evr: &str) -> bool {
        let named = self.names.iter().any(|pattern| self.matches_name(pattern, name));
        named
            && self.version.as_ref().is_none_or(|(sign, version)| {
                let order = pkgver::rpm::compare(evr, version);
                match sign.as_str() {
                    "<" => order.is_lt(),
                    "<=" => order.is_le(),
                    ">" => order.is_gt(),
                    ">=" => order.is_ge(),
                    "!=" => order.is_ne(),
                    _ => order.is_eq(),
                }
            })
    }

    fn matches_name(&self, pattern: &str, name: &str) -> bool {
        let (pattern, name) = match self.ignores_case {
            true => (pattern.to_lowercase(), name.to_lowercase()),
            false => (pattern.to_owned(), name.to_owned()),
        };
        match self.matching.as_str() {
            "substring" => name.contains(&pattern),
            "exact" | "word" => name == pattern,
            // Full regular expressions are not supported: such a lock is nearly always a plain
            // name, and updates that it blocks still show up as kept back.
            "regex" => name == pattern.trim_start_matches('^').trim_end_matches('$'),
            _ => glob(&pattern, &name),
        }
    }
}

/// Parses the file. Locks of patterns, patches and products are skipped.
pub(super) fn parse_locks(text: &str) -> Vec<Lock> {
    let mut locks = Vec::new();
    let mut lines = text.lines().peekable();
    while lines.peek().is_some() {
        let stanza: Vec<&str> = lines.by_ref().take_while(|line| !line.trim().is_empty()).collect();
        let mut lock = Lock::default();
        let mut of_packages = true;
        for (key, value) in stanza.iter().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key.trim() {
                "type" => of_packages = value == "package",
                "match_type" => lock.matching = value.to_owned(),
                "case_sensitive" => lock.ignores_case = value == "off",
                "solvable_name" | "query_string" => lock.names.push(value.to_owned()),
                "version" => {
                    let sign: String = value.chars().take_while(|c| "<>=!".contains(*c)).collect();
                    let version = value[sign.len()..].trim().to_owned();
                    lock.version = Some((sign, version));
                }
                _ => {}
            }
        }
        if of_packages && !lock.names.is_empty() {
            locks.push(lock);
        }
    }
    locks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As written by zypper 1.14.42.
    const FILE: &str = "
type: package
match_type: glob
case_sensitive: on
solvable_name: plain

type: package
match_type: glob
case_sensitive: off
solvable_name: Kernel*

type: patch
match_type: glob
solvable_name: bash

type: package
match_type: glob
case_sensitive: on
solvable_name: zlib
version: >= 2
";

    #[test]
    fn package_locks_match_and_patch_locks_are_skipped() {
        let locks = parse_locks(FILE);
        let locked = |name: &str, evr: &str| locks.iter().any(|lock| lock.matches(name, evr));
        assert_eq!(locks.len(), 3);
        assert!(locked("plain", "1-1") && locked("kernel-default", "1-1"));
        assert!(!locked("plain-extra", "1-1") && !locked("bash", "1-1"));
        assert!(!locked("zlib", "1-1") && locked("zlib", "2-1"));
        assert_eq!(parse_locks(""), []);
    }

    #[test]
    fn other_match_types_are_supported() {
        let make_lock = |kind: &str, name: &str| {
            let text = format!("type: package\nmatch_type: {kind}\nsolvable_name: {name}\n");
            parse_locks(&text).iter().any(|lock| lock.matches("bash-doc", "1-1"))
        };
        assert!(
            make_lock("substring", "doc")
                && make_lock("exact", "bash-doc")
                && make_lock("regex", "^bash-doc$")
        );
        assert!(
            !make_lock("exact", "bash")
                && !make_lock("glob", "doc")
                && !make_lock("regex", "^bash$")
        );
    }
}
