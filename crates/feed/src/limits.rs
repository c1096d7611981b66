//! Limits on the memory and time that a feed can cost, however it is compressed.
//!
//! A megabyte of gzip or zstd can decompress to gigabytes, three bytes of JSON can become a struct
//! of hundreds of bytes, and one long string can be copied into each of a million records. There
//! are therefore limits for a whole feed, for the text of one record, and for the parsed record.
//! All limits are far above real feeds: the largest known document has about 4 MB.

use std::io::{self, BufRead, Read};

use domain::advisory::{Advisory, Affected, Span, SpanEnd};

use crate::Record;

/// Maximum bytes of one record, or of one whole document of the small formats.
pub const RECORD_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum uncompressed bytes of a whole feed, or [`RATIO_MAX`] times its size on disk if that is
/// more.
const FEED_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Maximum compression ratio. CSAF documents are repetitive: an archive of all of them compresses
/// to less than a hundredth.
const RATIO_MAX: u64 = 400;
/// Maximum records of one feed.
pub const RECORDS_MAX: u64 = 5_000_000;
/// Maximum memory of one parsed advisory, see [`record_memory_bytes`].
pub const ADVISORY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum bytes of a zip archive's table of contents, which is kept in memory.
pub(crate) const DIRECTORY_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Maximum bytes of one line in line-based formats: EPSS, Debian's tracker.
pub(crate) const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum bytes of a name, version or id that is copied into an advisory more than once.
pub(crate) const NAME_BYTES_MAX: usize = 1_000;
/// Maximum bytes of one tag, text or comment of an XML document.
pub(crate) const XML_EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum JSON values in one record, including objects.
const VALUES_MAX: u32 = 1_000_000;
/// Maximum JSON objects in one record.
const OBJECTS_MAX: u32 = 250_000;

/// A limit that a feed exceeds. The text completes the sentence "exceeds the limit of …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    #[error("{} MiB per record", RECORD_BYTES_MAX >> 20)]
    RecordBytes,
    #[error("{} MiB per line", LINE_BYTES_MAX >> 20)]
    LineBytes,
    #[error("{} MiB per XML tag or text", XML_EVENT_BYTES_MAX >> 20)]
    XmlEventBytes,
    #[error("{VALUES_MAX} JSON values per record")]
    Values,
    #[error("{OBJECTS_MAX} JSON objects per record")]
    Objects,
    #[error("{} MiB of memory per advisory", ADVISORY_BYTES_MAX >> 20)]
    AdvisoryBytes,
    #[error("{NAME_BYTES_MAX} bytes per name, version or id")]
    NameBytes,
    /// Number of items in lists that are combined with one another.
    #[error("{0} {1} per record")]
    Count(usize, &'static str),
    #[error("{} GiB or {RATIO_MAX} times its size, unpacked", FEED_BYTES_MAX >> 30)]
    FeedBytes,
    #[error("{RECORDS_MAX} records per feed")]
    Records,
    #[error("{} MiB for an archive's table of contents", DIRECTORY_BYTES_MAX >> 20)]
    Directory,
}

impl From<Limit> for io::Error {
    fn from(limit: Limit) -> io::Error {
        io::Error::new(io::ErrorKind::FileTooLarge, limit)
    }
}

impl Limit {
    /// Returns the limit that caused an I/O error, if one did.
    pub fn from_io_error(error: &io::Error) -> Option<Limit> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// Maximum uncompressed bytes for a feed of this size on disk.
pub fn unpacked_bytes_max(size_bytes: u64) -> u64 {
    size_bytes.saturating_mul(RATIO_MAX).max(FEED_BYTES_MAX)
}

/// Fails with [`Limit::NameBytes`] if any name is too long.
pub(crate) fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Limit> {
    match names.into_iter().any(|name| name.len() > NAME_BYTES_MAX) {
        true => Err(Limit::NameBytes),
        false => Ok(()),
    }
}

/// Counts JSON values and objects byte by byte, without parsing.
#[derive(Debug, Default)]
pub(crate) struct JsonScanner {
    values: u32,
    objects: u32,
    pub(crate) depth: u32,
    pub(crate) in_string: bool,
    is_escaped: bool,
}

impl JsonScanner {
    /// Counts the next byte. Fails as soon as a limit is exceeded.
    pub(crate) fn push_byte(&mut self, byte: u8) -> Result<(), Limit> {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Ok(());
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.values += 1;
                self.objects += u32::from(byte == b'{');
                self.depth += 1;
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' => self.values += 1,
            _ => return Ok(()),
        }
        match () {
            () if self.objects > OBJECTS_MAX => Err(Limit::Objects),
            () if self.values > VALUES_MAX => Err(Limit::Values),
            () => Ok(()),
        }
    }
}

/// Refuses JSON that would need too much memory to parse.
pub fn check_json(text: &[u8]) -> Result<(), Limit> {
    if text.len() as u64 > RECORD_BYTES_MAX {
        return Err(Limit::RecordBytes);
    }
    let mut scan = JsonScanner::default();
    text.iter().try_for_each(|byte| scan.push_byte(*byte))
}

/// Approximate memory of a parsed record, in bytes.
pub fn record_memory_bytes(record: &Record) -> usize {
    match record {
        Record::Advisory(advisory) => advisory_memory_bytes(advisory),
        Record::Exploited(_) | Record::Epss(_) => size_of::<Record>(),
    }
}

fn advisory_memory_bytes(advisory: &Advisory) -> usize {
    let text_bytes = |list: &[String]| -> usize {
        list.iter().map(|text| text.len() + size_of::<String>()).sum()
    };
    let span = |span: &Span| {
        let end = match &span.end {
            SpanEnd::Fixed(version) | SpanEnd::FixedElsewhere(version) | SpanEnd::Last(version) => {
                version.len()
            }
            SpanEnd::Open => 0,
        };
        size_of::<Span>() + span.from.as_ref().map_or(0, String::len) + end
    };
    let affected = |one: &Affected| {
        size_of::<Affected>()
            + one.ecosystem.as_str().len()
            + one.package.len()
            + text_bytes(&one.modules)
            + one.spans.iter().map(span).sum::<usize>()
    };
    let ratings = advisory
        .ratings
        .iter()
        .map(|rated| size_of_val(rated) + rated.flaw.as_ref().map_or(0, String::len));
    size_of::<Advisory>()
        + advisory.id.len()
        + advisory.summary.len()
        + advisory.description.len()
        + text_bytes(&advisory.flaws)
        + text_bytes(&advisory.aliases)
        + ratings.sum::<usize>()
        + advisory.affected.iter().map(affected).sum::<usize>()
}

/// A reader that fails with [`Limit::FeedBytes`] once the byte budget is used up.
#[derive(Debug)]
pub struct BoundedReader<'a, R> {
    inner: R,
    remaining_bytes: &'a mut u64,
}

impl<'a, R> BoundedReader<'a, R> {
    /// `left` is the shared budget; every byte read is subtracted from it.
    pub fn new(inner: R, left: &'a mut u64) -> Self {
        BoundedReader { inner, remaining_bytes: left }
    }
}

impl<R: BufRead> Read for BoundedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for BoundedReader<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if *self.remaining_bytes == 0 && !self.inner.fill_buf()?.is_empty() {
            return Err(Limit::FeedBytes.into());
        }
        let max = usize::try_from(*self.remaining_bytes).unwrap_or(usize::MAX);
        let buffer = self.inner.fill_buf()?;
        Ok(&buffer[..buffer.len().min(max)])
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        *self.remaining_bytes = self.remaining_bytes.saturating_sub(amount as u64);
    }
}
