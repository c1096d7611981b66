//! Forged backups: restoring one writes only below the data directory, or nothing at all.
//!
//! The digests in a backup are not secret, so each forgery has valid ones.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Dir, first_key, fleetmend};

const REGULAR: u8 = b'0';

/// One entry of the tar archive inside a backup.
#[derive(Clone)]
struct Entry {
    name: String,
    kind: u8,
    link: &'static str,
    bytes: Vec<u8>,
}

/// The contents of a backup, for modification.
#[derive(Clone)]
struct Forgery {
    manifest: Value,
    entries: Vec<Entry>,
    trailer: Vec<u8>,
}

impl Forgery {
    fn read(file: &Path) -> Forgery {
        let tar = zstd::decode_all(fs::File::open(file).unwrap()).unwrap();
        let mut entries = Vec::new();
        let mut rest = &tar[..];
        while rest[0] != 0 {
            let (head, body) = rest.split_at(512);
            let text = |range: std::ops::Range<usize>| {
                String::from_utf8(head[range].to_vec()).unwrap().trim_matches('\0').to_owned()
            };
            let size = usize::from_str_radix(&text(124..136), 8).unwrap();
            let bytes = body[..size].to_vec();
            entries.push(Entry { name: text(0..100), kind: REGULAR, link: "", bytes });
            rest = &body[size.next_multiple_of(512)..];
        }
        let manifest = serde_json::from_slice(&entries.remove(0).bytes).unwrap();
        Forgery { manifest, entries, trailer: Vec::new() }
    }

    fn add(&mut self, name: &str, kind: u8, link: &'static str, bytes: &[u8]) {
        self.entries.push(Entry { name: name.to_owned(), kind, link, bytes: bytes.to_vec() });
    }

    fn entry(&mut self, name: &str) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.name == name).unwrap()
    }

    /// Writes the backup with matching digests.
    fn write(mut self, file: &Path) {
        let part = |entry: &Entry| json!({"name": entry.name, "bytes": entry.bytes.len(), "sha256": sha256(&entry.bytes)});
        self.manifest["parts"] = self.entries.iter().map(part).collect();
        let manifest = serde_json::to_vec(&self.manifest).unwrap();
        let mut tar = Vec::new();
        let list =
            Entry { name: "manifest.json".to_owned(), kind: REGULAR, link: "", bytes: manifest };
        for entry in std::iter::once(&list).chain(&self.entries) {
            let mut head = [0; 512];
            head[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
            head[124..136].copy_from_slice(format!("{:011o}\0", entry.bytes.len()).as_bytes());
            head[156] = entry.kind;
            head[157..157 + entry.link.len()].copy_from_slice(entry.link.as_bytes());
            head[257..265].copy_from_slice(b"ustar\x0000");
            // The checksum is computed with spaces in its place.
            head[148..156].fill(b' ');
            let sum: u32 = head.iter().copied().map(u32::from).sum();
            head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            tar.extend(head);
            tar.extend(&entry.bytes);
            tar.resize(tar.len().next_multiple_of(512), 0);
        }
        tar.extend([0; 1024]);
        tar.extend(self.trailer);
        let mut packed = zstd::encode_all(&tar[..], 3).unwrap();
        let seal = sha256(&packed);
        packed.extend(0x184d_2a50_u32.to_le_bytes());
        packed.extend(64_u32.to_le_bytes());
        packed.extend(seal.as_bytes());
        fs::File::create(file).unwrap().write_all(&packed).unwrap();
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

struct RestoreFixture {
    dir: Dir,
    genuine: Forgery,
    forged: PathBuf,
    target: PathBuf,
}

impl RestoreFixture {
    fn new() -> RestoreFixture {
        let dir = Dir::new();
        first_key(&dir.data());
        let pem = dir.0.join("pem");
        fs::write(&pem, "a certificate or its key").unwrap();
        let settings = format!("tls_cert = {pem:?}\ntls_key = {pem:?}\n");
        fs::write(dir.data().join("fleetmend.toml"), settings).unwrap();
        let file = dir.0.join("genuine.backup");
        let done = run(&["backup", "--data-dir", text(&dir.data()), text(&file)]);
        assert!(done.0, "{}", done.1);
        let (forged, target) = (dir.0.join("forged.backup"), dir.0.join("target"));
        fs::create_dir(&target).unwrap();
        RestoreFixture { genuine: Forgery::read(&file), dir, forged, target }
    }

    /// Restores a forged backup. Returns whether it succeeded, and its output. Fails if anything
    /// changed outside the target.
    fn restore(&self, forgery: Forgery) -> (bool, String) {
        forgery.write(&self.forged);
        let before = self.outside();
        let done = run(&["restore", "--data-dir", text(&self.target), text(&self.forged)]);
        assert_eq!(self.outside(), before, "something changed outside the data directory");
        done
    }

    /// Restores and checks a forged backup: both must be rejected for this reason and leave nothing
    /// behind.
    #[track_caller]
    fn refused(&self, what: &str, why: &str, forgery: Forgery) {
        let (restored, output) = self.restore(forgery);
        assert!(!restored && output.contains(why), "{what}: {output}");
        let left: Vec<_> = fs::read_dir(&self.target).unwrap().collect();
        assert!(left.is_empty(), "{what}: {left:?}");
        let (fine, output) = run(&["restore", "--check", text(&self.forged)]);
        assert!(!fine && output.contains(why), "{what}: {output}");
    }

    /// Every path outside the target, with its contents.
    fn outside(&self) -> BTreeSet<(PathBuf, Vec<u8>)> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.dir.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path == self.target {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path.clone());
                }
                found.insert((path.clone(), fs::read(&path).unwrap_or_default()));
            }
        }
        found
    }
}

