//! Parses the output of dpkg and apt-get. Runs nothing.

use vocab::Line;
use vocab::listing::Installed;

use crate::backend::Change;

/// The format for `dpkg-query -W` that [`installed`] parses.
pub(super) const FORMAT: &str = "-f=${Package}\\t${Architecture}\\t${Version}\\t${source:Package}\\t\
                                 ${source:Version}\\t${db:Status-Abbrev}\\n";

/// The packages that are installed, completely or partly. Removed packages (`rc`, `un`) are not
/// included: at most their configuration is left.
pub(super) fn parse_installed(said: &str) -> Result<Vec<Installed>, String> {
    let mut packages = Vec::new();
    for line in said.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let [name, arch, version, source, source_version, status] = parts[..] else {
            return Err(format!("unexpected line {line:?}"));
        };
        if version.is_empty() || matches!(status.as_bytes().get(1), None | Some(b'n' | b'c')) {
            continue;
        }
        let mut package = Installed::new(name, version, arch).with_source(source, source_version);
        package.held = status.starts_with('h');
        packages.push(package);
    }
    Ok(packages)
}

/// The changes that `apt-get -s` would make: its `Inst`, `Remv` and `Purg` lines. `native` is the
/// architecture that apt-get omits.
///
/// `Inst NAME [OLD] (NEW ORIGIN:SUITE, … [ARCH]) …`, `Remv NAME [OLD] …`; names of a foreign
/// architecture end in `:ARCH`.
pub(super) fn parse_simulation(said: &str, native: &str) -> Result<Vec<Change>, String> {
    let mut changes: Vec<Change> = Vec::new();
    for line in said.lines() {
        let Some((verb, rest)) = line.split_once(' ') else { continue };
        if !matches!(verb, "Inst" | "Remv" | "Purg") {
            continue;
        }
        let change = if verb == "Inst" { parse_inst(rest) } else { parse_remv(rest, native) };
        let change = change.ok_or_else(|| format!("unexpected line {line:?}"))?;
        // A removal may be listed twice, as `Remv` and as `Purg`.
        if !changes.contains(&change) {
            changes.push(change);
        }
    }
    Ok(changes)
}

fn parse_inst(rest: &str) -> Option<Change> {
    let (name, rest) = rest.split_once(' ')?;
    let (from, rest) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (from, rest) = rest.split_once("] ")?;
            (Some(from.to_owned()), rest)
        }
        None => (None, rest),
    };
    let (to, rest) = rest.strip_prefix('(')?.split_once(' ')?;
    // The label of an archive may contain parentheses; the architecture comes last.
    let inside = rest.rsplit_once("])").map_or(rest, |(inside, _)| inside);
    let (_, arch) = inside.rsplit_once('[')?;
    let (name, _) = name.split_once(':').unwrap_or((name, ""));
    Some(Change { name: name.to_owned(), arch: arch.to_owned(), from, to: Some(to.to_owned()) })
}

fn parse_remv(rest: &str, native: &str) -> Option<Change> {
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let from = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (name, arch) = name.split_once(':').unwrap_or((name, native));
    Some(Change {
        name: name.to_owned(),
        arch: arch.to_owned(),
        from: Some(from.map_or("", |(from, _)| from).to_owned()),
        to: None,
    })
}

/// The size of the downloads listed by `apt-get --print-uris`: `'URI' FILE BYTES HASH` per line.
pub(super) fn total_download_bytes(said: &str) -> u64 {
    let bytes = |line: &str| {
        let (_, rest) = line.strip_prefix('\'')?.split_once("' ")?;
        rest.split(' ').nth(1)?.parse::<u64>().ok()
    };
    said.lines().filter_map(bytes).sum()
}

/// `After this operation, 12.3 MB of additional disk space will be used.` or `… will be freed.`, in
/// bytes. apt-get rounds to three digits.
pub(super) fn disk_bytes(said: &str) -> Option<i64> {
    let line = said.lines().find_map(|line| line.strip_prefix("After this operation, "))?;
    let mut words = line.split(' ');
    let number: f64 = words.next()?.replace(',', "").parse().ok()?;
    let unit = match words.next()? {
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return None,
    };
    let bytes = (number * unit) as i64;
    Some(if line.contains("will be freed") { -bytes } else { bytes })
}

/// The damaged packages listed by `dpkg --audit`, one line per package. Each section of the audit
/// consists of a few lines of prose that end in a colon, followed by indented package names.
/// Missing control files and unknown architectures are skipped: those packages are not half
/// installed, and no repair would change them.
pub(super) fn parse_audit(said: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let mut prose = String::new();
    for line in said.lines() {
        if let Some(package) = line.strip_prefix(' ') {
            if ["missing", "architecture"].iter().any(|word| prose.contains(word)) {
                continue;
            }
            let name = package.split_whitespace().next().unwrap_or(package);
            found.push(Line::sanitize(&format!("{name}: {}", damage_description(&prose))));
        } else if line.is_empty() {
            prose.clear();
        } else {
            prose.push_str(line);
            prose.push(' ');
        }
    }
    found
}

