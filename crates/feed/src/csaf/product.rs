//! Resolves product ids to packages and products.
//!
//! The package URL is the best source, but many packages in documents of 2023 and 2024 have none.
//! In that case the package's own id is parsed:
//!
//! | id | publisher | meaning |
//! |---|---|---|
//! | `openssl-1:3.0.7-27.el9.x86_64` | Red Hat | a binary package with its version |
//! | `python3-0:3.6.8-67.el8_10`, `curl-0:8.9.1-1.el9.src` | Red Hat | a source package with its version |
//! | `edk2`, `curl.src` | Red Hat | a source package |
//! | `nodejs:18/nodejs` | Red Hat | a package of a module stream |
//! | `redis-0:6.2.17-1.module+el8.x86_64::redis:6` | Red Hat | the same, with its version |
//! | `postgresql:12:8100020240814102525:489197e6` | Red Hat | a module; its packages relate to it |
//! | `krb5-client-1.15.2-4.25` | SUSE | a binary package with its version |
//!
//! SUSE lists binary packages, up to a thousand in one document. Where the package URL names the
//! source package, that is used instead: its state is the same, and OSV's records name it as well.

use std::borrow::Cow;
use std::collections::HashMap;

use domain::advisory::{Channel, Ecosystem, Family, PackageNameKind};

use super::schema;
use super::schema::{ProductTree, Relationship};

/// Maximum relationships that one product id can combine: a package in a module in a product is
/// two.
const RELATIONSHIPS_MAX: usize = 8;

/// A publisher whose product ids can be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Publisher {
    RedHat,
    Suse,
}

impl Publisher {
    pub(super) fn new(name: &str) -> Option<Publisher> {
        let name = name.to_ascii_lowercase();
        if name.contains("red hat") {
            Some(Publisher::RedHat)
        } else if name.contains("suse") {
            Some(Publisher::Suse)
        } else {
            None
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Publisher::RedHat => "redhat",
            Publisher::Suse => "suse",
        }
    }
}

/// A release of an operating system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) ecosystem: String,
    /// Whether this is a minor release of RHEL with its own support period: EUS, AUS, TUS, E4S.
    pub(super) is_minor_stream: bool,
}

/// A package as the document names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) name_kind: PackageNameKind,
    pub(super) version: Option<String>,
    /// For example `nodejs:18`.
    pub(super) module: Option<String>,
}

/// A document's products and packages, indexed by id.
pub(super) struct ProductIndex<'a> {
    publisher: Publisher,
    products: HashMap<&'a str, &'a schema::Product>,
    relationships: HashMap<&'a str, &'a Relationship>,
}

impl<'a> ProductIndex<'a> {
    pub(super) fn new(publisher: Publisher, tree: Option<&'a ProductTree>) -> ProductIndex<'a> {
        let mut found =
            ProductIndex { publisher, products: HashMap::new(), relationships: HashMap::new() };
        let Some(tree) = tree else { return found };
        let mut branches: Vec<&schema::Branch> = tree.branches.iter().flatten().collect();
        while let Some(branch) = branches.pop() {
            branches.extend(branch.branches.iter().flatten());
            found.products.extend(branch.product.iter().map(|one| (one.product_id.as_str(), one)));
        }
        let named = tree.full_product_names.iter().flatten();
        found.products.extend(named.map(|one| (one.product_id.as_str(), one)));
        let relationships = tree.relationships.iter().flatten();
        found
            .relationships
            .extend(relationships.map(|one| (one.full_product_name.product_id.as_str(), one)));
        found
    }

    pub(super) fn publisher(&self) -> Publisher {
        self.publisher
    }

    /// Resolves an id to its product and package. Returns `None` for anything that is not a package
    /// of an operating system. `has_version` says that the id contains a version, for publishers
    /// whose id format does not show it.
    pub(super) fn resolve(&self, id: &str, has_version: bool) -> Option<(Product, Package)> {
        let (product, package, module) = self.split_id(id)?;
        let product = self.product(self.products.get(product)?)?;
        let purl = self.products.get(package).and_then(|one| one.helper.as_ref()?.purl.as_deref());
        let mut package = match self.publisher {
            Publisher::RedHat => red_hat_package(package, purl)?,
            Publisher::Suse => suse_package(package, purl, has_version)?,
        };
        if package.module.is_none() {
            package.module = module;
        }
        Some((product, package))
    }

    /// The ids of the product and the package, and the module between them, if any.
    fn split_id<'b>(&'b self, id: &'b str) -> Option<(&'b str, &'b str, Option<String>)> {
        let Some(relationship) = self.relationships.get(id) else {
            // Some documents omit relationships. Product ids contain colons, too.
            let mut colons = id.match_indices(':').rev();
            let (at, _) = colons.find(|(at, _)| self.products.contains_key(&id[..*at]))?;
            return Some((&id[..at], &id[at + 1..], None));
        };
        let mut product = relationship.relates_to_product_reference.as_str();
        let mut module = None;
        for _ in 0..RELATIONSHIPS_MAX {
            let Some(between) = self.relationships.get(product) else {
                return Some((product, &relationship.product_reference, module));
            };
            module = Some(module_stream(&between.product_reference).to_owned());
            product = &between.relates_to_product_reference;
        }
        None
    }

