//! The back end for zypper with the real zypper and real repositories, from outside of the managed system.

mod rpm_world;

use agent::backend::Backend;
use agent::backend::zypper::Zypper;
use agent::root::Root;
use lab::rpm::Manager;
use rpm_world::World;
use vocab::FailureCode;

fn world() -> Option<World> {
    World::of(Manager::Zypper, backend)
}

fn backend(root: Root) -> Box<dyn Backend> {
    Box::new(Zypper::of(root))
}

const LOCKS: &str =
    "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: plain\n\n";

#[test]
fn what_is_installed_is_what_rpm_says() {
    let Some(world) = world() else { return };
    rpm_world::installed_is_what_rpm_says(&world, &[]);
    world.server.write("/etc/zypp/locks", LOCKS);
    rpm_world::installed_is_what_rpm_says(&world, &["plain"]);
}

#[test]
fn subpackage_epoch_is_not_the_epoch_of_the_source() {
    rpm_world::subpackage_epoch_is_not_the_epoch_of_the_source(Manager::Zypper, backend);
}

#[test]
fn every_update_is_pending_with_what_it_fixes_and_why_it_would_not_come() {
    let Some(world) = world() else { return };
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
fn an_order_does_what_was_resolved() {
    let Some(world) = world() else { return };
    rpm_world::an_order_does_what_was_resolved(&world);
}

/// zypper itself would take what it is asked for by name as wanted by hand.
#[test]
fn what_came_as_a_dependency_is_still_marked_as_one() {
    let Some(world) = world() else { return };
    world.server.write("/var/lib/zypp/AutoInstalled", "bash\nvictim\n");
    let done = world.run(
        &world
            .backend
            .install(&[world.choose("bash", "5.1.8-6.el9"), world.choose("needy", "2-1")]),
    );
    assert_eq!(done.exit, Some(0), "{}", done.text);
    let marks = world.server.read("/var/lib/zypp/AutoInstalled");
    let names: Vec<&str> = marks.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(names, ["bash", "extra", "victim"], "and what was new came as one");
}

#[test]
fn a_conflict_and_a_removal_are_seen_before_anything_happens() {
    let Some(world) = world() else { return };
    rpm_world::a_conflict_and_a_removal_are_seen_before_anything_happens(&world);
}

#[test]
fn a_script_that_fails_fails_the_order() {
    let Some(world) = world() else { return };
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
fn who_holds_the_lock_is_named() {
    let Some(world) = world() else { return };
    rpm_world::who_holds_the_lock_is_named(&world);
}

#[test]
fn a_child_that_a_script_leaves_behind_keeps_nobody_waiting() {
    let Some(world) = world() else { return };
    rpm_world::a_child_that_a_script_leaves_behind_keeps_nobody_waiting(&world);
}

#[test]
fn what_is_there_twice_is_damage_and_is_mended() {
    let Some(world) = world() else { return };
    rpm_world::what_is_there_twice_is_damage_and_is_mended(&world);
}

#[test]
fn what_was_killed_half_way_is_mended() {
    let Some(world) = world() else { return };
    rpm_world::what_was_killed_half_way_is_mended(&world);
}

#[test]
fn a_repository_that_fails_is_told_from_a_package_that_does() {
    let Some(world) = world() else { return };
    rpm_world::a_repository_that_fails_is_told_from_a_package_that_does(&world);
}
