//! What is installed, as one question to rpm answers it.

use std::collections::HashMap;

use vocab::listing::{Installed, TEXT_BYTES_MAX};

use super::nevra::{evr, source};
use crate::backend::BackendError;

/// The question. `EPOCHNUM`, because `EPOCH` of most packages is `(none)`, which is no number.
pub(crate) const FORMAT: &str = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\t\
     %{SOURCERPM}\\t%{MODULARITYLABEL}\\t%{VENDOR}\\t%{PACKAGER}\\n";

/// One line of the answer.
struct Row<'a> {
    name: &'a str,
    epoch: &'a str,
    version: &'a str,
    release: &'a str,
    arch: &'a str,
    source: Option<&'a str>,
    module: Option<&'a str>,
    origin: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Option<Row<'a>> {
        let mut fields = line.splitn(9, '\t');
        let mut next = || fields.next();
        let known = |text: &'a str| (text != "(none)" && !text.is_empty()).then_some(text);
        let (name, epoch, version) = (next()?, next()?, next()?);
        let (release, arch) = (next()?, next()?);
        let (source, module) = (known(next()?), known(next()?));
        let (vendor, packager) = (known(next()?), known(next()?));
        let origin = vendor.or(packager);
        Some(Row { name, epoch, version, release, arch, source, module, origin })
    }
}

/// Reads the answer. rpm keeps the keys that it trusts as packages; those are left out.
pub(crate) fn read(answer: &str) -> Result<Vec<Installed>, BackendError> {
    let mut rows = Vec::new();
    for line in answer.lines() {
        let row = Row::parse(line).ok_or_else(|| BackendError::Unreadable {
            what: "the list of installed packages".to_owned(),
            why: format!("`{line}` is no package"),
        })?;
        if row.name != "gpg-pubkey" {
            rows.push(row);
        }
    }
    let epochs = source_epochs(&rows);
    Ok(rows.iter().map(|row| package(row, &epochs)).collect())
}

/// The epoch of a source package is nowhere written. A package that was built from it and has its
/// version and release has its epoch too: `perl-libs` tells it for `perl-Carp`, which has a version of
/// its own.
fn source_epochs<'a>(rows: &[Row<'a>]) -> HashMap<&'a str, &'a str> {
    let mut epochs = HashMap::new();
    for row in rows {
        let Some((file, (_, version))) = row.source.and_then(|file| Some((file, source(file)?)))
        else {
            continue;
        };
        if version == format!("{}-{}", row.version, row.release) {
            epochs.insert(file, row.epoch);
        }
    }
    epochs
}

fn package(row: &Row<'_>, epochs: &HashMap<&str, &str>) -> Installed {
    let mut package = Installed::new(row.name, &evr(row.epoch, row.version, row.release), row.arch);
    if let Some((name, version)) = row.source.and_then(source) {
        let epoch = row.source.and_then(|file| epochs.get(file)).unwrap_or(&row.epoch);
        package = match *epoch {
            "" | "0" => package.with_source(name, version),
            epoch => package.with_source(name, &format!("{epoch}:{version}")),
        };
    }
    package.module = row.module.map(name_and_stream);
    package.origin = row.origin.map(bounded);
    package
}

/// `nodejs:18:8070020221209:bd1311ed` is stream 18 of the module nodejs; the rest tells builds apart.
fn name_and_stream(label: &str) -> String {
    let mut parts = label.split(':');
    match (parts.next(), parts.next()) {
        (Some(name), Some(stream)) => format!("{name}:{stream}"),
        _ => label.to_owned(),
    }
}

/// A text of some packager, made to fit into a listing.
fn bounded(text: &str) -> String {
    let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
    while text.len() > TEXT_BYTES_MAX {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "\
gpg-pubkey\t0\tfd431d51\t4ae0493b\t(none)\t(none)\t(none)\t(none)\tRed Hat, Inc.
bash\t0\t5.1.8\t6.el9\tx86_64\tbash-5.1.8-6.el9.src.rpm\t(none)\tRed Hat, Inc.\tRed Hat
openssl-libs\t1\t3.0.1\t43.el9_0\tx86_64\topenssl-3.0.1-43.el9_0.src.rpm\t(none)\tRed Hat, Inc.\t(none)
npm\t1\t8.19.2\t1.18.12.1.1.module\tx86_64\tnodejs-18.12.1-1.module.src.rpm\tnodejs:18:807002:bd1\t(none)\tNobody <n@example.invalid>
nodejs\t1\t18.12.1\t1.module\tx86_64\tnodejs-18.12.1-1.module.src.rpm\tnodejs:18:807002:bd1\t(none)\t(none)
perl-Carp\t0\t1.50\t460.el9\tnoarch\tperl-5.32.1-460.el9.src.rpm\t(none)\t(none)\t(none)
perl-libs\t4\t5.32.1\t460.el9\tx86_64\tperl-5.32.1-460.el9.src.rpm\t(none)\t(none)\t(none)
own\t0\t1\t1\tnoarch\t(none)\t(none)\t(none)\t(none)
";

    #[test]
    fn every_package_is_read_with_its_source_and_keys_are_none() {
        let list = read(ANSWER).unwrap();
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
        assert_eq!(list[2].origin.as_deref(), Some("Nobody <n@example.invalid>"));
        assert_eq!(list[2].module.as_deref(), Some("nodejs:18"));
        assert_eq!(list[6].origin, None);
    }

    #[test]
    fn a_line_that_is_no_package_costs_the_whole_answer() {
        let error = read("bash\t0\t5\n").unwrap_err().to_string();
        assert!(error.contains("`bash\t0\t5` is no package"), "{error}");
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn an_endless_vendor_is_cut_to_what_a_listing_holds() {
        let line = format!("a\t0\t1\t1\tnoarch\t(none)\t(none)\t{}\t(none)\n", "é".repeat(400));
        assert_eq!(read(&line).unwrap()[0].origin.as_ref().unwrap().len(), 512);
    }
}
