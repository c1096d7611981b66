//! A backup as one file: a tar archive packed by zstd, with a list of its parts and their digests at its beginning, and the digest
//! of the whole at its end.
//!
//! `tar --zstd -tf FILE` shows what is in it; `manifest.json` says what each part must be. Nothing is believed that is not
//! listed there, and nothing may be missing.

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
/// What this release writes, and the only thing it reads.
const FORMAT: u32 = 1;
/// No list of parts is longer.
const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
const BLOCK: usize = 512;
/// Where a tar header says what kind of file it describes.
const TYPE: usize = 156;
/// What a frame begins with that zstd passes over.
const PASSED_OVER: u32 = 0x184d_2a50;
/// How long a digest is, in hexadecimal digits.
const SEALED_CHARS: u32 = 64;
/// Maximum size of a key file, the settings, a certificate or its key.
const SMALL_PART_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum size of all parts together: this many bytes, plus [`RATIO_MAX`] times the size of the file. zstd
/// packs a database to a tenth or a twentieth; a bomb is packed to a ten-thousandth.
const UNPACKED_BYTES_MIN: u64 = 64 * 1024 * 1024;
const RATIO_MAX: u64 = 1_000;
/// Maximum number of bytes behind the last part.
const TRAILER_BYTES_MAX: u64 = 64 * 1024;

/// What is in a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    /// Which release made it.
    pub(crate) fleetmend: String,
    pub(crate) taken_at: Timestamp,
    /// `sqlite` or `postgres`.
    pub(crate) engine: String,
    pub(crate) schema_version: i64,
    /// Where the certificate and its key lay, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<[PathBuf; 2]>,
    pub(crate) parts: Vec<Part>,
}

/// One file of it.
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

/// A directory that is gone when its owner is.
pub(crate) struct Spool(pub(crate) PathBuf);

impl Spool {
    pub(crate) fn new(path: PathBuf) -> anyhow::Result<Spool> {
        let shown = path.display().to_string();
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {shown}"))?;
        Ok(Spool(path))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Packs the named files of `dir` into `file`, which appears whole or not at all, for its owner alone.
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
        let list = serde_json::to_vec_pretty(&manifest)?;
        entry(&mut packed, MANIFEST, list.len() as u64, &mut list.as_slice())?;
        for part in &manifest.parts {
            let mut from = File::open(dir.join(&part.name))?;
            entry(&mut packed, &part.name, part.bytes, &mut from)?;
        }
        packed.write_all(&[0; 2 * BLOCK])?;
        let mut out = packed.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        out.write_all(&seal(&digest(&partial)?.1))?;
        out.sync_all()?;
        // Not a rename, which would replace what somebody else has put there meanwhile.
        fs::hard_link(&partial, file)?;
        Ok(())
    };
    let done = written().with_context(|| format!("cannot write {}", file.display()));
    let _ = fs::remove_file(&partial);
    done?;
    sync_parent(file)?;
    Ok(manifest)
}

/// Unpacks `file` into `dir`, an empty directory that nobody else can write to, and checks every part against the manifest.
///
/// Creates regular files with the names of [`allowed_names`] and nothing else, whatever the archive or its manifest says.
pub(crate) fn unpack(file: &Path, dir: &Path) -> anyhow::Result<Manifest> {
    let shown = file.display();
    let from = File::open(file).with_context(|| format!("cannot read {shown}"))?;
    unpack_open(from, dir)
        .with_context(|| format!("{shown} is not a whole backup of fleetmend; nothing was changed"))
}

/// [`unpack`] for a file that is already open.
pub(crate) fn unpack_open(mut from: File, dir: &Path) -> anyhow::Result<Manifest> {
    refuse_changed(&mut from)?;
    let file_bytes = from.metadata()?.len();
    unpack_stream(BufReader::new(from), file_bytes, dir)
}

/// [`unpack`] for a stream whose digest was checked.
pub(crate) fn unpack_stream(
    from: impl BufRead,
    file_bytes: u64,
    dir: &Path,
) -> anyhow::Result<Manifest> {
    unpack_tar(zstd::Decoder::with_buffer(from)?, file_bytes, dir)
}

