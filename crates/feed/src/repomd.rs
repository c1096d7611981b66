//! The index of a repository of rpm packages (`repodata/repomd.xml`), and lists of mirrors.
//!
//! Pure: callers download the files. [`RepositoryFile`] says where the advisories are and how to
//! verify them.

use std::io::Cursor;
use std::path::PathBuf;

use crate::error::FeedLocation;
use crate::xml::{XmlEvent, XmlReader, quote};

/// Maximum bytes of `repomd.xml` and of a mirror list. Real ones have a few kilobytes.
pub const INDEX_BYTES_MAX: u64 = 1024 * 1024;

/// The path of the index below the address of a repository.
pub const INDEX_PATH: &str = "/repodata/repomd.xml";
/// How the address of a list of mirrors ends.
pub const MIRROR_LIST_END: &str = "/mirror.list";

/// Whether a URL leads to advisories through the index of a repository, instead of being the
/// advisories themselves.
pub fn is_repository_url(url: &str) -> bool {
    url.ends_with(INDEX_PATH) || url.ends_with(MIRROR_LIST_END)
}

/// A file that the index of a repository names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryFile {
    /// The path below the address of the repository.
    pub path: String,
    pub checksum: Checksum,
    /// The size in bytes, if stated.
    pub size: Option<u64>,
}

/// A checksum, in lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checksum {
    Sha256(String),
    Sha512(String),
}

/// Why an index or a mirror list cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IndexError(String);

/// Finds the advisories (`updateinfo`) in the index of a repository.
pub fn find_updateinfo(index: &[u8]) -> Result<RepositoryFile, IndexError> {
    let location = FeedLocation { file: PathBuf::from("repomd.xml"), entry: None };
    let mut input = Cursor::new(index);
    let mut xml = XmlReader::new(&mut input, &location);
    let refused = |why: String| IndexError(why);
    let mut parents: Vec<String> = Vec::new();
    let mut is_wanted = false;
    let (mut path, mut checksum, mut size) = (None, None, None);
    let mut kind = None;
    while let Some(event) = xml.next(1).map_err(|error| refused(error.to_string()))? {
        match event {
            XmlEvent::Open(element) => {
                match (parents.last().map(String::as_str), element.name.as_str()) {
                    (None, "repomd") => {}
                    (None, root) => {
                        let why = format!(
                            "not the index of a repository: it begins with {}",
                            quote(root)
                        );
                        return Err(refused(why));
                    }
                    (Some("repomd"), "data") => {
                        is_wanted = element.get("type") == Some("updateinfo");
                    }
                    (Some("data"), "location") if is_wanted => {
                        path = element.get("href").map(str::to_owned);
                    }
                    (Some("data"), "checksum") if is_wanted => {
                        kind = element.get("type").map(str::to_owned);
                    }
                    _ => {}
                }
                parents.push(element.name);
            }
            XmlEvent::Close(name, text) => {
                parents.pop();
                match (parents.last().map(String::as_str), name.as_str()) {
                    (Some("data"), "checksum") if is_wanted => {
                        checksum = Some(text.trim().to_ascii_lowercase());
                    }
                    (Some("data"), "size") if is_wanted => size = text.trim().parse().ok(),
                    _ => {}
                }
            }
        }
    }
    let Some(path) = path else {
        return Err(refused("the repository has no advisories (updateinfo)".to_owned()));
    };
    let is_safe = !path.starts_with('/')
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+~".contains(c));
    if !is_safe {
        return Err(refused(format!("{} is not a path in the repository", quote(&path))));
    }
    if [".xz", ".bz2", ".zck"].iter().any(|end| path.ends_with(end)) {
        let why = "uses a compression that is not supported: use gzip, zstd or none";
        return Err(refused(format!("{} {why}", quote(&path))));
    }
    let checksum = parse_checksum(kind.as_deref(), checksum.as_deref())?;
    Ok(RepositoryFile { path, checksum, size })
}

