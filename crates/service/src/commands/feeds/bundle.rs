//! Feed bundles: all imported feed data in one file, for installations without internet access.
//!
//! A bundle is zstd-compressed text with one JSON object per line: a header that lists the feeds,
//! then every record with its date, then the number of records, and finally a signature of all these
//! lines with the key of the installation. Without the number of records the bundle is truncated.
//! Bundles of earlier releases have no signature. A bundle is read twice and follows the same rules
//! as every feed (see [`super`]): an older bundle removes nothing, and importing the same bundle
//! again changes nothing.
//!
//! A signature that does not match is always refused. Who signed matters only to a caller that names
//! the key that it trusts ([`BundleKey`]).

use async_recursion::async_recursion as boxed;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest;
use ring::signature::{ED25519, UnparsedPublicKey};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use domain::advisory::{Advisory, Epss, KevEntry};
use feed::limits::{self, BoundedReader, Limit, RECORD_BYTES_MAX};
use feed::{Progress, Record};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use store::{Db, Topic, advisories, feeds};
use tokio::sync::mpsc;

use super::record_writer::RecordWriter;
use super::{
    CHUNK_BYTES, CHUNK_RECORDS, CHUNKS_QUEUED, FeedTransactions, ImportError, ImportProgress,
    ImportSummary, allow_again, name_from_path,
};
use crate::secrets::SigningKey;

/// The `kind` of a feed row that describes an imported bundle.
pub const KIND: &str = "bundle";
/// The version of the line format. Since version 2, an advisory names its feed.
const FORMAT_VERSION: u32 = 2;
const COMPRESSION_LEVEL: i32 = 6;
/// The magic number of a zstd file. No feed is published with zstd compression except as a tar
/// archive.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Progress is reported after this number of lines.
const PROGRESS_EVERY_LINES: u64 = 500;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Fleetmend(Head),
    /// Only in format 1.
    Advisory(Box<Advisory>),
    FeedAdvisory {
        feed: String,
        statement: Box<Advisory>,
    },
    Exploited {
        statement: KevEntry,
        as_of: Timestamp,
    },
    Epss {
        statement: Epss,
        as_of: Timestamp,
    },
    End {
        records: u64,
    },
    /// After the end, where earlier releases stop reading.
    Signature {
        key: BundleKey,
        /// In Base64.
        signature: String,
    },
}

/// The public key of an installation that signs bundles, written in Base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BundleKey([u8; 32]);

/// The text is not the key of an installation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a key: use the one that `fleetmend feeds export` and `fleetmend feeds key` print")]
pub struct BundleKeyError;

impl std::str::FromStr for BundleKey {
    type Err = BundleKeyError;

    fn from_str(text: &str) -> Result<BundleKey, BundleKeyError> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| BundleKeyError)?;
        bytes.try_into().map(BundleKey).map_err(|_| BundleKeyError)
    }
}

impl TryFrom<String> for BundleKey {
    type Error = BundleKeyError;

    fn try_from(text: String) -> Result<BundleKey, BundleKeyError> {
        text.parse()
    }
}

impl From<BundleKey> for String {
    fn from(key: BundleKey) -> String {
        key.to_string()
    }
}

impl std::fmt::Display for BundleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

/// What is signed: the digest of all lines up to the number of records, after a text that no order
/// or response to an agent begins with.
fn signed_text(lines: digest::Context) -> Vec<u8> {
    [b"fleetmend feed bundle v1\n", lines.finish().as_ref()].concat()
}

/// Where an imported bundle comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleOrigin {
    /// The key that signed it; `None` if it is not signed.
    pub signer: Option<BundleKey>,
    /// When a newer bundle was exported that is already imported.
    pub older_than: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Head {
    form: u32,
    exported_at: Timestamp,
    feeds: Vec<BundledFeed>,
}

/// A feed that was imported on the installation that wrote the bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BundledFeed {
    name: String,
    kind: String,
    source: String,
    records: u64,
    size_bytes: u64,
    as_of: Option<Timestamp>,
    imported_at: Timestamp,
    checked_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportSummary {
    pub feeds: u64,
    pub records: u64,
    /// Size of the file.
    pub size_bytes: u64,
}

