//! Tests of how publisher-specific fields are interpreted.

use domain::advisory::{Advisory, Family, Rating, Span, SpanEnd};
use feed::{Feed, FeedKind};
use vocab::{FixState, Severity};

use crate::support::{Folder, advisories, all, osv};

fn ratings(advisory: &Advisory) -> Vec<String> {
    let show = |rated: &domain::advisory::CveRating| {
        let cve = rated.flaw.as_deref().unwrap_or("all");
        match &rated.rating {
            Rating::Word(word) => format!("{cve}: {word}"),
            Rating::Cvss(score) => format!("{cve}: {score}"),
        }
    };
    advisory.ratings.iter().map(show).collect()
}

/// The spans of one affected package in an OSV record with these extra fields.
fn spans(test: &str, ecosystem: &str, fields: &str) -> Vec<Span> {
    let text = format!(
        r#"{{"id":"A-1","affected":[{{"package":{{"ecosystem":"{ecosystem}","name":"x"}},{fields}}}]}}"#
    );
    osv(test, &text).affected.remove(0).spans
}

#[test]
fn cves_are_found_in_every_field_publishers_use() {
    let cves = |text: &str| osv("cves", text).flaws;
    assert_eq!(
        cves(r#"{"id":"DSA-1-1","upstream":["CVE-2026-2","CVE-2026-1"]}"#),
        ["CVE-2026-1", "CVE-2026-2"]
    );
    assert_eq!(cves(r#"{"id":"GHSA-1","aliases":["CVE-2026-1","GHSA-2"]}"#), ["CVE-2026-1"]);
    assert_eq!(cves(r#"{"id":"ALSA-1","related":["CVE-2026-1","CVE-2026-1"]}"#), ["CVE-2026-1"]);
    assert_eq!(cves(r#"{"id":"ALPINE-CVE-2026-1"}"#), ["CVE-2026-1"]);
    assert_eq!(cves(r#"{"id":"CVE-2026-1","related":["CVE-2026-9"]}"#), ["CVE-2026-1"]);
    assert_eq!(
        cves(
            r#"{"id":"USN-1-1","upstream":["CVE-2026-1","UBUNTU-CVE-2026-1"],"related":["CVE-2026-9"]}"#
        ),
        ["CVE-2026-1"]
    );
    assert_eq!(
        cves(r#"{"id":"USN-5495-2","upstream":[]}"#),
        ["USN-5495-2"],
        "identified by its own id"
    );
    assert_eq!(cves(r#"{"id":"ALBA-1","related":null}"#), [""; 0], "a bug fix has no CVE");
}

#[test]
fn event_order_does_not_change_spans() {
    let range = |events: &str| {
        spans(
            "events",
            "Debian:12",
            &format!(r#""ranges":[{{"type":"ECOSYSTEM","events":[{events}]}}]"#),
        )
    };
    let span = |from: Option<&str>, end| Span { from: from.map(str::to_owned), end };
    let fixed = |version: &str| SpanEnd::Fixed(version.to_owned());
    assert_eq!(range(r#"{"introduced":"0"},{"fixed":"2"}"#), [span(None, fixed("2"))]);
    assert_eq!(range(r#"{"fixed":"2"},{"introduced":"0"}"#), [span(None, fixed("2"))]);
    assert_eq!(range(r#"{"fixed":"2"},{"introduced":"1"}"#), [span(Some("1"), fixed("2"))]);
    assert_eq!(
        range(r#"{"last_affected":"1"},{"introduced":"1"}"#),
        [span(Some("1"), SpanEnd::Last("1".to_owned()))]
    );
    assert_eq!(range(r#"{"introduced":"0"}"#), [Span::ALL]);
    assert_eq!(
        range(r#"{"introduced":"1"},{"last_affected":"2"}"#),
        [span(Some("1"), SpanEnd::Last("2".to_owned()))]
    );
    let three =
        [span(None, fixed("2")), span(Some("10"), fixed("11")), span(Some("20"), SpanEnd::Open)];
    assert_eq!(
        range(
            r#"{"introduced":"20"},{"introduced":"0"},{"fixed":"11"},{"fixed":"2"},{"introduced":"10"}"#
        ),
        three
    );
    let elsewhere = |version: &str| SpanEnd::FixedElsewhere(version.to_owned());
    for (events, expected) in [
        // An end without an open span is ignored.
        (r#"{"introduced":"0"},{"fixed":"2"},{"fixed":"5"}"#, vec![span(None, fixed("2"))]),
        (r#"{"introduced":"3"},{"fixed":"2"}"#, vec![span(Some("3"), SpanEnd::Open)]),
        (r#"{"fixed":"2"}"#, vec![span(None, fixed("2"))]),
        // A limit ends the range, even before a fix. Of several limits, the highest counts.
        (r#"{"introduced":"0"},{"fixed":"5"},{"limit":"3"}"#, vec![span(None, elsewhere("3"))]),
        (r#"{"introduced":"0"},{"fixed":"2"},{"limit":"3"}"#, vec![span(None, fixed("2"))]),
        (r#"{"introduced":"0"},{"limit":"3"},{"limit":"4"}"#, vec![span(None, elsewhere("4"))]),
        (r#"{"introduced":"0"},{"limit":"3"},{"limit":"*"}"#, vec![Span::ALL]),
        ("", vec![]),
    ] {
        assert_eq!(range(events), expected, "{events}");
    }
    let git = r#""ranges":[{"type":"GIT","events":[{"introduced":"abc"}]}],"versions":["1","2"]"#;
    let one = |version: &str| span(Some(version), SpanEnd::Last(version.to_owned()));
    assert_eq!(spans("git", "Debian:12", git), [one("1"), one("2")]);
    let listed = r#""ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"2"}]}],
        "versions":["1","1.9","2","2.5"]"#;
    assert_eq!(
        spans("listed", "Debian:12", listed),
        [span(None, fixed("2")), one("2"), one("2.5")],
        "versions that are only in the list count as affected"
    );
}

#[test]
fn debian_urgency_sets_state_and_severity() {
    let read = |urgency: &str| {
        let text = format!(
            r#"{{"id":"DEBIAN-CVE-2026-1","affected":[{{"package":{{"ecosystem":"Debian:12","name":"x"}},
            "ranges":[{{"type":"ECOSYSTEM","events":[{{"introduced":"0"}}]}}],"ecosystem_specific":{{"urgency":"{urgency}"}}}}]}}"#
        );
        let affected = osv("urgency", &text).affected.remove(0);
        (affected.stance, affected.severity)
    };
    assert_eq!(read("not yet assigned"), (None, None));
    assert_eq!(read("high"), (None, Some(Severity::High)));
    assert_eq!(read("unimportant"), (Some(FixState::Unimportant), Some(Severity::Low)));
    assert_eq!(read("end-of-life"), (Some(FixState::EndOfLife), None));
}

#[test]
fn ubuntu_priorities_apply_per_cve() {
    let text = r#"{"id":"USN-1-1","upstream":["CVE-2026-1","CVE-2026-2"],
        "severity":[{"type":"Ubuntu","score":"high"},{"type":"CVSS_V3","score":"CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H"},{"type":"CVSS_V9","score":"?"}],
        "affected":[
        {"package":{"ecosystem":"Ubuntu:22.04:LTS","name":"curl"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"1"}]}],
         "database_specific":{"cves_map":{"cves":[{"id":"CVE-2026-1","severity":[{"type":"Ubuntu","score":"negligible"}]}]}}},
        {"package":{"ecosystem":"Ubuntu:24.04:LTS","name":"curl"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"1"}]}],
         "database_specific":{"cves_map":{"cves":[{"id":"CVE-2026-1","severity":[{"type":"Ubuntu","score":"negligible"}]}]}}}]}"#;
    assert_eq!(
        ratings(&osv("ubuntu", text)),
        ["all: high", "all: 7.5 (cvss:3.1)", "CVE-2026-1: low"]
    );
}

#[test]
fn kernel_live_patch_is_not_a_fixed_package() {
    let text = r#"{"id":"LSN-1-1","upstream":["CVE-2026-1"],"affected":[{"package":{"ecosystem":"Ubuntu:Pro:22.04:LTS","name":"linux"},
        "ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"5.15.0-1.1"}]}],"ecosystem_specific":{"module_name_regex":"lkp_.*"}}]}"#;
    assert_eq!(osv("lsn", text).affected, []);
}

#[test]
fn rebuild_summary_states_severity_and_module() {
    let text = r#"{"id":"ALSA-1","summary":"Important: nodejs:18 security, bug fix, and enhancement update","related":["CVE-2026-1"],"affected":[
        {"package":{"ecosystem":"AlmaLinux:9","name":"nodejs"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"1:18.12.1-1.module_el9.1.0+16+91bc168f"}]}]},
        {"package":{"ecosystem":"AlmaLinux:9","name":"plain"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"1-1.el9"}]}]}]}"#;
    let advisory = osv("alma", text);
    assert_eq!(ratings(&advisory), ["all: high"]);
    assert_eq!(advisory.affected[0].modules, ["nodejs:18"]);
    assert_eq!(advisory.affected[1].modules, [""; 0]);
    let two = text.replace("nodejs:18 security", "virt:rhel and virt-devel:rhel security");
    assert_eq!(osv("two-streams", &two).affected[0].modules, ["virt:rhel", "virt-devel:rhel"]);
    let debian = r#"{"id":"DSA-1","summary":"Important: x","affected":[{"package":{"ecosystem":"Debian:12","name":"x"}}]}"#;
    assert_eq!(
        osv("not-alma", debian).ratings,
        [],
        "other distributions do not state the severity in the summary"
    );
}

#[test]
fn alpine_fixes_become_one_advisory_per_vulnerability() {
    let folder = Folder::new("secdb");
    let text = r#"{"distroversion":"v3.22","reponame":"main","packages":[
        {"pkg":{"name":"apache2","secfixes":{
            "2.4.68-r0":["CVE-2026-1 CVE-2026-2 (+ regression)"],
            "2.4.66-r0":["CVE-2026-1","XSA-466"],
            "2.4.60-r0":["CVE-2020-24659 GNUTLS-SA-2020-09-04", "CVE-2021-1 SA-1", "CVE-2021-2 SA-1 # remark CVE-1"],
            "2.4.61-r0":["GNUTLS-SA-2020-09-04", "CVE-????-????? TS-2024-005", "DW202402-001"],
            "0":["CVE-2020-9"]}}},
        {"pkg":{"name":"quiet","secfixes":null}}]}"#;
    let path = folder.write("main.json", text);
    let time = "2026-08-22T00:00:00Z".parse().unwrap();
    let feed = Feed::new(&path, FeedKind::Secdb).as_of(time).check(&mut |_| {}).unwrap();
    let shown: Vec<String> = all(&feed)
        .into_iter()
        .map(|record| match record {
            feed::Record::Advisory(advisory) => {
                assert_eq!(advisory.modified, Some(time));
                assert_eq!(advisory.affected[0].ecosystem.family(), Family::Alpine);
                let fixes = advisory.affected[0].spans.iter().map(|span| match &span.end {
                    SpanEnd::Fixed(version) => version.as_str(),
                    other => panic!("{other:?}"),
                });
                let (fixes, aliases) = (fixes.collect::<Vec<_>>(), &advisory.aliases);
                format!("{} {:?} {fixes:?} {aliases:?}", advisory.id, advisory.flaws)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#"secdb:v3.22/main/apache2/CVE-2020-24659 ["CVE-2020-24659"] ["2.4.60-r0", "2.4.61-r0"] ["GNUTLS-SA-2020-09-04"]"#,
            r#"secdb:v3.22/main/apache2/CVE-2020-9 ["CVE-2020-9"] ["0"] []"#,
            r#"secdb:v3.22/main/apache2/CVE-2021-1 ["CVE-2021-1"] ["2.4.60-r0"] ["SA-1"]"#,
            r#"secdb:v3.22/main/apache2/CVE-2021-2 ["CVE-2021-2"] ["2.4.60-r0"] ["SA-1"]"#,
            r#"secdb:v3.22/main/apache2/CVE-2026-1 ["CVE-2026-1"] ["2.4.66-r0", "2.4.68-r0"] []"#,
            r#"secdb:v3.22/main/apache2/CVE-2026-2 ["CVE-2026-2"] ["2.4.68-r0"] []"#,
            r#"secdb:v3.22/main/apache2/DW202402-001 ["DW202402-001"] ["2.4.61-r0"] []"#,
            r#"secdb:v3.22/main/apache2/TS-2024-005 ["TS-2024-005"] ["2.4.61-r0"] []"#,
            r#"secdb:v3.22/main/apache2/XSA-466 ["XSA-466"] ["2.4.66-r0"] []"#,
        ]
    );
}

#[test]
fn release_line_overrides_unstable_and_states_are_mapped() {
    let folder = Folder::new("tracker");
    let list = "\
# synthetic
CVE-2026-0001 (A vulnerability in many packages ...)
\t{DSA-5678-1 DLA-1-1}
\t- in-release 2.0-1 (bug #1)
\t[bookworm] - in-release 1.0-1+deb12u1
\t[bullseye] - in-release <no-dsa> (Minor issue)
\t- unstable-only 2.0-1
\t- nothing-yet <unfixed> (low; bug #2)
\t- harmless 2.0-1 (unimportant; bug #3)
\t- small 2.0-1
\t[bookworm] - small <no-dsa> (Minor issue)
\t- later <unfixed>
\t[bookworm] - later <postponed> (Revisit)
\t- never 2.0-1
\t[bookworm] - never <ignored> (Too intrusive)
\t- safe 2.0-1
\t[bookworm] - safe <not-affected> (Vulnerable code introduced later)
\t[bookworm] - old <end-of-life>
\t- gone <removed>
\t- unsure <undetermined>
\t- not-in-unstable <not-affected> (Only the release has the code)
\t- wish <itp> (bug #4)
\t[bullseye] - elsewhere <no-dsa>
\tNOTE: https://example.org/a - b
\tTODO: check
CVE-2026-0002
\tRESERVED
";
    let kind =
        FeedKind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() };
    let advisories = advisories(&folder.write("list", list), kind);
    assert_eq!(advisories.len(), 1, "a reserved CVE has no advisory");
    let advisory = &advisories[0];
    assert_eq!(advisory.id, "debian-tracker:bookworm/CVE-2026-0001");
    assert_eq!(advisory.flaws, ["CVE-2026-0001"]);
    let show = |affected: &domain::advisory::Affected| {
        assert_eq!(affected.ecosystem.as_str(), "Debian:12");
        let end = match &affected.spans[..] {
            [Span { from: None, end: SpanEnd::Fixed(version) }] => format!("fixed in {version}"),
            [Span { from: None, end: SpanEnd::FixedElsewhere(version) }] => {
                format!("elsewhere in {version}")
            }
            [Span { from: None, end: SpanEnd::Open }] => "open".to_owned(),
            other => panic!("{other:?}"),
        };
        let stance = affected.stance.map_or("", FixState::as_str);
        let severity = affected.severity.map_or("", Severity::as_str);
        format!("{}: {end} {stance} {severity}", affected.package).trim_end().to_owned()
    };
    assert_eq!(
        advisory.affected.iter().map(show).collect::<Vec<_>>(),
        [
            "gone: open affected",
            "harmless: elsewhere in 2.0-1 unimportant low",
            "in-release: fixed in 1.0-1+deb12u1",
            "later: open deferred",
            "never: elsewhere in 2.0-1 wont_fix",
            "not-in-unstable: fixed in 0",
            "nothing-yet: open affected low",
            "old: open end_of_life",
            "safe: elsewhere in 2.0-1 not_affected",
            "small: elsewhere in 2.0-1 deferred",
            "unstable-only: elsewhere in 2.0-1",
            "unsure: open unknown",
        ]
    );
}
