//! A backup as one file: a tar archive packed by zstd, with a list of its parts and their digests at its beginning, and the digest
//! of the whole at its end.
//!
//! `tar --zstd -tf FILE` shows what is in it; `manifest.json` says what each part must be. Nothing is believed that is not
//! listed there, and nothing may be missing.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek as _, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use ring::digest::{Context as Hasher, SHA256};
use serde::{Deserialize, Serialize};

const MANIFEST: &str = "manifest.json";
/// What this release writes, and the only thing it reads.
const FORMAT: u32 = 1;
/// No list of parts is longer.
const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
const BLOCK: usize = 512;
/// What a frame begins with that zstd passes over.
const PASSED_OVER: u32 = 0x184d_2a50;
/// How long a digest is, in hexadecimal digits.
const SEALED_CHARS: u32 = 64;

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

/// Unpacks `file` into `dir` and holds every part against the list.
pub(crate) fn unpack(file: &Path, dir: &Path) -> anyhow::Result<Manifest> {
    let shown = file.display();
    let mut from = File::open(file).with_context(|| format!("cannot read {shown}"))?;
    let broken = || format!("{shown} is not a whole backup of fleetmend; nothing was changed");
    let unpacked = move || -> anyhow::Result<Manifest> {
        refuse_changed(&mut from)?;
        let mut tar = zstd::Decoder::new(BufReader::new(from))?;
        let manifest = read_manifest(&mut tar)?;
        for part in &manifest.parts {
            let Some((name, bytes)) = header(&mut tar)? else { bail!("it is cut off") };
            ensure!(name == part.name, "`{name}` stands where `{}` should", part.name);
            ensure!(bytes == part.bytes, "`{name}` has {bytes} bytes, not {}", part.bytes);
            let path = dir.join(inside(&name)?);
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
        io::copy(&mut tar, &mut io::sink())?;
        Ok(manifest)
    };
    unpacked().with_context(broken)
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

/// The path of a part below the directory it is unpacked into, and nowhere else.
fn inside(name: &str) -> anyhow::Result<&Path> {
    let path = Path::new(name);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(plain && !name.is_empty(), "`{name}` is no name of a part");
    Ok(path)
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

/// The name and size of the next file; nothing at the end.
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
    Ok(Some((word(0..100), bytes)))
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

    #[test]
    fn a_part_cannot_be_placed_outside() {
        for name in ["../x", "/etc/passwd", "a/../../b", "", "."] {
            assert!(inside(name).is_err(), "{name}");
        }
        assert!(inside("database/a.copy").is_ok());
    }
}
