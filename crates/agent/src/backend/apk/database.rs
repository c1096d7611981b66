//! Parses apk's database of installed packages, and the constraints in `/etc/apk/world`.

use pkgver::Scheme;

/// The installed packages, and the version constraints.
#[derive(Debug, Default)]
pub(super) struct ApkDatabase {
    pub(super) packages: Vec<InstalledPackage>,
    /// Files under `etc`, which apk keeps if they were edited, without the leading `/`.
    pub(super) configuration: Vec<String>,
    pins: Vec<VersionPin>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InstalledPackage {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) arch: String,
    /// The source package, which may build several packages.
    pub(super) origin: String,
    /// Identifies this exact build; repository indexes contain the same value.
    pub(super) checksum: Option<String>,
    /// The damage, if the installation was interrupted or a script failed.
    pub(super) broken: Option<&'static str>,
}

/// A version constraint: `name=1.2-r0`, `name<2`, `name~1.2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VersionPin {
    name: String,
    operator: String,
    version: String,
}

impl ApkDatabase {
    /// Parses `installed` and `world`: one block per package, one letter and value per line.
    pub(super) fn parse(installed: &str, world: &str) -> ApkDatabase {
        let mut database = ApkDatabase { pins: parse_pins(world), ..ApkDatabase::default() };
        for block in installed.split("\n\n") {
            let mut package = InstalledPackage::default();
            let mut folder = "";
            for (key, value) in block.lines().filter_map(|line| line.split_once(':')) {
                match key {
                    "P" => value.clone_into(&mut package.name),
                    "V" => value.clone_into(&mut package.version),
                    "A" => value.clone_into(&mut package.arch),
                    "o" => value.clone_into(&mut package.origin),
                    "C" => package.checksum = Some(value.to_owned()),
                    "f" => package.broken = damage_from_flags(value),
                    "F" => folder = value,
                    "R" if folder == "etc" || folder.starts_with("etc/") => {
                        database.configuration.push(format!("{folder}/{value}"));
                    }
                    _ => (),
                }
            }
            if package.origin.is_empty() {
                package.name.clone_into(&mut package.origin);
            }
            // A virtual package that an administrator created; its name starts with a dot.
            if !package.name.is_empty() && !package.name.starts_with('.') {
                database.packages.push(package);
            }
        }
        database
    }

    /// The version constraint of this package, if any.
    pub(super) fn pin(&self, name: &str) -> Option<&VersionPin> {
        self.pins.iter().find(|pin| pin.name == name)
    }
}

/// Decodes the letters of `f:`.
fn damage_from_flags(letters: &str) -> Option<&'static str> {
    let has = |letter| letters.contains(letter);
    match (has('f'), has('s')) {
        (true, _) => Some("not all of its files were installed"),
        (false, true) => Some("its script failed"),
        (false, false) => None,
    }
}

/// Entries of the world file with a version: `name@tag>=version`. Conflicts (`!name`) are no
/// constraints.
fn parse_pins(world: &str) -> Vec<VersionPin> {
    let pin = |word: &str| {
        let at = word.find(['=', '<', '>', '~'])?;
        let (name, rest) = word.split_at(at);
        let version = rest.trim_start_matches(['=', '<', '>', '~']);
        let operator = &rest[..rest.len() - version.len()];
        // `foo><Q1…` pins an exact file by its checksum.
        let name = name.split('@').next().unwrap_or(name);
        let ours = !name.is_empty() && !name.starts_with('!');
        ours.then(|| VersionPin {
            name: name.to_owned(),
            operator: operator.to_owned(),
            version: version.split('@').next().unwrap_or(version).to_owned(),
        })
    };
    world.split_whitespace().filter_map(pin).collect()
}

impl VersionPin {
    /// Whether exactly one version is allowed, which is how an administrator holds a package.
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.operator.as_str(), "=" | "==" | "><")
    }

    /// Whether this version is allowed.
    pub(super) fn allows(&self, version: &str) -> bool {
        let order = Scheme::Apk.compare(version, &self.version);
        match self.operator.as_str() {
            "=" | "==" => order.is_eq(),
            "<" => order.is_lt(),
            ">" => order.is_gt(),
            "<=" | "=<" => order.is_le(),
            ">=" | "=>" => order.is_ge(),
            // Whole components must match: `~1.2` allows 1.2.7 and 1.2-r3, not 1.20.
            "~" | "=~" | "~=" => version.strip_prefix(&self.version).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with(|c: char| !c.is_ascii_digit())
            }),
            // Unknown operators, including checksums, allow no other version.
            _ => false,
        }
    }
}