/// Why a bundle could not be written or was refused. On refusal, nothing from it was imported.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("nothing to export: no feed has been imported yet")]
    NothingToExport,
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The end line is missing.
    #[error("{} is truncated", path.display())]
    CutOff { path: PathBuf },
    /// Not a bundle, or written by a newer release than this one.
    #[error("{}, line {line}: {why}", path.display())]
    Malformed {
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with this line.
        why: String,
    },
    #[error("{} was altered: its signature does not match its content; get a new copy", path.display())]
    Altered { path: PathBuf },
    #[error("{} is not signed; export it again with a release that signs bundles, or import it without --trust if you trust its way here", path.display())]
    Unsigned { path: PathBuf },
    #[error("{} is signed with another key than the trusted one: {signer}", path.display())]
    OtherSigner { path: PathBuf, signer: BundleKey },
    #[error("{} changed during the import", path.display())]
    Changed { path: PathBuf },
}

/// Whether a file is a bundle. Red Hat's CSAF archives are compressed with zstd as well, but
/// contain a tar archive.
pub fn is_bundle(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    path.is_file() && read.is_ok() && start == MAGIC && !feed::is_tar(path)
}

/// Writes a bundle, signed with `key`. The file appears at `path` only once it is complete.
#[boxed]
pub async fn export(
    db: &Db,
    key: &SigningKey,
    path: &Path,
    now: Timestamp,
) -> Result<ExportSummary, ImportError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let done = export_to(db, key, &partial, now).await;
    let failed = |source| BundleError::Write { path: path.to_owned(), source };
    match done {
        Ok(exported) => {
            std::fs::rename(&partial, path).map_err(failed)?;
            Ok(exported)
        }
        Err(error) => {
            let _ = std::fs::remove_file(&partial);
            Err(error)
        }
    }
}

async fn export_to(
    db: &Db,
    key: &SigningKey,
    path: &Path,
    now: Timestamp,
) -> Result<ExportSummary, ImportError> {
    let mut reader = db.snapshot().await?;
    let feeds_to_export: Vec<BundledFeed> =
        feeds::list(&mut reader).await?.into_iter().filter_map(BundledFeed::from_feed).collect();
    if feeds_to_export.is_empty() {
        return Err(BundleError::NothingToExport.into());
    }
    let mut writer = Writer::create(path)?;
    let count = feeds_to_export.len() as u64;
    writer.line(&Line::Fleetmend(Head {
        form: FORMAT_VERSION,
        exported_at: now,
        feeds: feeds_to_export,
    }))?;
    let limit = u32::try_from(CHUNK_RECORDS).unwrap_or(u32::MAX);
    let mut records = 0;
    let mut after = (String::new(), String::new());
    loop {
        let page = advisories::page(&mut reader, (&after.0, &after.1), limit).await?;
        let Some((feed, last)) = page.last() else { break };
        after = (feed.clone(), last.id.clone());
        for (feed, statement) in page {
            records += 1;
            writer.line(&Line::FeedAdvisory { feed, statement: Box::new(statement) })?;
        }
    }
    macro_rules! write_pages {
        ($page:path, $line:ident) => {
            let mut after = String::new();
            loop {
                let page = $page(&mut reader, &after, limit).await?;
                let Some((last, _)) = page.last() else { break };
                after.clone_from(&last.cve);
                for (statement, as_of) in page {
                    records += 1;
                    writer.line(&Line::$line { statement, as_of })?;
                }
            }
        };
    }
    write_pages!(advisories::exploited_page, Exploited);
    write_pages!(advisories::epss_page, Epss);
    writer.line(&Line::End { records })?;
    writer.sign(key)?;
    Ok(ExportSummary { feeds: count, records, size_bytes: writer.finish()? })
}

struct Writer {
    path: PathBuf,
    encoder: zstd::stream::write::Encoder<'static, File>,
    /// Of all lines so far.
    digest: digest::Context,
}

impl Writer {
    fn create(path: &Path) -> Result<Writer, BundleError> {
        let make = || {
            // A partial file left by an export that was killed, or a link that somebody created
            // there.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut to =
                zstd::stream::write::Encoder::new(File::create_new(path)?, COMPRESSION_LEVEL)?;
            to.include_checksum(true)?;
            Ok(to)
        };
        let to = make().map_err(|source| BundleError::Write { path: path.to_owned(), source })?;
        let digest = digest::Context::new(&digest::SHA256);
        Ok(Writer { path: path.to_owned(), encoder: to, digest })
    }

    fn line(&mut self, line: &Line) -> Result<(), BundleError> {
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut text| {
            text.push(b'\n');
            self.digest.update(&text);
            self.encoder.write_all(&text)
        });
        written.map_err(|source| BundleError::Write { path: self.path.clone(), source })
    }

    fn sign(&mut self, key: &SigningKey) -> Result<(), BundleError> {
        let signature = STANDARD.encode(key.sign(&signed_text(self.digest.clone())));
        let key = key.public_key().parse().expect("a signing key has a public key");
        self.line(&Line::Signature { key, signature })
    }

    fn finish(self) -> Result<u64, BundleError> {
        let end = || {
            let file = self.encoder.finish()?;
            file.sync_all()?;
            Ok(file.metadata()?.len())
        };
        end().map_err(|source| BundleError::Write { path: self.path, source })
    }
}

