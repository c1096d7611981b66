//! Finds conflicts between packages.
//!
//! `pacman --print` resolves without checking conflicts, which only a real transaction rejects. A
//! plan must be reliable, so they are checked here.

use pkgver::Scheme;

/// The relevant properties of a package, installed or to be installed.
pub(super) struct ConflictParty<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    pub(super) provides: &'a [String],
    pub(super) conflicts: &'a [String],
}

/// The first conflict between a package to be installed and one that would be installed next to it.
pub(super) fn first_conflict<'a>(
    coming: &'a [ConflictParty<'a>],
    staying: &'a [ConflictParty<'a>],
) -> Option<(&'a ConflictParty<'a>, &'a ConflictParty<'a>)> {
    let pairs =
        coming.iter().flat_map(|one| coming.iter().chain(staying).map(move |other| (one, other)));
    pairs
        .filter(|(one, other)| one.name != other.name)
        .find(|(one, other)| one.conflicts_with(other) || other.conflicts_with(one))
}

impl ConflictParty<'_> {
    fn conflicts_with(&self, other: &ConflictParty<'_>) -> bool {
        self.conflicts.iter().any(|expression| {
            let provided = other.provides.iter().map(|text| split_expression(text));
            expression_matches(expression, other.name, other.version)
                || provided
                    .into_iter()
                    .any(|(name, _, version)| expression_matches(expression, name, version))
        })
    }
}

/// Whether an expression such as `name<2` matches this package. A provided name without a version
/// never matches an expression with one.
fn expression_matches(expression: &str, name: &str, version: &str) -> bool {
    let (wanted, operator, limit) = split_expression(expression);
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
fn split_expression(expression: &str) -> (&str, &str, &str) {
    let start = expression.find(['<', '>', '=']).unwrap_or(expression.len());
    let rest = &expression[start..];
    let version = rest.trim_start_matches(['<', '>', '=']);
    (&expression[..start], &rest[..rest.len() - version.len()], version)
}

#[cfg(test)]
mod tests {
    use super::expression_matches;

    #[test]
    fn conflict_expression_matches_name_and_versions() {
        assert!(expression_matches("app", "app", "1-1") && expression_matches("app", "app", ""));
        assert!(
            expression_matches("app<2", "app", "1-1") && !expression_matches("app<2", "app", "2-1")
        );
        assert!(
            expression_matches("app>=1:1", "app", "1:1-3")
                && !expression_matches("app>=1:1", "app", "9-1")
        );
        assert!(
            expression_matches("app=1", "app", "1-7"),
            "a version without a release matches every release"
        );
        assert!(
            !expression_matches("app=1", "app", "") && !expression_matches("app", "apple", "1-1")
        );
    }
}