    fn product(&self, product: &schema::Product) -> Option<Product> {
        match self.publisher {
            Publisher::RedHat => red_hat_product(product.helper.as_ref()?.cpe.as_deref()?),
            Publisher::Suse => suse_product(&product.name),
        }
    }
}

/// Identifies RHEL by its CPE: `cpe:/a:redhat:enterprise_linux:9::appstream`.
fn red_hat_product(cpe: &str) -> Option<Product> {
    let cpe = cpe.strip_prefix("cpe:/").or_else(|| cpe.strip_prefix("cpe:2.3:"))?;
    let mut fields = cpe.split(':').skip(1);
    let (vendor, product, release) = (fields.next()?, fields.next()?, fields.next()?);
    let ecosystem = Ecosystem::new(&format!("Red Hat:{product}:{release}"));
    match ecosystem.base() {
        _ if vendor != "redhat" => None,
        (base, _) if base == ecosystem => None,
        (base, Channel::Open) => {
            Some(Product { ecosystem: base.as_str().to_owned(), is_minor_stream: false })
        }
        (_, Channel::Subscription) => Some(Product {
            // ELS extends the support of a major release.
            is_minor_stream: !product.ends_with("_els"),
            ecosystem: ecosystem.as_str().to_owned(),
        }),
    }
}

/// Identifies SUSE products by name, because two products can have the same CPE.
fn suse_product(name: &str) -> Option<Product> {
    let ecosystem = match name.strip_prefix("SUSE ") {
        Some(product) => Ecosystem::new(&format!("SUSE:{product}")),
        None => Ecosystem::new(&format!("openSUSE:{}", name.strip_prefix("openSUSE ")?)),
    };
    let is_system = match ecosystem.family() {
        Family::Suse => ecosystem.base().0 != ecosystem,
        _ => ["openSUSE:Tumbleweed", "openSUSE:Leap "]
            .iter()
            .any(|start| ecosystem.as_str().starts_with(start)),
    };
    is_system.then(|| Product { ecosystem: ecosystem.as_str().to_owned(), is_minor_stream: false })
}

fn red_hat_package(id: &str, purl: Option<&str>) -> Option<Package> {
    let (id, mut module) = match id.split_once("::") {
        Some((id, module)) => (id, Some(module)),
        None => (id, None),
    };
    let id = match id.split_once('/') {
        // Without a colon this is the name of a container image: `rhel9/redis-6`.
        Some((stream, id)) if stream.contains(':') => {
            module = Some(stream);
            id
        }
        Some(_) => return None,
        None => id,
    };
    let mut package = match purl {
        Some(purl) => {
            let purl = Purl::parse(purl).filter(|purl| purl.kind == "rpm")?;
            module = purl.value("rpmmod").or(module);
            let names = match (purl.value("arch"), &purl.version) {
                (Some("src"), _) | (None, Some(_)) => PackageNameKind::Source,
                _ => PackageNameKind::Binary,
            };
            let version = purl.version.as_deref().map(|version| match purl.value("epoch") {
                Some(epoch) if epoch != "0" => format!("{epoch}:{version}"),
                _ => version.to_owned(),
            });
            Package { name_kind: names, version, module: None, name: purl.name.into_owned() }
        }
        None => parse_red_hat_id(id)?,
    };
    let version = package.version.as_deref().unwrap_or_default();
    let is_debug = ["-debuginfo", "-debugsource"].iter().any(|end| package.name.ends_with(end))
        || package.name.contains("-debuginfo-common");
    if is_debug || is_module_build(version) {
        return None;
    }
    package.module = module.map(|module| module_stream(module).to_owned());
    Some(package)
}

