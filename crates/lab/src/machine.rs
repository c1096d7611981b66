//! A root that is booted: systemd as its first process, in namespaces of its own, so that a reboot is one.
//!
//! Its network has no way out, and the kernel's settings, which are the host's, it can read only. What it writes stays
//! from one boot to the next; `/run` and `/tmp` do not, and every boot has a boot id of its own.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::has_programs;
use crate::root::{Base, Root};

/// A boot's own control group. If two machines had theirs in the same, each would take the other's services for its own,
/// and remove a group that the other is about to start a service in. Groups of machines that are gone are removed.
/// The arguments are those of [`BOOT`], which comes first.
const OWN_GROUP: &str = r#"
set -e
boot=$1 R=$2
mount --make-rprivate /
mount -t sysfs -o ro sysfs "$R/sys"
mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
cd "$R/sys/fs/cgroup/$(sed -n 's/^0:://p' /proc/self/cgroup)"
exec 9<.
flock 9
for old in fleetmend-lab.*; do
    if grep -qx 'populated 0' "$old/cgroup.events" 2>/dev/null; then find "$old" -depth -type d -exec rmdir {} +; fi
done
own=$(mktemp -d fleetmend-lab.XXXXXX)
echo 0 > "$own/cgroup.procs"
exec 9<&-
cd /
umount "$R/sys/fs/cgroup"
exec unshare --cgroup sh -c "$boot" boot "$R" "$3"
"#;

/// Everything else that is mounted for one boot, in a mount namespace that ends with it. The first argument
/// is the root, the second the file with the boot's own id.
const BOOT: &str = r#"
set -e
R=$1
umount "$R/proc"
mount -t proc proc "$R/proc"
mount --bind "$R/proc/sys" "$R/proc/sys"
mount -o remount,ro,bind "$R/proc/sys"
mount --bind "$2" "$R/proc/sys/kernel/random/boot_id"
mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$R/run"
mount -t tmpfs tmpfs "$R/tmp"
mount -t tmpfs -o mode=755 tmpfs "$R/dev"
for d in null zero full random urandom tty; do touch "$R/dev/$d"; mount --bind /dev/$d "$R/dev/$d"; done
mkdir -p "$R/dev/pts" "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"
mount -t tmpfs tmpfs "$R/dev/shm"
hostname lab
exec chroot "$R" env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd \
    --system --log-target=null --show-status=no
"#;

/// A system with systemd that can be booted.
#[derive(Debug)]
pub struct Machine {
    /// Its files, whether it runs or not.
    pub root: Root,
    boots: u32,
    shares_network: bool,
}

/// How a boot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It asked to be started again.
    Rebooted,
    /// It was switched off, or fell over.
    Off,
}

impl Machine {
    /// A fresh one.
    pub fn new() -> Option<Machine> {
        Machine::over(Root::of(Base::Systemd)?)
    }

    /// One of a root that was made ready before: [`Base::Systemd`] is what it must be of.
    pub fn over(root: Root) -> Option<Machine> {
        let can = has_programs(&[("unshare", "util-linux")]);
        can.then_some(Machine { root, boots: 0, shares_network: false })
    }

    /// On the network of the thread that boots it, which should be one of its own:
    /// [`crate::network::own`].
    #[must_use]
    pub fn on_our_network(mut self) -> Machine {
        self.shares_network = true;
        self
    }

    /// How often it was booted.
    pub fn boots(&self) -> u32 {
        self.boots
    }

    /// Adds a service that is started in every boot: the text of its unit.
    pub fn add_service(&self, name: &str, unit: &str) {
        self.root.write(&format!("/etc/systemd/system/{name}.service"), unit);
        let wants = "/etc/systemd/system/multi-user.target.wants";
        fs::create_dir_all(self.root.path(wants)).expect("a root can be written");
        let link = self.root.path(&format!("{wants}/{name}.service"));
        std::os::unix::fs::symlink(format!("../{name}.service"), link).expect("it is new");
    }

    /// Boots it. It ends by itself, or when the child is killed: with its first process everything in
    /// it ends.
    pub fn boot(&mut self) -> Child {
        self.boots += 1;
        let id = format!("00000000-0000-4000-8000-{:012x}\n", self.boots);
        let file = self.root.home().join("boot_id");
        fs::write(&file, id).expect("a tmpfs can be written");
        let mut boot = Command::new("unshare");
        boot.args(["--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc"]);
        boot.args((!self.shares_network).then_some("--net"));
        boot.args(["sh", "-c", OWN_GROUP, "group", BOOT]).arg(self.root.dir()).arg(file);
        boot.stdin(Stdio::null()).stdout(Stdio::null());
        boot.spawn().expect("root may start it")
    }

    /// Boots it and waits for its end.
    pub fn boot_to_the_end(&mut self) -> Ended {
        Ended::of(self.boot().wait().expect("a child can be waited for"))
    }
}

impl Ended {
    /// What the end of a boot's process says.
    pub fn of(status: ExitStatus) -> Ended {
        // A reboot ends the first process of a namespace by SIGHUP, which unshare passes on.
        match status.signal() == Some(1) || status.code() == Some(129) {
            true => Ended::Rebooted,
            false => Ended::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_reboots_when_it_says_so_and_keeps_its_files_but_not_its_boot_id() {
        let Some(mut machine) = Machine::new() else { return };
        machine.add_service(
            "probe",
            "[Service]\nType=oneshot\n\
             ExecStart=/bin/sh -c '[ -w /proc/sys/vm/swappiness ] && touch /var/too-much; \
             cat /proc/sys/kernel/random/boot_id >> /var/boots; touch /run/mark; \
             if [ $(wc -l < /var/boots) -lt 2 ]; then systemctl reboot; else systemctl poweroff; fi'\n",
        );
        assert_eq!(machine.boot_to_the_end(), Ended::Rebooted);
        assert_eq!(machine.boot_to_the_end(), Ended::Off);
        let boots = machine.root.read("/var/boots");
        let [first, second] = boots.lines().collect::<Vec<_>>()[..] else { panic!("{boots}") };
        assert_ne!(first, second);
        assert!(!machine.root.path("/run/mark").exists());
        assert!(!machine.root.path("/var/too-much").exists(), "the kernel is the host's");
    }
}
