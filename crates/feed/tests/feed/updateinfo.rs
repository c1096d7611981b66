//! updateinfo files of Amazon Linux and Oracle Linux: what is read, and what is refused.

use std::fmt::Write as _;

use domain::advisory::{Advisory, Affected, CveRating, Rating, Span};
use feed::FeedKind;
use proptest::prelude::*;
use vocab::Severity;

use crate::support::{Folder, advisories, check, gzip};

/// In the layout of Amazon Linux 2023, which puts several elements on one line.
const AMAZON: &str = r#"<?xml version="1.0" ?>
<updates><update status="final" version="1.4" author="linux-security@amazon.com" type="security" from="linux-security@amazon.com"><id>ALAS2023-2026-001</id><title>Amazon Linux 2023 - ALAS2023-2026-001:
 Important priority package update for curl &amp; more</title><issued date="2026-07-01 20:41:00" /><updated date="2026-07-02 23:22" /><severity>Important</severity><description>Package updates are available.
CVE-2026-0009 &lt;b&gt;</description><references><reference href="http://cve.mitre.org/cgi-bin/cvename.cgi?name=CVE-2026-0002" title="" id="CVE-2026-0002" type="cve" /><reference href="x" id="CVE-2026-0001" type="cve"/><reference href="y" id="426091" type="bugzilla"/></references><pkglist><collection short="amazon-linux-2023"><name>Amazon Linux 2023</name><package arch="aarch64" name="curl" release="1.amzn2023.0.2" version="8.5.0" epoch="0"><filename>Packages/curl.rpm</filename></package><package arch="x86_64" name="curl" release="1.amzn2023.0.2" version="8.5.0" epoch="0"/><package arch="x86_64" name="libcurl" release="1.amzn2023.0.2" version="8.5.0" epoch="1"/><package arch="src" name="curl-source" release="1" version="1" epoch="0"/></collection></pkglist></update>
<update type="bugfix"><id>ALAS2023-2026-002</id><pkglist><collection><package arch="x86_64" name="bash" version="9" release="1"/></collection></pkglist></update></updates>
"#;

fn kind() -> FeedKind {
    FeedKind::Updateinfo { ecosystem: "Amazon Linux:2023".to_owned() }
}

fn update(inner: &str) -> String {
    format!("<updates><update type=\"security\"><id>ELSA-1</id>{inner}</update></updates>")
}

fn packages(collection: &str) -> String {
    update(&format!("<pkglist><collection>{collection}</collection></pkglist>"))
}

fn read(folder: &Folder, text: &str) -> Vec<Advisory> {
    advisories(&folder.write("updateinfo.xml", text), kind())
}

fn refusal(folder: &Folder, text: impl AsRef<[u8]>) -> String {
    check(&folder.write("updateinfo.xml", text), kind()).unwrap_err().to_string()
}

#[test]
fn security_update_becomes_an_advisory() {
    let folder = Folder::new("updateinfo-advisory");
    let fixed = |name: &str, version: &str| {
        let mut affected = Affected::new("Amazon Linux:2023", name);
        affected.spans.push(Span::until(version));
        affected
    };
    let expected = [Advisory {
        id: "ALAS2023-2026-001".to_owned(),
        flaws: vec!["CVE-2026-0001".to_owned(), "CVE-2026-0002".to_owned()],
        aliases: Vec::new(),
        summary: "Amazon Linux 2023 - ALAS2023-2026-001: Important priority package update for curl & more".to_owned(),
        description: String::new(),
        published: Some("2026-07-01T20:41:00Z".parse().unwrap()),
        modified: Some("2026-07-02T23:22:00Z".parse().unwrap()),
        withdrawn: None,
        ratings: vec![CveRating { flaw: None, rating: Rating::Word(Severity::High) }],
        affected: vec![
            fixed("curl", "8.5.0-1.amzn2023.0.2"),
            fixed("libcurl", "1:8.5.0-1.amzn2023.0.2"),
        ],
    }];
    assert_eq!(read(&folder, AMAZON), expected);
    for (name, bytes) in [
        ("u.xml.gz", gzip(AMAZON.as_bytes())),
        ("u.xml.zst", zstd::encode_all(AMAZON.as_bytes(), 1).unwrap()),
    ] {
        assert_eq!(advisories(&folder.write(name, bytes), kind()), expected, "{name}");
    }
}

#[test]
fn repositories_in_one_directory_are_one_feed() {
    let folder = Folder::new("updateinfo-directory");
    folder.write("0.xml.gz", gzip(AMAZON.as_bytes()));
    folder.write("1.xml.zst", zstd::encode_all(update("").as_bytes(), 1).unwrap());
    let ids: Vec<String> =
        advisories(folder.path(), kind()).into_iter().map(|advisory| advisory.id).collect();
    assert_eq!(ids, ["ALAS2023-2026-001", "ELSA-1"]);
}

#[test]
fn module_stream_belongs_to_its_collection() {
    let folder = Folder::new("updateinfo-modules");
    let text = update(
        "<pkglist><collection><module name=\"nodejs\" stream=\"18\" version=\"8\" arch=\"x86_64\"/>\
         <package name=\"npm\" version=\"9\" release=\"1.module+el8\" arch=\"x86_64\"/></collection>\
         <collection><package name=\"npm\" version=\"7\" release=\"1.el8\" arch=\"x86_64\"/>\
         </collection></pkglist>",
    );
    let found = read(&folder, &text).remove(0);
    let found: Vec<(&[String], &Span)> =
        found.affected.iter().map(|one| (&one.modules[..], &one.spans[0])).collect();
    assert_eq!(found[0], (&[][..], &Span::until("7-1.el8")));
    assert_eq!(found[1], (&["nodejs:18".to_owned()][..], &Span::until("9-1.module+el8")));
}