/// [`unpack`] for the archive within the compressed stream.
pub(crate) fn unpack_tar(
    mut tar: impl Read,
    file_bytes: u64,
    dir: &Path,
) -> anyhow::Result<Manifest> {
    let manifest = read_manifest(&mut tar)?;
    check_parts(&manifest, file_bytes)?;
    let needed: u64 = manifest.parts.iter().map(|part| part.bytes).sum();
    let free = rustix::fs::statvfs(dir).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))?;
    ensure!(
        needed <= free,
        "its parts need {needed} bytes, and {free} are free below {}",
        dir.display()
    );
    for part in &manifest.parts {
        let Some((name, bytes)) = header(&mut tar)? else { bail!("it is cut off") };
        ensure!(name == part.name, "`{}` is where `{}` should be", shown(&name), part.name);
        ensure!(bytes == part.bytes, "`{name}` has {bytes} bytes, not {}", part.bytes);
        let path = dir.join(&part.name);
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let mut to = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let copied = io::copy(&mut tar.by_ref().take(bytes), &mut to)?;
        ensure!(copied == bytes, "`{name}` is cut off");
        to.sync_all()?;
        padding(&mut tar, bytes)?;
        ensure!(digest(&path)?.1 == part.sha256, "`{name}` is not what was backed up");
    }
    ensure!(header(&mut tar)?.is_none(), "there is more in it than its list says");
    // To the very end: the checksum of the whole is there.
    let rest = io::copy(&mut tar.by_ref().take(TRAILER_BYTES_MAX + 1), &mut io::sink())?;
    ensure!(rest <= TRAILER_BYTES_MAX, "more than {TRAILER_BYTES_MAX} bytes follow its last part");
    Ok(manifest)
}

/// Refuses a manifest that lists anything but the files a backup may contain, each at most once, or more bytes than a
/// backup of this size can hold.
fn check_parts(manifest: &Manifest, file_bytes: u64) -> anyhow::Result<()> {
    let allowed = allowed_names(manifest)?;
    let mut seen = BTreeSet::new();
    let mut total: u64 = 0;
    for part in &manifest.parts {
        let name = part.name.as_str();
        ensure!(allowed.contains(name), "`{}` is not a file that a backup contains", shown(name));
        ensure!(seen.insert(name), "`{name}` is in it twice");
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
        "its database is `{}`, neither sqlite nor postgres",
        shown(engine)
    );
    ensure!(
        (1..=store::SCHEMA_VERSION).contains(schema_version),
        "its schema is {schema_version}, this release reads 1 to {}: restore it with the release that made it",
        store::SCHEMA_VERSION
    );
    let fixed = SECRETS.into_iter().chain([SECRET_NEXT, SECRET_OLD, SETTINGS]).chain(TLS);
    let fixed = fixed.map(str::to_owned);
    let database = store::backup::file_names(engine, *schema_version);
    Ok(fixed.chain(database.iter().map(|name| format!("{DATABASE}/{name}"))).collect())
}

/// A name from an archive as an error may repeat it.
fn shown(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}

/// How a backup ends: with the digest of all that stands before, in a frame that zstd passes over.
///
/// The checksum that zstd keeps is of what is packed. Of 10,280 bits of a small backup, one in each of its bytes, 24 could be
/// turned without a change to that.
fn seal(sha256: &str) -> Vec<u8> {
    let length = SEALED_CHARS.to_le_bytes();
    [&PASSED_OVER.to_le_bytes()[..], &length, sha256.as_bytes()].concat()
}

/// Refuses a file that is not, bit for bit, what was written.
fn refuse_changed(file: &mut File) -> anyhow::Result<()> {
    let sealed = file.metadata()?.len().checked_sub(8 + u64::from(SEALED_CHARS));
    let Some(sealed) = sealed else { bail!("it is cut off") };
    let (_, sha256) = hashed(&mut Read::by_ref(file).take(sealed))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    ensure!(end == seal(&sha256), "it is cut off, or was changed");
    Ok(file.rewind()?)
}

