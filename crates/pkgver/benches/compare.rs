//! Time and allocations of one comparison, for each scheme.
//!
//! The pairs are typical for matching a feed against an inventory: two versions of one package,
//! with a common prefix and a difference near the end; some are equal.

use divan::Bencher;
use pkgver::Scheme;
use std::hint::black_box;

#[global_allocator]
static ALLOCATIONS: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

#[divan::bench(args = Scheme::ALL, sample_count = 200, sample_size = 2400)]
fn compare(bencher: Bencher, scheme: Scheme) {
    let pairs = pairs(scheme);
    let mut next_pair = pairs.iter().cycle();
    bencher.bench_local(move || {
        next_pair.next().map(|(a, b)| black_box(scheme).compare(black_box(a), black_box(b)))
    });
}

/// 240 pairs: for each of 20 releases, the installed version against a dozen versions from a feed.
fn pairs(scheme: Scheme) -> Vec<(String, String)> {
    let version = |major: u32, minor: u32, build: u32| match scheme {
        Scheme::Deb => match build % 3 {
            0 => format!("{major}.{minor}.1-{build}+deb12u{minor}"),
            1 => format!("1:{major}.{minor}~rc{build}+dfsg-1ubuntu0.{build}"),
            _ => format!("{major}.{minor}.20240115+ds1-{build}~bpo12+1"),
        },
        Scheme::Rpm => match build % 3 {
            0 => format!("{major}.{minor}.0-{build}.el9_4"),
            1 => format!("1:{major}.{minor}.9-{build}.module_el9.3.0+{minor}+ab12cd34"),
            _ => format!("{major}.{minor}~rc{build}^20240115gitabc-1.fc40"),
        },
        Scheme::Apk => match build % 3 {
            0 => format!("{major}.{minor}.1-r{build}"),
            1 => format!("{major}.0{minor}.3_p{build}-r0"),
            _ => format!("{major}.{minor}.0a_git20240115-r{build}"),
        },
        Scheme::Pacman => match build % 3 {
            0 => format!("{major}.{minor}.1-{build}"),
            1 => format!("2:{major}.{minor}.r{build}.gab12cd3-1"),
            _ => format!("{major}.{minor}rc{build}-1.1"),
        },
    };
    let releases = (1..=4).flat_map(|major| (7..12).map(move |minor| (major, minor)));
    releases
        .flat_map(|(major, minor)| {
            (0..12).map(move |step| {
                // A quarter are equal, half differ in the last number, a quarter in the middle; `+
                // 3` keeps the shape.
                let build = step + minor;
                let (minor_there, build_there) = match step % 4 {
                    0 => (minor, build),
                    1 | 2 => (minor, build + 3),
                    _ => (minor + 1, build),
                };
                (version(major, minor, build), version(major, minor_there, build_there))
            })
        })
        .collect()
}
