//! Reads the bytes of a feed from files, directories and archives, compressed or not.
//!
//! Callers see a sequence of uncompressed documents. The format of each document is parsed
//! elsewhere.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::Progress;
use crate::error::{FeedError, FeedLocation, PassError};
use crate::limits;
use crate::limits::{BoundedReader, DIRECTORY_BYTES_MAX, Limit};
use crate::tar;

/// How many bytes are read between two progress reports.
const PROGRESS_INTERVAL_BYTES: u64 = 256 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum directory depth.
const DEPTH_MAX: usize = 8;

/// Parses one document and passes its records on.
pub(crate) type DocumentReader<'a> =
    dyn FnMut(&mut dyn BufRead, &FeedLocation) -> Result<(), PassError> + 'a;

/// Totals of a completed walk.
pub(crate) struct WalkTotals {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) fingerprint: u64,
}

/// Passes every document under `path` to `reader`.
pub(crate) fn walk(
    path: &Path,
    progress: &mut dyn FnMut(Progress),
    reader: &mut DocumentReader<'_>,
) -> Result<WalkTotals, PassError> {
    walk_within(path, limits::unpacked_bytes_max, progress, reader)
}

/// Fails with [`Limit::FeedBytes`] if all documents together have more uncompressed bytes than
/// `bytes_max` allows for their size on disk.
fn walk_within(
    path: &Path,
    bytes_max: impl Fn(u64) -> u64,
    progress: &mut dyn FnMut(Progress),
    reader: &mut DocumentReader<'_>,
) -> Result<WalkTotals, PassError> {
    let files = find_files(path, 0)?;
    let total = files.iter().map(|(_, bytes)| bytes).sum();
    let mut left = bytes_max(total);
    let meter = Rc::new(RefCell::new(ProgressMeter {
        progress,
        current: Progress { bytes: 0, total },
        reported_bytes: 0,
        fingerprint: DefaultHasher::new(),
    }));
    let mut count = 0;
    for (file, _) in &files {
        count += read_file(file, &mut left, &meter, reader)?;
    }
    let mut meter = meter.borrow_mut();
    let now = Progress { bytes: total, total };
    (meter.progress)(now);
    Ok(WalkTotals { files: count, bytes: total, fingerprint: meter.fingerprint.finish() })
}

