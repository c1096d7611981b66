//! The software bill of materials of a program, as CycloneDX 1.5 JSON.
//!
//! Pure: made from the output of `cargo metadata` and `cargo tree`, and from `Cargo.lock`. The
//! same input gives the same document. `super` runs the commands and writes the file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// A package, by name and version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PackageKey {
    name: String,
    version: String,
}

impl PackageKey {
    pub(super) fn new(name: &str, version: &str) -> PackageKey {
        PackageKey { name: name.to_owned(), version: version.to_owned() }
    }
}

/// The program that the document describes.
pub(super) struct Program<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    /// SHA-256 of the file, in hexadecimal.
    pub(super) sha256: &'a str,
    /// The cargo package that contains it.
    pub(super) package: &'a str,
}

/// What cargo says about the dependencies.
pub(super) struct Dependencies<'a> {
    /// The output of `cargo metadata`.
    pub(super) metadata: &'a Value,
    pub(super) lock: &'a toml::Table,
    /// The packages whose code is in the program.
    pub(super) linked: &'a BTreeSet<PackageKey>,
    /// These, and the packages that are needed only to build it: procedural macros and the
    /// dependencies of build scripts.
    pub(super) needed: &'a BTreeSet<PackageKey>,
}

/// Reads the output of `cargo tree --prefix none --format {p}`: `serde v1.0.228`, or
/// `cli v0.1.0 (/path)`.
pub(super) fn parse_tree(output: &str) -> BTreeSet<PackageKey> {
    let package = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        version.starts_with(|c: char| c.is_ascii_digit()).then(|| PackageKey::new(name, version))
    };
    output.lines().filter_map(package).collect()
}

/// The document. `created` is a time in RFC 3339.
pub(super) fn document(
    program: &Program<'_>,
    dependencies: &Dependencies<'_>,
    created: Option<&str>,
) -> Result<Value, String> {
    let checksums = checksums(dependencies.lock);
    let own = format!("pkg:generic/{}@{}", program.name, program.version);
    let mut components = Vec::new();
    // The name of each package in the document, by cargo's id.
    let mut references = BTreeMap::new();
    let mut found = BTreeSet::new();
    for package in array(dependencies.metadata, "packages")? {
        let key = PackageKey::new(text(package, "name")?, text(package, "version")?);
        if !dependencies.needed.contains(&key) {
            continue;
        }
        let is_program = key.name == program.package && package["source"].is_null();
        let reference = if is_program { own.clone() } else { purl(&key, package) };
        references.insert(text(package, "id")?, reference.clone());
        if !is_program {
            let is_linked = dependencies.linked.contains(&key);
            components.push(component(&key, package, &reference, &checksums, is_linked));
        }
        found.insert(key);
    }
    if let Some(missing) = dependencies.needed.difference(&found).next() {
        return Err(format!("cargo metadata does not list {} {}", missing.name, missing.version));
    }
    if !references.values().any(|reference| *reference == own) {
        return Err(format!("the package {} is not in the dependency tree", program.package));
    }
    components.sort_by(|a, b| a["bom-ref"].as_str().cmp(&b["bom-ref"].as_str()));
    let mut metadata = json!({
        "tools": {"components": [{
            "type": "application", "name": "fleetmend-xtask", "version": program.version,
        }]},
        "component": {
            "type": "application",
            "bom-ref": own,
            "name": program.name,
            "version": program.version,
            "purl": own,
            "hashes": [{"alg": "SHA-256", "content": program.sha256}],
        },
    });
    if let Some(created) = created {
        metadata["timestamp"] = json!(created);
    }
    let mut document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": edges(dependencies.metadata, &references)?,
    });
    document["serialNumber"] = json!(serial_number(&document));
    Ok(document)
}

