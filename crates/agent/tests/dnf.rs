//! The back end for dnf with the real dnf 4 and real repositories, from outside of the managed system.

mod rpm_world;

use agent::backend::Backend;
use agent::backend::dnf::Dnf;
use agent::root::Root;
use lab::rpm::Manager;
use rpm_world::World;
use vocab::FailureCode;

fn world() -> Option<World> {
    World::of(Manager::Dnf, backend)
}

fn backend(root: Root) -> Box<dyn Backend> {
    Box::new(Dnf::of(root))
}

#[test]
fn what_is_installed_is_what_rpm_says() {
    let Some(world) = world() else { return };
    rpm_world::installed_is_what_rpm_says(&world, &[]);
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
fn subpackage_epoch_is_not_the_epoch_of_the_source() {
    rpm_world::subpackage_epoch_is_not_the_epoch_of_the_source(Manager::Dnf, backend);
}

#[test]
fn every_update_is_pending_with_what_it_fixes_and_why_it_would_not_come() {
    let Some(world) = world() else { return };
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
fn an_order_does_what_was_resolved() {
    let Some(world) = world() else { return };
    rpm_world::an_order_does_what_was_resolved(&world);
}

#[test]
fn a_conflict_and_a_removal_are_seen_before_anything_happens() {
    let Some(world) = world() else { return };
    rpm_world::a_conflict_and_a_removal_are_seen_before_anything_happens(&world);
}

#[test]
fn a_script_that_fails_before_the_files_fails_the_order_and_one_after_them_does_not() {
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
    assert_eq!(late.exit, Some(0), "{}", late.text);
    assert_eq!(
        world.changed_since(&before),
        ["-failing-post 1-1 noarch", "+failing-post 2-1 noarch"]
    );
}

/// It is the host's own rule how many kernels there are, and the oldest one makes room: that is no removal.
#[test]
fn a_kernel_comes_beside_the_others_and_the_oldest_makes_room() {
    let Some(world) = world() else { return };
    let order = [world.choose("kernel-core", "5.14.0-162.el9")];
    assert_eq!(world.would(&order), ["kernel-core.noarch nothing -> 5.14.0-162.el9"]);
    world.server.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=0\ninstallonly_limit=2\n");
    world.server.add_beside(&rpm_world::kernel("60"));
    assert_eq!(world.backend.damage().unwrap(), Vec::<vocab::Line>::new());
    assert_eq!(world.would(&order), ["kernel-core.noarch 5.14.0-60.el9 -> 5.14.0-162.el9"]);
    let before = world.server.database();
    let done = world.run(&world.backend.install(&order));
    assert_eq!(done.exit, Some(0), "{}", done.text);
    assert_eq!(
        world.changed_since(&before),
        ["-kernel-core 5.14.0-60.el9 noarch", "+kernel-core 5.14.0-162.el9 noarch"]
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
