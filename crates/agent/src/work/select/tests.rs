use super::*;
use crate::backend::Change;

fn order(packages: &[&str]) -> Install {
    Install {
        packages: packages.iter().map(|name| name.parse().unwrap()).collect(),
        exclude: Vec::new(),
        security_only: false,
        security_packages: Vec::new(),
        reboot: vocab::RebootPolicy::Never,
        boot_id: Line::default(),
        health: false,
    }
}

fn installed_packages() -> Vec<Installed> {
    let mut held = Installed::new("held", "1", "amd64");
    held.held = true;
    let mut list: Vec<Installed> =
        ["bash", "curl", "libc6", "old"].map(|name| Installed::new(name, "1", "amd64")).to_vec();
    list.push(Installed::new("libc6", "1", "i386"));
    list.push(held);
    list
}

fn available_updates() -> Vec<Pending> {
    let update = |name: &str, arch: &str| Pending::new(name, arch, "1", "2");
    let security = Pending { security: true, ..update("curl", "amd64") };
    let phased = Pending { blocked_by: Some(BlockedBy::Phased), ..update("old", "amd64") };
    vec![
        update("bash", "amd64"),
        security,
        update("libc6", "amd64"),
        update("libc6", "i386"),
        update("held", "amd64"),
        phased,
    ]
}

fn chosen(order: &Install, limits: &Limits) -> (Vec<String>, Vec<String>) {
    let (choices, passed) =
        choose(order, limits, PackageManager::Apt, &installed_packages(), &available_updates());
    let name = |choice: Choice| format!("{}:{}={}", choice.name, choice.arch, choice.to);
    let words = |skipped: SkippedPackage| skipped.to_message().to_string();
    (choices.into_iter().map(name).collect(), passed.into_iter().map(words).collect())
}

#[test]
fn order_without_names_selects_every_available_update() {
    let (choices, passed) = chosen(&order(&[]), &Limits::default());
    assert_eq!(choices, ["bash:amd64=2", "curl:amd64=2", "libc6:amd64=2", "libc6:i386=2"]);
    assert_eq!(
        passed,
        [
            "held was skipped: held by the administrator",
            "old was skipped: phased update, not yet released to this host"
        ]
    );
}

#[test]
fn names_exclusions_and_security_filters_apply_exactly() {
    let limits = Limits::default();
    assert_eq!(chosen(&order(&["bash"]), &limits).0, ["bash:amd64=2"]);
    let excluded = Install { exclude: vec!["lib*".parse().unwrap()], ..order(&[]) };
    assert_eq!(chosen(&excluded, &limits).0, ["bash:amd64=2", "curl:amd64=2"]);
    let security = Install { security_only: true, ..order(&["bash", "curl"]) };
    let (choices, passed) = chosen(&security, &limits);
    assert_eq!(choices, ["curl:amd64=2"]);
    assert_eq!(passed, ["bash was skipped: not a security update"]);
    // The service knows of a vulnerability that no repository reported to this host.
    let security_packages = vec!["bash".parse().unwrap(), "ba.h".parse().unwrap()];
    let reported = Install { security_packages, ..security };
    assert_eq!(chosen(&reported, &limits).0, ["bash:amd64=2", "curl:amd64=2"]);
}

#[test]
fn host_limits_narrow_every_order_with_a_reason() {
    let limits = Limits { exclude: vec!["bash".parse().unwrap()], ..Limits::default() };
    let (choices, passed) = chosen(&order(&["bash", "curl"]), &limits);
    assert_eq!(choices, ["curl:amd64=2"]);
    assert_eq!(passed, ["bash was skipped: forbidden by `exclude` in the host's limits.toml"]);
    let limits = Limits { security_only: true, ..Limits::default() };
    assert_eq!(chosen(&order(&[]), &limits).0, ["curl:amd64=2"]);
    let reported = Install { security_packages: vec!["bash".parse().unwrap()], ..order(&[]) };
    assert_eq!(
        chosen(&reported, &limits).0,
        ["curl:amd64=2"],
        "the host applies its own security data"
    );
}

/// `ba.h` is a valid package name, and to apt a regular expression that matches bash.
#[test]
fn name_that_is_not_installed_is_never_used() {
    let names = ["ba.h", "ba", "bash2", "g++", "libc6.1", "standard", "x+y"];
    let (choices, passed) = chosen(&order(&names), &Limits::default());
    assert_eq!(choices, [""; 0]);
    assert_eq!(passed.len(), names.len());
    assert!(passed.iter().all(|words| words.ends_with("it is not installed")), "{passed:?}");
    let hostile =
        ["bash-", "/tmp/x.deb", "?upgradable", "standard^", "bash=1", "bash/sid", "~i", "-y"];
    assert!(hostile.iter().all(|name| name.parse::<PackageName>().is_err()));
}

