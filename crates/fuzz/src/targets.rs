//! The fuzz targets. Each also checks the invariants of input that parses.

use std::path::Path;

use agent_client::{HostKey, Identity};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use vocab::terminal::{escape_line, escape_text, is_unsafe};
use vocab::{Installed, Pending, listing};
use wire::agent::{EnrollRequest, EnrollResponse, Envelope, Order, SyncRequest, SyncResponse};

use crate::Target;

pub(crate) const ALL: &[Target] = &[
    Target { name: "agent_requests", run: agent_requests },
    Target { name: "package_set", run: package_set },
    Target { name: "orders", run: orders },
    Target { name: "server_answers", run: server_answers },
    Target { name: "feed_osv", run: |input| feed(input, feed::FeedKind::Osv) },
    Target { name: "feed_csaf", run: |input| feed(input, feed::FeedKind::Csaf) },
    Target { name: "feed_tracker", run: |input| feed(input, tracker()) },
    Target { name: "feed_secdb", run: |input| feed(input, feed::FeedKind::Secdb) },
    Target { name: "feed_arch", run: |input| feed(input, feed::FeedKind::Arch) },
    Target { name: "feed_updateinfo", run: feed_updateinfo },
    Target { name: "feed_kev", run: |input| feed(input, feed::FeedKind::Kev) },
    Target { name: "feed_epss", run: |input| feed(input, feed::FeedKind::Epss) },
    Target { name: "feed_archives", run: feed_archives },
    #[cfg(feature = "server")]
    Target { name: "bundle", run: bundle },
    #[cfg(feature = "server")]
    Target { name: "backup", run: crate::backup::run },
    #[cfg(feature = "server")]
    Target { name: "oidc", run: service::auth::oidc::fuzz },
    Target { name: "apt", run: |input| agent::backend::apt::fuzz(&text(input)) },
    Target { name: "dnf", run: |input| agent::backend::dnf::fuzz(&text(input)) },
    Target { name: "zypper", run: |input| agent::backend::zypper::fuzz(&text(input)) },
    Target { name: "apk", run: apk },
    Target { name: "pacman", run: |input| agent::backend::pacman::fuzz(&text(input)) },
    Target { name: "versions", run: versions },
    Target { name: "terminal_text", run: terminal_text },
];

fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

fn agent_requests(input: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<SyncRequest>(input) {
        let written = serde_json::to_vec(&request).expect("a parsed request can be serialized");
        let again: SyncRequest =
            serde_json::from_slice(&written).expect("a serialized request can be parsed");
        assert_eq!(again, request);
    }
    if let Ok(request) = serde_json::from_slice::<EnrollRequest>(input) {
        let written = serde_json::to_vec(&request).expect("a parsed request can be serialized");
        let again: EnrollRequest =
            serde_json::from_slice(&written).expect("a serialized request can be parsed");
        assert_eq!(again, request);
    }
}

fn package_set(input: &[u8]) {
    fn check<T: listing::Entry + PartialEq + std::fmt::Debug>(input: &[u8]) {
        if let Ok(mut entries) = listing::decode::<T>(input) {
            listing::sort(&mut entries);
            let written = listing::encode(&entries);
            let again = listing::decode::<T>(&written).expect("an encoded list can be decoded");
            assert_eq!(again, entries);
        }
    }
    check::<Installed>(input);
    check::<Pending>(input);
    #[cfg(feature = "server")]
    gateway::fuzz_package_set(input);
}

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn key_pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed of 32 bytes")
}

/// Verifies a correctly signed order, and an envelope without a valid signature.
fn orders(input: &[u8]) {
    let (pair, text) = (key_pair(), text(input));
    let response = EnrollResponse {
        server_id: "srv_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().expect("an id"),
        tag: base64(&[1]),
        orders_key: base64(pair.public_key().as_ref()),
        orders_keys: Vec::new(),
        counter: 0,
        sync_seconds: 60,
        signs_answers: true,
    };
    let host = Identity::new(HostKey::from_seed([8; 32]), response).expect("a key and a tag");
    let signature = base64(pair.sign(text.as_bytes()).as_ref());
    let envelope = Envelope { order: text.into_owned(), key: "k".to_owned(), signature };
    let time: Timestamp = "2026-11-15T04:30:00Z".parse().expect("a time");
    if let Ok(order) = agent_client::verify_order(&envelope, &host, time) {
        assert!(order.expires_at > time && order.server_id == host.server_id);
    }
    let _ = serde_json::from_slice::<Order>(input);
    if let Ok(unsigned) = serde_json::from_slice::<Envelope>(input) {
        assert!(
            agent_client::verify_order(&unsigned, &host, time).is_err(),
            "an order without a valid signature was accepted"
        );
    }
}