/// Parses an id on its own: `name-epoch:version-release.arch`, `name.src` or `name`.
fn parse_red_hat_id(id: &str) -> Option<Package> {
    if let [release, version, name] = id.rsplitn(3, '-').collect::<Vec<_>>()[..]
        && let Some((epoch, version)) = version.split_once(':')
        && !epoch.is_empty()
        && epoch.bytes().all(|byte| byte.is_ascii_digit())
    {
        let (release, arch) = match release.rsplit_once('.') {
            Some((release, arch)) if is_arch(arch) => (release, Some(arch)),
            _ => (release, None),
        };
        let version = match epoch {
            "0" => format!("{version}-{release}"),
            epoch => format!("{epoch}:{version}-{release}"),
        };
        let names = match arch {
            None | Some("src") => PackageNameKind::Source,
            Some(_) => PackageNameKind::Binary,
        };
        return package(name, names, Some(version));
    }
    // A module, not a package: `postgresql:12:8100020240814102525:489197e6`.
    if id.contains(':') {
        return None;
    }
    package(id.strip_suffix(".src").unwrap_or(id), PackageNameKind::Source, None)
}

fn suse_package(id: &str, purl: Option<&str>, has_version: bool) -> Option<Package> {
    if let Some(purl) = purl {
        let purl = Purl::parse(purl).filter(|purl| purl.kind == "rpm")?;
        if let Some((source, version)) = source_package(&purl) {
            return package(&source, PackageNameKind::Source, version);
        }
        let version = purl.version.map(|version| without_arch(&version).to_owned());
        return package(&purl.name, PackageNameKind::Binary, version);
    }
    let versioned = || match without_arch(id).rsplitn(3, '-').collect::<Vec<_>>()[..] {
        [release, version, name] => Some((name, version, release)),
        _ => None,
    };
    let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    match versioned() {
        Some((name, version, release)) if has_version => {
            package(name, PackageNameKind::Binary, Some(format!("{version}-{release}")))
        }
        // A name such as `libfoo-1_1-32bit` looks the same, but a release contains a dot.
        Some((name, version, release))
            if digit(version) && digit(release) && release.contains('.') =>
        {
            package(name, PackageNameKind::Binary, Some(format!("{version}-{release}")))
        }
        _ if has_version => None,
        _ => package(id, PackageNameKind::Binary, None),
    }
}

/// `krb5` and `1.15.2-4.25` from `upstream=krb5-1.15.2-4.25.src.rpm`. Only the name if the package
/// itself has no version.
fn source_package(purl: &Purl<'_>) -> Option<(String, Option<String>)> {
    let file = percent_decode(purl.value("upstream")?);
    let file = file.strip_suffix(".src.rpm").or_else(|| file.strip_suffix(".nosrc.rpm"))?;
    if purl.version.is_none() {
        return Some((file.to_owned(), None));
    }
    match file.rsplitn(3, '-').collect::<Vec<_>>()[..] {
        [release, version, name] => Some((name.to_owned(), Some(format!("{version}-{release}")))),
        _ => None,
    }
}

fn package(name: &str, name_kind: PackageNameKind, version: Option<String>) -> Option<Package> {
    (!name.is_empty()).then(|| Package { name: name.to_owned(), name_kind, version, module: None })
}

fn is_arch(text: &str) -> bool {
    const ARCHES: [&str; 15] = [
        "src", "nosrc", "noarch", "x86_64", "i386", "i486", "i586", "i686", "aarch64", "armv7hl",
        "ppc64le", "ppc64", "ppc", "s390x", "s390",
    ];
    ARCHES.contains(&text) || text == "ia64"
}

fn without_arch(text: &str) -> &str {
    match text.rsplit_once('.') {
        Some((rest, arch)) if is_arch(arch) => rest,
        _ => text,
    }
}

