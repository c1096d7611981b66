//! Tests of the dnf back end with the real dnf 4 and real repositories, run from outside the
//! managed system.

mod rpm_fixture;

use agent::backend::Backend;
use agent::backend::dnf::Dnf;
use agent::root::Root;
use lab::rpm::Manager;
use rpm_fixture::RpmFixture;
use vocab::FailureCode;

fn fixture() -> Option<RpmFixture> {
    RpmFixture::new(Manager::Dnf, backend)
}

fn backend(root: Root) -> Box<dyn Backend> {
    Box::new(Dnf::new(root))
}

#[test]
fn installed_packages_match_rpm() {
    let Some(world) = fixture() else { return };
    rpm_fixture::check_installed_packages_match_rpm(&world, &[]);
    world.server.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=0\nexcludepkgs=plain, kernel*\n");
    let mut held: Vec<String> = world
        .installed()
        .into_iter()
        .filter(|package| package.held)
        .map(|package| package.name)
        .collect();
    held.sort();
    assert_eq!(held, ["kernel-core", "plain"]);
}

#[test]
fn subpackage_epoch_is_not_the_source_epoch() {
    rpm_fixture::subpackage_epoch_is_not_the_source_epoch(Manager::Dnf, backend);
}

#[test]
fn pending_updates_show_advisories_and_block_reason() {
    let Some(world) = fixture() else { return };
    world.server.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=0\nexclude=plain\n");
    assert_eq!(
        world.pending(),
        [
            "bash 5.1.8-4.el9 -> 5.1.8-6.el9 bugfix LBA-2024:0003",
            "broken 1-1 -> 2-1 (kept_back)",
            "eater 1-1 -> 2-1 (kept_back)",
            "failing-post 1-1 -> 2-1",
            "failing-pre 1-1 -> 2-1",
            "fighter 1-1 -> 2-1 (kept_back)",
            "kernel-core 5.14.0-70.el9 -> 5.14.0-162.el9 security medium LSA-2024:0002 CVE-2024-0001",
            "leaving 1-1 -> 2-1",
            "needy 1-1 -> 2-1",
            "openssl-libs 1:3.0.1-41.el9_0 -> 1:3.0.1-44.el9_0 security high LSA-2024:0001 \
             CVE-2022-3602 CVE-2022-3786",
            "plain 1.0-1 -> 1.1-1 (excluded)",
            "waiting 1-1 -> 2-1",
        ]
    );
}

#[test]
fn installation_matches_the_resolved_transaction() {
    let Some(world) = fixture() else { return };
    rpm_fixture::installation_matches_the_resolved_transaction(&world);
}

#[test]
fn conflicts_and_removals_are_detected_before_installing() {
    let Some(world) = fixture() else { return };
    rpm_fixture::conflicts_and_removals_are_detected_before_installing(&world);
}

#[test]
fn failing_pre_script_fails_the_order_and_post_does_not() {
    let Some(world) = fixture() else { return };
    let before = world.server.database();
    let early = world.run(&world.backend.install(&[world.choose("failing-pre", "2-1")]));
    assert_ne!(early.exit, Some(0), "{}", early.text);
    let diagnosis = world.backend.diagnose(early.exit, &early.text);
    assert_eq!(diagnosis.code, FailureCode::InstallFailed, "{}", early.text);
    assert!(diagnosis.message.as_str().contains("failing-pre"), "{}", diagnosis.message);
    assert_eq!(world.server.database(), before);
    let late = world.run(&world.backend.install(&[world.choose("failing-post", "2-1")]));
    assert!(late.text.contains("the post script fails"), "{}", late.text);
    assert_eq!(late.exit, Some(0), "{}", late.text);
    assert_eq!(
        world.changed_since(&before),
        ["-failing-post 1-1 noarch", "+failing-post 2-1 noarch"]
    );
}

/// The host's settings limit the number of kernels, and the oldest one is replaced: that is not a
/// removal.
#[test]
fn new_kernel_is_added_and_the_oldest_replaced() {
    let Some(world) = fixture() else { return };
    let order = [world.choose("kernel-core", "5.14.0-162.el9")];
    assert_eq!(world.resolve(&order), ["kernel-core.noarch nothing -> 5.14.0-162.el9"]);
    world.server.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=0\ninstallonly_limit=2\n");
    world.server.install_alongside(&rpm_fixture::kernel("60"));
    assert_eq!(world.backend.damage().unwrap(), Vec::<vocab::Line>::new());
    assert_eq!(world.resolve(&order), ["kernel-core.noarch 5.14.0-60.el9 -> 5.14.0-162.el9"]);
    let before = world.server.database();
    let done = world.run(&world.backend.install(&order));
    assert_eq!(done.exit, Some(0), "{}", done.text);
    assert_eq!(
        world.changed_since(&before),
        ["-kernel-core 5.14.0-60.el9 noarch", "+kernel-core 5.14.0-162.el9 noarch"]
    );
}

#[test]
fn lock_holder_is_named() {
    let Some(world) = fixture() else { return };
    rpm_fixture::lock_holder_is_named(&world);
}

#[test]
fn background_child_of_a_script_does_not_delay_the_command() {
    let Some(world) = fixture() else { return };
    rpm_fixture::background_child_of_a_script_does_not_delay_the_command(&world);
}

#[test]
fn duplicate_package_is_damage_and_is_repaired() {
    let Some(world) = fixture() else { return };
    rpm_fixture::duplicate_package_is_damage_and_is_repaired(&world);
}

#[test]
fn killed_installation_is_repaired() {
    let Some(world) = fixture() else { return };
    rpm_fixture::killed_installation_is_repaired(&world);
}

#[test]
fn repository_failure_is_not_a_package_failure() {
    let Some(world) = fixture() else { return };
    rpm_fixture::repository_failure_is_not_a_package_failure(&world);
}
