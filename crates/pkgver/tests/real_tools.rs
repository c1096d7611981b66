//! Compares this crate with the real tools: dpkg, rpm and vercmp get thousands of generated pairs.
//!
//! The pairs come from a fixed seed and are mostly closely related versions, because unrelated ones
//! differ in the first character and test nothing. A tool that is not installed is skipped with a
//! message; with `FLEETMEND_TEST_REQUIRE_TOOLS=1` that is a failure. No Debian package contains
//! apk; the table in `src/apk.rs` replaces it.

#![expect(clippy::print_stdout, reason = "a skipped tool must be visible")]

use pkgver::Scheme;
use std::cmp::Ordering;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Each pair takes one or two dpkg processes, so there are fewer pairs.
const DPKG_PAIRS: usize = 3_000;
const RPM_PAIRS: usize = 50_000;
const VERCMP_PAIRS: usize = 5_000;

#[test]
fn dpkg_agrees() {
    let Some(mut dpkg) = tool("dpkg", "dpkg") else { return };
    // Exit code 0 means yes, 1 means no, anything else is a rejection.
    dpkg.args([
        "-c",
        r#"while IFS= read -r a && IFS= read -r b; do
            dpkg --compare-versions "$a" lt "$b" 2>/dev/null
            case $? in
                0) echo -1 ;;
                1) dpkg --compare-versions "$a" gt "$b" 2>/dev/null && echo 1 || echo 0 ;;
                *) echo refused ;;
            esac
        done"#,
    ]);
    // Where a C `char` is unsigned, dpkg ranks non-ASCII bytes differently.
    let odd = if cfg!(target_arch = "x86_64") { "é" } else { "(" };
    let pieces = [
        "~", "~", ".", ".", "+", "-", "-", ":", "a", "b", "Z", "rc", "dfsg", "deb12u", "ubuntu",
        "_", "^", " ", odd,
    ];
    let corners = [
        "", "0", "~", "(none)", "a", "a0", "1", "01", "+1", " 1", "1\t", "1.", "1.0", "1-0", "1-~",
        "0:1", "1:0", "+1:0", "1:2:3", "1-2-3", "1-3",
    ];
    compare_with_tool(Scheme::Deb, dpkg, &pairs(&corners, &pieces, DPKG_PAIRS));
}

#[test]
fn rpm_agrees() {
    let Some(mut rpm) = tool("rpm", "rpm") else { return };
    rpm.args([
        "-c",
        r#"exec rpm --eval '%{lua:
            while true do
                local a, b = io.read(), io.read()
                if not b then break end
                local ok, order = pcall(rpm.vercmp, a, b)
                io.write(ok and order or "refused", "\n")
            end
        }'"#,
    ]);
    let pieces = [
        "~", "~", "^", "^", ".", ".", "-", "-", ":", "a", "b", "Z", "rc", "el", "git", "_", "+",
        "..", " ", "é", "(none)",
    ];
    let corners = [
        "0", "~", "^", ".", "-", "-1", "a", "(none)", "(none):1", "1", "1.", "1~", "1^", "1-",
        "1-~", "1-0", "0:1", ":1", "1:", "1:-", "a:1", "a1", "1:2:3", "1-2-3", "1-3",
    ];
    compare_with_tool(Scheme::Rpm, rpm, &pairs(&corners, &pieces, RPM_PAIRS));
}