/// A repository's data must not reach the command line either.
#[test]
fn unsafe_names_and_older_versions_are_skipped() {
    let odd = ["--force", "2 3", "2;id", "../2", "2=3", "", "0.9", "1"];
    for candidate in odd {
        let offers = [Pending::new("bash", "amd64", "1", candidate)];
        let (choices, passed) = choose(
            &order(&[]),
            &Limits::default(),
            PackageManager::Apt,
            &installed_packages(),
            &offers,
        );
        assert!(choices.is_empty() && passed.len() == 1, "{candidate:?}");
    }
    for name in ["bash-", "-o", "a b", "ba/sh", "bash^"] {
        let installed = [Installed::new(name, "1", "amd64")];
        let offers = [Pending::new(name, "amd64", "1", "2")];
        let (choices, _) =
            choose(&order(&[]), &Limits::default(), PackageManager::Apt, &installed, &offers);
        assert!(choices.is_empty(), "{name:?}");
    }
    let stranger = [Pending::new("stranger", "amd64", "1", "2")];
    let (choices, _) = choose(
        &order(&[]),
        &Limits::default(),
        PackageManager::Apt,
        &installed_packages(),
        &stranger,
    );
    assert!(choices.is_empty());
}

fn change(name: &str, from: Option<&str>, to: Option<&str>) -> Change {
    let text = |text: Option<&str>| text.map(str::to_owned);
    Change { name: name.to_owned(), arch: "amd64".to_owned(), from: text(from), to: text(to) }
}

fn check_result(order: &Install, limits: &Limits, more: Vec<Change>) -> Result<usize, String> {
    let choice = Choice {
        name: "bash".to_owned(),
        arch: "amd64".to_owned(),
        from: "1".to_owned(),
        to: "2".to_owned(),
    };
    let transaction = Transaction { changes: more, ..Transaction::default() };
    check_transaction(
        order,
        limits,
        PackageManager::Apt,
        &installed_packages(),
        &[choice],
        &transaction,
    )
    .map(|moves| moves.len())
    .map_err(|failure| format!("{}: {}", failure.code, failure.message))
}

#[test]
fn only_what_the_resolver_needs_is_allowed() {
    let bash = || change("bash", Some("1"), Some("2"));
    let plain = |more: Vec<Change>| check_result(&order(&["bash"]), &Limits::default(), more);
    let needed =
        vec![bash(), change("libnew", None, Some("1")), change("curl", Some("1"), Some("2"))];
    assert_eq!(plain(needed), Ok(3));
    let refusals = [
        (vec![bash(), change("curl", Some("1"), None)], "the update would remove curl"),
        (
            vec![bash(), change("curl", Some("1"), Some("0.9"))],
            "the update would downgrade curl from 1 to 0.9",
        ),
        (
            vec![bash(), change("held", Some("1"), Some("2"))],
            "the update requires held 2, which is held",
        ),
        (vec![], "bash 2 was selected, but the resolver would install nothing"),
        (
            vec![change("bash", Some("1"), Some("3"))],
            "bash 2 was selected, but the resolver would install 3",
        ),
    ];
    for (changes, words) in refusals {
        assert_eq!(plain(changes), Err(format!("dependency_conflict: {words}")));
    }
    let excluding = Install { exclude: vec!["curl".parse().unwrap()], ..order(&["bash"]) };
    let both = || vec![bash(), change("curl", Some("1"), Some("2"))];
    assert_eq!(
        check_result(&excluding, &Limits::default(), both()),
        Err("dependency_conflict: the update requires curl 2, which the order excludes".to_owned())
    );
    let small_limit = Limits { max_packages: Some(1), ..Limits::default() };
    assert_eq!(check_result(&order(&[]), &small_limit, vec![bash()]), Ok(1));
    assert!(
        check_result(&order(&[]), &small_limit, both())
            .unwrap_err()
            .starts_with("rejected_by_agent: ")
    );
}

#[test]
fn difference_lists_additions_removals_and_parallel_versions() {
    let list = |packages: &[(&str, &str)]| -> Vec<Installed> {
        packages.iter().map(|(name, version)| Installed::new(name, version, "x")).collect()
    };
    let before = list(&[("bash", "1"), ("gone", "1"), ("kernel", "5"), ("same", "1")]);
    let after =
        list(&[("bash", "2"), ("kernel", "5"), ("kernel", "6"), ("new", "1"), ("same", "1")]);
    let reported: Vec<String> = difference(&before, &after)
        .into_iter()
        .map(|m| format!("{} {:?} {:?}", m.name, m.from, m.to))
        .collect();
    assert_eq!(
        reported,
        [
            "bash Some(\"1\") Some(\"2\")",
            "gone Some(\"1\") None",
            "kernel None Some(\"6\")",
            "new None Some(\"1\")"
        ]
    );
    let unmet = unmet_expectations(&[], PackageManager::Apt, &before, &after);
    assert_eq!(unmet, [Line::from("gone was removed")]);
}
