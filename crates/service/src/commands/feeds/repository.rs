//! Fetches the advisories of repositories of rpm packages: through a list of mirrors if the URL is
//! one, then through the index of the repository (`repomd.xml`) to its `updateinfo` file, which is
//! verified with the checksum in the index.
//!
//! All repositories of a feed are one download: either every one of them could be fetched, or
//! nothing is imported. The lists and indexes are small and fetched each time. Their checksums say
//! whether anything changed, even if the publisher moved the repository, so they serve as the
//! validator of the copy instead of HTTP's.

use std::io::Read as _;
use std::path::Path;

use feed::catalog;
use feed::repomd::{self, Checksum, INDEX_BYTES_MAX, INDEX_PATH, MIRROR_LIST_END, RepositoryFile};
use reqwest::Url;
use ring::digest;

use super::ImportError;
use crate::fetch::{self, FetchError, FetchOutcome, FetchedFile, Limits, Validators};

/// The architecture whose advisories are imported. Advisories have no architecture: publishers
/// build the same versions for all of them.
const ARCH: &str = "x86_64";

/// The repositories of one feed.
pub(super) struct Repositories<'a> {
    /// The indexes of repositories, or lists of mirrors.
    pub(super) urls: &'a [String],
    /// The mirror that replaces the hosts of the publishers.
    pub(super) mirror: Option<&'a str>,
    pub(super) limits: Limits,
}

impl Repositories<'_> {
    /// Downloads the advisories of all repositories into one directory, unless they are those with
    /// the validators `known`.
    pub(super) async fn fetch(
        &self,
        known: &Validators,
        progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
    ) -> Result<FetchOutcome, ImportError> {
        let mut found = Vec::new();
        for url in self.urls {
            found.push(self.find(url).await?);
        }
        let validators = validators(found.iter().map(|(_, file)| file));
        if validators == *known {
            return Ok(FetchOutcome::Unchanged);
        }
        let total = found.iter().map(|(_, file)| file.size).sum::<Option<u64>>();
        let mut done = 0;
        let mut files = Vec::new();
        for (url, expected) in found {
            let limits =
                Limits { bytes_max: self.limits.bytes_max.saturating_sub(done), ..self.limits };
            let mut part = |bytes, _| progress(done + bytes, total);
            let file = download(&url, limits, &mut part).await?;
            let (path, shown) = (file.path.clone(), url.to_string());
            let verified = tokio::task::spawn_blocking(move || verify(&path, &expected, &shown));
            done += verified.await.map_err(|_| ImportError::Interrupted)??;
            files.push((url, file));
        }
        Ok(FetchOutcome::New(FetchedFile::gather(files, validators)?))
    }

    /// The address of the advisories of one repository, with their checksum.
    async fn find(&self, url: &str) -> Result<(Url, RepositoryFile), ImportError> {
        let repository = match url.ends_with(MIRROR_LIST_END) {
            true => self.resolve_mirror_list(url).await?,
            false => self.mirrored(url.strip_suffix(INDEX_PATH).unwrap_or(url)),
        };
        let index_url = parse_url(&format!("{repository}{INDEX_PATH}"))?;
        let index = self.small_file(&index_url).await?;
        let file = repomd::find_updateinfo(&index).map_err(|error| unusable(&index_url, &error))?;
        Ok((parse_url(&format!("{repository}/{}", file.path))?, file))
    }

    /// The address of the first repository in a list of mirrors.
    async fn resolve_mirror_list(&self, url: &str) -> Result<String, ImportError> {
        let published = parse_url(url)?;
        let list_url = parse_url(&self.mirrored(url))?;
        let list = self.small_file(&list_url).await?;
        let repository = repomd::first_mirror(&String::from_utf8_lossy(&list), ARCH)
            .map_err(|error| unusable(&list_url, &error))?;
        if self.mirror.is_some() {
            return Ok(self.mirrored(&repository));
        }
        // Nobody but the publisher decides where its advisories come from.
        let parsed = parse_url(&repository)?;
        match parsed.origin() == published.origin() {
            true => Ok(repository),
            false => Err(unusable(&list_url, &"the list names a repository on another host")),
        }
    }

    /// The address on the mirror, if there is one. A mirror may have rewritten its lists already.
    fn mirrored(&self, url: &str) -> String {
        match self.mirror {
            Some(mirror) if !url.starts_with(mirror.trim_end_matches('/')) => {
                catalog::mirrored(url, mirror)
            }
            _ => url.to_owned(),
        }
    }

    async fn small_file(&self, url: &Url) -> Result<Vec<u8>, ImportError> {
        let limits = Limits { bytes_max: INDEX_BYTES_MAX, ..self.limits };
        let file = download(url, limits, &mut |_, _| {}).await?;
        std::fs::read(&file.path).map_err(|source| {
            ImportError::Fetch(FetchError::Disk { path: file.path.clone(), source })
        })
    }
}

async fn download(
    url: &Url,
    limits: Limits,
    progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
) -> Result<FetchedFile, ImportError> {
    let failed = |source| ImportError::FetchPart { url: url.to_string(), source };
    match fetch::fetch(url, &Validators::default(), limits, progress).await.map_err(failed)? {
        FetchOutcome::New(file) => Ok(file),
        FetchOutcome::Unchanged => Err(ImportError::Interrupted),
    }
}

fn parse_url(text: &str) -> Result<Url, ImportError> {
    fetch::parse_url(text).map_err(ImportError::Fetch)
}

fn unusable(url: &Url, why: &dyn std::fmt::Display) -> ImportError {
    ImportError::MalformedDownload(format!("{url}: {why}"))
}

/// Identifies the content of all files together.
fn validators<'a>(files: impl Iterator<Item = &'a RepositoryFile>) -> Validators {
    let mut all = digest::Context::new(&digest::SHA256);
    for file in files {
        all.update(file.checksum.as_hex().as_bytes());
        all.update(b"\n");
    }
    Validators { etag: Some(format!("sha256:{}", hex(all.finish().as_ref()))), last_modified: None }
}

/// Compares a file with its size and checksum in the index. Returns its size.
fn verify(path: &Path, expected: &RepositoryFile, url: &str) -> Result<u64, ImportError> {
    let algorithm = match expected.checksum {
        Checksum::Sha256(_) => &digest::SHA256,
        Checksum::Sha512(_) => &digest::SHA512,
    };
    let disk = |source| ImportError::Fetch(FetchError::Disk { path: path.to_owned(), source });
    let mut file = std::fs::File::open(path).map_err(disk)?;
    let mut context = digest::Context::new(algorithm);
    let mut buffer = vec![0; 64 * 1024];
    let mut size = 0;
    loop {
        let read = file.read(&mut buffer).map_err(disk)?;
        if read == 0 {
            break;
        }
        size += read as u64;
        context.update(&buffer[..read]);
    }
    if hex(context.finish().as_ref()) == expected.checksum.as_hex() {
        return Ok(size);
    }
    let stated = match expected.size {
        Some(stated) if stated != size => format!(" ({size} bytes instead of {stated})"),
        _ => String::new(),
    };
    Err(ImportError::MalformedDownload(format!(
        "{url} does not match its checksum in the index of the repository{stated}"
    )))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}
