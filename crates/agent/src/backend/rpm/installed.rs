//! Parses the list of installed packages from one `rpm -qa` query.
//!
//! A package's origin is its `Vendor` tag, the identity that a build system writes into every
//! package that it builds: `Red Hat, Inc.`, `SUSE LLC <https://www.suse.com/>`, or for a project of
//! the openSUSE Build Service `obs://build.opensuse.org/server:php`. The `Packager` tag is not
//! used: it names a person or a team and says nothing about the repository. A package without a
//! vendor has no origin.

use std::collections::HashMap;

use vocab::listing::{Installed, TEXT_BYTES_MAX};

use super::nevra::{evr, parse_source_file};
use crate::backend::BackendError;

/// The query format. `EPOCHNUM`, because `EPOCH` of most packages is `(none)`, not a number.
pub(crate) const FORMAT: &str = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\t\
     %{SOURCERPM}\\t%{MODULARITYLABEL}\\t%{VENDOR}\\n";

/// One line of the output.
struct Row<'a> {
    name: &'a str,
    epoch: &'a str,
    version: &'a str,
    release: &'a str,
    arch: &'a str,
    source: Option<&'a str>,
    module: Option<&'a str>,
    vendor: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Option<Row<'a>> {
        let mut fields = line.splitn(8, '\t');
        let mut next = || fields.next();
        let known = |text: &'a str| (text != "(none)" && !text.is_empty()).then_some(text);
        let (name, epoch, version) = (next()?, next()?, next()?);
        let (release, arch) = (next()?, next()?);
        let (source, module, vendor) = (known(next()?), known(next()?), known(next()?));
        Some(Row { name, epoch, version, release, arch, source, module, vendor })
    }
}

/// Parses the output. Skips `gpg-pubkey`: rpm stores trusted keys as packages.
pub(crate) fn parse_installed(output: &str) -> Result<Vec<Installed>, BackendError> {
    let mut rows = Vec::new();
    for line in output.lines() {
        let row = Row::parse(line).ok_or_else(|| BackendError::Unreadable {
            what: "the list of installed packages".to_owned(),
            why: format!("`{line}` is not a package"),
        })?;
        if row.name != "gpg-pubkey" {
            rows.push(row);
        }
    }
    let epochs = source_epochs(&rows);
    Ok(rows.iter().map(|row| package(row, &epochs)).collect())
}

/// The epoch of each source package, by the source's file name.
///
/// rpm records no epoch of the source. A binary package with the source's version and release
/// usually has the source's epoch, but a subpackage can set its own: `mod_ssl` has epoch 1 while
/// its source `httpd` has 0. So the package named like its source decides: both take their epoch
/// from the same line of the spec file. Without such a package, the lowest epoch is used. If that
/// is too low, a fixed CVE is reported as open; an epoch that is too high would hide open CVEs.
///
/// A package with its own version, such as `npm` from `nodejs`, says nothing about the source's
/// epoch. A source with only such packages is not in the map.
fn source_epochs<'a>(rows: &[Row<'a>]) -> HashMap<&'a str, u32> {
    // The first element is false if the package is named like the source, and so sorts first.
    let mut epochs: HashMap<&str, (bool, u32)> = HashMap::new();
    for row in rows {
        let Some(file) = row.source else { continue };
        let Some((name, version)) = parse_source_file(file) else { continue };
        if version == format!("{}-{}", row.version, row.release) {
            let found = (row.name != name, row.epoch.parse().unwrap_or(0));
            epochs.entry(file).and_modify(|best| *best = found.min(*best)).or_insert(found);
        }
    }
    epochs.into_iter().map(|(file, (_, epoch))| (file, epoch)).collect()
}

/// Sends the source's version without an epoch if the epoch is 0 or unknown. The service considers
/// it unknown if no package has the source's version and release, and then compares without epochs.
fn package(row: &Row<'_>, epochs: &HashMap<&str, u32>) -> Installed {
    let mut package = Installed::new(row.name, &evr(row.epoch, row.version, row.release), row.arch);
    if let Some((name, version)) = row.source.and_then(parse_source_file) {
        package = match row.source.and_then(|file| epochs.get(file)) {
            None | Some(0) => package.with_source(name, version),
            Some(epoch) => package.with_source(name, &format!("{epoch}:{version}")),
        };
    }
    package.module = row.module.map(name_and_stream);
    package.origin = row.vendor.map(limit_length);
    package
}

/// `nodejs:18:8070020221209:bd1311ed` is stream 18 of the module nodejs; the rest identifies the
/// build.
fn name_and_stream(label: &str) -> String {
    let mut parts = label.split(':');
    match (parts.next(), parts.next()) {
        (Some(name), Some(stream)) => format!("{name}:{stream}"),
        _ => label.to_owned(),
    }
}