#[test]
fn vercmp_agrees() {
    let Some(mut vercmp) = tool("vercmp", "makepkg") else { return };
    vercmp.args(["-c", r#"while IFS= read -r a && IFS= read -r b; do vercmp "$a" "$b"; done"#]);
    let pieces = [
        ".", ".", ".", "..", "-", "-", ":", "a", "b", "Z", "rc", "r", "_", "+", "~", "^", "é",
        "(none)",
    ];
    let corners = [
        "", "0", ".", "a", "-1", "(none)", "(none):1", "1", "1.", "1..", "1.1", "1..a", "1.a",
        "1a", "1-", "1-1", "1-a", "0:1", ":1", "1:", "a:1", "1:2:3", "1-2-3", "1-3",
    ];
    compare_with_tool(Scheme::Pacman, vercmp, &pairs(&corners, &pieces, VERCMP_PAIRS));
}

/// Returns a shell in which the tool can be called, if it is installed.
fn tool(name: &str, debian_package: &str) -> Option<Command> {
    let present = Command::new("sh")
        .args(["-c", "command -v \"$0\"", name])
        .output()
        .is_ok_and(|found| found.status.success());
    if present {
        let mut shell = Command::new("sh");
        shell.env("LC_ALL", "C");
        return Some(shell);
    }
    let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some_and(|set| set == "1");
    assert!(!required, "{name} is not installed (Debian package {debian_package})");
    println!("skipped: {name} is not installed (Debian package {debian_package})");
    None
}

/// Sends all pairs to the tool at once, through a file: with pipes both sides could block.
fn compare_with_tool(scheme: Scheme, mut tool: Command, pairs: &[(String, String)]) {
    let input = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pairs-{scheme}"));
    let text: String = pairs.iter().map(|(a, b)| format!("{a}\n{b}\n")).collect();
    fs::write(&input, text).expect("cannot write to the build directory");
    let input = File::open(&input).expect("it was just written");
    let output = tool.stdin(input).output().expect("cannot start the tool");
    let answers = String::from_utf8(output.stdout).expect("answers are ASCII");
    let answers: Vec<&str> = answers.split_whitespace().collect();
    assert_eq!(answers.len(), pairs.len(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut counts = [0; 3];
    let mut wrong = Vec::new();
    for ((a, b), answer) in pairs.iter().zip(answers) {
        let theirs = match answer {
            "-1" => Ordering::Less,
            "0" => Ordering::Equal,
            "1" => Ordering::Greater,
            "refused" => continue,
            other => panic!("{scheme} answered {other:?} to {a:?} and {b:?}"),
        };
        counts[(theirs as i8 + 1) as usize] += 1;
        let ours = scheme.compare(a, b);
        if ours != theirs {
            wrong
                .push(format!("{a:?} {b:?}: the tool returns {theirs:?}, pkgver returns {ours:?}"));
        }
    }
    println!("{scheme}: {counts:?} of {} pairs older, equal, newer", pairs.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), pairs.len(), wrong.join("\n"));
    // If the generator degraded, this test would pass without comparing anything.
    let answered: usize = counts.iter().sum();
    assert!(answered * 10 > pairs.len() * 7, "the tool rejected too many pairs: {counts:?}");
    assert!(counts.iter().all(|&count| count * 20 > pairs.len()), "one-sided: {counts:?}");
}

/// Returns every pair of corner cases, then `count` pairs of a version and the same version after
/// one to three small changes.
fn pairs(corners: &[&str], pieces: &[&str], count: usize) -> Vec<(String, String)> {
    let mut rng = Rng(20_241_115);
    let corner_pairs =
        corners.iter().flat_map(|a| corners.iter().map(|b| ((*a).to_owned(), (*b).to_owned())));
    corner_pairs
        .chain((0..count).map(|_| {
            let version = version(&mut rng, pieces);
            let mut related = version.clone();
            for _ in 0..=rng.below(3) {
                mutate(&mut rng, pieces, &mut related);
            }
            if rng.below(2) == 0 {
                (version.concat(), related.concat())
            } else {
                (related.concat(), version.concat())
            }
        }))
        .collect()
}

/// Generates a version, mostly in the form that every scheme knows: `[epoch:]number…[-number]`.
fn version(dice: &mut Rng, pieces: &[&str]) -> Vec<String> {
    let mut version = Vec::new();
    if dice.below(4) == 0 {
        version.extend([number(dice), ":".to_owned()]);
    }
    version.push(number(dice));
    for _ in 0..dice.below(4) {
        version.extend([piece(dice, pieces), number(dice)]);
    }
    if dice.below(2) == 0 {
        version.extend(["-".to_owned(), number(dice)]);
    }
    version
}

fn mutate(dice: &mut Rng, pieces: &[&str], version: &mut Vec<String>) {
    let new = if dice.below(2) == 0 { number(dice) } else { piece(dice, pieces) };
    // The first piece stays, so that no argument looks like an option to the tool.
    let at = 1 + dice.below(version.len());
    match dice.below(6) {
        0 => version.insert(at, new),
        1 => version.push(new),
        2 if at < version.len() => drop(version.remove(at)),
        3 if at < version.len() => version[at] = new,
        // Turns `0` into `00` and `.` into `..`, which is often still the same version.
        _ => version[at - 1] = version[at - 1].clone() + &version[at - 1],
    }
}

fn piece(dice: &mut Rng, pieces: &[&str]) -> String {
    pieces[dice.below(pieces.len())].to_owned()
}

fn number(dice: &mut Rng) -> String {
    let numbers = ["0", "0", "00", "1", "1", "2", "9", "10", "01", "010", "20240115"];
    match dice.below(40) {
        0 => "18446744073709551616".to_owned(),
        1 => "100000000000000000000000000000000000001".to_owned(),
        _ => numbers[dice.below(numbers.len())].to_owned(),
    }
}

/// SplitMix64: the same pairs on every machine.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}