fn server_answers(input: &[u8]) {
    let _ = serde_json::from_slice::<SyncResponse>(input);
    if let Ok(answer) = serde_json::from_slice::<EnrollResponse>(input) {
        let _ = Identity::new(HostKey::from_seed([8; 32]), answer);
    }
    let _ = text(input).parse::<agent_client::Token>();
}

fn tracker() -> feed::FeedKind {
    feed::FeedKind::DebianTracker { codename: "bookworm".to_owned(), version: "12".to_owned() }
}

/// Passes an input to a reader of files. Uses one file per thread, in memory if possible.
fn with_file(input: &[u8], read: impl FnOnce(&Path)) {
    thread_local! {
        static PATH: std::path::PathBuf = {
            let memory = Path::new("/dev/shm");
            let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            folder.join(format!("fleetmend-fuzz-{:?}-{}", std::thread::current().id(), std::process::id()))
        };
    }
    PATH.with(|path| {
        std::fs::write(path, input).expect("write the input file");
        read(path);
        let _ = std::fs::remove_file(path);
    });
}

fn feed(input: &[u8], kind: feed::FeedKind) {
    with_file(input, |path| {
        let Ok(checked) = feed::Feed::new(path, kind).check(&mut |_| {}) else { return };
        let mut records = 0;
        let read = checked.read(&mut |_| {}, |record| {
            records += 1;
            assert!(feed::limits::record_memory_bytes(&record) <= feed::limits::ADVISORY_BYTES_MAX);
            Ok::<(), ()>(())
        });
        assert!(read.is_ok(), "a checked feed can be read");
        assert_eq!(records, checked.summary().records);
    });
}

/// Reads an input as advisories, as the index of a repository, and as a list of mirrors.
fn feed_updateinfo(input: &[u8]) {
    feed(input, feed::FeedKind::Updateinfo { ecosystem: "Amazon Linux:2023".to_owned() });
    if let Ok(file) = feed::repomd::find_updateinfo(input) {
        assert!(!file.path.contains("..") && !file.path.starts_with('/'));
    }
    let _ = feed::repomd::first_mirror(&text(input), "x86_64");
}

/// Reads an input that may be compressed, with the detected format.
fn feed_archives(input: &[u8]) {
    let mut kind = None;
    with_file(input, |path| {
        let _ = feed::is_tar(path);
        kind = feed::sniff(path).ok().and_then(|sniffed| sniffed.kind);
    });
    feed(input, kind.unwrap_or_else(tracker));
}

/// Reads an input as a bundle, unchanged and compressed.
#[cfg(feature = "server")]
fn bundle(input: &[u8]) {
    with_file(input, service::commands::feeds::bundle::fuzz);
    let packed = zstd::encode_all(input, 1).expect("compress in memory");
    with_file(&packed, service::commands::feeds::bundle::fuzz);
}

fn apk(input: &[u8]) {
    agent::backend::apk::fuzz_index(input);
    agent::backend::apk::fuzz(&text(input));
}

/// Compares two versions, one per line.
fn versions(input: &[u8]) {
    use pkgver::Scheme;
    let text = text(input);
    let (a, b) = text.split_once('\n').unwrap_or((&text, "1.0"));
    for scheme in [Scheme::Deb, Scheme::Rpm, Scheme::Apk, Scheme::Pacman] {
        assert!(scheme.compare(a, a).is_eq(), "{scheme:?}: {a:?} is not equal to itself");
        let (there, back) = (scheme.compare(a, b), scheme.compare(b, a));
        assert_eq!(there, back.reverse(), "{scheme:?}: {a:?} and {b:?}");
    }
}

fn terminal_text(input: &[u8]) {
    let text = text(input);
    assert!(!escape_line(&text).contains(is_unsafe));
    let safe = escape_text(&text);
    assert!(!safe.contains(|c| is_unsafe(c) && c != '\n' && c != '\t'));
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(input) {
        // Parses the unescaped text for comparison, because a large number may be rounded when it
        // is parsed.
        let written = value.to_string();
        let plain = serde_json::from_str::<serde_json::Value>(&written).ok();
        let again = serde_json::from_str::<serde_json::Value>(&escape_text(&written)).ok();
        assert!(again.is_some() && again == plain, "escaping must not change JSON values");
    }
}
