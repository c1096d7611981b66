//! Tests of CSAF documents of Red Hat and SUSE: products, packages, modules, and the meaning of
//! each status.

use std::collections::BTreeMap;

use domain::advisory::{Advisory, Affected, PackageNameKind, Rating, SpanEnd};
use feed::FeedKind;
use serde_json::{Value, json};
use vocab::Severity;

use crate::support::{Folder, advisories, chain, check, gzip, zip};

/// A product tree with one branch per product and per package, and their relationships.
#[derive(Default)]
struct Tree {
    products: Vec<Value>,
    relationships: Vec<Value>,
}

impl Tree {
    fn product(mut self, id: &str, cpe: &str) -> Tree {
        let helper = json!({"cpe": cpe});
        let product =
            json!({"name": id, "product_id": id, "product_identification_helper": helper});
        self.products.push(json!({"category": "product_name", "name": id, "product": product}));
        self
    }

    fn package(mut self, id: &str, purl: Option<&str>) -> Tree {
        let mut product = json!({"name": id, "product_id": id});
        if let Some(purl) = purl {
            product["product_identification_helper"] = json!({"purl": purl});
        }
        self.products.push(json!({"category": "product_version", "name": id, "product": product}));
        self
    }

    fn relate(mut self, product: &str, package: &str) -> Tree {
        self.relationships.push(json!({
            "category": "default_component_of",
            "full_product_name": {"name": "x", "product_id": format!("{product}:{package}")},
            "product_reference": package,
            "relates_to_product_reference": product,
        }));
        self
    }

    fn document(self, publisher: &str, mut vulnerability: Value) -> Value {
        let cve = "CVE-2026-0001";
        vulnerability["cve"] = json!(cve);
        json!({
            "document": {
                "aggregate_severity": {"text": "moderate"},
                "category": "csaf_vex",
                "csaf_version": "2.0",
                "publisher": {"category": "vendor", "name": publisher},
                "title": "foo: a crash",
                "tracking": {
                    "id": cve,
                    "initial_release_date": "2026-01-01T00:00:00+00:00",
                    "current_release_date": "2026-02-01T00:00:00+00:00",
                },
            },
            "product_tree": {
                "branches": [{"category": "vendor", "name": publisher, "branches": self.products}],
                "relationships": self.relationships,
            },
            "vulnerabilities": [vulnerability],
        })
    }
}

const RED_HAT: &str = "Red Hat Product Security";
const SUSE: &str = "SUSE Product Security Team";

