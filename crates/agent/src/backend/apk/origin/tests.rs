//! Origins on a system with a database and indexes in the format of apk 2.14 in Alpine 3.18.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::backend::Backend as _;
use crate::backend::apk::Apk;
use crate::root::Root;

/// Three packages with all fields; their maintainers have private addresses, as most of Alpine's
/// do.
const INSTALLED: &str = "\
C:Q1cW5hbWUtb2YtdGhpcy1saWJzc2w=
P:libssl3
V:3.1.4-r1
A:x86_64
S:243611
I:659456
T:SSL shared libraries
U:https://www.openssl.example/
L:Apache-2.0
o:openssl
m:Aino Testaaja <aino.testaaja@private.example>
t:1698232591
c:8a1b2c3d4e5f60718293a4b5c6d7e8f901234567
D:so:libc.musl-x86_64.so.1 so:libcrypto.so.3
p:so:libssl.so.3=3
r:libressl
F:lib
R:libssl.so.3
a:0:0:755
Z:Q1ZmlsZS1vbmUtb2YtbGlic3NsMwA=
F:usr
F:usr/lib
R:libssl.so.3
a:0:0:777
Z:Q1ZmlsZS10d28tb2YtbGlic3NsMwA=

C:Q1bXVzbC1pbnN0YWxsZWQtb25lAAA=
P:musl
V:1.2.4-r1
A:x86_64
S:388864
I:634880
T:the musl c library (libc) implementation
U:https://musl.example/
L:MIT
o:musl
m:Björn Prøve <bjorn@home.example>
t:1691499311
c:0f1e2d3c4b5a69788796a5b4c3d2e1f001234567
k:100
p:so:libc.musl-x86_64.so.1=1
F:lib
R:ld-musl-x86_64.so.1
a:0:0:755
Z:Q1ZmlsZS1vbmUtb2YtbXVzbAAAAAA=
R:libc.musl-x86_64.so.1
a:0:0:777
Z:Q1ZmlsZS10d28tb2YtbXVzbAAAAAA=

C:Q1bmdpbngtZnJvbS1uZ2lueC1vcmc=
P:nginx
V:1.25.3-r1
A:x86_64
S:911233
I:2945024
T:High performance web server
U:https://nginx.example/
L:2-clause BSD-like license
o:nginx
m:Packagers of a web server <packages@web.example>
t:1698189000
c:-dirty
s:web
D:openssl /bin/sh so:libc.musl-x86_64.so.1 so:libcrypto.so.3 so:libssl.so.3
p:nginx-r1.25.3 cmd:nginx=1.25.3-r1
i:!nginx-mainline
F:etc
F:etc/nginx
M:0:0:755
R:nginx.conf
Z:Q1ZmlsZS1vbmUtb2YtbmdpbngAAAA=
F:var/cache/nginx
M:101:101:750

";

const ALPINE_KEY: &str = ".SIGN.RSA.alpine-devel@lists.alpinelinux.org-0a1b2c3d.rsa.pub";
const WEB_KEY: &str = ".SIGN.RSA.web_signing.rsa.pub";
const LIBSSL: &str = "Q1cW5hbWUtb2YtdGhpcy1saWJzc2w=";
const MUSL: &str = "Q1bXVzbC1pbnN0YWxsZWQtb25lAAA=";
const NGINX: &str = "Q1bmdpbngtZnJvbS1uZ2lueC1vcmc=";
/// The checksum of another build.
const OTHER: &str = "Q1YW5vdGhlci1idWlsZC1vZi1pdAA=";

/// A system in a temporary directory, removed on drop.
struct TestSystem {
    dir: PathBuf,
}

