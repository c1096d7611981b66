//! Decides which services may be restarted automatically.

/// Services that are never restarted, by prefix.
const NEVER_RESTARTED: [&str; 35] = [
    // The agent itself: it restarts on its own when it is idle.
    "fleetmend-agent",
    // All services communicate over it, and most of them do not survive its restart.
    "dbus",
    // Services that hold sessions; users would lose their work.
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
    // Services that provide the network: after their restart the agent may have no connection.
    "NetworkManager",
    "network",
    "ifup@",
    "systemd-networkd",
    "wpa_supplicant",
    "openvpn",
    // Services that run other systems.
    "docker",
    "containerd",
    "libvirtd",
    "virt",
    "lxc",
    "lxd",
    "incus",
    // Services that run once, or may be changing packages at this moment.
    "cloud-",
    "apt-daily",
    "unattended-upgrades",
    "dnf",
    "packagekit",
];

/// Whether a restart affects only the service's own state.
pub(super) fn is_safe_to_restart(unit: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    // The unit name comes from a cgroup, which only root can create. It is checked anyway, because
    // it becomes a command argument.
    let Some(name) = unit.strip_suffix(".service") else { return false };
    !name.is_empty()
        && !name.starts_with('-')
        && unit.len() <= 255
        && unit.chars().all(plain)
        && !NEVER_RESTARTED.iter().any(|never| name.starts_with(never))
}

#[cfg(test)]
mod tests {
    use super::is_safe_to_restart;

    #[test]
    fn services_that_others_depend_on_are_not_restarted() {
        for unit in ["ssh.service", "nginx.service", "postgresql@15-main.service", "cron.service"] {
            assert!(is_safe_to_restart(unit), "{unit}");
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
            assert!(!is_safe_to_restart(unit), "{unit}");
        }
    }

    #[test]
    fn invalid_service_names_are_not_restarted() {
        for unit in ["", ".service", "ssh.socket", "--all.service", "a b.service", "a;b.service"] {
            assert!(!is_safe_to_restart(unit), "{unit}");
        }
    }
}
