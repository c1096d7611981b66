use super::*;
use wire::agent::{Install, PackageVersion};

fn order(versions: &[(&str, &str, &str)]) -> InstallVersions {
    let install = Install {
        packages: Vec::new(),
        exclude: Vec::new(),
        security_only: false,
        security_packages: Vec::new(),
        reboot: vocab::RebootPolicy::Never,
        boot_id: vocab::Line::default(),
        health: false,
    };
    let version = |(name, arch, version): &(&str, &str, &str)| PackageVersion {
        name: name.parse().unwrap(),
        arch: (*arch).into(),
        version: (*version).into(),
    };
    InstallVersions { install, versions: versions.iter().map(version).collect() }
}

fn installed_packages() -> Vec<Installed> {
    let mut held = Installed::new("held", "1", "amd64");
    held.held = true;
    let mut list: Vec<Installed> = ["bash", "curl", "libc6", "old", "phased"]
        .map(|name| Installed::new(name, "1", "amd64"))
        .to_vec();
    list.extend([Installed::new("libc6", "1", "i386"), Installed::new("docs", "1", "all"), held]);
    list
}

/// The newest version of everything is 3.
fn pending() -> Vec<Pending> {
    let update = |package: &Installed| {
        let mut update = Pending::new(&package.name, &package.arch, "1", "3");
        update.security = package.name == "curl";
        update.blocked_by = match package.name.as_str() {
            "phased" => Some(BlockedBy::Phased),
            "old" => Some(BlockedBy::Pinned),
            _ => None,
        };
        update
    };
    installed_packages().iter().map(update).collect()
}

/// The package manager still offers version 2 of everything except `docs`.
fn offered() -> Vec<OfferedVersion> {
    let offer = |package: &Installed| OfferedVersion {
        name: package.name.clone(),
        arch: package.arch.clone(),
        version: "2".to_owned(),
    };
    installed_packages().iter().filter(|package| package.name != "docs").map(offer).collect()
}

fn chosen(order: &InstallVersions, limits: &Limits) -> (Vec<String>, Vec<String>, Vec<String>) {
    let installed = installed_packages();
    let wanted = wanted_versions(order, PackageManager::Apt, &installed);
    let chosen = choose(order, limits, PackageManager::Apt, &wanted, &pending(), &offered(), None);
    let name = |choice: &Choice| format!("{}:{}={}", choice.name, choice.arch, choice.to);
    (
        chosen.choices.iter().map(name).collect(),
        chosen.passed.iter().map(|skipped| skipped.to_message().to_string()).collect(),
        chosen.newer.iter().map(|n| format!("{} {} < {}", n.name, n.pinned, n.available)).collect(),
    )
}

#[test]
fn only_named_versions_of_installed_packages_are_chosen() {
    let order = order(&[
        ("bash", "amd64", "2"),
        ("libc6", "i386", "2"),
        ("curl", "amd64", "3"),
        ("absent", "amd64", "2"),
    ]);
    let (choices, passed, newer) = chosen(&order, &Limits::default());
    assert_eq!(choices, ["bash:amd64=2", "curl:amd64=3", "libc6:i386=2"]);
    assert_eq!(passed, [""; 0]);
    assert_eq!(newer, ["bash 2 < 3", "libc6 2 < 3"]);
    let named = InstallVersions {
        install: Install { packages: vec!["curl".parse().unwrap()], ..order.install.clone() },
        ..order
    };
    assert_eq!(chosen(&named, &Limits::default()).0, ["curl:amd64=3"]);
}

#[test]
fn installed_and_newer_versions_are_left_alone() {
    for version in ["1", "0.9"] {
        let (choices, passed, newer) =
            chosen(&order(&[("bash", "amd64", version)]), &Limits::default());
        assert_eq!((choices.len(), passed.len()), (0, 0), "{version}");
        assert_eq!(newer, [format!("bash {version} < 3")]);
    }
}

#[test]
fn vanished_version_is_reported_and_never_replaced_by_another() {
    let (choices, passed, _) = chosen(
        &order(&[("bash", "amd64", "2"), ("docs", "all", "2"), ("curl", "amd64", "2.5")]),
        &Limits::default(),
    );
    assert_eq!(choices, ["bash:amd64=2"]);
    assert_eq!(
        passed,
        [
            "curl was skipped: version 2.5 is not available (3 is)",
            "docs was skipped: version 2 is not available (3 is)"
        ]
    );
}

