//! `docs/promises.md` names tests for every promise. This test checks that they exist.

use std::collections::BTreeSet;
use std::path::Path;

const PROMISES: usize = 45;

/// One promise of the document.
struct Promise {
    number: usize,
    /// `path::function` of each named test.
    tests: Vec<String>,
    /// The parts that no test covers.
    gaps: Vec<String>,
}

/// Parses `**12. …**` headings, and the `- \`path::function\`` and `- Gap: …` items below each.
fn promises(text: &str) -> Vec<Promise> {
    let mut found: Vec<Promise> = Vec::new();
    for line in text.lines() {
        let number = line
            .strip_prefix("**")
            .and_then(|rest| rest.split_once('.'))
            .and_then(|(number, _)| number.parse().ok());
        if let Some(number) = number {
            found.push(Promise { number, tests: Vec::new(), gaps: Vec::new() });
        } else if let (Some(item), Some(promise)) = (line.strip_prefix("- "), found.last_mut()) {
            match item.strip_prefix("Gap: ") {
                Some(gap) => promise.gaps.push(gap.to_owned()),
                None => promise.tests.push(item.trim_matches('`').to_owned()),
            }
        }
    }
    found
}

/// Why a named test does not exist. `None` if it exists.
fn missing(root: &Path, test: &str) -> Option<String> {
    let Some((path, name)) = test.split_once("::") else {
        return Some(format!("`{test}` is not `path::function`"));
    };
    let Ok(text) = std::fs::read_to_string(root.join(path)) else {
        return Some(format!("`{path}` does not exist"));
    };
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let declares = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ").is_some_and(|rest| {
            rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<']))
        })
    };
    let Some(place) = lines.iter().position(|line| declares(line)) else {
        return Some(format!("`{path}` has no function `{name}`"));
    };
    let attributes = lines[..place].iter().rev().take_while(|line| {
        line.starts_with('#') || line.starts_with("//") || line.starts_with(')')
    });
    let is_test = attributes.into_iter().any(|line| {
        line.contains("#[test]") || line.contains("::test]") || line.contains("::test(")
    });
    // Tests for both databases are listed in a macro, which generates two tests from each.
    let mut lists = text.split("testkit::both!(").skip(1);
    let is_listed = lists.any(|rest| {
        let list = rest.split(");").next().unwrap_or_default();
        list.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
    });
    (!is_test && !is_listed).then(|| format!("`{name}` in `{path}` is not a test"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the workspace")
}

#[test]
fn every_promise_names_tests_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let found = promises(&text);
    let numbers: Vec<usize> = found.iter().map(|promise| promise.number).collect();
    assert_eq!(numbers, (1..=PROMISES).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for Promise { number, tests, gaps } in &found {
        wrong.extend(tests.iter().filter_map(|test| missing(root(), test)));
        if tests.is_empty() && gaps.is_empty() {
            wrong.push(format!("promise {number} has neither a test nor a gap"));
        }
        if tests.iter().collect::<BTreeSet<_>>().len() != tests.len() {
            wrong.push(format!("promise {number} names a test twice"));
        }
    }
    assert!(wrong.is_empty(), "docs/promises.md:\n{}", wrong.join("\n"));
}

/// Proof that the check can fail.
#[test]
fn missing_test_is_reported() {
    let this = "xtask/tests/promises.rs";
    assert_eq!(missing(root(), &format!("{this}::missing_test_is_reported")), None);
    for test in [
        "nothing".to_owned(),
        "xtask/tests/nowhere.rs::name".to_owned(),
        format!("{this}::no_such_function"),
        format!("{this}::promises"),
    ] {
        assert!(missing(root(), &test).is_some(), "{test}");
    }
    let read = promises("**1. A.**\n\n- `a::b`\n- Gap: c\n**2. B.**\n");
    assert_eq!(
        (read[0].tests.as_slice(), read[0].gaps.as_slice()),
        (&["a::b".into()][..], &["c".into()][..])
    );
    assert!(read[1].tests.is_empty() && read[1].gaps.is_empty());
}
