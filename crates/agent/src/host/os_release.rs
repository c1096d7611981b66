//! Detects the operating system from `os-release`.

use std::fs;

use vocab::Os;

use crate::root::Root;

/// The operating system under a root. Without an `os-release` file it is `linux`.
pub(super) fn detect_os(root: &Root) -> Os {
    ["/etc/os-release", "/usr/lib/os-release"]
        .iter()
        .find_map(|path| fs::read_to_string(root.path(path)).ok())
        .map_or_else(unknown_os, |text| parse(&text))
}

/// Parses the text. Invalid values are reduced to a valid form: a host with an unusual file must
/// still be able to enroll.
pub(super) fn parse(text: &str) -> Os {
    let value = |key: &str| {
        let lines = text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
        let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        // As in a shell, the last assignment wins.
        values.next_back().map(unquote).unwrap_or_default()
    };
    let plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let id = value("ID").to_ascii_lowercase();
    let id: String = id.chars().filter(plain).take(64).collect();
    let version = value("VERSION_ID");
    let version = version.chars().filter(|c| plain(c) || "+~".contains(*c)).take(64);
    let name = Some(value("PRETTY_NAME")).filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| value("NAME"));
    let name = name.chars().filter(|c| !c.is_control()).take(200);
    let id = if id.is_empty() { "linux" } else { &id };
    Os::new(id, &version.collect::<String>(), &name.collect::<String>())
        .unwrap_or_else(|_| unknown_os())
}

fn unknown_os() -> Os {
    Os::new("linux", "", "").expect("`linux` is a valid id")
}

/// Removes the quotes of a value, and the backslashes that escape `"`, `$`, `` ` `` and `\`.
fn unquote(value: &str) -> String {
    let value = value.trim();
    let inner = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote).and_then(|rest| rest.strip_suffix(*quote)));
    let literal = value.starts_with('\'');
    let mut text = String::new();
    let mut chars = inner.unwrap_or(value).chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if !literal => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_files_are_parsed() {
        let debian = parse(
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nNAME=\"Debian GNU/Linux\"\n\
             VERSION_ID=\"12\"\nID=debian\nHOME_URL=\"https://www.debian.org/\"\n",
        );
        assert_eq!((debian.id(), debian.version()), ("debian", "12"));
        assert_eq!(debian.name(), "Debian GNU/Linux 12 (bookworm)");
        let arch = parse("NAME='Arch Linux'\nID=arch\nID_LIKE=x\nBUILD_ID=rolling\n");
        assert_eq!((arch.id(), arch.version(), arch.name()), ("arch", "", "Arch Linux"));
        let alpine = parse("ID=alpine\nVERSION_ID=3.20.0_rc1\n#ID=other\n");
        assert_eq!((alpine.id(), alpine.version()), ("alpine", "3.20.0_rc1"));
    }

    #[test]
    fn invalid_values_are_reduced_to_valid_ones() {
        assert_eq!(parse(""), unknown_os());
        let odd =
            parse("ID=\"Red Hat!\"\nVERSION_ID=\"9 beta\"\nPRETTY_NAME=\"a\\\"b\\$\u{1b}[31m\"");
        assert_eq!((odd.id(), odd.version(), odd.name()), ("redhat", "9beta", "a\"b$[31m"));
        let long = format!("ID={}\nPRETTY_NAME={}", "x".repeat(100), "y".repeat(300));
        assert_eq!(parse(&long).id().len(), 64);
        assert_eq!(parse(&long).name().len(), 200);
        assert_eq!(parse("ID='de\\bian'").id(), "debian");
        assert_eq!(parse("ID=\"").id(), "linux");
    }
}