#[test]
fn holds_pins_and_limits_apply_to_exact_versions() {
    let order = order(&[
        ("bash", "amd64", "2"),
        ("held", "amd64", "2"),
        ("old", "amd64", "2"),
        ("curl", "amd64", "3"),
        ("libc6", "amd64", "2"),
    ]);
    let limits = Limits {
        exclude: vec!["libc6".parse().unwrap()],
        security_only: true,
        ..Limits::default()
    };
    let (choices, passed, _) = chosen(&order, &limits);
    assert_eq!(choices, ["curl:amd64=3"]);
    assert_eq!(
        passed,
        [
            "bash was skipped: forbidden by `security_only` in the host's limits.toml",
            "held was skipped: held by the administrator",
            "libc6 was skipped: forbidden by `exclude` in the host's limits.toml",
            "old was skipped: pinned to another version",
        ]
    );
}

/// A phased update is withheld; the version before it is not.
#[test]
fn phased_update_blocks_only_its_own_version() {
    let limits = Limits::default();
    assert_eq!(chosen(&order(&[("phased", "amd64", "2")]), &limits).0, ["phased:amd64=2"]);
    let (choices, passed, _) = chosen(&order(&[("phased", "amd64", "3")]), &limits);
    assert_eq!(choices, [""; 0]);
    assert_eq!(passed, ["phased was skipped: phased update, not yet released to this host"]);
}

#[test]
fn architectures_match_exactly_or_are_independent() {
    let limits = Limits::default();
    assert_eq!(chosen(&order(&[("libc6", "", "2")]), &limits).0, ["libc6:amd64=2", "libc6:i386=2"]);
    assert_eq!(chosen(&order(&[("bash", "arm64", "2")]), &limits).0, [""; 0]);
    assert_eq!(chosen(&order(&[("bash", "all", "2")]), &limits).0, ["bash:amd64=2"]);
}

#[test]
fn newest_of_several_versions_counts() {
    let both = order(&[("bash", "amd64", "3"), ("bash", "amd64", "2")]);
    assert_eq!(chosen(&both, &Limits::default()).0, ["bash:amd64=3"]);
}

/// The package manager would accept these as versions; it is never asked.
#[test]
fn hostile_versions_never_reach_the_package_manager() {
    for version in ["2-", "2 other=3", "*", "/tmp/x.deb", "", "-oX=y"] {
        let (choices, _, _) = chosen(&order(&[("bash", "amd64", version)]), &Limits::default());
        assert_eq!(choices, [""; 0], "{version}");
    }
    // Not even if a repository offers such a version.
    let hostile = order(&[("bash", "amd64", "2/../x")]);
    let installed = installed_packages();
    let wanted = wanted_versions(&hostile, PackageManager::Apt, &installed);
    let offer = OfferedVersion {
        name: "bash".to_owned(),
        arch: "amd64".to_owned(),
        version: "2/../x".to_owned(),
    };
    let manager = PackageManager::Apt;
    let chosen = choose(&hostile, &Limits::default(), manager, &wanted, &[], &[offer], None);
    assert!(chosen.choices.is_empty());
    assert_eq!(chosen.passed[0].why, SkipReason::Odd);
}

#[test]
fn no_installed_package_moves_to_another_version() {
    let order = order(&[("bash", "amd64", "2"), ("extra", "amd64", "7")]);
    let choice = Choice {
        name: "bash".to_owned(),
        arch: "amd64".to_owned(),
        from: "1".to_owned(),
        to: "2".to_owned(),
    };
    let check = |name: &str, from: Option<&str>, to: &str| {
        let change = PackageMove {
            name: name.into(),
            arch: "amd64".into(),
            from: from.map(Into::into),
            to: Some(to.into()),
        };
        check_moves(&order, std::slice::from_ref(&choice), &[change])
    };
    assert!(check("bash", Some("1"), "2").is_ok());
    assert!(check("dependency", None, "5").is_ok(), "a new dependency, as in every order");
    assert!(check("extra", None, "7").is_ok());
    for (name, from, to) in
        [("curl", Some("1"), "3"), ("bash", Some("1"), "3"), ("extra", None, "8")]
    {
        let failure = check(name, from, to).unwrap_err();
        assert_eq!(failure.code, FailureCode::DependencyConflict);
        let message =
            format!("the update requires {name} {to}, which is not one of the ordered versions");
        assert_eq!(failure.message.as_str(), message);
    }
}