/// Imports a bundle that another installation exported, and records the success or the reason for
/// the failure. With `trust`, only a bundle that this key signed is accepted.
pub async fn import(
    transactions: &FeedTransactions<'_>,
    path: &Path,
    trust: Option<&BundleKey>,
    now: Timestamp,
    progress: impl FnMut(ImportProgress) + Send + 'static,
) -> Result<ImportSummary, ImportError> {
    let (name, source) = (name_from_path(path), path.display().to_string());
    match import_records(transactions, path, trust, progress).await {
        Ok(taken) => {
            let mut row = feeds::Feed {
                name: name.clone(),
                kind: KIND.to_owned(),
                source,
                records: taken.records,
                size_bytes: taken.size_bytes,
                as_of: Some(taken.head.exported_at),
                imported_at: Some(now),
                last_error: None,
                tried_at: now,
                checked_at: Some(now),
            };
            let mut tx = transactions.begin().await?;
            let feeds = feeds::list(&mut tx).await?;
            let bundles = || feeds.iter().filter(|feed| feed.kind == KIND);
            let newest = bundles().filter_map(|feed| feed.as_of).max();
            let older_than = newest.filter(|newest| *newest > taken.head.exported_at);
            // An older copy under the same name does not make the data older.
            let same_name = bundles().find(|feed| feed.name == name).and_then(|feed| feed.as_of);
            row.as_of = row.as_of.max(same_name);
            let origin = BundleOrigin { signer: taken.signer, older_than };
            for feed_state in taken.head.feeds {
                let ours = feeds.iter().find(|feed| feed.name == feed_state.name);
                if ours.is_none_or(|feed| feed.imported_at < Some(feed_state.imported_at)) {
                    feeds::record_import(&mut tx, &feed_state.into_row()).await?;
                }
            }
            feeds::record_import(&mut tx, &row).await?;
            tx.notify(Topic::Feeds);
            tx.commit().await?;
            let (records, changed) = (taken.records, taken.changed);
            Ok(ImportSummary { name, kind: KIND, records, changed, bundle: Some(origin) })
        }
        Err(refusal) => {
            let mut tx = transactions.begin().await?;
            feeds::record_failure(&mut tx, (&name, KIND, &source), &refusal.full_message(), now)
                .await?;
            tx.commit().await?;
            Err(refusal)
        }
    }
}

struct ImportedBundle {
    head: Head,
    signer: Option<BundleKey>,
    records: u64,
    changed: u64,
    size_bytes: u64,
}

async fn import_records(
    transactions: &FeedTransactions<'_>,
    path: &Path,
    trust: Option<&BundleKey>,
    mut progress: impl FnMut(ImportProgress) + Send + 'static,
) -> Result<ImportedBundle, ImportError> {
    let file = path.to_owned();
    let result = tokio::task::spawn_blocking(move || {
        let whole =
            read_records(&file, &mut |at| progress(ImportProgress::Checking(at)), &mut |_| Ok(()))?;
        Ok::<_, BundleError>((whole, progress))
    });
    let (whole, mut progress) = result.await.map_err(|_| ImportError::Interrupted)??;
    if let Some(trust) = trust {
        whole.check_signer(path, trust)?;
    }
    for feed in &whole.head.feeds {
        allow_again(transactions, &feed.name).await?;
    }
    let file = path.to_owned();
    let total_records = whole.records;
    let (to_database, mut records) = mpsc::channel(CHUNKS_QUEUED);
    let reading = tokio::task::spawn_blocking(move || {
        let mut chunk = Vec::new();
        let mut weight = 0;
        let sent = Cell::new(0);
        let mut show = |read| {
            progress(ImportProgress::Applying { read, records: sent.get(), total_records });
        };
        let again = read_records(&file, &mut show, &mut |item| {
            sent.set(sent.get() + 1);
            weight += limits::record_memory_bytes(&item.record);
            chunk.push(item);
            if chunk.len() == CHUNK_RECORDS || weight > CHUNK_BYTES {
                let full = std::mem::take(&mut chunk);
                weight = 0;
                to_database.blocking_send(full).map_err(|_| ReceiverClosed)?;
            }
            Ok(())
        })?;
        // If the receiver is gone, it reports the error itself.
        let _ = to_database.blocking_send(chunk);
        Ok::<_, BundleError>(again)
    });
    let mut writer = RecordWriter::new(*transactions);
    while let Some(records_chunk) = records.recv().await {
        let mut by_feed: BTreeMap<String, Vec<(Record, Timestamp)>> = BTreeMap::new();
        for BundleRecord { feed, record, as_of } in records_chunk {
            by_feed.entry(feed).or_default().push((record, as_of));
        }
        for (feed, records) in by_feed {
            writer.write_records(&feed, records).await?;
        }
    }
    let again = reading.await.map_err(|_| ImportError::Interrupted)??;
    if again.digest != whole.digest {
        return Err(BundleError::Changed { path: path.to_owned() }.into());
    }
    let BundleSummary { head, signer, records, size_bytes, .. } = whole;
    Ok(ImportedBundle { head, signer, records, changed: writer.changed, size_bytes })
}

