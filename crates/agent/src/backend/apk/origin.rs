//! Finds the repository that an installed package comes from.
//!
//! apk's database does not record it, so the repository indexes in apk's cache decide. The name of
//! the signing key tells whose an index is: a mirror serves Alpine's index with Alpine's signature,
//! while the URL of a third-party repository can look exactly like Alpine's. Alpine's repositories
//! contain only the newest version, so an outdated package is found by its name.
//!
//! Nothing here verifies a signature: apk does that when it downloads an index. An index that
//! cannot be read, is too large or is unsigned counts as absent.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::PathBuf;

use flate2::bufread::MultiGzDecoder;

use super::database::InstalledPackage;
use crate::root::Root;

/// The origin of Alpine's own packages; the service compares the whole text.
pub(super) const ALPINE: &str = "Alpine Linux";
/// Prefix of the names of the keys that sign Alpine's own indexes.
const ALPINE_KEYS: &str = "alpine-devel@lists.alpinelinux.org-";
/// Where apk caches indexes. The first exists only if an administrator created it, as a symbolic
/// link or a directory.
const CACHES: [&str; 2] = ["/etc/apk/cache", "/var/cache/apk"];
/// Maximum number of indexes.
const INDEXES_MAX: usize = 64;
/// Maximum size of one index, compressed and decompressed. Alpine's largest has about 10 MiB.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Maximum length of a line in an index.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Size of tar's headers, to which file contents are padded.
const TAR_BLOCK: usize = 512;

type InstalledByName<'a> = HashMap<&'a str, &'a InstalledPackage>;

/// What one index contains about the installed packages.
struct PackageIndex<'a> {
    key: String,
    /// The installed packages that it lists by name, and whether it lists this exact build.
    packages: HashMap<&'a str, bool>,
}

/// The origins of installed packages, by name. The best match wins: this exact build in an index of
/// Alpine, then in one of a third party, then the name alone in the same order. A package that no
/// index lists is not in the map.
pub(super) fn origins<'a>(
    root: &Root,
    packages: &'a [InstalledPackage],
) -> HashMap<&'a str, String> {
    let wanted = packages.iter().map(|package| (package.name.as_str(), package)).collect();
    let mut best: HashMap<&str, (bool, bool, String)> = HashMap::new();
    for path in index_files(root).into_iter().take(INDEXES_MAX) {
        let index = match File::open(&path).and_then(|file| read_index(file, &wanted)) {
            Ok(index) => index,
            Err(error) => {
                let path = path.display();
                crate::output::note(&format!("skipped package index {path}: {error}"));
                continue;
            }
        };
        let is_alpine = index.key.starts_with(ALPINE_KEYS);
        let origin = if is_alpine { ALPINE } else { &index.key };
        for (name, is_exact) in index.packages {
            let is_better = |(exact, alpine, _): &(bool, bool, String)| {
                (is_exact, is_alpine) > (*exact, *alpine)
            };
            if best.get(name).is_none_or(is_better) {
                best.insert(name, (is_exact, is_alpine, origin.to_owned()));
            }
        }
    }
    best.into_iter().map(|(name, (_, _, origin))| (name, origin)).collect()
}

/// The cached indexes, without duplicates, in a fixed order.
fn index_files(root: &Root) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for cache in CACHES.iter().filter_map(|cache| root.resolve(cache)) {
        for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_index = name.starts_with("APKINDEX.") && name.ends_with(".tar.gz");
            if is_index && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                files.insert(entry.path());
            }
        }
    }
    files
}

/// Parses `APKINDEX.tar.gz`: concatenated gzip members that contain one tar archive, signatures
/// first.
fn read_index<'a>(
    file: File,
    installed_by_name: &InstalledByName<'a>,
) -> io::Result<PackageIndex<'a>> {
    let compressed = BufReader::new(file.take(INDEX_BYTES_MAX));
    let mut tar = BufReader::new(MultiGzDecoder::new(compressed).take(INDEX_BYTES_MAX));
    let index = read_archive(&mut tar, installed_by_name);
    if tar.get_ref().limit() == 0 {
        return Err(invalid_index("the index is too large"));
    }
    index
}