/// A document with a package, a module, a fix and a remediation.
pub(crate) fn sample() -> Value {
    let main = "AppStream-9.3.0.Z.MAIN";
    let module = "mod:12:8100020240814102525:489197e6";
    let inner = format!("{main}:{module}");
    Tree::default()
        .product(main, "cpe:/a:redhat:enterprise_linux:9::appstream")
        .product("rhel9", "cpe:/o:redhat:enterprise_linux:9")
        .package("a-1:3.0-1.el9.x86_64", Some("pkg:rpm/redhat/a@3.0-1.el9?arch=x86_64&epoch=1"))
        .package(module, Some("pkg:rpmmod/redhat/mod@12:8100020240814102525:489197e6"))
        .package("b-0:1-1.module%2Bel9.src", None)
        .package("c", None)
        .relate(main, "a-1:3.0-1.el9.x86_64")
        .relate(main, module)
        .relate(&inner, "b-0:1-1.module%2Bel9.src")
        .relate("rhel9", "c")
        .document(
            RED_HAT,
            json!({
                "product_status": {
                    "fixed": [format!("{main}:a-1:3.0-1.el9.x86_64"),
                        format!("{inner}:b-0:1-1.module%2Bel9.src")],
                    "known_affected": ["rhel9:c"],
                },
                "remediations": [{"category": "no_fix_planned", "details": "Will not fix",
                    "product_ids": ["rhel9:c"]}],
                "threats": [{"category": "impact", "details": "Low", "product_ids": ["rhel9:c"]}],
                "scores": [{"cvss_v3": {
                    "vectorString": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H"}}],
            }),
        )
}

fn read(test: &str, document: &Value) -> Advisory {
    let folder = Folder::new(test);
    let path = folder.write("one.json", serde_json::to_string_pretty(document).unwrap());
    let mut all = advisories(&path, FeedKind::Csaf);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// `ecosystem package [source] [module]: statement`, for comparison in assertions.
fn format_statement(affected: &Affected) -> String {
    let mut text = format!("{} {}", affected.ecosystem, affected.package);
    if affected.name_kind() == PackageNameKind::Source {
        text.push_str(" (source)");
    }
    for module in &affected.modules {
        text.push_str(&format!(" [{module}]"));
    }
    let ends: Vec<&str> = affected
        .spans
        .iter()
        .map(|span| match &span.end {
            SpanEnd::Fixed(version) => version.as_str(),
            SpanEnd::Open => "open",
            other => panic!("{other:?}"),
        })
        .collect();
    let stance = affected.stance.map(|stance| stance.to_string());
    let ends = ends.join(" ");
    format!("{text}: {}", stance.into_iter().chain([ends]).collect::<Vec<_>>().join(" ").trim())
}

fn statements(advisory: &Advisory) -> Vec<String> {
    advisory.affected.iter().map(format_statement).collect()
}

#[test]
fn remediation_distinguishes_states_of_unfixed_packages() {
    let mut tree = Tree::default().product("rhel9", "cpe:/o:redhat:enterprise_linux:9");
    for package in ["a", "b", "c", "d", "e", "f", "g"] {
        tree = tree.package(package, None).relate("rhel9", package);
    }
    let document = tree.document(
        RED_HAT,
        json!({
            "product_status": {
                "known_affected": ["rhel9:a", "rhel9:b", "rhel9:c", "rhel9:d", "rhel9:e"],
                "known_not_affected": ["rhel9:f"],
                "under_investigation": ["rhel9:g"],
            },
            "remediations": [
                {"category": "workaround", "details": "Turn it off.", "product_ids": ["rhel9:a"]},
                {"category": "none_available", "details": "Affected", "product_ids": ["rhel9:a"]},
                {"category": "none_available", "details": "Fix deferred", "product_ids": ["rhel9:b"]},
                {"category": "no_fix_planned", "details": "Will not fix", "product_ids": ["rhel9:c"]},
                {"category": "no_fix_planned", "details": "Out of support scope",
                    "product_ids": ["rhel9:d"]},
            ],
        }),
    );
    let advisory = read("csaf-unfixed", &document);
    assert_eq!(advisory.id, "redhat-vex:CVE-2026-0001");
    assert_eq!(advisory.flaws, ["CVE-2026-0001"]);
    assert_eq!(advisory.summary, "foo: a crash");
    assert_eq!(advisory.modified, Some("2026-02-01T00:00:00Z".parse().unwrap()));
    assert_eq!(advisory.ratings[0].rating, Rating::Word(Severity::Medium));
    assert_eq!(
        statements(&advisory),
        [
            "Red Hat:9 a (source): affected open",
            "Red Hat:9 b (source): deferred open",
            "Red Hat:9 c (source): wont_fix open",
            "Red Hat:9 d (source): end_of_life open",
            "Red Hat:9 e (source): affected open",
            "Red Hat:9 f (source): not_affected",
            "Red Hat:9 g (source): unknown open",
        ]
    );
}

#[test]
fn fixes_are_merged_per_release_and_package() {
    let main = "AppStream-9.3.0.Z.MAIN";
    let base = "BaseOS-9.3.0.Z.MAIN";
    let eus = "AppStream-9.0.0.Z.EUS";
    let layered = "8Base-JBCS";
    let rpm = |name: &str, version: &str, arch: &str| {
        (
            format!("{name}-1:{version}.{arch}"),
            format!("pkg:rpm/redhat/{name}@{version}?arch={arch}&epoch=1"),
        )
    };
    let mut tree = Tree::default()
        .product(main, "cpe:/a:redhat:enterprise_linux:9::appstream")
        .product(base, "cpe:/o:redhat:enterprise_linux:9::baseos")
        .product(eus, "cpe:/a:redhat:rhel_eus:9.0::appstream")
        .product(layered, "cpe:/a:redhat:jboss_core_services:1::el8")
        .product("rhel9", "cpe:/o:redhat:enterprise_linux:9");
    let mut fixed = Vec::new();
    for (product, version) in [
        (main, "3.0-26.el9_3"),
        (base, "3.0-26.el9_3"),
        (eus, "3.0-14.el9_0"),
        (layered, "9-1.el8"),
    ] {
        for (name, arch) in [
            ("a", "x86_64"),
            ("a", "aarch64"),
            ("a", "src"),
            ("a-libs", "x86_64"),
            ("a-debuginfo", "x86_64"),
        ] {
            let (id, purl) = rpm(name, version, arch);
            tree = tree.package(&id, Some(&purl)).relate(product, &id);
            fixed.push(format!("{product}:{id}"));
        }
    }
    let tree = tree
        .package("a", None)
        .relate("rhel9", "a")
        .package("a-container", Some("pkg:oci/a-container?repository_url=registry.example/a"))
        .relate("rhel9", "a-container");
    let document = tree.document(
        RED_HAT,
        json!({
            "product_status": {
                "fixed": fixed,
                "known_affected": ["rhel9:a", "rhel9:a-container"],
            },
            "threats": [{"category": "impact", "details": "Important", "product_ids": fixed}],
            "scores": [{"cvss_v3": {
                "vectorString": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H",
            }, "products": fixed}],
        }),
    );
    let advisory = read("csaf-fixes", &document);
    assert_eq!(
        statements(&advisory),
        [
            "Red Hat:9 a: 1:3.0-26.el9_3",
            "Red Hat:9 a-libs: 1:3.0-26.el9_3",
            "Red Hat:rhel_eus:9.0 a: 1:3.0-14.el9_0",
            "Red Hat:rhel_eus:9.0 a-libs: 1:3.0-14.el9_0",
        ]
    );
    assert!(advisory.affected.iter().all(|one| one.severity == Some(Severity::High)));
    assert_eq!(advisory.ratings.len(), 1, "the CVSS score only");
}

#[test]
fn minor_release_state_never_applies_to_major_release() {
    let document = Tree::default()
        .product("rhel-9.7", "cpe:/a:redhat:enterprise_linux:9")
        .product("rhel-9.2.0.z.eus", "cpe:/a:redhat:rhel_eus:9.2")
        .product("rhel-7-els.els", "cpe:/o:redhat:rhel_els:7")
        .package("a.src", Some("pkg:rpm/redhat/a?arch=src"))
        .package("a-0:1-1.el9_2", Some("pkg:rpm/redhat/a@1-1.el9_2?epoch=0"))
        .relate("rhel-9.7", "a.src")
        .relate("rhel-9.2.0.z.eus", "a.src")
        .relate("rhel-7-els.els", "a.src")
        .document(
            RED_HAT,
            json!({"product_status": {
                "known_affected": ["rhel-9.7:a.src", "rhel-7-els.els:a.src"],
                "known_not_affected": ["rhel-9.2.0.z.eus:a.src"],
            }}),
        );
    assert_eq!(
        statements(&read("csaf-minor", &document)),
        ["Red Hat:9 a (source): affected open", "Red Hat:rhel_els:7 a (source): affected open",]
    );
}

#[test]
fn fix_for_one_minor_release_overrides_another() {
    let document = Tree::default()
        .product("rhel-8.9.0.z", "cpe:/a:redhat:enterprise_linux:8")
        .product("rhel-8.10.z::appstream", "cpe:/a:redhat:enterprise_linux:8::appstream")
        .package("a.src", Some("pkg:rpm/redhat/a?arch=src"))
        .package("a-0:4-32.el8_10", Some("pkg:rpm/redhat/a@4-32.el8_10?epoch=0"))
        .relate("rhel-8.9.0.z", "a.src")
        .relate("rhel-8.10.z::appstream", "a-0:4-32.el8_10")
        .document(
            RED_HAT,
            json!({"product_status": {
                "fixed": ["rhel-8.10.z::appstream:a-0:4-32.el8_10"],
                "known_affected": ["rhel-8.9.0.z:a.src"],
            }}),
        );
    assert_eq!(statements(&read("csaf-minors", &document)), ["Red Hat:8 a (source): 4-32.el8_10"]);
}

#[test]
fn module_streams_are_parsed_in_three_formats() {
    let module = "foo:12:8100020240814102525:489197e6";
    let main = "AppStream-8.10.0.Z";
    let inner = format!("{main}:{module}");
    let newer = "foo-0:6-1.module+el8.10.0+1+abc.x86_64::foo:6";
    let older = "foo-0:5-1.module+el8.10.0+1+abc.x86_64";
    let document = Tree::default()
        .product(main, "cpe:/a:redhat:enterprise_linux:8::appstream")
        .product("rhel8", "cpe:/o:redhat:enterprise_linux:8")
        .package(module, Some("pkg:rpmmod/redhat/foo@12:8100020240814102525:489197e6"))
        .package(older, Some("pkg:rpm/redhat/foo@5-1.module%2Bel8.10.0%2B1%2Babc?arch=x86_64"))
        .package(
            newer,
            Some(
                "pkg:rpm/redhat/foo@6-1.module%2Bel8.10.0%2B1%2Babc?arch=x86_64&rpmmod=foo:6:81:48",
            ),
        )
        .package("foo:7/foo.src", Some("pkg:rpm/redhat/foo?arch=src&rpmmod=foo:7"))
        .package("foo-0:8-8100020240826142629.d47b87a4", None)
        .relate(main, module)
        .relate(&inner, older)
        .relate(main, newer)
        .relate("rhel8", "foo:7/foo.src")
        .relate(main, "foo-0:8-8100020240826142629.d47b87a4")
        .document(
            RED_HAT,
            json!({"product_status": {
                "fixed": [inner, format!("{inner}:{older}"), format!("{main}:{newer}"),
                    format!("{main}:foo-0:8-8100020240826142629.d47b87a4")],
                "known_affected": ["rhel8:foo:7/foo.src"],
            }}),
        );
    assert_eq!(
        statements(&read("csaf-modules", &document)),
        [
            "Red Hat:8 foo [foo:12]: 5-1.module+el8.10.0+1+abc",
            "Red Hat:8 foo [foo:6]: 6-1.module+el8.10.0+1+abc",
            "Red Hat:8 foo (source) [foo:7]: affected open",
        ]
    );
}

#[test]
fn suse_fixes_and_remediations_are_read() {
    let server = "SUSE Linux Enterprise Server 15 SP5";
    let ltss = "SUSE Linux Enterprise Server 15 SP3-LTSS";
    let document = Tree::default()
        .product(server, "cpe:/o:suse:sles:15:sp5")
        .product(ltss, "cpe:/o:suse:sles-ltss:15:sp3")
        .product("SUSE Manager Server 4.2", "cpe:/o:suse:suse-manager-server:4.2")
        .package("a-libs-1.15-4.25", None)
        .package("b-libs", Some("pkg:rpm/suse/b-libs@?upstream=b.src.rpm"))
        .package("d-libs-2-1.1", Some("pkg:rpm/suse/d-libs@2-1.1?upstream=d-2-1.1.src.rpm"))
        .package("e", None)
        .relate(server, "a-libs-1.15-4.25")
        .relate(server, "d-libs-2-1.1")
        .relate(server, "e")
        .relate("SUSE Manager Server 4.2", "a-libs-1.15-4.25")
        .relate(server, "b-libs")
        .document(
            SUSE,
            json!({
                "product_status": {
                    "recommended": [format!("{server}:a-libs-1.15-4.25"),
                        "SUSE Manager Server 4.2:a-libs-1.15-4.25",
                        format!("{server}:d-libs-2-1.1")],
                    "known_not_affected": [format!("{server}:b-libs"), format!("{server}:e")],
                },
                "remediations": [{"category": "no_fix_planned", "details": "There is no fix planned.",
                    // Neither the relationship nor the package is in the tree.
                    "product_ids": [format!("{ltss}:c-devel"), format!("{ltss}:c-devel")]}],
            }),
        );
    let advisory = read("csaf-suse", &document);
    assert_eq!(advisory.id, "suse-vex:CVE-2026-0001");
    assert_eq!(
        statements(&advisory),
        [
            "SUSE:Linux Enterprise Server 15 SP3-LTSS c-devel: wont_fix open",
            "SUSE:Linux Enterprise Server 15 SP5 a-libs: 1.15-4.25",
            "SUSE:Linux Enterprise Server 15 SP5 b (source): not_affected",
            "SUSE:Linux Enterprise Server 15 SP5 d (source): 2-1.1",
        ]
    );
    let named = |names| advisory.affected.iter().filter(move |one| one.names == names).count();
    assert_eq!((named(Some(PackageNameKind::Binary)), named(None)), (2, 2));
}

#[test]
fn document_without_products_replaces_earlier_version() {
    let mut document = Tree::default().document(SUSE, json!({}));
    assert_eq!(read("csaf-empty", &document).affected, []);
    document.as_object_mut().unwrap().remove("vulnerabilities");
    document.as_object_mut().unwrap().remove("product_tree");
    let advisory = read("csaf-empty", &document);
    assert_eq!(advisory.id, "suse-vex:CVE-2026-0001");
    assert_eq!(advisory.affected, []);
}

#[test]
fn advisory_with_several_cves_becomes_several_records() {
    let mut document = Tree::default()
        .product("rhel9", "cpe:/o:redhat:enterprise_linux:9")
        .package("a-0:1-2.el9.x86_64", None)
        .relate("rhel9", "a-0:1-2.el9.x86_64")
        .document(RED_HAT, json!({"product_status": {"fixed": ["rhel9:a-0:1-2.el9.x86_64"]}}));
    document["document"]["category"] = json!("csaf_security_advisory");
    document["document"]["tracking"]["id"] = json!("RHSA-2026:0001");
    let mut second = document["vulnerabilities"][0].clone();
    second["cve"] = json!("CVE-2026-0002");
    document["vulnerabilities"].as_array_mut().unwrap().push(second);
    let folder = Folder::new("csaf-several");
    let all = advisories(&folder.write("a.json", document.to_string()), FeedKind::Csaf);
    let ids: BTreeMap<&str, Vec<String>> =
        all.iter().map(|one| (one.id.as_str(), statements(one))).collect();
    let fixed = vec!["Red Hat:9 a: 1-2.el9".to_owned()];
    assert_eq!(
        ids,
        BTreeMap::from([
            ("redhat-csaf:RHSA-2026:0001/CVE-2026-0001", fixed.clone()),
            ("redhat-csaf:RHSA-2026:0001/CVE-2026-0002", fixed),
        ])
    );
}

#[test]
fn documents_of_other_publishers_are_refused() {
    let folder = Folder::new("csaf-refused");
    let refusal = |document: &Value| {
        let path = folder.write("x.json", document.to_string());
        chain(&check(&path, FeedKind::Csaf).expect_err("the publisher is not supported"))
    };
    let document = Tree::default().document("Example Vendor", json!({}));
    assert!(
        refusal(&document).ends_with("not those of `Example Vendor`"),
        "{}",
        refusal(&document)
    );
    let mut document = Tree::default().document(RED_HAT, json!({}));
    document["document"]["category"] = json!("something");
    assert!(refusal(&document).contains("not a CSAF document"));
    assert!(refusal(&json!({"id": "DSA-1-1"})).contains("no `document`"));
    document["document"]["category"] = json!("csaf_vex");
    document["document"]["tracking"]["id"] = json!("");
    assert!(refusal(&document).contains("no tracking id"));
}

/// A tar archive as GNU tar writes it.
pub(crate) fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in entries {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[156] = if name.ends_with('/') { b'5' } else { b'0' };
        header[257..265].copy_from_slice(b"ustar  \0");
        archive.extend_from_slice(&header);
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

#[test]
fn documents_are_read_and_detected_in_every_format() {
    let folder = Folder::new("csaf-forms");
    let one = Tree::default().document(RED_HAT, json!({})).to_string();
    let two = one.replace("CVE-2026-0001", "CVE-2026-0002");
    let archive = tar(&[
        ("2026/", b""),
        ("2026/cve-2026-0001.json", one.as_bytes()),
        ("2026/cve-2026-0002.json", two.as_bytes()),
        ("2026/cve-2026-0002.json.asc", b"not JSON"),
    ]);
    folder.write("folder/2026/a.json", &one);
    folder.write("folder/2026/b.json", &two);
    folder.write("folder/2026/feed.json", r#"{"feed": {"entry": []}}"#);
    folder.write("folder/provider-metadata.json", r#"{"canonical_url": "https://example.com"}"#);
    for (name, bytes) in [
        ("a.jsonl", format!("{one}\n{two}\n").into_bytes()),
        ("b.jsonl.gz", gzip(format!("{one}\n{two}\n").as_bytes())),
        ("c.json", format!("[{one},{two}]").into_bytes()),
        ("d.zip", zip(&[("a.json", one.as_bytes()), ("b.json", two.as_bytes())])),
        ("e.tar", archive.clone()),
        ("f.tar.gz", gzip(&archive)),
        ("g.tar.zst", zstd::stream::encode_all(&archive[..], 1).unwrap()),
    ] {
        let path = folder.write(name, bytes);
        assert_eq!(advisories(&path, FeedKind::Csaf).len(), 2, "{name}");
        assert_eq!(feed::sniff(&path).unwrap().kind, Some(FeedKind::Csaf), "{name}");
        assert_eq!(feed::is_tar(&path), name.contains(".tar"), "{name}");
    }
    let path = folder.path().join("folder");
    assert_eq!(advisories(&path, FeedKind::Csaf).len(), 2);
    assert_eq!(feed::sniff(&path).unwrap().kind, Some(FeedKind::Csaf));
}

#[test]
fn oversized_document_is_refused() {
    let folder = Folder::new("csaf-too-large");
    let large = vec![b'"'; 65 << 20];
    let archive = tar(&[("a.json", &large)]);
    for (name, bytes) in [("a.json.zst", &large), ("b.tar.zst", &archive)] {
        let path = folder.write(name, zstd::stream::encode_all(&bytes[..], 1).unwrap());
        let error = check(&path, FeedKind::Csaf).expect_err(name);
        assert!(
            chain(&error).contains("exceeds the limit of 64 MiB per record"),
            "{}",
            chain(&error)
        );
    }
}

#[test]
fn tar_archive_truncated_at_any_byte_is_refused() {
    let folder = Folder::new("csaf-cut-off");
    let one = Tree::default().document(RED_HAT, json!({})).to_string();
    let archive = tar(&[("a.json", one.as_bytes()), ("b.json", one.as_bytes())]);
    let packed = zstd::stream::encode_all(&archive[..], 1).unwrap();
    // The two empty blocks at the end are padding.
    let whole = archive.len() - 1024;
    for (name, bytes, needed) in [("a.tar", &archive, whole), ("b.tar.zst", &packed, packed.len())]
    {
        assert!(check(&folder.write(name, bytes), FeedKind::Csaf).is_ok(), "{name}");
        for keep in (1..needed).step_by(1 + needed / 50).chain([needed - 1]) {
            let path = folder.write(name, &bytes[..keep]);
            assert!(check(&path, FeedKind::Csaf).is_err(), "{name}: {keep} of {}", bytes.len());
        }
    }
    let mut broken = archive;
    broken[124] = b'x';
    assert!(check(&folder.write("c.tar", broken), FeedKind::Csaf).is_err());
}
