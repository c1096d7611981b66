//! The backup file format: a tar archive compressed with zstd, with a manifest of its parts and
//! their digests at the start and a digest of the whole file at the end.
//!
//! `tar --zstd -tf FILE` lists the contents. `manifest.json` states the name, size and digest of
//! every part; a part that it does not list, or that is missing, is an error.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek as _, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use ring::digest::{Context as Hasher, SHA256};
use serde::{Deserialize, Serialize};

use super::{DATABASE, SECRET_NEXT, SECRET_OLD, SECRETS, SETTINGS, TLS};

const MANIFEST: &str = "manifest.json";
/// The format version that this release writes, and the only one it reads.
const FORMAT: u32 = 1;
/// Maximum size of the manifest.
const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
/// Magic number of a zstd skippable frame.
const SKIPPABLE_FRAME_MAGIC: u32 = 0x184d_2a50;
/// Length of a SHA-256 digest in hexadecimal digits.
const DIGEST_HEX_CHARS: u32 = 64;
/// Maximum size of a key file, the settings, a certificate or its key.
const SMALL_PART_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum size of all parts together: this many bytes, plus [`RATIO_MAX`] times the size of the
/// file. zstd compresses a database to a tenth or a twentieth; a decompression bomb shrinks to a
/// ten-thousandth.
const UNPACKED_BYTES_MIN: u64 = 64 * 1024 * 1024;
const RATIO_MAX: u64 = 1_000;
/// Maximum number of bytes after the last part.
const TRAILER_BYTES_MAX: u64 = 64 * 1024;

/// The contents of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    /// The release that wrote the backup.
    pub(crate) fleetmend: String,
    pub(crate) taken_at: Timestamp,
    /// `sqlite` or `postgres`.
    pub(crate) engine: String,
    pub(crate) schema_version: i64,
    /// Original paths of the certificate and its key, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<[PathBuf; 2]>,
    pub(crate) parts: Vec<Part>,
}

/// One file in the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

impl Manifest {
    pub(crate) fn new(engine: &str, schema_version: i64, taken_at: Timestamp) -> Manifest {
        Manifest {
            format: FORMAT,
            fleetmend: env!("CARGO_PKG_VERSION").to_owned(),
            taken_at,
            engine: engine.to_owned(),
            schema_version,
            tls: None,
            parts: Vec::new(),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name == name)
    }
}