/// The files to read, sorted, with their sizes. In a directory, only files with a known feed
/// extension; a file that is named explicitly is read whatever its name.
fn find_files(path: &Path, depth: usize) -> Result<Vec<(PathBuf, u64)>, FeedError> {
    let failed = |source| FeedError::Open { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(failed)?;
    if !about.is_dir() {
        return Ok(vec![(path.to_owned(), about.len())]);
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        let wanted = match entry.is_dir() {
            true => depth < DEPTH_MAX,
            false => is_feed(&entry.to_string_lossy()),
        };
        if wanted {
            found.extend(find_files(&entry, depth + 1)?);
        }
    }
    Ok(found)
}

fn is_feed(name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    [".json", ".jsonl", ".zip", ".tar", ".tar.zst", ".xml", ".xml.zst"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Reads one file, or each file in an archive. Returns the number of documents.
fn read_file(
    path: &Path,
    left: &mut u64,
    meter: &Rc<RefCell<ProgressMeter<'_>>>,
    reader: &mut DocumentReader<'_>,
) -> Result<u64, PassError> {
    let location = FeedLocation { file: path.to_owned(), entry: None };
    let failed = |source| FeedError::Open { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut input =
        BufReader::with_capacity(BUFFER_BYTES, MeteredReader { inner: file, meter: meter.clone() });
    let start = input.fill_buf().map_err(|source| location.read_error(source))?;
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        let opening = Rc::new(Cell::new(Some(0)));
        return read_zip(
            SeekableBuffer { input, position: 0, directory_bytes: opening },
            left,
            &location,
            reader,
        );
    }
    if start.starts_with(&GZIP) {
        let unpacked = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(input));
        read_stream(BoundedReader::new(unpacked, left), &location, reader)
    } else if start.starts_with(&ZSTD) {
        let unpacked = zstd::stream::read::Decoder::with_buffer(input);
        let unpacked = unpacked.map_err(|source| location.read_error(source))?;
        let unpacked = BufReader::with_capacity(BUFFER_BYTES, unpacked);
        read_stream(BoundedReader::new(unpacked, left), &location, reader)
    } else {
        read_stream(BoundedReader::new(input, left), &location, reader)
    }
}

/// Reads one uncompressed document, or each document in a tar archive. Returns their number.
fn read_stream(
    mut input: impl BufRead,
    location: &FeedLocation,
    reader: &mut DocumentReader<'_>,
) -> Result<u64, PassError> {
    let mut head = Vec::with_capacity(tar::BLOCK_BYTES);
    let block = tar::BLOCK_BYTES as u64;
    input
        .by_ref()
        .take(block)
        .read_to_end(&mut head)
        .map_err(|source| location.read_error(source))?;
    let is_tar = tar::is_header(&head);
    let mut whole = io::Cursor::new(head).chain(input);
    if is_tar {
        return tar::read(whole, location, reader);
    }
    reader(&mut whole, location)?;
    Ok(1)
}

/// Whether the file is a tar archive, compressed or not.
pub fn is_tar(path: &Path) -> bool {
    let mut found = false;
    let look = |input: &mut dyn Read| {
        let mut head = Vec::new();
        let read = input.take(tar::BLOCK_BYTES as u64).read_to_end(&mut head);
        found = read.is_ok() && tar::is_header(&head);
    };
    if let Ok(file) = File::open(path) {
        with_uncompressed(BufReader::new(file), look);
    }
    found
}

fn with_uncompressed(mut input: BufReader<File>, mut look: impl FnMut(&mut dyn Read)) {
    let Ok(start) = input.fill_buf() else { return };
    if start.starts_with(&GZIP) {
        look(&mut MultiGzDecoder::new(input));
    } else if start.starts_with(&ZSTD) {
        if let Ok(mut unpacked) = zstd::stream::read::Decoder::with_buffer(input) {
            look(&mut unpacked);
        }
    } else {
        look(&mut input);
    }
}

/// Reads a zip archive. Its table of contents is at its end, so a truncated archive is rejected
/// immediately.
fn read_zip<R: Read + Seek>(
    input: SeekableBuffer<R>,
    left: &mut u64,
    location: &FeedLocation,
    reader: &mut DocumentReader<'_>,
) -> Result<u64, PassError> {
    let broken = |source| match source {
        zip::result::ZipError::Io(source) => location.read_error(source),
        source => FeedError::Archive { place: location.clone(), source },
    };
    let opening = input.directory_bytes.clone();
    let mut archive = zip::ZipArchive::new(input).map_err(broken)?;
    opening.set(None);
    let mut count = 0;
    for number in 0..archive.len() {
        let entry = archive.by_index(number).map_err(broken)?;
        let name = entry.name().map_err(broken)?.into_owned();
        if !entry.is_file() || !is_feed(&name) {
            continue;
        }
        let location = FeedLocation { file: location.file.clone(), entry: Some(name) };
        // Most entries are far smaller than the buffer, and there are many of them.
        let bytes = usize::try_from(entry.size()).unwrap_or(BUFFER_BYTES).clamp(512, BUFFER_BYTES);
        let input = BufReader::with_capacity(bytes, entry);
        reader(&mut BoundedReader::new(input, left), &location)?;
        count += 1;
    }
    Ok(count)
}

/// Counts and hashes the bytes read, and reports progress.
struct ProgressMeter<'a> {
    progress: &'a mut dyn FnMut(Progress),
    current: Progress,
    reported_bytes: u64,
    fingerprint: DefaultHasher,
}

impl ProgressMeter<'_> {
    fn read(&mut self, bytes: &[u8]) {
        self.fingerprint.write(bytes);
        // Capped, because the table of contents of an archive is read twice.
        self.current.bytes = (self.current.bytes + bytes.len() as u64).min(self.current.total);
        if self.current.bytes >= self.reported_bytes + PROGRESS_INTERVAL_BYTES {
            self.reported_bytes = self.current.bytes;
            (self.progress)(self.current);
        }
    }
}

struct MeteredReader<'m, R> {
    inner: R,
    meter: Rc<RefCell<ProgressMeter<'m>>>,
}

