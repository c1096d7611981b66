//! `cargo xtask release` with stand-ins for the programs, so that nothing has to be built.

use std::fs;
use std::process::Command;

use lab::root::{can_create_roots, new_dir, run_successfully};
use serde_json::Value;

#[test]
fn release_contains_every_artifact_with_its_checksum() {
    if !can_create_roots() || !lab::has_programs(&[("rpmbuild", "rpm"), ("dpkg-deb", "dpkg")]) {
        return;
    }
    let (programs, agents, target) = (new_dir("programs"), new_dir("agents"), new_dir("target"));
    for (name, program) in [
        ("fleetmend", "/usr/bin/echo"),
        ("fleetmend-agent", "/usr/bin/true"),
        ("fleetmend-static", "/usr/bin/false"),
    ] {
        fs::copy(program, programs.join(name)).unwrap();
    }
    fs::write(agents.join("fleetmend-agent-foreign"), "of another architecture").unwrap();
    let old = target.join("dist/fleetmend_0.0.1_amd64.deb");
    fs::create_dir_all(old.parent().unwrap()).unwrap();
    fs::write(&old, "an earlier release").unwrap();

    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.arg("release").arg("--programs").arg(&programs).arg("--agents").arg(&agents);
    // Everything that cargo asks about was downloaded to build this test.
    xtask.env("CARGO_TARGET_DIR", &target).env("CARGO_NET_OFFLINE", "true");
    run_successfully(&mut xtask);

    let dist = target.join("dist");
    let mut check = Command::new("sha256sum");
    let checked = run_successfully(check.args(["--strict", "-c", "SHA256SUMS"]).current_dir(&dist));
    let (version, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let container = format!("fleetmend-container-{version}-{arch}.tar.gz");
    let sboms = ["fleetmend", "fleetmend-agent"]
        .map(|program| format!("{program}-{version}-{arch}.cdx.json"));
    let named = [
        &container,
        &sboms[0],
        &sboms[1],
        &format!("fleetmend-deploy-{version}.tar.gz"),
        &format!("fleetmend-agent-{arch}"),
        &"fleetmend-agent-foreign".to_owned(),
    ];
    for name in named {
        assert!(checked.contains(&format!("{name}: OK\n")), "{name}: {checked}");
    }
    for ending in [".deb: OK\n", ".rpm: OK\n"] {
        assert_eq!(checked.matches(ending).count(), 2, "{checked}");
    }
    let files = fs::read_dir(&dist).unwrap().count();
    assert_eq!(files, checked.lines().count() + 1, "SHA256SUMS names every other file");
    assert_eq!(files, named.len() + 4 + 1, "nothing else is published: {checked}");

    // The paths in the archive are those that the Containerfile copies.
    let mut tar = Command::new("tar");
    let listed = run_successfully(tar.arg("-tzf").arg(dist.join(&container)));
    let containerfile = include_str!("../../deploy/container/Containerfile");
    for line in containerfile.lines().filter(|line| line.starts_with("COPY target/")) {
        let path = line.split(' ').nth(1).unwrap();
        assert!(listed.contains(&format!("./{path}")), "{path}: {listed}");
    }

    for (sbom, linked, absent) in [(&sboms[0], "axum", "swarm"), (&sboms[1], "rustls", "axum")] {
        let text = fs::read_to_string(dist.join(sbom)).unwrap();
        assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "paths of this machine are private");
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["specVersion"], "1.5");
        let components = document["components"].as_array().unwrap();
        let find = |name: &str| components.iter().find(|one| one["name"] == name);
        let found = find(linked).unwrap();
        assert_eq!(found["hashes"][0]["content"].as_str().unwrap().len(), 64, "{found}");
        assert!(found["licenses"][0]["expression"].is_string(), "{found}");
        assert!(find(absent).is_none(), "{absent} is not part of the program");
    }
}