fn run(args: &[&str]) -> (bool, String) {
    let done = fleetmend(args).output().unwrap();
    let output = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&output).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn certificate_paths_in_a_manifest_are_not_written_to() {
    let fixture = RestoreFixture::new();
    let mut forgery = fixture.genuine.clone();
    let outside = fixture.target.join("../cron.d/root");
    forgery.manifest["tls"] = json!([outside, fixture.target.join("tls/../../evil")]);
    let (restored, output) = fixture.restore(forgery);
    assert!(restored, "{output}");
    for name in ["tls/cert.pem", "tls/key.pem"] {
        assert_eq!(fs::read(fixture.target.join(name)).unwrap(), b"a certificate or its key");
    }
}

#[test]
fn parts_with_unexpected_names_are_rejected() {
    let fixture = RestoreFixture::new();
    for name in [
        "../evil",
        "/tmp/evil",
        "tls/../../evil",
        "database/../../evil",
        "./root.key",
        "tls//cert.pem",
        "tls/./cert.pem",
        "cron.d/evil",
        "database/evil.copy",
        "database",
        "root.key/x",
        "",
        "..",
        "\u{1b}]0;evil\u{7}",
    ] {
        let mut forgery = fixture.genuine.clone();
        forgery.add(name, REGULAR, "", b"evil");
        fixture.refused(name, "does not belong in a backup", forgery);
    }
    // A manifest with an invalid engine, and one with a missing part.
    let mut forgery = fixture.genuine.clone();
    forgery.manifest["engine"] = json!("../..");
    fixture.refused("engine", "neither sqlite nor postgres", forgery);
    let mut forgery = fixture.genuine.clone();
    forgery.entries.retain(|entry| entry.name != "orders.key");
    fixture.refused("missing", "`orders.key` is missing", forgery);
}

#[test]
fn links_and_devices_are_rejected() {
    let fixture = RestoreFixture::new();
    // Hard link, symbolic link, character device, block device, directory, FIFO, contiguous file,
    // and the GNU and POSIX extension headers.
    for kind in *b"1234567LKxg" {
        for name in ["tls/cert.pem", "root.key", "database/database.sqlite"] {
            let mut forgery = fixture.genuine.clone();
            let entry = forgery.entry(name);
            (entry.kind, entry.link) = (kind, "/etc/passwd");
            fixture.refused(name, "is not a regular file", forgery);
        }
    }
}

