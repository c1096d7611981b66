//! Checks free disk space before anything is started. Pure.

use std::collections::{BTreeMap, BTreeSet};

use vocab::FailureCode;
use wire::agent::PackageMove;

use super::failure::Failure;

/// Free space that every file system must have left over.
const MARGIN_BYTES: u64 = 32 * 1024 * 1024;
/// Space that a kernel needs in /boot while it is installed: the kernel, its initramfs, and the
/// initramfs once more while it is regenerated. Package managers do not include generated files in
/// their estimates.
const KERNEL_BYTES: u64 = 160 * 1024 * 1024;

/// The paths that are checked: where packages are unpacked, where they are downloaded to, where the
/// package manager keeps its database, and where kernels are. Each may be on its own file system.
pub const CHECKED_PATHS: [&str; 5] = ["/", "/usr", "/var", "/var/cache", "/boot"];

/// A path that is written to, with the free space of its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathSpace {
    /// Path inside the root.
    pub path: &'static str,
    /// Device number of its file system.
    pub device: u64,
    pub free_bytes: u64,
}

/// Whether these paths have space for the download and the unpacked files. Paths on the same file
/// system share its space.
pub fn check_space(
    spaces: &[PathSpace],
    download_bytes: Option<u64>,
    disk_bytes: Option<i64>,
    moves: &[PackageMove],
) -> Result<(), Failure> {
    let kernel = moves.iter().any(|package| is_kernel(package.name.as_str()));
    // The split of the unpacked files between / and /usr is unknown, so each must have space for
    // all of them.
    let unpacked = u64::try_from(disk_bytes.unwrap_or(0)).unwrap_or(0);
    let uses: [(&[&str], u64); 3] = [
        (&["/", "/usr"], unpacked),
        (&["/var/cache"], download_bytes.unwrap_or(0)),
        (&["/boot"], if kernel { KERNEL_BYTES } else { 0 }),
    ];
    let mut needs: BTreeMap<u64, u64> = BTreeMap::new();
    for (paths, bytes) in uses {
        let used = spaces.iter().filter(|place| paths.contains(&place.path));
        for device in used.map(|place| place.device).collect::<BTreeSet<u64>>() {
            *needs.entry(device).or_default() += bytes;
        }
    }
    for place in spaces {
        // /boot is often small and nearly full; if nothing is written there, no margin is required.
        if place.path == "/boot" && !kernel {
            continue;
        }
        let need = needs.get(&place.device).copied().unwrap_or(0).saturating_add(MARGIN_BYTES);
        if place.free_bytes < need {
            let message = format!(
                "{} has {} MiB free, but the update needs {} MiB",
                place.path,
                place.free_bytes >> 20,
                need >> 20
            );
            return Err(Failure::new(FailureCode::DiskFull, message));
        }
    }
    Ok(())
}

/// Whether a package installs a kernel into /boot, by the package names of the distributions.
fn is_kernel(name: &str) -> bool {
    let starts = ["linux-image-", "kernel-core", "kernel-default", "kernel-uek", "kernel-rt"];
    let names = ["kernel", "linux", "linux-lts", "linux-zen", "linux-hardened", "linux-virt"];
    names.contains(&name) || starts.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn path_space(path: &'static str, device: u64, free_mib: u64) -> PathSpace {
        PathSpace { path, device, free_bytes: free_mib * MIB }
    }

    fn package(name: &str) -> PackageMove {
        PackageMove { name: name.into(), arch: "".into(), from: None, to: Some("2".into()) }
    }

    fn refusal(
        spaces: &[PathSpace],
        fetch_mib: u64,
        unpack_mib: i64,
        name: &str,
    ) -> Option<String> {
        let unpack = unpack_mib * MIB as i64;
        let full =
            check_space(spaces, Some(fetch_mib * MIB), Some(unpack), &[package(name)]).err()?;
        assert_eq!(full.code, FailureCode::DiskFull);
        Some(full.message.to_string())
    }

    #[test]
    fn each_file_system_needs_space_for_its_files() {
        let roomy = [
            path_space("/", 1, 1000),
            path_space("/usr", 1, 1000),
            path_space("/var", 2, 1000),
            path_space("/var/cache", 2, 1000),
            path_space("/boot", 3, 40),
        ];
        assert_eq!(refusal(&roomy, 500, 500, "bash"), None);
        assert_eq!(
            refusal(&roomy, 990, 500, "bash").unwrap(),
            "/var has 1000 MiB free, but the update needs 1022 MiB"
        );
        assert!(refusal(&roomy, 500, 990, "bash").unwrap().starts_with("/ has"));
    }

    #[test]
    fn paths_on_one_file_system_share_its_space() {
        let one = CHECKED_PATHS.map(|path| path_space(path, 1, 1000));
        assert!(refusal(&one, 600, 600, "bash").unwrap().contains("1232 MiB"));
        assert_eq!(refusal(&one, 600, -600, "bash"), None);
    }

    #[test]
    fn unpacking_needs_space_in_usr_and_download_in_cache() {
        let separate_disks = [
            path_space("/", 1, 1000),
            path_space("/usr", 2, 100),
            path_space("/var/cache", 3, 100),
        ];
        assert!(refusal(&separate_disks, 10, 90, "bash").unwrap().starts_with("/usr has 100 MiB"));
        assert!(
            refusal(&separate_disks, 90, 10, "bash").unwrap().starts_with("/var/cache has 100 MiB")
        );
        assert_eq!(refusal(&separate_disks, 60, 60, "bash"), None);
    }

    #[test]
    fn only_a_kernel_needs_space_in_boot() {
        let full =
            [path_space("/", 1, 1000), path_space("/var", 1, 1000), path_space("/boot", 3, 20)];
        assert_eq!(refusal(&full, 1, 1, "bash"), None);
        for kernel in ["linux-image-6.1.0-18-amd64", "kernel-core", "linux"] {
            assert!(refusal(&full, 1, 1, kernel).unwrap().starts_with("/boot has 20 MiB"));
        }
    }
}