impl<R: Read> Read for MeteredReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.meter.borrow_mut().read(&buffer[..read]);
        Ok(read)
    }
}

impl<R: Seek> Seek for MeteredReader<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// Keeps the buffer when a seek stays within it. The zip reader seeks to each small file, and a
/// plain buffered reader would discard and refill its buffer every time.
struct SeekableBuffer<R> {
    input: BufReader<R>,
    position: u64,
    /// Bytes read so far for the table of contents. `None` once that is complete.
    directory_bytes: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for SeekableBuffer<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.position += read as u64;
        if let Some(bytes) = self.directory_bytes.get() {
            let bytes = bytes + read as u64;
            self.directory_bytes.set(Some(bytes));
            if bytes > DIRECTORY_BYTES_MAX {
                return Err(Limit::Directory.into());
            }
        }
        Ok(read)
    }
}

impl<R: Seek> Seek for SeekableBuffer<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Start(to) if i64::try_from(to.abs_diff(self.position)).is_ok() => {
                let by = to.wrapping_sub(self.position).cast_signed();
                self.input.seek_relative(by)?;
                self.position = to;
            }
            to => self.position = self.input.seek(to)?,
        }
        Ok(self.position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut to = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        for (name, bytes) in entries {
            to.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            to.write_all(bytes).unwrap();
        }
        to.finish().unwrap().into_inner()
    }

    fn tar(name: &str, bytes: &[u8]) -> Vec<u8> {
        let mut tar = vec![0; 512];
        tar[..name.len()].copy_from_slice(name.as_bytes());
        tar[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        tar[156] = b'0';
        tar[257..262].copy_from_slice(b"ustar");
        tar.extend(bytes);
        tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
        tar
    }

    /// All decompressed bytes count, in every format, including those that belong to no record.
    #[test]
    fn decompressed_size_is_limited_in_every_format() {
        let dir = std::env::temp_dir().join(format!("fleetmend-feed-bound-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let lines = b"{}\n".repeat(50_000);
        let members = [gzip(&lines[..75_000]), gzip(&lines[75_000..])].concat();
        let long = lines.len() as u64;
        for (name, bytes, unpacked) in [
            ("plain", lines.clone(), long),
            ("gzip", gzip(&lines), long),
            ("members", members, long),
            ("zstd", zstd::encode_all(&lines[..], 1).unwrap(), long),
            ("zip", zip(&[("a.json", &lines[..75_000]), ("b.json", &lines[75_000..])]), long),
            ("tar", tar("a.json", &lines), long + 1_536),
            ("tar.gz", gzip(&tar("a.json", &lines)), long + 1_536),
            ("tar.zst", zstd::encode_all(&tar("a.bin", &lines)[..], 1).unwrap(), long + 1_536),
            ("trailer", gzip(&[tar("a.json", b"{}"), lines.clone()].concat()), long + 2_048),
        ] {
            let path = dir.join(name);
            fs::write(&path, bytes).unwrap();
            let read = |left| {
                walk_within(&path, |_| left, &mut |_| {}, &mut |input, place| {
                    let copied = io::copy(input, &mut io::sink());
                    copied.map(drop).map_err(|error| place.read_error(error).into())
                })
            };
            assert!(read(unpacked + 512).is_ok(), "{name}");
            let Err(PassError::Feed(error)) = read(long - 1) else { panic!("{name} was read") };
            assert!(
                error.to_string().contains("exceeds the limit of 8 GiB or 400 times"),
                "{error}"
            );
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn zip_table_of_contents_size_is_limited() {
        let read = |bytes| {
            let opening = Rc::new(Cell::new(Some(DIRECTORY_BYTES_MAX - bytes)));
            let input = BufReader::new(io::Cursor::new(zip(&[("a.json", b"{}")])));
            let location = FeedLocation { file: "a.zip".into(), entry: None };
            let near = SeekableBuffer { input, position: 0, directory_bytes: opening };
            read_zip(near, &mut 100, &location, &mut |_, _| Ok(()))
        };
        assert!(read(10_000).is_ok());
        let Err(PassError::Feed(error)) = read(10) else { panic!("the archive was read") };
        assert!(error.to_string().contains("table of contents"), "{error}");
    }
}