/// The receiver of the records has stopped reading.
struct ReceiverClosed;

/// A bundle that was read to its end.
struct BundleSummary {
    head: Head,
    /// The key of a valid signature.
    signer: Option<BundleKey>,
    /// Of everything that a signature covers.
    digest: Vec<u8>,
    records: u64,
    size_bytes: u64,
}

impl BundleSummary {
    fn check_signer(&self, path: &Path, trust: &BundleKey) -> Result<(), BundleError> {
        let path = path.to_owned();
        match &self.signer {
            Some(signer) if signer == trust => Ok(()),
            Some(signer) => Err(BundleError::OtherSigner { path, signer: signer.clone() }),
            None => Err(BundleError::Unsigned { path }),
        }
    }
}

/// A record with its feed and its date.
struct BundleRecord {
    feed: String,
    record: Record,
    as_of: Timestamp,
}

/// Calls `each` for every record.
fn read_records(
    path: &Path,
    progress: &mut dyn FnMut(Progress),
    each: &mut dyn FnMut(BundleRecord) -> Result<(), ReceiverClosed>,
) -> Result<BundleSummary, BundleError> {
    let mut lines = LineReader::open(path)?;
    let head = match lines.next()? {
        Line::Fleetmend(head) if head.form <= FORMAT_VERSION => head,
        Line::Fleetmend(_) => {
            return Err(lines.malformed("it was written by a newer release of fleetmend"));
        }
        _ => return Err(lines.malformed("the bundle header is missing")),
    };
    let mut records = 0;
    let own = name_from_path(path);
    loop {
        let (feed, record, as_of) = match lines.next()? {
            Line::Advisory(statement) => {
                (own.clone(), Record::Advisory(statement), head.exported_at)
            }
            Line::FeedAdvisory { feed, statement } => {
                (feed, Record::Advisory(statement), head.exported_at)
            }
            Line::Exploited { statement, as_of } => {
                (own.clone(), Record::Exploited(statement), as_of)
            }
            Line::Epss { statement, as_of } => (own.clone(), Record::Epss(statement), as_of),
            Line::Fleetmend(_) => return Err(lines.malformed("unexpected second bundle header")),
            Line::Signature { .. } => return Err(lines.malformed("unexpected signature")),
            Line::End { records: stated } if stated == records => break,
            Line::End { .. } => return Err(lines.malformed("records are missing")),
        };
        records += 1;
        if limits::record_memory_bytes(&record) > limits::ADVISORY_BYTES_MAX {
            return Err(lines.too_large(Limit::AdvisoryBytes));
        }
        if records > limits::RECORDS_MAX {
            return Err(lines.too_large(Limit::Records));
        }
        if each(BundleRecord { feed, record, as_of }).is_err() {
            break;
        }
        if records % PROGRESS_EVERY_LINES == 0 {
            progress(lines.progress()?);
        }
    }
    let (signed, size_bytes) = (lines.digest.clone(), lines.size_bytes);
    let signer = lines.read_signature()?;
    progress(Progress { bytes: size_bytes, total: size_bytes });
    let digest = signed.finish().as_ref().to_vec();
    Ok(BundleSummary { head, signer, digest, records, size_bytes })
}

struct LineReader {
    path: PathBuf,
    /// A second handle of the same file, used to read the current position for progress reports.
    position: File,
    decoder: BufReader<zstd::stream::read::Decoder<'static, BufReader<File>>>,
    size_bytes: u64,
    line_number: u64,
    /// The number of decompressed bytes that may still be read.
    bytes_left: u64,
    text: Vec<u8>,
    /// Of all lines so far.
    digest: digest::Context,
}

