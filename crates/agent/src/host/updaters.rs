//! Detects other programs that install updates automatically.
//!
//! They defeat a staged rollout: the update that a rollout holds back is installed during the
//! night. Only programs that really install are listed, not those that only check, download or
//! notify. The information comes from files and from the links with which systemd enables a unit;
//! no program is run.

use std::fs;
use std::path::{Path, PathBuf};

use vocab::Line;

use super::apt_conf;
use crate::root::Root;

/// The programs that install updates automatically on the managed system.
pub(super) fn detect_updaters(root: &Root) -> Vec<Line> {
    let system = System { root };
    let found = [
        ("unattended-upgrades", system.unattended_upgrades()),
        ("dnf-automatic", system.dnf_automatic()),
        ("yum-cron", system.is_enabled("yum-cron.service") && system.applies_updates(YUM_CRON)),
        ("snap refresh", system.snap_refresh()),
        ("an offline update prepared for the next boot", system.offline_update()),
        ("os-update", system.is_enabled("os-update.timer")),
        ("transactional-update", system.is_enabled("transactional-update.timer")),
        ("YaST automatic online update", system.yast_online_update()),
        ("bootc", system.is_enabled("bootc-fetch-apply-updates.timer")),
    ];
    found.iter().filter(|(_, there)| *there).map(|(name, _)| Line::from(*name)).collect()
}

const DNF_AUTOMATIC: &[&str] = &["/etc/dnf/automatic.conf", "/etc/dnf/dnf5-plugins/automatic.conf"];
const YUM_CRON: &[&str] = &["/etc/yum/yum-cron.conf"];

struct System<'a> {
    root: &'a Root,
}

impl System<'_> {
    /// It is installed, apt's settings enable it, and something starts it every day.
    fn unattended_upgrades(&self) -> bool {
        if !self.root.has_program("unattended-upgrade") {
            return false;
        }
        let settings = self.apt_settings();
        let on = |name: &str, otherwise: bool| {
            apt_conf::find_value(&settings, name).map_or(otherwise, |value| value != "0")
        };
        let configured =
            on("APT::Periodic::Enable", true) && on("APT::Periodic::Unattended-Upgrade", false);
        let cron = !self.root.path("/lib/systemd/system").is_dir()
            && self.root.path("/etc/cron.daily/apt-compat").exists();
        configured && (cron || self.is_enabled("apt-daily-upgrade.timer"))
    }

    /// All files of apt's configuration, in the order in which apt reads them.
    fn apt_settings(&self) -> String {
        let is_config_file = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            !name.contains('.') || name.ends_with(".conf")
        };
        let mut files = entries(&self.root.path("/etc/apt/apt.conf.d"));
        files.retain(is_config_file);
        files.sort();
        files.push(self.root.path("/etc/apt/apt.conf"));
        let texts = files.iter().filter_map(|file| fs::read_to_string(self.root.follow(file)).ok());
        texts.collect::<Vec<_>>().join("\n")
    }

    /// It has several timers; the plain one follows the settings.
    fn dnf_automatic(&self) -> bool {
        let by_settings = ["dnf-automatic.timer", "dnf5-automatic.timer"];
        self.is_enabled("dnf-automatic-install.timer")
            || by_settings.iter().any(|timer| self.is_enabled(timer))
                && self.applies_updates(DNF_AUTOMATIC)
    }

    /// Whether one of these files contains `apply_updates = yes`.
    fn applies_updates(&self, files: &[&str]) -> bool {
        let yes = |line: &str| {
            line.split_once('=').is_some_and(|(key, value)| {
                let value = value.trim().to_ascii_lowercase();
                key.trim() == "apply_updates"
                    && ["yes", "true", "1", "on"].contains(&value.as_str())
            })
        };
        let texts = files.iter().filter_map(|file| fs::read_to_string(self.root.path(file)).ok());
        texts.into_iter().any(|text| text.lines().any(yes))
    }

    /// snapd refreshes installed snaps; without any snap it changes nothing.
    fn snap_refresh(&self) -> bool {
        let snaps = entries(&self.root.path("/var/lib/snapd/snaps"));
        let snaps = snaps.iter().any(|path| path.extension().is_some_and(|kind| kind == "snap"));
        let units = ["snapd.service", "snapd.socket"];
        snaps && units.iter().any(|unit| self.is_enabled(unit))
    }

    /// The link that makes systemd boot into an update instead of the normal system.
    fn offline_update(&self) -> bool {
        ["/system-update", "/etc/system-update"]
            .iter()
            .any(|link| self.root.entry(link).symlink_metadata().is_ok())
    }

    fn yast_online_update(&self) -> bool {
        let path = self.root.path("/etc/sysconfig/automatic_online_update");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.trim().replace('"', "") == "AOU_ENABLE_CRONJOB=true")
    }

    /// Whether systemd starts this unit: another unit wants it, and it is not masked.
    fn is_enabled(&self, unit: &str) -> bool {
        let own = self.root.path("/etc/systemd/system").join(unit);
        if fs::read_link(own).is_ok_and(|target| target == Path::new("/dev/null")) {
            return false;
        }
        ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"]
            .iter()
            .flat_map(|folder| entries(&self.root.path(folder)))
            .filter(|folder| folder.extension().is_some_and(|kind| kind == "wants"))
            .any(|folder| folder.join(unit).symlink_metadata().is_ok())
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect()
}
