//! Finds conflicts between packages.
//!
//! `pacman --print` resolves without checking conflicts, which only a real transaction rejects. A
//! plan must be reliable, so they are checked here.

use pkgver::Scheme;

/// The relevant properties of a package, installed or to be installed.
pub(super) struct Party<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    pub(super) provides: &'a [String],
    pub(super) conflicts: &'a [String],
}

/// The first conflict between a package to be installed and one that would be installed next to it.
pub(super) fn first<'a>(
    coming: &'a [Party<'a>],
    staying: &'a [Party<'a>],
) -> Option<(&'a Party<'a>, &'a Party<'a>)> {
    let pairs =
        coming.iter().flat_map(|one| coming.iter().chain(staying).map(move |other| (one, other)));
    pairs
        .filter(|(one, other)| one.name != other.name)
        .find(|(one, other)| one.refuses(other) || other.refuses(one))
}

impl Party<'_> {
    fn refuses(&self, other: &Party<'_>) -> bool {
        self.conflicts.iter().any(|wish| {
            let provided = other.provides.iter().map(|text| split(text));
            means(wish, other.name, other.version)
                || provided.into_iter().any(|(name, _, version)| means(wish, name, version))
        })
    }
}

/// Whether an expression such as `name<2` matches this package. A provided name without a version
/// never matches an expression with one.
fn means(wish: &str, name: &str, version: &str) -> bool {
    let (wanted, operator, limit) = split(wish);
    let order = || Scheme::Pacman.compare(version, limit);
    wanted == name
        && match operator {
            "" => true,
            _ if version.is_empty() => false,
            "=" => order().is_eq(),
            "<" => order().is_lt(),
            "<=" => order().is_le(),
            ">" => order().is_gt(),
            _ => order().is_ge(),
        }
}

/// Splits an expression into the name, the operator and the version.
fn split(wish: &str) -> (&str, &str, &str) {
    let start = wish.find(['<', '>', '=']).unwrap_or(wish.len());
    let rest = &wish[start..];
    let version = rest.trim_start_matches(['<', '>', '=']);
    (&wish[..start], &rest[..rest.len() - version.len()], version)
}

#[cfg(test)]
mod tests {
    use super::means;

    #[test]
    fn conflict_expression_matches_name_and_versions() {
        assert!(means("app", "app", "1-1") && means("app", "app", ""));
        assert!(means("app<2", "app", "1-1") && !means("app<2", "app", "2-1"));
        assert!(means("app>=1:1", "app", "1:1-3") && !means("app>=1:1", "app", "9-1"));
        assert!(means("app=1", "app", "1-7"), "a version without a release matches every release");
        assert!(!means("app=1", "app", "") && !means("app", "apple", "1-1"));
    }
}
