//! A root that is booted with systemd as its first process, in its own namespaces, so that it can
//! reboot.
//!
//! Its network has no connection to the outside, and the kernel settings, which are those of the
//! host, are read-only. Its files persist from one boot to the next; `/run` and `/tmp` do not, and
//! every boot has its own boot id.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::has_programs;
use crate::root::{Base, Root};

/// Creates a separate cgroup for a boot. If two machines shared a cgroup, each would treat the
/// other's services as its own, and remove a group in which the other is about to start a service.
/// Cgroups of ended machines are removed. The first argument is [`BOOT_SCRIPT`], the others are its
/// arguments.
const CGROUP_SCRIPT: &str = r#"
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

/// Mounts everything else for one boot, in a mount namespace that ends with it. The first argument
/// is the root, the second the file with the boot id.
const BOOT_SCRIPT: &str = r#"
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
    /// Its files, whether it is running or not.
    pub root: Root,
    boots: u32,
    shares_network: bool,
}

/// How a boot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootEnd {
    /// It requested a reboot.
    Rebooted,
    /// It was powered off, or crashed.
    Off,
}

impl Machine {
    pub fn new() -> Option<Machine> {
        Machine::from_root(Root::from_base(Base::Systemd)?)
    }

    /// A machine from a prepared root, which must be based on [`Base::Systemd`].
    pub fn from_root(root: Root) -> Option<Machine> {
        let can = has_programs(&[("unshare", "util-linux")]);
        can.then_some(Machine { root, boots: 0, shares_network: false })
    }

    /// Uses the network of the thread that boots it, which should be isolated with
    /// [`crate::network::isolate`].
    #[must_use]
    pub fn share_network(mut self) -> Machine {
        self.shares_network = true;
        self
    }

    /// Number of boots so far.
    pub fn boots(&self) -> u32 {
        self.boots
    }

    /// Adds a service that starts on every boot, by the text of its unit file.
    pub fn add_service(&self, name: &str, unit: &str) {
        self.root.write(&format!("/etc/systemd/system/{name}.service"), unit);
        let wants = "/etc/systemd/system/multi-user.target.wants";
        fs::create_dir_all(self.root.path(wants)).expect("cannot write to the root");
        let link = self.root.path(&format!("{wants}/{name}.service"));
        std::os::unix::fs::symlink(format!("../{name}.service"), link).expect("the link is new");
    }

    /// Boots the machine. It ends on its own, or when the child is killed: everything in it ends
    /// with its first process.
    pub fn boot(&mut self) -> Child {
        self.boots += 1;
        let id = format!("00000000-0000-4000-8000-{:012x}\n", self.boots);
        let file = self.root.side_dir().join("boot_id");
        fs::write(&file, id).expect("cannot write to the tmpfs");
        let mut boot = Command::new("unshare");
        boot.args(["--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc"]);
        boot.args((!self.shares_network).then_some("--net"));
        boot.args(["sh", "-c", CGROUP_SCRIPT, "group", BOOT_SCRIPT]).arg(self.root.dir()).arg(file);
        boot.stdin(Stdio::null()).stdout(Stdio::null());
        boot.spawn().expect("cannot start the machine")
    }

    /// A program inside the machine that `boot` started, once it is far enough for that; with a clean
    /// environment and no input.
    pub fn command(&self, boot: &Child, program: &str) -> Option<Command> {
        let unshare = boot.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        let first = children.ok()?.split_whitespace().next()?.to_owned();
        // Before that, the process is still the shell that prepares the mounts.
        let name = fs::read_to_string(format!("/proc/{first}/comm")).ok()?;
        if name.trim() != "systemd" {
            return None;
        }
        let mut command = Command::new("nsenter");
        command.args(["--target", &first, "--mount", "--uts", "--ipc", "--net", "--pid"]);
        command.args(["--cgroup", "--root", "--wd", program]).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        Some(command)
    }

    /// Boots the machine and waits until it stops.
    pub fn boot_and_wait(&mut self) -> BootEnd {
        BootEnd::from_status(self.boot().wait().expect("cannot wait for the child"))
    }
}

impl BootEnd {
    /// Interprets the exit status of a boot's process.
    pub fn from_status(status: ExitStatus) -> BootEnd {
        // A reboot ends the first process of a namespace with SIGHUP, which unshare passes on.
        match status.signal() == Some(1) || status.code() == Some(129) {
            true => BootEnd::Rebooted,
            false => BootEnd::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_reboots_and_keeps_files_with_a_new_boot_id() {
        let Some(mut machine) = Machine::new() else { return };
        machine.add_service(
            "probe",
            "[Service]\nType=oneshot\n\
             ExecStart=/bin/sh -c '[ -w /proc/sys/vm/swappiness ] && touch /var/too-much; \
             cat /proc/sys/kernel/random/boot_id >> /var/boots; touch /run/mark; \
             if [ $(wc -l < /var/boots) -lt 2 ]; then systemctl reboot; else systemctl poweroff; fi'\n",
        );
        assert_eq!(machine.boot_and_wait(), BootEnd::Rebooted);
        assert_eq!(machine.boot_and_wait(), BootEnd::Off);
        let boots = machine.root.read("/var/boots");
        let [first, second] = boots.lines().collect::<Vec<_>>()[..] else { panic!("{boots}") };
        assert_ne!(first, second);
        assert!(!machine.root.path("/run/mark").exists());
        assert!(!machine.root.path("/var/too-much").exists(), "the kernel settings are read-only");
    }
}
