//! Tests of the zypper back end with the real zypper and real repositories, run from outside the
//! managed system.

mod rpm_fixture;

use agent::backend::Backend;
use agent::backend::zypper::Zypper;
use agent::root::Root;
use lab::rpm::Manager;
use rpm_fixture::RpmFixture;
use vocab::FailureCode;

fn fixture() -> Option<RpmFixture> {
    RpmFixture::new(Manager::Zypper, backend)
}

fn backend(root: Root) -> Box<dyn Backend> {
    Box::new(Zypper::new(root))
}

const LOCKS: &str =
    "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: plain\n\n";

#[test]
fn installed_packages_match_rpm() {
    let Some(world) = fixture() else { return };
    rpm_fixture::check_installed_packages_match_rpm(&world, &[]);
    world.server.write("/etc/zypp/locks", LOCKS);
    rpm_fixture::check_installed_packages_match_rpm(&world, &["plain"]);
}

#[test]
fn subpackage_epoch_is_not_the_source_epoch() {
    rpm_fixture::subpackage_epoch_is_not_the_source_epoch(Manager::Zypper, backend);
}

#[test]
fn pending_updates_show_advisories_and_block_reason() {
    let Some(world) = fixture() else { return };
    world.server.write("/etc/zypp/locks", LOCKS);
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
            "plain 1.0-1 -> 1.1-1 (held)",
            "waiting 1-1 -> 2-1",
        ]
    );
}

#[test]
fn installation_matches_the_resolved_transaction() {
    let Some(world) = fixture() else { return };
    rpm_fixture::installation_matches_the_resolved_transaction(&world);
}

/// zypper itself would mark packages that it is asked to install as user-installed.
#[test]
fn dependencies_stay_marked_as_automatic() {
    let Some(world) = fixture() else { return };
    world.server.write("/var/lib/zypp/AutoInstalled", "bash\nvictim\n");
    let done = world.run(
        &world
            .backend
            .install(&[world.choose("bash", "5.1.8-6.el9"), world.choose("needy", "2-1")]),
    );
    assert_eq!(done.exit, Some(0), "{}", done.text);
    let marks = world.server.read("/var/lib/zypp/AutoInstalled");
    let names: Vec<&str> = marks.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(names, ["bash", "extra", "victim"], "new dependencies are marked as automatic too");
}

#[test]
fn conflicts_and_removals_are_detected_before_installing() {
    let Some(world) = fixture() else { return };
    rpm_fixture::conflicts_and_removals_are_detected_before_installing(&world);
}

#[test]
fn failing_script_fails_the_order() {
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
    assert_eq!(late.exit, Some(107), "{}", late.text);
    let diagnosis = world.backend.diagnose(late.exit, &late.text);
    assert_eq!(diagnosis.code, FailureCode::InstallFailed, "{}", late.text);
    assert_eq!(
        world.changed_since(&before),
        ["-failing-post 1-1 noarch", "+failing-post 2-1 noarch"]
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