#[test]
fn versions_of_other_architectures_do_not_replace_those_of_x86_64() {
    let folder = Folder::new("updateinfo-arches");
    let text = packages(
        "<package name=\"a\" version=\"3\" release=\"1\" arch=\"aarch64\"/>\
         <package name=\"a\" version=\"2\" release=\"1\" arch=\"x86_64\"/>\
         <package name=\"b\" version=\"3\" release=\"1\" arch=\"aarch64\"/>",
    );
    let found = read(&folder, &text).remove(0).affected;
    assert_eq!(found[0].spans, [Span::until("2-1")]);
    assert_eq!(found[1].spans, [Span::until("3-1")]);
}

#[test]
fn advisory_without_cve_is_known_by_its_own_id() {
    let folder = Folder::new("updateinfo-no-cve");
    let found = read(&folder, &update("<severity>N/A</severity><issued date=\"soon\"/>")).remove(0);
    assert_eq!((found.flaws, found.ratings, found.modified), (vec!["ELSA-1".into()], vec![], None));
}

#[test]
fn broken_file_is_refused_with_the_reason() {
    let folder = Folder::new("updateinfo-broken");
    let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><updates></updates>";
    for (text, why) in [
        ("", "truncated"),
        ("<updates>", "truncated"),
        ("<updates><update type=\"secur", "truncated"),
        ("<updates></updates>", "contains no records"),
        ("<html><body>Sign in</body></html>", "not an updateinfo file: it begins with `html`"),
        ("<!doctype html><html></html>", "document type declaration is not allowed"),
        (bomb, "document type declaration is not allowed"),
        ("<updates><update></updates>", "invalid XML"),
        ("<updates></updates><updates></updates>", "content after the end"),
        (&update("<title>&a;</title>"), "unknown entity `a`"),
        (&update("<issued date=\"&a;\"/>"), "invalid XML"),
        ("<updates><update type=\"security\"></update></updates>", "an update has no id"),
        (&packages("<package name=\"a\" version=\"1\"/>"), "a package has no release"),
        (
            &packages("<package name=\"a\" version=\"1\" release=\"1\" epoch=\"x\"/>"),
            "not an epoch",
        ),
        ("PK not really", "truncated"),
    ] {
        let refusal = refusal(&folder, text);
        assert!(refusal.contains(why), "{text}: {refusal}");
    }
    assert!(refusal(&folder, [b"<updates>".as_slice(), &[0xff, 0xfe, b'<']].concat()).len() > 10);
    let packed = gzip(AMAZON.as_bytes());
    assert!(refusal(&folder, &packed[..packed.len() / 2]).contains("truncated"));
}

#[test]
fn hostile_file_cannot_use_much_memory() {
    let folder = Folder::new("updateinfo-hostile");
    let deep = format!("<updates>{}", "<a>".repeat(100_000));
    assert!(refusal(&folder, &deep).contains("32 levels of XML"));
    let many_attributes = (0..100_000).fold(String::new(), |mut text, n| {
        write!(text, " a{n}=\"\"").unwrap();
        text
    });
    let wide = update(&format!("<x{many_attributes}/>"));
    assert!(refusal(&folder, &wide).contains("64 XML attributes"));
    let long = "x".repeat(5 << 20);
    for text in [
        update(&format!("<issued date=\"{long}\"/>")),
        update(&format!("<description>{long}</description>")),
        format!("<updates><!-- {long} --></updates>"),
        format!("<{long}>"),
    ] {
        assert!(refusal(&folder, &text).contains("4 MiB per XML tag or text"));
    }
    let name = "n".repeat(2_000);
    let named = packages(&format!("<package name=\"{name}\" version=\"1\" release=\"1\"/>"));
    assert!(refusal(&folder, &named).contains("1000 bytes per name"));
    let crowd = "<package name=\"a\" version=\"1\" release=\"1\"/>".repeat(20_001);
    assert!(refusal(&folder, packages(&crowd)).contains("20000 packages per record"));
    let modules = "<module name=\"n\" stream=\"s\"/>".repeat(101);
    assert!(refusal(&folder, packages(&modules)).contains("100 modules per record"));
    let wide_modules =
        format!("<module name=\"{0}\" stream=\"{0}\"/>", "m".repeat(999)).repeat(100);
    let copied = "<package name=\"a\" version=\"1\" release=\"1\"/>".repeat(2_000);
    let text = packages(&format!("{wide_modules}{copied}"));
    assert!(refusal(&folder, text).contains("MiB of memory per advisory"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_file_is_read_or_refused(
        at in 0..AMAZON.len(),
        with in prop::collection::vec(any::<u8>(), 0..4),
        cut in any::<bool>(),
    ) {
        let folder = Folder::new("updateinfo-damaged");
        let mut bytes = AMAZON.as_bytes().to_vec();
        match cut {
            true => bytes.truncate(at),
            false => drop(bytes.splice(at..(at + 2).min(AMAZON.len()), with)),
        }
        let path = folder.write("updateinfo.xml", bytes);
        let _ = feed::sniff(&path);
        let checked = check(&path, kind());
        // The last line is a line end after the document.
        prop_assert!(!cut || at + 1 >= AMAZON.len() || checked.is_err());
    }
}