fn read_archive<'a>(
    tar: &mut impl BufRead,
    installed_by_name: &InstalledByName<'a>,
) -> io::Result<PackageIndex<'a>> {
    let (mut keys, mut packages) = (Vec::new(), None);
    while let Some((name, size)) = next_file(tar)? {
        let mut content = tar.by_ref().take(size);
        if let Some(key) = signing_key(&name) {
            keys.push(key.to_owned());
        } else if name == "APKINDEX" {
            packages = Some(parse_listed(&mut content, installed_by_name)?);
        }
        let rest = content.limit() + size.next_multiple_of(TAR_BLOCK as u64) - size;
        if io::copy(&mut tar.by_ref().take(rest), &mut io::sink())? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    // One valid signature is enough for apk, so an index with an additional signature is still
    // Alpine's.
    let alpine = keys.iter().position(|key| key.starts_with(ALPINE_KEYS)).unwrap_or(0);
    match packages {
        _ if keys.is_empty() => Err(invalid_index("the index has no signature")),
        None => Err(invalid_index("the index contains no package list")),
        Some(packages) => Ok(PackageIndex { key: keys.swap_remove(alpine), packages }),
    }
}

/// The name and size of the next file in the archive; the name is empty for anything but a regular
/// file. Blocks of zeros end an archive, but the next gzip member may contain another one.
fn next_file(tar: &mut impl BufRead) -> io::Result<Option<(String, u64)>> {
    let mut header = [0; TAR_BLOCK];
    while header == [0; TAR_BLOCK] {
        if tar.fill_buf()?.is_empty() {
            return Ok(None);
        }
        tar.read_exact(&mut header)?;
    }
    let text = |field: &[u8]| {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        std::str::from_utf8(&field[..end]).ok().map(|text| text.trim().to_owned())
    };
    let is_regular = matches!(header[156], 0 | b'0');
    let name = text(&header[..100]).map(|name| if is_regular { name } else { String::new() });
    // At most 11 octal digits, so that sums of sizes cannot overflow.
    let size = text(&header[124..135]).and_then(|size| u64::from_str_radix(&size, 8).ok());
    name.zip(size).map(Some).ok_or_else(|| invalid_index("the index is not a tar archive"))
}

/// The key in `.SIGN.RSA.<key>.rsa.pub` or `.SIGN.RSA256.<key>.rsa.pub`.
fn signing_key(name: &str) -> Option<&str> {
    let (_algorithm, key) = name.strip_prefix(".SIGN.")?.split_once('.')?;
    let key = key.strip_suffix(".pub").unwrap_or(key);
    let key = key.strip_suffix(".rsa").unwrap_or(key);
    (!key.is_empty() && !key.contains(char::is_control)).then_some(key)
}

/// The installed packages that an index lists: blocks of lines such as `P:musl`, separated by empty
/// lines.
fn parse_listed<'a>(
    index: &mut impl BufRead,
    installed_by_name: &InstalledByName<'a>,
) -> io::Result<HashMap<&'a str, bool>> {
    let mut packages = HashMap::new();
    let mut line = Vec::new();
    let (mut name, mut version, mut checksum) = (String::new(), String::new(), String::new());
    loop {
        line.clear();
        let length = index.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if length as u64 == LINE_BYTES_MAX {
            return Err(invalid_index("a line in the index is too long"));
        }
        let text = String::from_utf8_lossy(line.trim_ascii_end());
        match text.split_once(':') {
            Some(("P", value)) => value.clone_into(&mut name),
            Some(("V", value)) => value.clone_into(&mut version),
            Some(("C", value)) => value.clone_into(&mut checksum),
            _ => (),
        }
        if !text.is_empty() {
            continue;
        }
        if let Some((&name, package)) = installed_by_name.get_key_value(name.as_str()) {
            let is_exact = match &package.checksum {
                Some(installed) if !checksum.is_empty() => *installed == checksum,
                _ => package.version == version,
            };
            *packages.entry(name).or_insert(false) |= is_exact;
        }
        name.clear();
        version.clear();
        checksum.clear();
        if length == 0 {
            return Ok(packages);
        }
    }
}

fn invalid_index(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Parses an index that lists one installed package.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(bytes: &[u8]) {
    let database = super::database::ApkDatabase::parse("P:busybox\nV:1.36.1-r2\nA:x86_64\n\n", "");
    let wanted = database.packages.iter().map(|one| (one.name.as_str(), one)).collect();
    let _ = read_archive(
        &mut BufReader::new(MultiGzDecoder::new(bytes).take(INDEX_BYTES_MAX)),
        &wanted,
    );
    let _ = read_archive(&mut BufReader::new(bytes), &wanted);
}