fn read_manifest(tar: &mut impl Read) -> anyhow::Result<Manifest> {
    let Some((name, bytes)) = header(tar)? else { bail!("it is empty") };
    ensure!(name == MANIFEST && bytes <= MANIFEST_BYTES_MAX, "it does not begin with a list");
    let mut text = Vec::new();
    tar.by_ref().take(bytes).read_to_end(&mut text)?;
    padding(tar, bytes)?;
    let format = serde_json::from_slice::<serde_json::Value>(&text)?["format"].clone();
    ensure!(
        format == FORMAT,
        "its format is {format}, this release reads {FORMAT}: restore it with the release that made it"
    );
    Ok(serde_json::from_slice(&text)?)
}

fn digest(path: &Path) -> anyhow::Result<(u64, String)> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hashed(&mut file)?)
}

/// How long it is, and its digest.
fn hashed(from: &mut impl Read) -> io::Result<(u64, String)> {
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

/// One file of a tar archive (ustar, as POSIX has it).
fn entry(to: &mut impl Write, name: &str, bytes: u64, from: &mut impl Read) -> anyhow::Result<()> {
    let mut head = [0; BLOCK];
    let mut put = |place: usize, text: &[u8]| head[place..place + text.len()].copy_from_slice(text);
    ensure!(name.len() < 100, "the name `{name}` is too long");
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    match bytes < 1 << 33 {
        true => put(124, format!("{bytes:011o}\0").as_bytes()),
        // What is longer than eight GiB is told in binary, as GNU's and most others read it.
        false => {
            put(124, &[0x80, 0, 0, 0]);
            put(128, &bytes.to_be_bytes());
        }
    }
    put(136, b"00000000000\0");
    put(148, b"        0");
    put(257, b"ustar\x0000");
    let sum: u32 = head.iter().copied().map(u32::from).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    to.write_all(&head)?;
    let copied = io::copy(&mut from.take(bytes), to)?;
    ensure!(copied == bytes, "`{name}` became shorter while it was copied");
    to.write_all(&[0; BLOCK][..fill(bytes)])?;
    Ok(())
}

/// The name and size of the next file; nothing at the end. Refuses links, devices and everything else that is not a
/// regular file.
fn header(from: &mut impl Read) -> anyhow::Result<Option<(String, u64)>> {
    let mut head = [0; BLOCK];
    from.read_exact(&mut head)?;
    if head == [0; BLOCK] {
        return Ok(None);
    }
    let word = |range: std::ops::Range<usize>| {
        let text = &head[range];
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).trim().to_owned()
    };
    let bytes = match head[124] & 0x80 == 0 {
        true => u64::from_str_radix(&word(124..136), 8)?,
        false => u64::from_be_bytes(head[128..136].try_into()?),
    };
    let name = word(0..100);
    ensure!(
        matches!(head[TYPE], b'0' | 0),
        "`{}` is not a regular file (tar type `{}`)",
        shown(&name),
        head[TYPE].escape_ascii()
    );
    Ok(Some((name, bytes)))
}

fn fill(bytes: u64) -> usize {
    let over = usize::try_from(bytes % BLOCK as u64).unwrap_or(0);
    (BLOCK - over) % BLOCK
}

fn padding(from: &mut impl Read, bytes: u64) -> io::Result<()> {
    from.read_exact(&mut vec![0; fill(bytes)])
}

/// The same path with something behind it.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What was renamed or made here survives a power cut.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_have_a_size_that_is_read_as_it_was_written() {
        for bytes in [0, 1, (1 << 33) - 1, 1 << 33, u64::MAX / 2] {
            let mut head = Vec::new();
            let refused = entry(&mut head, "x", bytes, &mut io::empty());
            assert_eq!(refused.is_ok(), bytes == 0);
            assert_eq!(header(&mut head.as_slice()).unwrap(), Some(("x".to_owned(), bytes)));
        }
    }
}