fn damage_description(prose: &str) -> &str {
    const DAMAGE_DESCRIPTIONS: [(&str, &str); 6] = [
        ("in a mess", "must be reinstalled"),
        ("unpacked but not yet configured", "unpacked, not configured"),
        ("half configured", "half configured"),
        ("half installed", "half installed"),
        ("awaiting processing of triggers", "waiting for triggers of other packages"),
        ("been triggered", "its triggers have not run"),
    ];
    let known = DAMAGE_DESCRIPTIONS.iter().find(|(words, _)| prose.contains(words));
    known.map_or(prose.trim().trim_end_matches(':'), |(_, kind)| kind)
}

/// The packages that apt considers automatically installed, as `name:arch`, from its file
/// `extended_states`.
pub(super) fn auto_marked(text: &str) -> Vec<String> {
    let field = |stanza: &str, name: &str| {
        let line = stanza.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let marked = |stanza: &str| {
        (field(stanza, "Auto-Installed:")? == "1").then_some(())?;
        Some(format!("{}:{}", field(stanza, "Package:")?, field(stanza, "Architecture:")?))
    };
    text.split("\n\n").filter_map(marked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partly_installed_packages_are_listed_and_removed_are_not() {
        let output = "ep\tamd64\t1:1.0-1\tepsrc\t3.0-1\tiHR\n\
                    held\tamd64\t1.0\theld\t1.0\thi \n\
                    gone\tall\t2\tgone\t2\trc \n\
                    never\t\t\tnever\t\tun \n";
        let packages = parse_installed(output).unwrap();
        let names: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["ep", "held"]);
        assert_eq!((packages[0].source(), packages[0].source_version()), ("epsrc", "3.0-1"));
        assert_eq!(packages.iter().map(|package| package.held).collect::<Vec<_>>(), [false, true]);
        assert_eq!(parse_installed("bash 5.2\n").unwrap_err(), "unexpected line \"bash 5.2\"");
    }

    #[test]
    fn simulation_lists_changes_with_their_architecture() {
        let output = "Reading package lists...\n\
            3 upgraded, 1 newly installed, 1 to remove and 2 not upgraded.\n\
            Remv victim [1.0] [other:amd64 ]\n\
            Inst allarch [1.0] (1.1 Debian:stable-updates [all])\n\
            Inst libc6:i386 [2.36-9] (2.36-10 Debian:12.7/stable, Debian-Security:12/stable-security [i386]) []\n\
            Inst newdep (1 Odd (label):stable-updates [amd64]) [x:amd64 on y:amd64]\n\
            Conf allarch (1.1 Debian:stable-updates [all])\n\
            Purg victim [1.0]\n";
        let shown: Vec<String> = parse_simulation(output, "amd64")
            .unwrap()
            .iter()
            .map(|c| {
                let version = |v: &Option<String>| v.clone().unwrap_or_else(|| "-".to_owned());
                format!("{}:{} {} > {}", c.name, c.arch, version(&c.from), version(&c.to))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "victim:amd64 1.0 > -",
                "allarch:all 1.0 > 1.1",
                "libc6:i386 2.36-9 > 2.36-10",
                "newdep:amd64 - > 1",
            ]
        );
        assert_eq!(
            parse_simulation("Inst odd\n", "amd64").unwrap_err(),
            "unexpected line \"Inst odd\""
        );
    }

    #[test]
    fn sizes_are_parsed_from_uris_and_summary() {
        let output = "Need to get 41.3 kB of archives.\n\
            After this operation, 1234 kB of additional disk space will be used.\n\
            'copy:/repo/a_1.deb' a_1.deb 20672 MD5Sum:091f\n\
            'http://x/b%20c_1.deb' b_1.deb 20628 SHA256:00\n";
        assert_eq!(total_download_bytes(output), 41_300);
        assert_eq!(disk_bytes(output), Some(1_234_000));
        assert_eq!(
            disk_bytes("After this operation, 12.5 MB disk space will be freed.\n"),
            Some(-12_500_000)
        );
        assert_eq!(disk_bytes("0 upgraded\n"), None);
    }

    #[test]
    fn audit_becomes_one_line_per_package() {
        let output = "The following packages are in a mess due to serious problems during\n\
            installation.  They must be reinstalled for them (and any packages\n\
            that depend on them) to function properly:\n \
            ep                   d\n\
            \n\
            The following packages are only half configured, probably due to problems\n\
            configuring them the first time.  The configuration should be retried using\n\
            dpkg --configure <package> or the configure menu option in dselect:\n \
            plain                d\n \
            sec                  d\n\
            \n\
            The following packages are missing the md5sums control file in the\n\
            database, they need to be reinstalled:\n \
            old                  d\n\n";
        let lines: Vec<String> = parse_audit(output).iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            ["ep: must be reinstalled", "plain: half configured", "sec: half configured"]
        );
        assert_eq!(parse_audit(""), []);
    }

    #[test]
    fn only_marked_packages_are_auto_installed() {
        let text = "Package: a\nArchitecture: amd64\nAuto-Installed: 1\n\n\
                    Package: b\nArchitecture: amd64\nAuto-Installed: 0\n\n\
                    Package: c\nArchitecture: i386\nAuto-Installed: 1\n";
        assert_eq!(auto_marked(text), ["a:amd64", "c:i386"]);
    }
}