fn component(
    key: &PackageKey,
    package: &Value,
    reference: &str,
    checksums: &BTreeMap<PackageKey, String>,
    is_linked: bool,
) -> Value {
    let mut component = Map::new();
    let mut set = |name: &str, value: Value| component.insert(name.to_owned(), value);
    set("type", json!("library"));
    set("bom-ref", json!(reference));
    set("name", json!(key.name));
    set("version", json!(key.version));
    set("purl", json!(reference));
    // "excluded": not reachable when the program runs.
    set("scope", json!(if is_linked { "required" } else { "excluded" }));
    if let Some(description) = package["description"].as_str() {
        set("description", json!(description.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    if let Some(license) = package["license"].as_str() {
        // The slash is an old way to write OR.
        let expression = license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
        set("licenses", json!([{"expression": expression}]));
    }
    if let Some(checksum) = checksums.get(key) {
        set("hashes", json!([{"alg": "SHA-256", "content": checksum}]));
    }
    if let Some(repository) = package["repository"].as_str() {
        set("externalReferences", json!([{"type": "vcs", "url": repository}]));
    }
    Value::Object(component)
}

/// The package URL. Packages of this workspace are not those of the same name on crates.io.
fn purl(key: &PackageKey, package: &Value) -> String {
    let PackageKey { name, version } = key;
    let version = version.replace('+', "%2B");
    match package["source"].is_null() {
        true => format!("pkg:generic/fleetmend/{name}@{version}"),
        false => format!("pkg:cargo/{name}@{version}"),
    }
}

/// The dependencies of each package, without those that only tests need.
fn edges(metadata: &Value, references: &BTreeMap<&str, String>) -> Result<Vec<Value>, String> {
    let mut edges = BTreeMap::new();
    for node in array(&metadata["resolve"], "nodes")? {
        let Some(from) = references.get(text(node, "id")?) else { continue };
        let mut to = BTreeSet::new();
        for dependency in array(node, "deps")? {
            let kinds = array(dependency, "dep_kinds")?;
            if kinds.iter().any(|kind| kind["kind"] != "dev") {
                to.extend(references.get(text(dependency, "pkg")?));
            }
        }
        edges.insert(from, to);
    }
    Ok(edges.iter().map(|(from, to)| json!({"ref": from, "dependsOn": to})).collect())
}

/// The SHA-256 of each downloaded package.
fn checksums(lock: &toml::Table) -> BTreeMap<PackageKey, String> {
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let checksum = |package: &toml::Value| {
        let text = |name: &str| package.get(name)?.as_str();
        let key = PackageKey::new(text("name")?, text("version")?);
        Some((key, text("checksum")?.to_owned()))
    };
    packages.into_iter().flatten().filter_map(checksum).collect()
}

/// A UUID made from the content, so that a rebuild of the same release has the same one.
fn serial_number(document: &Value) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, document.to_string().as_bytes());
    let mut hex: Vec<char> =
        digest.as_ref().iter().take(16).flat_map(|byte| hex_digits(*byte)).collect();
    // Version 8 (application-defined), variant of RFC 9562.
    hex[12] = '8';
    hex[16] = 'a';
    let part = |from: usize, to: usize| hex[from..to].iter().collect::<String>();
    let [a, b, c, d, e] = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)];
    format!("urn:uuid:{a}-{b}-{c}-{d}-{e}")
}

fn hex_digits(byte: u8) -> [char; 2] {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    [digit(byte >> 4), digit(byte & 15)]
}