/// A temporary directory that is deleted on drop.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(path: PathBuf) -> anyhow::Result<TempDir> {
        let shown = path.display().to_string();
        let result = fs::DirBuilder::new().mode(0o700).create(&path);
        result.with_context(|| format!("cannot create {shown}"))?;
        Ok(TempDir(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Packs the named files of `dir` into `file`, which appears only when it is complete and is
/// readable only by its owner.
pub(crate) fn pack(
    dir: &Path,
    names: &[String],
    manifest: Manifest,
    file: &Path,
) -> anyhow::Result<Manifest> {
    let mut manifest = manifest;
    for name in names {
        let (bytes, sha256) = digest(&dir.join(name))?;
        manifest.parts.push(Part { name: name.clone(), bytes, sha256 });
    }
    let partial = with_suffix(file, ".partial");
    let written = || -> anyhow::Result<()> {
        let out = File::options().write(true).create_new(true).mode(0o600).open(&partial)?;
        let mut packed = zstd::Encoder::new(BufWriter::new(out), 3)?;
        packed.include_checksum(true)?;
        let mut tar = tar::Builder::new(packed);
        let list = serde_json::to_vec_pretty(&manifest)?;
        append(&mut tar, MANIFEST, list.len() as u64, list.as_slice())?;
        for part in &manifest.parts {
            append(&mut tar, &part.name, part.bytes, File::open(dir.join(&part.name))?)?;
        }
        let packed = tar.into_inner()?;
        let mut out = packed.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        out.write_all(&seal(&digest(&partial)?.1))?;
        out.sync_all()?;
        // Not a rename, which would replace a file that another process created in the meantime.
        fs::hard_link(&partial, file)?;
        Ok(())
    };
    let done = written().with_context(|| format!("cannot write {}", file.display()));
    let _ = fs::remove_file(&partial);
    done?;
    sync_parent(file)?;
    Ok(manifest)
}

/// Unpacks `file` into `dir`, an empty directory that no other user can write to, and checks every
/// part against the manifest.
///
/// Creates regular files with the names from [`allowed_names`] and nothing else, whatever the
/// archive or its manifest says.
pub(crate) fn unpack(file: &Path, dir: &Path) -> anyhow::Result<Manifest> {
    let shown = file.display();
    let from = File::open(file).with_context(|| format!("cannot read {shown}"))?;
    unpack_open(from, dir)
        .with_context(|| format!("{shown} is not a complete fleetmend backup; nothing was changed"))
}

/// [`unpack`] for a file that is already open.
pub(crate) fn unpack_open(mut from: File, dir: &Path) -> anyhow::Result<Manifest> {
    verify_digest(&mut from)?;
    let file_bytes = from.metadata()?.len();
    unpack_stream(BufReader::new(from), file_bytes, dir)
}

/// [`unpack`] for a stream whose digest has been verified.
pub(crate) fn unpack_stream(
    from: impl BufRead,
    file_bytes: u64,
    dir: &Path,
) -> anyhow::Result<Manifest> {
    unpack_tar(zstd::Decoder::with_buffer(from)?, file_bytes, dir)
}

/// [`unpack`] for the tar archive inside the compressed stream.
pub(crate) fn unpack_tar(tar: impl Read, file_bytes: u64, dir: &Path) -> anyhow::Result<Manifest> {
    let mut tar = tar::Archive::new(tar);
    // Raw: headers that extend others, such as long names, are of no use here and would be read
    // into memory whatever their size.
    let mut entries = tar.entries()?.raw(true);
    let manifest = read_manifest(&mut entries)?;
    check_parts(&manifest, file_bytes)?;
    let needed: u64 = manifest.parts.iter().map(|part| part.bytes).sum();
    let free = rustix::fs::statvfs(dir).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))?;
    ensure!(
        needed <= free,
        "unpacking it needs {needed} bytes, but only {free} bytes are free in {}",
        dir.display()
    );
    for part in &manifest.parts {
        let Some((name, mut entry)) = next_file(&mut entries)? else { bail!("it is truncated") };
        ensure!(
            name == part.name,
            "found `{}` where `{}` should be",
            escape_name(&name),
            part.name
        );
        let bytes = entry.size();
        ensure!(bytes == part.bytes, "`{name}` has {bytes} bytes, not {}", part.bytes);
        let path = dir.join(&part.name);
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let mut to = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let copied = io::copy(&mut entry, &mut to)?;
        ensure!(copied == bytes, "`{name}` is truncated");
        to.sync_all()?;
        ensure!(
            digest(&path)?.1 == part.sha256,
            "the digest of `{name}` does not match the manifest"
        );
    }
    ensure!(next_file(&mut entries)?.is_none(), "it contains more files than its manifest lists");
    // Read to the end, where zstd keeps the checksum of the whole.
    let rest = io::copy(&mut tar.into_inner().take(TRAILER_BYTES_MAX + 1), &mut io::sink())?;
    ensure!(rest <= TRAILER_BYTES_MAX, "more than {TRAILER_BYTES_MAX} bytes follow the last part");
    Ok(manifest)
}

/// Rejects a manifest that lists anything but the files a backup may contain, each at most once, or
/// more bytes than a backup of this size can hold.
fn check_parts(manifest: &Manifest, file_bytes: u64) -> anyhow::Result<()> {
    let allowed = allowed_names(manifest)?;
    let mut seen = BTreeSet::new();
    let mut total: u64 = 0;
    for part in &manifest.parts {
        let name = part.name.as_str();
        ensure!(allowed.contains(name), "`{}` does not belong in a backup", escape_name(name));
        ensure!(seen.insert(name), "`{name}` is listed twice");
        ensure!(
            name.starts_with(DATABASE) || part.bytes <= SMALL_PART_BYTES_MAX,
            "`{name}` has {} bytes, more than the limit of {SMALL_PART_BYTES_MAX}",
            part.bytes
        );
        total = total.saturating_add(part.bytes);
    }
    let max = file_bytes.saturating_mul(RATIO_MAX).saturating_add(UNPACKED_BYTES_MIN);
    ensure!(
        total <= max,
        "it unpacks to {total} bytes, more than the limit of {max} for a file of {file_bytes}"
    );
    for name in SECRETS {
        ensure!(seen.contains(name), "`{name}` is missing");
    }
    for name in store::backup::file_names(&manifest.engine, manifest.schema_version) {
        ensure!(
            seen.contains(format!("{DATABASE}/{name}").as_str()),
            "`{DATABASE}/{name}` is missing"
        );
    }
    Ok(())
}

/// Every name that a part of a backup may have. All are relative, without `.` or `..`.
fn allowed_names(manifest: &Manifest) -> anyhow::Result<BTreeSet<String>> {
    let Manifest { engine, schema_version, .. } = manifest;
    ensure!(
        ["sqlite", "postgres"].contains(&engine.as_str()),
        "its database engine is `{}`, neither sqlite nor postgres",
        escape_name(engine)
    );
    ensure!(
        (1..=store::SCHEMA_VERSION).contains(schema_version),
        "its schema is {schema_version}, but this release reads 1 to {}: restore it with the release that wrote it",
        store::SCHEMA_VERSION
    );
    let fixed = SECRETS.into_iter().chain([SECRET_NEXT, SECRET_OLD, SETTINGS]).chain(TLS);
    let fixed = fixed.map(str::to_owned);
    let database = store::backup::file_names(engine, *schema_version);
    Ok(fixed.chain(database.iter().map(|name| format!("{DATABASE}/{name}"))).collect())
}

