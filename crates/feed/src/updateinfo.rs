//! `updateinfo.xml`: the advisories of a repository of rpm packages, as Amazon Linux and Oracle
//! Linux publish them.
//!
//! Only security updates become advisories. The file does not name its system in a way that all
//! publishers share, so the caller does. An advisory lists the fixed version of each binary package
//! once per architecture; source packages are skipped. The fixed versions of x86_64 are used for
//! every architecture, because advisories have no architecture and publishers build the same
//! versions for all of them.

use std::io::BufRead;

use domain::advisory::{
    Advisory, Affected, CveRating, Rating, Span, SpanEnd, parse_vendor_severity,
};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use crate::Record;
use crate::error::{FeedLocation, PassError};
use crate::limits::{self, Limit};
use crate::xml::{Element, XmlEvent, XmlReader, quote};

/// Maximum packages of one advisory. Kernels have about a hundred.
const PACKAGES_MAX: usize = 20_000;
/// Maximum CVEs of one advisory.
const CVES_MAX: usize = 20_000;
/// Maximum modules of one collection of packages.
const MODULES_MAX: usize = 100;

/// An advisory whose end has not been read yet.
#[derive(Default)]
struct Draft {
    id: String,
    title: String,
    severity: String,
    issued: Option<Timestamp>,
    updated: Option<Timestamp>,
    cves: Vec<String>,
    /// The modules of the current collection.
    modules: Vec<String>,
    packages: Vec<FixedPackage>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FixedPackage {
    name: String,
    modules: Vec<String>,
    /// Whether another architecture than x86_64 has this version.
    is_foreign: bool,
    version: String,
}

/// Why an advisory is refused.
enum Refusal {
    Invalid(String),
    Limit(Limit),
}

impl From<Limit> for Refusal {
    fn from(limit: Limit) -> Refusal {
        Refusal::Limit(limit)
    }
}

pub(crate) fn read(
    input: &mut dyn BufRead,
    location: &FeedLocation,
    ecosystem: &str,
    each: &mut dyn FnMut(Record) -> Result<(), PassError>,
) -> Result<(), PassError> {
    let mut xml = XmlReader::new(input, location);
    let mut parents: Vec<String> = Vec::new();
    let mut draft: Option<Draft> = None;
    let mut number = 1;
    while let Some(event) = xml.next(number)? {
        let refused = |refusal| match refusal {
            Refusal::Invalid(why) => location.invalid_record(number, why),
            Refusal::Limit(limit) => location.too_large(number, limit),
        };
        match event {
            XmlEvent::Open(element) => {
                match (parents.last().map(String::as_str), element.name.as_str()) {
                    (None, "updates") => {}
                    (None, root) => {
                        let why = format!("not an updateinfo file: it begins with {}", quote(root));
                        return Err(location.invalid_record(number, why).into());
                    }
                    (Some("updates"), "update") => {
                        let is_security = element.get("type") == Some("security");
                        draft = is_security.then(Draft::default);
                    }
                    (Some(parent), _) => {
                        if let Some(draft) = &mut draft {
                            draft.open(parent, &element).map_err(refused)?;
                        }
                    }
                }
                parents.push(element.name);
            }
            XmlEvent::Close(name, text) => {
                parents.pop();
                match (parents.last().map(String::as_str), name.as_str()) {
                    (Some("updates"), "update") => {
                        if let Some(draft) = draft.take() {
                            let advisory = draft.finish(ecosystem).map_err(refused)?;
                            each(Record::Advisory(Box::new(advisory)))?;
                        }
                        number += 1;
                    }
                    (Some(parent), name) => {
                        if let Some(draft) = &mut draft {
                            draft.close(parent, name, text);
                        }
                    }
                    (None, _) => {}
                }
            }
        }
    }
    Ok(())
}

impl Draft {
    fn open(&mut self, parent: &str, element: &Element) -> Result<(), Refusal> {
        match (parent, element.name.as_str()) {
            ("update", "issued") => self.issued = element.get("date").and_then(parse_date),
            ("update", "updated") => self.updated = element.get("date").and_then(parse_date),
            ("references", "reference") => {
                if let Some(cve) = element.get("id").filter(|id| id.starts_with("CVE-")) {
                    limits::check_names([cve])?;
                    add(&mut self.cves, cve.to_owned(), CVES_MAX, "CVEs")?;
                }
            }
            ("collection", "module") => {
                if let (Some(name), Some(stream)) = (element.get("name"), element.get("stream")) {
                    limits::check_names([name, stream])?;
                    add(&mut self.modules, format!("{name}:{stream}"), MODULES_MAX, "modules")?;
                }
            }
            ("collection", "package") => self.add_package(element)?,
            _ => {}
        }
        Ok(())
    }