fn parse_checksum(kind: Option<&str>, digits: Option<&str>) -> Result<Checksum, IndexError> {
    let digits = digits.unwrap_or_default();
    let has_digits = |count| digits.len() == count && digits.bytes().all(|b| b.is_ascii_hexdigit());
    match kind {
        Some("sha256") if has_digits(64) => Ok(Checksum::Sha256(digits.to_owned())),
        Some("sha512") if has_digits(128) => Ok(Checksum::Sha512(digits.to_owned())),
        Some("sha256" | "sha512") => {
            Err(IndexError("the checksum of the advisories is malformed".to_owned()))
        }
        Some(kind) => Err(IndexError(format!(
            "checksums of type {} are not supported: use sha256 or sha512",
            quote(kind)
        ))),
        None => Err(IndexError("the advisories have no checksum".to_owned())),
    }
}

/// The address of the first repository in a list of mirrors, without a slash at its end.
pub fn first_mirror(list: &str, arch: &str) -> Result<String, IndexError> {
    let mut lines = list.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    match first {
        Some(line) if line.starts_with("https://") || line.starts_with("http://") => {
            Ok(line.replace("$basearch", arch).trim_end_matches('/').to_owned())
        }
        Some(line) => {
            Err(IndexError(format!("not a list of mirrors: it begins with {}", quote(line))))
        }
        None => Err(IndexError("the list of mirrors is empty".to_owned())),
    }
}

impl Checksum {
    pub fn as_hex(&self) -> &str {
        let (Checksum::Sha256(digits) | Checksum::Sha512(digits)) = self;
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn index(data: &str) -> Result<RepositoryFile, String> {
        let text = format!(
            "<?xml version=\"1.0\"?><repomd xmlns=\"http://linux.duke.edu/metadata/repo\">\
             <data type=\"primary\"><location href=\"repodata/primary.xml.gz\"/></data>{data}</repomd>"
        );
        find_updateinfo(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn data(path: &str, checksum: &str) -> String {
        format!(
            "<data type=\"updateinfo\">{checksum}<open-checksum type=\"sha256\">00</open-checksum>\
             <location href=\"{path}\"/><size>42</size><open-size>100</open-size></data>"
        )
    }

    #[test]
    fn advisories_are_found_with_their_checksum() {
        let sum = format!("<checksum type=\"sha256\">{DIGITS}</checksum>");
        let found = index(&data("repodata/a-updateinfo.xml.gz", &sum)).unwrap();
        assert_eq!(found.path, "repodata/a-updateinfo.xml.gz");
        assert_eq!((found.checksum, found.size), (Checksum::Sha256(DIGITS.into()), Some(42)));
    }

    #[test]
    fn unusable_index_is_refused_with_the_reason() {
        let sum = format!("<checksum type=\"sha256\">{DIGITS}</checksum>");
        let good = "repodata/updateinfo.xml.gz";
        for (text, why) in [
            (String::new(), "has no advisories"),
            (data("../../x.xml", &sum), "not a path in the repository"),
            (data("/etc/passwd", &sum), "not a path in the repository"),
            (data("https://other.test/x.xml", &sum), "not a path in the repository"),
            (data("repodata/x.xml?y", &sum), "not a path in the repository"),
            (data("repodata/updateinfo.xml.xz", &sum), "compression that is not supported"),
            (data(good, ""), "have no checksum"),
            (data(good, "<checksum type=\"md5\">00</checksum>"), "`md5` are not supported"),
            (data(good, "<checksum type=\"sha256\">00</checksum>"), "malformed"),
            ("<data".to_owned(), "truncated"),
            ("</data>".to_owned(), "invalid XML"),
        ] {
            let refusal = index(&text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
        for (text, why) in [
            ("", "truncated"),
            ("<repomd><data type=\"updateinfo\">", "truncated"),
            ("<html></html>", "begins with `html`"),
            ("<!DOCTYPE html><html></html>", "document type declaration"),
        ] {
            let refusal = find_updateinfo(text.as_bytes()).unwrap_err().to_string();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn first_mirror_is_used() {
        let list = "\n# mirrors\nhttps://cdn.test/2/core/$basearch/abc/\nhttps://other.test/\n";
        assert_eq!(first_mirror(list, "x86_64").unwrap(), "https://cdn.test/2/core/x86_64/abc");
        assert!(first_mirror("\n", "x86_64").unwrap_err().to_string().contains("empty"));
        assert!(first_mirror("<html>", "x86_64").unwrap_err().to_string().contains("`<html>`"));
    }
}
