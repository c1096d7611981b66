//! Which services may be restarted behind their users' backs.

/// Never: by how their names begin.
const NEVER: [&str; 35] = [
    // The agent itself: it restarts when it is idle, by its own decision.
    "fleetmend-agent",
    // Everything on the machine talks over it, and most of it does not survive.
    "dbus",
    // What holds sessions; with it people lose their work.
    "systemd-logind",
    "elogind",
    "user@",
    "user-runtime-dir@",
    "getty@",
    "serial-getty@",
    "console-getty",
    "container-getty@",
    "autovt@",
    "display-manager",
    "gdm",
    "lightdm",
    "sddm",
    "lxdm",
    "xdm",
    // What holds the network: the order to restart might be the last to arrive.
    "NetworkManager",
    "network",
    "ifup@",
    "systemd-networkd",
    "wpa_supplicant",
    "openvpn",
    // What other systems run in.
    "docker",
    "containerd",
    "libvirtd",
    "virt",
    "lxc",
    "lxd",
    "incus",
    // What runs once, or may be at work on packages this moment.
    "cloud-",
    "apt-daily",
    "unattended-upgrades",
    "dnf",
    "packagekit",
];

/// Whether nothing is lost by a restart but what the service itself forgets.
pub(super) fn is_safe(unit: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    // A unit's name comes from a group's, which root alone makes; and yet it becomes an argument.
    let Some(name) = unit.strip_suffix(".service") else { return false };
    !name.is_empty()
        && !name.starts_with('-')
        && unit.len() <= 255
        && unit.chars().all(plain)
        && !NEVER.iter().any(|never| name.starts_with(never))
}

#[cfg(test)]
mod tests {
    use super::is_safe;

    #[test]
    fn ordinary_services_are_restarted_and_what_carries_others_is_not() {
        for unit in ["ssh.service", "nginx.service", "postgresql@15-main.service", "cron.service"] {
            assert!(is_safe(unit), "{unit}");
        }
        for unit in [
            "fleetmend-agent.service",
            "dbus.service",
            "dbus-broker.service",
            "systemd-logind.service",
            "user@1000.service",
            "getty@tty1.service",
            "gdm3.service",
            "NetworkManager.service",
            "docker.service",
            "apt-daily-upgrade.service",
        ] {
            assert!(!is_safe(unit), "{unit}");
        }
    }

    #[test]
    fn what_is_no_service_is_not_restarted() {
        for unit in ["", ".service", "ssh.socket", "--all.service", "a b.service", "a;b.service"] {
            assert!(!is_safe(unit), "{unit}");
        }
    }
}