/// Whether this is the version of a module build, `3.9-8100020240826142629.d47b87a4`. It says
/// nothing about the packages of the module.
fn is_module_build(version: &str) -> bool {
    let build = version.rsplit_once('-').and_then(|(_, release)| release.split_once('.'));
    build.is_some_and(|(time, context)| {
        time.len() >= 16
            && time.bytes().all(|byte| byte.is_ascii_digit())
            && context.len() == 8
            && context.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// `postgresql:12` from `postgresql:12:8100020240814102525:489197e6`.
fn module_stream(module: &str) -> &str {
    match module.match_indices(':').nth(1) {
        Some((at, _)) => &module[..at],
        None => module,
    }
}

/// A package URL: `pkg:rpm/redhat/openssl@3.0.7-27.el9?arch=aarch64&epoch=1`.
struct Purl<'a> {
    kind: &'a str,
    name: Cow<'a, str>,
    version: Option<String>,
    qualifiers: &'a str,
}

impl<'a> Purl<'a> {
    fn parse(text: &'a str) -> Option<Purl<'a>> {
        let text = text.strip_prefix("pkg:")?;
        let (path, qualifiers) = text.split_once('?').unwrap_or((text, ""));
        let (kind, path) = path.split_once('/')?;
        let (path, version) = path.split_once('@').unwrap_or((path, ""));
        let name = percent_decode(path.rsplit('/').next()?);
        let version = Some(percent_decode(version)).filter(|version| !version.is_empty());
        let version = version.map(Cow::into_owned);
        (!name.is_empty()).then_some(Purl { kind, name, version, qualifiers })
    }

    /// Returns the raw value of a qualifier. The values used here need no percent-decoding.
    fn value(&self, key: &str) -> Option<&'a str> {
        let mut pairs = self.qualifiers.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

/// Decodes percent-encoding such as `%2B`. Anything else is kept unchanged.
fn percent_decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|hex| str::from_utf8(hex).ok());
        let decoded =
            hex.filter(|_| *first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match decoded {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        id: &str,
        purl: Option<&str>,
    ) -> Option<(String, PackageNameKind, Option<String>, Option<String>)> {
        red_hat_package(id, purl).map(|one| (one.name, one.name_kind, one.version, one.module))
    }

    #[test]
    fn red_hat_package_ids_are_parsed_in_every_format() {
        use PackageNameKind::{Binary, Source};
        for (id, purl, name, names, version, module) in [
            ("a-libs-1:3.0-27.el9.x86_64", None, "a-libs", Binary, Some("1:3.0-27.el9"), None),
            ("a-0:3.0-27.el9.src", None, "a", Source, Some("3.0-27.el9"), None),
            ("a-0:3.0-27.el9", None, "a", Source, Some("3.0-27.el9"), None),
            ("a", None, "a", Source, None, None),
            ("a.src", None, "a", Source, None, None),
            ("mod:18/a", None, "a", Source, None, Some("mod:18")),
            (
                "a-0:6.2-1.module+el8.10.0+1+abc.aarch64::mod:6",
                None,
                "a",
                Binary,
                Some("6.2-1.module+el8.10.0+1+abc"),
                Some("mod:6"),
            ),
            ("a", Some("pkg:rpm/redhat/a"), "a", Binary, None, None),
            ("a", Some("pkg:rpm/redhat/a?arch=src"), "a", Source, None, None),
            (
                "a-1:3.0-27.el9.x86_64",
                Some("pkg:rpm/redhat/a@3.0-27.el9?arch=x86_64&epoch=1"),
                "a",
                Binary,
                Some("1:3.0-27.el9"),
                None,
            ),
            (
                "a-0:3.0-27.el9",
                Some("pkg:rpm/redhat/a@3.0-27.el9?epoch=0"),
                "a",
                Source,
                Some("3.0-27.el9"),
                None,
            ),
            (
                "x",
                Some("pkg:rpm/redhat/c%2B%2B@1-1.module%2Bel8?arch=x86_64&rpmmod=mod:6:810:48"),
                "c++",
                Binary,
                Some("1-1.module+el8"),
                Some("mod:6"),
            ),
        ] {
            let expected =
                (name.to_owned(), names, version.map(str::to_owned), module.map(str::to_owned));
            assert_eq!(read(id, purl), Some(expected), "{id} {purl:?}");
        }
        for (id, purl) in [
            ("a", Some("pkg:oci/a?repository_url=registry.example/a")),
            ("mod:12:8100020240814102525:489197e6", Some("pkg:rpmmod/redhat/mod@12:81:48")),
            ("mod:12:8100020240814102525:489197e6", None),
            ("mod-0:3.9-8100020240826142629.d47b87a4", None),
            ("rhel9/a-container", None),
            ("a-debuginfo-0:3.0-27.el9.x86_64", None),
            ("", None),
        ] {
            assert_eq!(read(id, purl), None, "{id} {purl:?}");
        }
    }

    #[test]
    fn suse_packages_are_parsed_with_and_without_versions() {
        for (id, purl, has_version, name, version) in [
            ("a-client-1.15.2-4.25", None, true, "a-client", Some("1.15.2-4.25")),
            ("a-9.9.4P2-0.6.1.x86_64", None, true, "a", Some("9.9.4P2-0.6.1")),
            ("a-client-1.15.2-4.25", None, false, "a-client", Some("1.15.2-4.25")),
            ("liba-1_1-32bit", None, false, "liba-1_1-32bit", None),
            ("a", None, false, "a", None),
            ("a", Some("pkg:rpm/suse/a"), false, "a", None),
            ("a-1-4.25", Some("pkg:rpm/suse/a@1-4.25"), true, "a", Some("1-4.25")),
        ] {
            let found = suse_package(id, purl, has_version).unwrap();
            assert_eq!((found.name.as_str(), found.version.as_deref()), (name, version), "{id}");
            assert_eq!(found.name_kind, PackageNameKind::Binary, "{id}");
        }
        for (purl, version) in [
            ("pkg:rpm/suse/a@?upstream=src-a.src.rpm", None),
            ("pkg:rpm/suse/a@1%2Bg-4.25?upstream=src-a-1%2Bg-4.25.src.rpm", Some("1+g-4.25")),
            ("pkg:rpm/suse/a@2-4.25?upstream=src-a-1-4.nosrc.rpm", Some("1-4")),
        ] {
            let found = suse_package("a", Some(purl), version.is_some()).unwrap();
            assert_eq!((found.name.as_str(), found.version.as_deref()), ("src-a", version));
            assert_eq!(found.name_kind, PackageNameKind::Source, "{purl}");
        }
        assert_eq!(suse_package("a", None, true), None, "a fix without a version");
    }

    #[test]
    fn only_operating_systems_are_products() {
        for (cpe, expected) in [
            ("cpe:/o:redhat:enterprise_linux:9::baseos", Some(("Red Hat:9", false))),
            ("cpe:/a:redhat:enterprise_linux:10.0", Some(("Red Hat:10", false))),
            ("cpe:2.3:o:redhat:enterprise_linux:8:*:*", Some(("Red Hat:8", false))),
            ("cpe:/a:redhat:rhel_eus:9.2::appstream", Some(("Red Hat:rhel_eus:9.2", true))),
            ("cpe:/o:redhat:rhel_els:7", Some(("Red Hat:rhel_els:7", false))),
            ("cpe:/a:redhat:openshift:4.15::el9", None),
            ("cpe:/a:redhat:rhel_dotnet:6.0::el7", None),
            ("cpe:/a:redhat", None),
            ("cpe:/o:other:enterprise_linux:9", None),
        ] {
            let found = red_hat_product(cpe);
            let found = found.as_ref().map(|one| (one.ecosystem.as_str(), one.is_minor_stream));
            assert_eq!(found, expected, "{cpe}");
        }
        for (name, expected) in [
            ("SUSE Linux Enterprise Server 15 SP5", Some("SUSE:Linux Enterprise Server 15 SP5")),
            ("SUSE Linux Enterprise Micro 6.0", Some("SUSE:Linux Enterprise Micro 6.0")),
            ("openSUSE Tumbleweed", Some("openSUSE:Tumbleweed")),
            ("openSUSE Leap 15.6", Some("openSUSE:Leap 15.6")),
            ("SUSE Manager Server 4.2", None),
            ("SUSE CaaS Platform 4.0", None),
            ("Container suse/sle15:15.5", None),
        ] {
            let found = suse_product(name).map(|one| one.ecosystem);
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }
}
