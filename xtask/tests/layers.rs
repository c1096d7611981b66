//! Checks which crate depends on which. `ARCHITECTURE.md` explains the layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The allowed dependencies of each crate, except dev-dependencies.
const ALLOWED: &[(&str, &[&str])] = &[
    ("pkgver", &[]),
    ("vocab", &["pkgver"]),
    ("wire", &["vocab"]),
    ("domain", &["vocab", "pkgver"]),
    ("feed", &["domain", "vocab"]),
    ("store", &["domain", "vocab"]),
    ("service", &["store", "domain", "feed", "wire", "vocab"]),
    ("engine", &["service", "store", "domain", "vocab"]),
    ("gateway", &["service", "store", "domain", "wire", "vocab"]),
    ("httpkit", &["service", "wire", "vocab"]),
    ("api", &["httpkit", "service", "wire", "vocab"]),
    ("dashboard", &["httpkit", "service", "domain", "wire", "vocab"]),
    ("server", &["api", "dashboard", "httpkit", "service", "engine", "gateway"]),
    (
        "cli",
        &[
            "server", "service", "engine", "agent", "store", "domain", "feed", "wire", "vocab",
            "swarm",
        ],
    ),
    ("agent-client", &["wire", "vocab"]),
    ("agent", &["agent-client", "wire", "vocab", "pkgver"]),
    ("swarm", &["agent-client", "wire", "vocab"]),
    ("lab", &[]),
    ("testkit", &[]),
    (
        "fuzz",
        &[
            "agent",
            "feed",
            "gateway",
            "agent-client",
            "pkgver",
            "service",
            "store",
            "vocab",
            "wire",
        ],
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the workspace")
}

/// The names under `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let name = |line: &str| line.split(['.', ' ', '=']).next().unwrap_or_default().to_owned();
    lines.filter(|line| !line.starts_with('#')).map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn crates_depend_on_lower_layers_only() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let ours: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let named: BTreeSet<String> = allowed.keys().map(ToString::to_string).collect();
    assert_eq!(ours, named, "every crate must have a line in ALLOWED");
    let mut wrong = Vec::new();
    for name in &ours {
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let found = dependencies(&fs::read_to_string(manifest).unwrap());
        let found: BTreeSet<&str> =
            found.iter().map(String::as_str).filter(|one| ours.contains(*one)).collect();
        let may: BTreeSet<&str> = allowed[name.as_str()].iter().copied().collect();
        wrong.extend(found.difference(&may).map(|one| format!("{name} depends on {one}")));
        wrong.extend(may.difference(&found).map(|one| format!("{name} does not need {one}")));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn dependencies_are_found_in_a_manifest() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\n# why\nb.workspace = true\nc = { path = \"c\" }\n[dev-dependencies]\nd = \"1\"\n";
    assert_eq!(dependencies(manifest), BTreeSet::from(["b".to_owned(), "c".to_owned()]));
}

/// The workspace crates that are linked into `cli` with these flags.
fn linked_into_cli(flags: &[&str]) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.current_dir(root()).args(["tree", "--locked", "--offline", "-p", "cli"]);
    tree.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]).args(flags);
    let output = tree.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names of crates are UTF-8");
    let ours = text.lines().filter(|line| line.contains("/crates/"));
    ours.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn only_the_demo_feature_links_the_simulator_into_cli() {
    assert!(linked_into_cli(&[]).contains("swarm"));
    let packaged = linked_into_cli(&["--no-default-features"]);
    assert!(packaged.contains("server") && !packaged.contains("swarm"), "{packaged:?}");
}