fn array<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>, String> {
    value[name].as_array().ok_or_else(|| format!("cargo metadata has no list `{name}`"))
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, String> {
    value[name].as_str().ok_or_else(|| format!("cargo metadata has no text `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Value {
        let package = |name: &str, version: &str, source: Option<&str>, license: &str| {
            json!({"id": format!("{name}#{version}"), "name": name, "version": version,
                "source": source, "license": license, "description": "a\n b", "repository": null})
        };
        let registry = Some("registry+https://github.com/rust-lang/crates.io-index");
        let dep = |id: &str, kind: Option<&str>| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [
                package("cli", "0.1.0", None, "Apache-2.0"),
                package("wire", "0.1.0", None, "Apache-2.0"),
                package("serde", "1.0.1", registry, "MIT/Apache-2.0"),
                package("zstd-sys", "2.0.1+zstd.1.5", registry, "MIT"),
                package("macros", "3.0.0", registry, "MIT"),
                package("insta", "4.0.0", registry, "MIT"),
            ],
            "resolve": {"nodes": [
                {"id": "cli#0.1.0", "deps": [dep("wire#0.1.0", None), dep("insta#4.0.0", Some("dev"))]},
                {"id": "wire#0.1.0", "deps": [dep("serde#1.0.1", None), dep("zstd-sys#2.0.1+zstd.1.5", None)]},
                {"id": "serde#1.0.1", "deps": [dep("macros#3.0.0", Some("build"))]},
                {"id": "zstd-sys#2.0.1+zstd.1.5", "deps": []},
                {"id": "macros#3.0.0", "deps": []},
                {"id": "insta#4.0.0", "deps": []},
            ]},
        })
    }

    const LINKED: &str = "cli v0.1.0 (/somewhere)\nwire v0.1.0 (/somewhere)\nserde v1.0.1\n\
                          zstd-sys v2.0.1+zstd.1.5\nserde v1.0.1 (*)\n    Blocking waiting for a lock\n";

    fn create(needed: &str) -> Result<Value, String> {
        let lock = "[[package]]\nname = \"serde\"\nversion = \"1.0.1\"\nchecksum = \"abc\"\n";
        let program =
            Program { name: "fleetmend", version: "0.1.0", sha256: "def", package: "cli" };
        let dependencies = Dependencies {
            metadata: &metadata(),
            lock: &lock.parse().unwrap(),
            linked: &parse_tree(LINKED),
            needed: &parse_tree(&format!("{LINKED}{needed}")),
        };
        document(&program, &dependencies, Some("2026-11-18T00:00:00Z"))
    }

    #[test]
    fn document_lists_packages_with_licenses_checksums_and_dependencies() {
        let document = create("macros v3.0.0 (proc-macro)\n").unwrap();
        let component = |name: &str| {
            let all = document["components"].as_array().unwrap();
            all.iter().find(|one| one["name"] == name).cloned()
        };
        assert_eq!(
            component("serde").unwrap(),
            json!({"type": "library", "bom-ref": "pkg:cargo/serde@1.0.1", "name": "serde",
                "version": "1.0.1", "purl": "pkg:cargo/serde@1.0.1", "scope": "required",
                "description": "a b", "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "hashes": [{"alg": "SHA-256", "content": "abc"}]})
        );
        assert_eq!(component("wire").unwrap()["purl"], "pkg:generic/fleetmend/wire@0.1.0");
        assert_eq!(component("zstd-sys").unwrap()["purl"], "pkg:cargo/zstd-sys@2.0.1%2Bzstd.1.5");
        assert_eq!(component("macros").unwrap()["scope"], "excluded");
        assert_eq!(component("insta"), None, "only tests need it");
        assert_eq!(component("cli"), None, "it is the program itself");
        assert_eq!(
            document["dependencies"],
            json!([
                {"ref": "pkg:cargo/macros@3.0.0", "dependsOn": []},
                {"ref": "pkg:cargo/serde@1.0.1", "dependsOn": ["pkg:cargo/macros@3.0.0"]},
                {"ref": "pkg:cargo/zstd-sys@2.0.1%2Bzstd.1.5", "dependsOn": []},
                {"ref": "pkg:generic/fleetmend/wire@0.1.0",
                    "dependsOn": ["pkg:cargo/serde@1.0.1", "pkg:cargo/zstd-sys@2.0.1%2Bzstd.1.5"]},
                {"ref": "pkg:generic/fleetmend@0.1.0",
                    "dependsOn": ["pkg:generic/fleetmend/wire@0.1.0"]},
            ])
        );
    }

    #[test]
    fn same_input_gives_the_same_document() {
        let (one, again) = (create("").unwrap(), create("").unwrap());
        assert_eq!(one, again);
        let other = create("macros v3.0.0\n").unwrap();
        assert_ne!(one["serialNumber"], other["serialNumber"]);
        let serial = one["serialNumber"].as_str().unwrap();
        assert_eq!(serial.len(), "urn:uuid:".len() + 36, "{serial}");
    }

    #[test]
    fn package_that_cargo_does_not_describe_is_an_error() {
        assert!(create("unknown v9.9.9\n").unwrap_err().contains("unknown 9.9.9"));
    }
}