impl LineReader {
    fn open(path: &Path) -> Result<LineReader, BundleError> {
        let open = || {
            let file = File::open(path)?;
            let (size, place) = (file.metadata()?.len(), file.try_clone()?);
            Ok((size, place, zstd::stream::read::Decoder::new(file)?))
        };
        let (size_bytes, place, from) =
            open().map_err(|source| BundleError::Read { path: path.to_owned(), source })?;
        let (path, from) = (path.to_owned(), BufReader::new(from));
        let left = limits::unpacked_bytes_max(size_bytes);
        Ok(LineReader {
            path,
            position: place,
            decoder: from,
            size_bytes,
            line_number: 0,
            bytes_left: left,
            text: Vec::new(),
            digest: digest::Context::new(&digest::SHA256),
        })
    }

    /// Reads and verifies what follows the number of records. Returns the key of the signature, if
    /// there is one.
    fn read_signature(&mut self) -> Result<Option<BundleKey>, BundleError> {
        let signed = signed_text(self.digest.clone());
        if self.is_at_end()? {
            return Ok(None);
        }
        let Line::Signature { key, signature } = self.next()? else {
            return Err(self.malformed("content after the end"));
        };
        let is_valid = STANDARD.decode(signature).is_ok_and(|signature| {
            UnparsedPublicKey::new(&ED25519, key.0).verify(&signed, &signature).is_ok()
        });
        match is_valid {
            true if self.is_at_end()? => Ok(Some(key)),
            true => Err(self.malformed("content after the signature")),
            false => Err(BundleError::Altered { path: self.path.clone() }),
        }
    }

    fn is_at_end(&mut self) -> Result<bool, BundleError> {
        match self.decoder.fill_buf() {
            Ok(rest) => Ok(rest.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(BundleError::CutOff { path: self.path.clone() })
            }
            Err(source) => Err(BundleError::Read { path: self.path.clone(), source }),
        }
    }

    fn next(&mut self) -> Result<Line, BundleError> {
        self.line_number += 1;
        self.text.clear();
        let from = BoundedReader::new(&mut self.decoder, &mut self.bytes_left);
        let read = from.take(RECORD_BYTES_MAX).read_until(b'\n', &mut self.text);
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(BundleError::CutOff { path: self.path.clone() });
            }
            Err(source) => {
                return Err(match Limit::from_io_error(&source) {
                    Some(limit) => self.too_large(limit),
                    None => BundleError::Read { path: self.path.clone(), source },
                });
            }
            Ok(_) if self.text.last() == Some(&b'\n') => {}
            Ok(read) if read as u64 == RECORD_BYTES_MAX => {
                return Err(self.too_large(Limit::RecordBytes));
            }
            Ok(_) => return Err(BundleError::CutOff { path: self.path.clone() }),
        }
        self.digest.update(&self.text);
        limits::check_json(&self.text).map_err(|limit| self.too_large(limit))?;
        serde_json::from_slice(&self.text).map_err(|error| self.malformed(&error.to_string()))
    }

    fn too_large(&self, limit: Limit) -> BundleError {
        self.malformed(&format!("it exceeds the limit of {limit}"))
    }

    fn progress(&mut self) -> Result<Progress, BundleError> {
        let bytes = io::Seek::stream_position(&mut self.position)
            .map_err(|source| BundleError::Read { path: self.path.clone(), source })?;
        Ok(Progress { bytes, total: self.size_bytes })
    }

    fn malformed(&self, why: &str) -> BundleError {
        BundleError::Malformed {
            path: self.path.clone(),
            line: self.line_number,
            why: why.to_owned(),
        }
    }
}

impl BundledFeed {
    /// Returns `None` for a feed that was never imported and for a bundle: a bundle's records are
    /// exported, its own row is not.
    fn from_feed(feed: feeds::Feed) -> Option<BundledFeed> {
        let feeds::Feed { name, kind, source, records, size_bytes, as_of, checked_at, .. } = feed;
        let imported_at = feed.imported_at.filter(|_| kind != KIND)?;
        Some(BundledFeed {
            name,
            kind,
            source,
            records,
            size_bytes,
            as_of,
            imported_at,
            checked_at,
        })
    }

    fn into_row(self) -> feeds::Feed {
        let BundledFeed { name, kind, source, records, size_bytes, as_of, imported_at, checked_at } =
            self;
        feeds::Feed {
            name,
            kind,
            source,
            records,
            size_bytes,
            as_of,
            imported_at: Some(imported_at),
            last_error: None,
            tried_at: imported_at,
            checked_at,
        }
    }
}

/// Reads a bundle and drops its records.
#[cfg(feature = "fuzzing")]
pub fn fuzz(path: &Path) {
    let _ = read_records(path, &mut |_| {}, &mut |_| Ok(()));
}