impl TestSystem {
    fn new() -> TestSystem {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let system = TestSystem {
            dir: std::env::temp_dir().join(format!("fleetmend-origin-{pid}-{count}")),
        };
        system.write("lib/apk/db/installed", INSTALLED.as_bytes());
        system
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Writes an index to apk's cache.
    fn index(&self, id: &str, bytes: &[u8]) {
        self.write(&format!("var/cache/apk/APKINDEX.{id}.tar.gz"), bytes);
    }

    /// The origins of libssl3, musl and nginx, as the back end reports them.
    fn origins(&self) -> Vec<Option<String>> {
        let installed = Apk::new(Root::under(&self.dir)).installed().unwrap();
        let names: Vec<&str> = installed.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["libssl3", "musl", "nginx"]);
        installed.into_iter().map(|package| package.origin).collect()
    }

    fn assert_origins(&self, expected: [Option<&str>; 3]) {
        let origins = self.origins();
        let origins: Vec<Option<&str>> = origins.iter().map(Option::as_deref).collect();
        assert_eq!(origins, expected);
    }
}

impl Drop for TestSystem {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A file in tar format, without the blocks that end the archive.
fn tar(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000644\x000000000\x000000000\x00");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"14516200000\0        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000root");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = header.to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The text of `APKINDEX` with these packages: `name version checksum`.
fn blocks(packages: &[(&str, &str, &str)]) -> String {
    let block = |(name, version, checksum): &(&str, &str, &str)| {
        format!(
            "C:{checksum}\nP:{name}\nV:{version}\nA:x86_64\nS:1000\nI:2000\nT:A package: {name}\n\
             U:https://{name}.example/\nL:MIT\no:{name}\nm:Aino Testaaja <aino@private.example>\n\
             t:1698232591\nc:8a1b2c3d4e5f60718293a4b5c6d7e8f901234567\nD:so:libc.musl-x86_64.so.1\n\
             p:cmd:{name}={version}\n\n"
        )
    };
    packages.iter().map(block).collect()
}

/// An index in the format of `abuild-sign`: one gzip member with the signature, one with the index.
fn signed(key: &str, packages: &[(&str, &str, &str)]) -> Vec<u8> {
    let mut index = gzip(&tar(key, b'0', &[7; 512]));
    let mut content = tar("DESCRIPTION", b'0', b"v3.18.4-184-g85e6e4ac");
    content.extend(tar("APKINDEX", b'0', blocks(packages).as_bytes()));
    content.extend([0; 1024]);
    index.extend(gzip(&content));
    index
}

fn alpine_index() -> Vec<u8> {
    let newer = [("libssl3", "3.1.4-r1", LIBSSL), ("musl", "1.2.4-r2", OTHER)];
    signed(
        ALPINE_KEY,
        &[&newer[..], &[("nginx", "1.24.0-r6", OTHER), ("zsh", "5-r0", OTHER)]].concat(),
    )
}

const ALPINE: Option<&str> = Some("Alpine Linux");
const WEB: Option<&str> = Some("web_signing");

#[test]
fn maintainer_is_not_the_origin_without_indexes() {
    let system = TestSystem::new();
    system.assert_origins([None; 3]);
    system.write("var/cache/apk/musl-1.2.4-r1.0a1b2c3d.apk", b"not an index");
    system.assert_origins([None; 3]);
}

#[test]
fn current_and_outdated_packages_are_alpines() {
    let system = TestSystem::new();
    system.index("066df28d", &alpine_index());
    system.assert_origins([ALPINE, ALPINE, ALPINE]);
}

#[test]
fn package_of_a_third_party_repository_has_its_key_as_origin() {
    let system = TestSystem::new();
    system.index("066df28d", &alpine_index());
    let versions = [("nginx", "1.25.2-r1", OTHER), ("nginx", "1.25.3-r1", NGINX)];
    system.index("d0f64cb5", &signed(WEB_KEY, &versions));
    system.assert_origins([ALPINE, ALPINE, WEB]);
}

#[test]
fn same_build_in_both_repositories_is_alpines() {
    let system = TestSystem::new();
    let same = [("nginx", "1.25.3-r1", NGINX)];
    // In any order of reading.
    system.index("00000000", &signed(WEB_KEY, &same));
    system.index("11111111", &signed(ALPINE_KEY, &same));
    system.index("22222222", &signed(WEB_KEY, &same));
    system.assert_origins([None, None, ALPINE]);
}

#[test]
fn unlisted_version_goes_by_name_and_alpine_wins() {
    let system = TestSystem::new();
    system.index(
        "00000000",
        &signed(WEB_KEY, &[("nginx", "1.27.0-r1", OTHER), ("musl", "2-r0", OTHER)]),
    );
    system.assert_origins([None, WEB, WEB]);
    system.index("11111111", &signed(ALPINE_KEY, &[("nginx", "1.24.0-r6", OTHER)]));
    system.assert_origins([None, WEB, ALPINE]);
}

#[test]
fn same_version_of_another_build_is_not_this_package() {
    let system = TestSystem::new();
    system.index("00000000", &signed(ALPINE_KEY, &[("nginx", "1.25.3-r1", OTHER)]));
    system.index("11111111", &signed(WEB_KEY, &[("nginx", "1.25.3-r1", NGINX)]));
    system.assert_origins([None, None, WEB]);
    // Without checksums, the version decides.
    let without: String = INSTALLED
        .lines()
        .filter(|line| !line.starts_with("C:"))
        .map(|l| format!("{l}\n"))
        .collect();
    system.write("lib/apk/db/installed", without.as_bytes());
    system.assert_origins([None, None, ALPINE]);
}

#[test]
fn similar_key_name_is_not_alpines() {
    let key = ".SIGN.RSA256.my-alpine-devel@lists.alpinelinux.org-0a1b2c3d.rsa.pub";
    let system = TestSystem::new();
    system.index("00000000", &signed(key, &[("musl", "1.2.4-r1", MUSL)]));
    system.assert_origins([None, Some("my-alpine-devel@lists.alpinelinux.org-0a1b2c3d"), None]);
    let key = ".SIGN.RSA256.alpine-devel@lists.alpinelinux.org-0a1b2c3d.rsa.pub";
    system.index("00000000", &signed(key, &[("musl", "1.2.4-r1", MUSL)]));
    system.assert_origins([None, ALPINE, None]);
}

#[test]
fn additional_signature_leaves_an_index_alpines() {
    let system = TestSystem::new();
    let mut index = gzip(&tar(WEB_KEY, b'0', &[7; 256]));
    index.extend(signed(ALPINE_KEY, &[("musl", "1.2.4-r1", MUSL)]));
    system.index("00000000", &index);
    system.assert_origins([None, ALPINE, None]);
}

#[test]
fn broken_index_counts_as_absent() {
    let web = signed(WEB_KEY, &[("musl", "1.2.4-r1", MUSL), ("nginx", "1.25.3-r1", NGINX)]);
    let mut flipped = web.clone();
    let at = flipped.len() - 6;
    flipped[at] ^= 0xff;
    let mut unsigned = tar("APKINDEX", b'0', blocks(&[("musl", "1.2.4-r1", MUSL)]).as_bytes());
    unsigned.extend([0; 1024]);
    let mut overlong = tar(WEB_KEY, b'0', &[7; 256]);
    let line = format!("P:musl\nV:{}\n", "1".repeat(2 << 20));
    overlong.extend(tar("APKINDEX", b'0', line.as_bytes()));
    let mut huge = tar("APKINDEX", b'0', b"");
    huge[124..135].copy_from_slice(b"77777777777");
    let broken = [
        Vec::new(),
        b"not gzip".to_vec(),
        web[..web.len() / 2].to_vec(),
        web[..web.len() - 1].to_vec(),
        flipped,
        [&web[..], &b"garbage after it"[..]].concat(),
        gzip(b"not tar"),
        gzip(&[b'x'; 2048]),
        gzip(&unsigned),
        gzip(&tar(WEB_KEY, b'0', &[7; 256])),
        gzip(&overlong),
        gzip(&huge),
    ];
    for (number, bytes) in broken.iter().enumerate() {
        let system = TestSystem::new();
        system.index("00000000", bytes);
        assert_eq!(system.origins(), [None, None, None], "index {number}");
        system.index("11111111", &alpine_index());
        system.assert_origins([ALPINE, ALPINE, ALPINE]);
    }
}

#[test]
fn gzip_bomb_counts_as_absent() {
    // 70 MiB in 70 gzip members, so that the test does not have to compress them all.
    let mebibyte = gzip(format!("T:{}\n", "x".repeat(1021)).repeat(1024).as_bytes()).repeat(70);
    let mut list = tar("APKINDEX", b'0', b"C:Q1\nP:nginx\nV:1.25.3-r1\n\n");
    list[124..135].copy_from_slice(format!("{:011o}", 70 << 20).as_bytes());
    let within = [gzip(&tar(WEB_KEY, b'0', &[7; 256])), gzip(&list), mebibyte].concat();
    let zeros = gzip(&vec![0; 1 << 20]).repeat(70);
    let after = [signed(WEB_KEY, &[("nginx", "1.25.3-r1", NGINX)]), zeros].concat();
    for bomb in [within, after] {
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        let system = TestSystem::new();
        system.index("00000000", &bomb);
        system.assert_origins([None; 3]);
    }
}

#[test]
fn number_of_indexes_is_limited() {
    let system = TestSystem::new();
    for number in 0..64 {
        system.index(&format!("{number:08}"), &signed(WEB_KEY, &[("zsh", "5-r0", OTHER)]));
    }
    system.index("99999999", &alpine_index());
    system.assert_origins([None; 3]);
}

#[test]
fn custom_cache_path_is_resolved_inside_the_root() {
    let system = TestSystem::new();
    system.write("media/disk/cache/APKINDEX.066df28d.tar.gz", &alpine_index());
    fs::create_dir_all(system.dir.join("etc/apk")).unwrap();
    symlink("/media/disk/cache", system.dir.join("etc/apk/cache")).unwrap();
    system.assert_origins([ALPINE, ALPINE, ALPINE]);

    // A link to a file outside the root is not followed.
    let (inside, outside) = (TestSystem::new(), TestSystem::new());
    outside.index("066df28d", &alpine_index());
    fs::create_dir_all(inside.dir.join("etc/apk")).unwrap();
    let cache = outside.dir.join("var/cache/apk");
    symlink(&cache, inside.dir.join("etc/apk/cache")).unwrap();
    fs::create_dir_all(inside.dir.join("var/cache/apk")).unwrap();
    let name = "APKINDEX.066df28d.tar.gz";
    symlink(cache.join(name), inside.dir.join("var/cache/apk").join(name)).unwrap();
    inside.assert_origins([None; 3]);
}

/// With the end of the archive in the first member and extended headers, which abuild omits.
#[test]
fn index_packed_by_tar_and_gzip_is_parsed() {
    let system = TestSystem::new();
    let index = blocks(&[("musl", "1.2.4-r1", MUSL)]);
    system.write("pack/APKINDEX", index.as_bytes());
    system.write("pack/DESCRIPTION", b"v3.18");
    system.write(&format!("pack/{ALPINE_KEY}"), &[7; 256]);
    let run = |command: &mut Command| {
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    };
    let pack = |to: &str, files: &[&str]| {
        let dir: &Path = &system.dir;
        let archive = dir.join(to);
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(dir.join("pack")).args(["--format=pax", "-cf"]).arg(&archive);
        run(tar.args(files));
        run(Command::new("gzip").args(["-9", "-c"]).arg(&archive))
    };
    let packed = [pack("a.tar", &[ALPINE_KEY]), pack("b.tar", &["DESCRIPTION", "APKINDEX"])];
    system.index("066df28d", &packed.concat());
    system.assert_origins([None, ALPINE, None]);
}