#[test]
fn duplicate_part_is_rejected() {
    let fixture = RestoreFixture::new();
    for name in ["root.key", "tls/key.pem", "database/database.sqlite"] {
        let mut forgery = fixture.genuine.clone();
        let bytes = forgery.entry(name).bytes.clone();
        forgery.add(name, REGULAR, "", &bytes);
        fixture.refused(name, "is listed twice", forgery);
    }
}

#[test]
fn decompression_bombs_are_rejected_before_unpacking() {
    let fixture = RestoreFixture::new();
    let mut forgery = fixture.genuine.clone();
    forgery.entry("database/database.sqlite").bytes = vec![0; 160 << 20];
    fixture.refused("database", "more than the limit of", forgery);
    let mut forgery = fixture.genuine.clone();
    forgery.entry("root.key").bytes = vec![0; 2 << 20];
    fixture.refused("key", "more than the limit of 1048576", forgery);
    let mut forgery = fixture.genuine.clone();
    forgery.trailer = vec![0; 1 << 20];
    fixture.refused("trailer", "bytes follow the last part", forgery);
}

#[test]
fn settings_in_a_backup_cannot_place_the_database_elsewhere() {
    let fixture = RestoreFixture::new();
    let elsewhere = fixture.dir.0.join("elsewhere.db");
    let dots = fixture.target.join("../elsewhere.db");
    for path in [&elsewhere, &dots, &fixture.target] {
        let mut forgery = fixture.genuine.clone();
        let settings = format!("database = {:?}\n", format!("sqlite:{}", path.display()));
        forgery.entry("fleetmend.toml").bytes = settings.into_bytes();
        let (restored, output) = fixture.restore(forgery);
        assert!(!restored && output.contains("set it with --database"), "{output}");
    }
    assert!(fs::read_dir(&fixture.target).unwrap().next().is_none());
}

#[test]
fn restore_does_not_follow_symbolic_links() {
    let fixture = RestoreFixture::new();
    let elsewhere = fixture.dir.0.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for name in ["tls", "tls/cert.pem", "root.key", "fleetmend.db", "fleetmend.db-wal"] {
        fs::remove_dir_all(&fixture.target).unwrap();
        fs::create_dir_all(fixture.target.join(name).parent().unwrap()).unwrap();
        symlink(&elsewhere, fixture.target.join(name)).unwrap();
        let (restored, output) = fixture.restore(fixture.genuine.clone());
        assert!(!restored && output.contains("is a symbolic link"), "{name}: {output}");
        fs::remove_file(fixture.target.join(name)).unwrap();
        symlink(elsewhere.join("new"), fixture.target.join(name)).unwrap();
        let (restored, output) = fixture.restore(fixture.genuine.clone());
        assert!(!restored && output.contains("is a symbolic link"), "{name}: {output}");
    }
}

/// When root runs `restore`, the data directory belongs to the service's user, who may have put
/// anything there.
#[test]
fn root_restores_with_the_rights_of_the_owner_only() {
    const OWNER: u32 = 65_534;
    let fixture = RestoreFixture::new();
    if fixture.dir.0.metadata().unwrap().uid() != 0 {
        println!("skipped: only root can restore for another user");
        return;
    }
    chown(&fixture.target, Some(OWNER), Some(OWNER)).unwrap();
    let roots = fixture.dir.0.join("roots");
    fs::create_dir(&roots).unwrap();
    fixture.genuine.clone().write(&fixture.forged);
    let restore = |database: &Path| {
        let database = format!("sqlite:{}", database.display());
        let place = ["--data-dir", text(&fixture.target), "--database", &database];
        run(&[&["restore", text(&fixture.forged)], &place[..]].concat())
    };
    let (restored, output) = restore(&roots.join("fleetmend.db"));
    assert!(!restored && output.contains("Permission denied"), "{output}");
    assert!(fs::read_dir(&roots).unwrap().next().is_none());
    fs::read_dir(&fixture.target)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .for_each(|path| fs::remove_file(path).unwrap());
    let (restored, output) = restore(&fixture.target.join("fleetmend.db"));
    assert!(restored, "{output}");
    let mut folders = vec![fixture.target.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(path.symlink_metadata().unwrap().uid(), OWNER, "{}", path.display());
            folders.extend(path.is_dir().then_some(path));
        }
    }
}