/// Escapes and shortens a name from an archive for error messages.
fn escape_name(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}

/// The end of a backup: the digest of everything before it, in a zstd skippable frame.
///
/// The checksum that zstd keeps covers only the uncompressed content. Of 10,280 bits of a small
/// backup, one in each of its bytes, 24 could be flipped without changing it.
fn seal(sha256: &str) -> Vec<u8> {
    let length = DIGEST_HEX_CHARS.to_le_bytes();
    [&SKIPPABLE_FRAME_MAGIC.to_le_bytes()[..], &length, sha256.as_bytes()].concat()
}

/// Rejects a file that differs in any bit from what was written.
fn verify_digest(file: &mut File) -> anyhow::Result<()> {
    let sealed = file.metadata()?.len().checked_sub(8 + u64::from(DIGEST_HEX_CHARS));
    let Some(sealed) = sealed else { bail!("it is truncated") };
    let (_, sha256) = hash_stream(&mut Read::by_ref(file).take(sealed))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    ensure!(end == seal(&sha256), "it is truncated or was modified");
    Ok(file.rewind()?)
}

fn read_manifest<R: Read>(entries: &mut tar::Entries<'_, R>) -> anyhow::Result<Manifest> {
    let Some((name, mut entry)) = next_file(entries)? else { bail!("it is empty") };
    let fits = entry.size() <= MANIFEST_BYTES_MAX;
    ensure!(name == MANIFEST && fits, "it does not start with a manifest");
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    let format = serde_json::from_slice::<serde_json::Value>(&text)?["format"].clone();
    ensure!(
        format == FORMAT,
        "its format is {format}, but this release reads {FORMAT}: restore it with the release that wrote it"
    );
    Ok(serde_json::from_slice(&text)?)
}

fn digest(path: &Path) -> anyhow::Result<(u64, String)> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hash_stream(&mut file)?)
}

/// The length and the SHA-256 digest of a stream.
fn hash_stream(from: &mut impl Read) -> io::Result<(u64, String)> {
    let mut hasher = Hasher::new(&SHA256);
    let mut piece = vec![0; 64 * 1024];
    let mut bytes = 0;
    loop {
        let length = from.read(&mut piece)?;
        if length == 0 {
            let hex = hasher.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok((bytes, hex));
        }
        hasher.update(&piece[..length]);
        bytes += length as u64;
    }
}

/// Writes one file of the archive.
fn append(
    tar: &mut tar::Builder<impl Write>,
    name: &str,
    bytes: u64,
    from: impl Read,
) -> anyhow::Result<()> {
    let mut head = tar::Header::new_ustar();
    head.set_path(name)?;
    head.set_mode(0o600);
    head.set_uid(0);
    head.set_gid(0);
    head.set_mtime(0);
    head.set_size(bytes);
    head.set_cksum();
    let mut from = from.take(bytes);
    tar.append(&head, &mut from)?;
    // Otherwise every later entry would be at the wrong offset.
    ensure!(from.limit() == 0, "`{name}` shrank while it was copied");
    Ok(())
}

/// The next file and its name; none at the end. Rejects links, devices and everything else that is
/// not a regular file.
fn next_file<'a, R: Read>(
    entries: &mut tar::Entries<'a, R>,
) -> anyhow::Result<Option<(String, tar::Entry<'a, R>)>> {
    let Some(entry) = entries.next().transpose()? else { return Ok(None) };
    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    let kind = entry.header().entry_type();
    ensure!(
        kind.is_file(),
        "`{}` is not a regular file (tar type `{}`)",
        escape_name(&name),
        kind.as_byte().escape_ascii()
    );
    Ok(Some((name, entry)))
}

/// Appends a suffix to a path's file name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Syncs the parent directory, so that a rename or a new file survives a power failure.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the first header. The archive may be truncated after it.
    fn first_header(archive: &[u8]) -> (String, u64) {
        let mut tar = tar::Archive::new(archive);
        let mut entries = tar.entries().unwrap().raw(true);
        let (name, entry) = next_file(&mut entries).unwrap().unwrap();
        (name, entry.size())
    }

    #[test]
    fn file_sizes_above_8_gib_round_trip() {
        for bytes in [0, 1, (1 << 33) - 1, 1 << 33, u64::MAX / 2] {
            let mut tar = tar::Builder::new(Vec::new());
            let written = append(&mut tar, "x", bytes, io::empty());
            assert_eq!(written.is_ok(), bytes == 0);
            assert_eq!(first_header(&tar.into_inner().unwrap()), ("x".to_owned(), bytes));
        }
    }
}