    fn add_package(&mut self, element: &Element) -> Result<(), Refusal> {
        let arch = element.get("arch").unwrap_or("");
        if matches!(arch, "src" | "nosrc") {
            return Ok(());
        }
        let required = |name: &str| {
            let missing = || Refusal::Invalid(format!("a package has no {name}"));
            element.get(name).ok_or_else(missing)
        };
        let (name, version, release) =
            (required("name")?, required("version")?, required("release")?);
        limits::check_names([name, version, release])?;
        let version = match element.get("epoch") {
            None | Some("0" | "None" | "(none)") => format!("{version}-{release}"),
            Some(epoch) if epoch.bytes().all(|byte| byte.is_ascii_digit()) && epoch.len() < 20 => {
                format!("{epoch}:{version}-{release}")
            }
            Some(epoch) => {
                return Err(Refusal::Invalid(format!("{} is not an epoch", quote(epoch))));
            }
        };
        let package = FixedPackage {
            name: name.to_owned(),
            modules: self.modules.clone(),
            is_foreign: !matches!(arch, "" | "x86_64" | "noarch"),
            version,
        };
        let bytes: usize = package.modules.iter().map(String::len).sum();
        // The modules are copied into every package.
        if bytes.saturating_mul(self.packages.len()) > limits::ADVISORY_BYTES_MAX {
            return Err(Limit::AdvisoryBytes.into());
        }
        add(&mut self.packages, package, PACKAGES_MAX, "packages")
    }

    fn close(&mut self, parent: &str, name: &str, text: String) {
        match (parent, name) {
            ("update", "id") => self.id = text.trim().to_owned(),
            ("update", "title") => self.title = text,
            ("update", "severity") => self.severity = text,
            ("pkglist", "collection") => self.modules.clear(),
            _ => {}
        }
    }

    fn finish(self, ecosystem: &str) -> Result<Advisory, Refusal> {
        let Draft { id, title, severity, issued, updated, mut cves, mut packages, .. } = self;
        if id.is_empty() {
            return Err(Refusal::Invalid("an update has no id".to_owned()));
        }
        limits::check_names([id.as_str()])?;
        cves.sort();
        cves.dedup();
        if cves.is_empty() {
            cves.push(id.clone());
        }
        packages.sort();
        packages.dedup();
        let severity = parse_vendor_severity(severity.trim());
        Ok(Advisory {
            id,
            flaws: cves,
            aliases: Vec::new(),
            summary: title.split_whitespace().collect::<Vec<_>>().join(" "),
            description: String::new(),
            published: issued.or(updated),
            modified: updated.max(issued),
            withdrawn: None,
            ratings: severity
                .map(|word| CveRating { flaw: None, rating: Rating::Word(word) })
                .into_iter()
                .collect(),
            affected: affected(ecosystem, packages),
        })
    }
}

/// One entry per package and module, with its fixed versions. `packages` are sorted, so that those
/// of x86_64 come first.
fn affected(ecosystem: &str, packages: Vec<FixedPackage>) -> Vec<Affected> {
    let mut all: Vec<Affected> = Vec::new();
    let mut has_own_version = false;
    for FixedPackage { name, modules, is_foreign, version } in packages {
        let span = Span { from: None, end: SpanEnd::Fixed(version) };
        match all.last_mut() {
            Some(last) if last.package == name && last.modules == modules => {
                let is_superseded = is_foreign && has_own_version;
                if !is_superseded && !last.spans.contains(&span) {
                    last.spans.push(span);
                }
            }
            _ => {
                has_own_version = !is_foreign;
                let mut one = Affected::new(ecosystem, &name);
                one.modules = modules;
                one.spans.push(span);
                all.push(one);
            }
        }
    }
    all
}

fn add<T>(list: &mut Vec<T>, one: T, max: usize, what: &'static str) -> Result<(), Refusal> {
    match list.len() < max {
        true => list.push(one),
        false => return Err(Limit::Count(max, what).into()),
    }
    Ok(())
}

/// Parses the dates that publishers write, in UTC: `2024-07-01 20:41:00`, `2024-07-01 20:41`,
/// `2024-07-01`, or with a `T` and a `Z`. An unreadable date is no date.
fn parse_date(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let civil = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"]
        .iter()
        .find_map(|format| DateTime::strptime(format, text).ok())
        .or_else(|| text.parse::<Date>().ok().map(|day| day.to_datetime(jiff::civil::Time::MIN)))?;
    civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}