/// Limits a vendor's text to what a package set may contain.
fn limit_length(text: &str) -> String {
    let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
    while text.len() > TEXT_BYTES_MAX {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
gpg-pubkey\t0\tfd431d51\t4ae0493b\t(none)\t(none)\t(none)\t(none)
bash\t0\t5.1.8\t6.el9\tx86_64\tbash-5.1.8-6.el9.src.rpm\t(none)\tRed Hat, Inc.
openssl-libs\t1\t3.0.1\t43.el9_0\tx86_64\topenssl-3.0.1-43.el9_0.src.rpm\t(none)\tRed Hat, Inc.
npm\t1\t8.19.2\t1.18.12.1.1.module\tx86_64\tnodejs-18.12.1-1.module.src.rpm\tnodejs:18:807002:bd1\t(none)
nodejs\t1\t18.12.1\t1.module\tx86_64\tnodejs-18.12.1-1.module.src.rpm\tnodejs:18:807002:bd1\t(none)
perl-Carp\t0\t1.50\t460.el9\tnoarch\tperl-5.32.1-460.el9.src.rpm\t(none)\t(none)
perl-libs\t4\t5.32.1\t460.el9\tx86_64\tperl-5.32.1-460.el9.src.rpm\t(none)\t(none)
own\t0\t1\t1\tnoarch\t(none)\t(none)\t(none)
";

    #[test]
    fn packages_are_parsed_with_sources_and_keys_skipped() {
        let list = parse_installed(OUTPUT).unwrap();
        let lines: Vec<String> = list
            .iter()
            .map(|p| {
                format!(
                    "{} {} {} from {} {}",
                    p.name,
                    p.version,
                    p.arch,
                    p.source(),
                    p.source_version()
                )
            })
            .collect();
        assert_eq!(
            lines,
            [
                "bash 5.1.8-6.el9 x86_64 from bash 5.1.8-6.el9",
                "openssl-libs 1:3.0.1-43.el9_0 x86_64 from openssl 1:3.0.1-43.el9_0",
                "npm 1:8.19.2-1.18.12.1.1.module x86_64 from nodejs 1:18.12.1-1.module",
                "nodejs 1:18.12.1-1.module x86_64 from nodejs 1:18.12.1-1.module",
                "perl-Carp 1.50-460.el9 noarch from perl 4:5.32.1-460.el9",
                "perl-libs 4:5.32.1-460.el9 x86_64 from perl 4:5.32.1-460.el9",
                "own 1-1 noarch from own 1-1",
            ]
        );
        assert_eq!(list[0].origin.as_deref(), Some("Red Hat, Inc."));
        assert_eq!(list[2].origin, None);
        assert_eq!(list[2].module.as_deref(), Some("nodejs:18"));
        assert_eq!(list[6].origin, None);
    }

    #[test]
    fn invalid_line_rejects_the_whole_output() {
        let error = parse_installed("bash\t0\t5\n").unwrap_err().to_string();
        assert!(error.contains("`bash\t0\t5` is not a package"), "{error}");
        assert_eq!(parse_installed("").unwrap(), []);
    }

    /// The source versions of packages built from `httpd-2.4.57-5.el9.src.rpm`, given as
    /// `name epoch version`.
    fn httpd_sources(packages: &[&str]) -> Vec<String> {
        let line = |package: &&str| {
            let (name, rest) = package.split_once(' ').unwrap();
            let (epoch, version) = rest.split_once(' ').unwrap();
            format!(
                "{name}\t{epoch}\t{version}\t5.el9\tx86_64\thttpd-2.4.57-5.el9.src.rpm\t(none)\t\
                 Red Hat, Inc.\n"
            )
        };
        let output: String = packages.iter().map(line).collect();
        let list = parse_installed(&output).unwrap();
        list.iter().map(|package| package.source_version().to_owned()).collect()
    }

    #[test]
    fn subpackage_epoch_does_not_become_the_source_epoch() {
        let httpd = "httpd 0 2.4.57";
        let core = "httpd-core 0 2.4.57";
        let mod_ssl = "mod_ssl 1 2.4.57";
        for packages in [[httpd, mod_ssl], [mod_ssl, httpd], [core, mod_ssl], [mod_ssl, core]] {
            assert_eq!(httpd_sources(&packages), ["2.4.57-5.el9"; 2], "{packages:?}");
        }
    }

    #[test]
    fn package_named_like_its_source_gives_the_epoch() {
        let own = "httpd 2 2.4.57";
        let lower = "httpd-tools 1 2.4.57";
        for packages in [[own, lower], [lower, own]] {
            assert_eq!(httpd_sources(&packages), ["2:2.4.57-5.el9"; 2], "{packages:?}");
        }
        // Without such a package, the lowest epoch is used, compared as a number: 9 is lower than
        // 10.
        let without = ["httpd-core 10 2.4.57", "httpd-tools 9 2.4.57"];
        assert_eq!(httpd_sources(&without), ["9:2.4.57-5.el9"; 2]);
    }

    #[test]
    fn package_with_its_own_version_gives_no_source_epoch() {
        assert_eq!(httpd_sources(&["mod_other 3 1.0"]), ["2.4.57-5.el9"]);
        let others = ["mod_other 3 1.0", "httpd 1 2.4.57"];
        assert_eq!(httpd_sources(&others), ["1:2.4.57-5.el9"; 2]);
    }

    #[test]
    fn origin_is_the_vendor_as_the_package_has_it() {
        let vendors = [
            "SUSE LLC <https://www.suse.com/>",
            "openSUSE",
            "obs://build.opensuse.org/server:php",
            "http://openeuler.org",
        ];
        for vendor in vendors {
            let line = format!("a\t0\t1\t1\tnoarch\t(none)\t(none)\t{vendor}\n");
            assert_eq!(parse_installed(&line).unwrap()[0].origin.as_deref(), Some(vendor));
        }
        assert!(!FORMAT.contains("PACKAGER"), "a packager is a person, not an origin");
    }

    #[test]
    fn overlong_vendor_is_truncated() {
        let line = format!("a\t0\t1\t1\tnoarch\t(none)\t(none)\t{}\n", "é".repeat(400));
        assert_eq!(parse_installed(&line).unwrap()[0].origin.as_ref().unwrap().len(), 512);
    }
}
