//! Which packages cannot live together.
//!
//! `pacman --print` resolves without looking at conflicts, and only a real transaction would be refused.
//! What a plan says must hold, so they are looked at here.

use pkgver::Scheme;

/// What counts of a package, installed or to come.
pub(super) struct Party<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    pub(super) provides: &'a [String],
    pub(super) conflicts: &'a [String],
}

/// The first pair of one that comes and one that would be there, which cannot live together.
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

/// Whether `name<2` means this package. What is provided without a version is never meant by a wish
/// that has one.
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

/// `name`, the operator, the version.
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
    fn a_wish_means_a_name_and_the_versions_that_it_says() {
        assert!(means("app", "app", "1-1") && means("app", "app", ""));
        assert!(means("app<2", "app", "1-1") && !means("app<2", "app", "2-1"));
        assert!(means("app>=1:1", "app", "1:1-3") && !means("app>=1:1", "app", "9-1"));
        assert!(means("app=1", "app", "1-7"), "a version without a release means every release");
        assert!(!means("app=1", "app", "") && !means("app", "apple", "1-1"));
    }
}
