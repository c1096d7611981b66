//! Exact layout of operator output: on a terminal of a given width, and in a pipe.

use crate::commands::{World, world};
use crate::terminal::strip_escapes;

/// Replaces IDs and times, which differ between runs.
fn normalize(text: &str) -> String {
    let mut still = String::new();
    for line in strip_escapes(text).lines() {
        let words: Vec<String> = line.split(' ').map(normalize_word).collect();
        let line = words.join(" ");
        still += normalize_age(&line).trim_end_matches(' ');
        still.push('\n');
    }
    still
}

fn normalize_word(word: &str) -> String {
    let parts: Vec<String> = word
        .split('\t')
        .map(|part| match part.split_once('_') {
            Some((kind, rest)) if kind.len() == 3 && rest.len() == 26 => format!("{kind}_ID"),
            _ if part.len() == 20 && part.ends_with('Z') => "TIME".to_owned(),
            _ => part.to_owned(),
        })
        .collect();
    parts.join("\t")
}

/// Replaces a relative time at the end of a line.
fn normalize_age(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        [before @ .., number, _, "ago"] if number.parse::<u64>().is_ok() => {
            before.join(" ") + " AGO"
        }
        [before @ .., "now"] => before.join(" ") + " AGO",
        words => words.join(" "),
    }
}

const SERVERS_62: &str = "\
NAME           STATUS  ENVIRONMENT  UPDATES  SECURITY
cache-01       online  production        24        12
db-01          online  production        21         0
dns-01         online  production        44        25
stg-mon-01     online  staging           16         6
stg-php-01     online  staging           60        30
test-store-01  online  testing           46        25
";

const PATCHES_80: &str = "\
PACKAGE         SEVERITY  TYPE      SERVERS  UPDATE
ipset           critical  security        1  1.20.15-1 -> 1.20.15-1+deb12u1
liblognorm-bin  critical  security        1  0.15.15-3ubuntu0.1 -> 0.15.15-3ubu…
liblognorm5     critical  security        1  0.15.15-3ubuntu0.1 -> 0.15.15-3ubu…
libwrap-bin     critical  security        1  4.30.3-9ubuntu0.1 -> 4.30.3-9ubunt…
iperf3          high      security        1  5.7.8-6 -> 5.7.8-6+deb12u2
Showing 5 of 196 pending updates; use --all or --limit.
";

const PATCHES_PIPE: &str = "\
PACKAGE\tSEVERITY\tTYPE\tSERVERS\tUPDATE\tCVES\tSINCE
ipset\tcritical\tsecurity\t1\t1.20.15-1 -> 1.20.15-1+deb12u1\tCVE-2025-33099 (+3)\tTIME
liblognorm-bin\tcritical\tsecurity\t1\t0.15.15-3ubuntu0.1 -> 0.15.15-3ubuntu0.2\tCVE-2024-13825 (+3)\tTIME
liblognorm5\tcritical\tsecurity\t1\t0.15.15-3ubuntu0.1 -> 0.15.15-3ubuntu0.2\tCVE-2024-13825 (+3)\tTIME
";

const SUMMARY_80: &str = "\
servers                6 servers, 6 online, 1 need a reboot
up to date             0
with updates           6
no feed                6 servers: no imported feed covers the operating system
with security updates  5
pending updates        196 packages, 94 security
by severity            4 critical, 18 high, 50 medium, 22 low, 102 unknown
batches                0 open: 0 running, 0 paused, 0 halted
schedules              0, 0 enabled
next run               -
updates counted        AGO
";

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_the_expected_layout() {
    let World { cli, .. } = &world().await;
    let terminal = |width, args: &[&str]| normalize(&cli.run_on_terminal(width, args, "").out);
    assert_eq!(terminal(62, &["servers", "list"]), SERVERS_62);
    assert_eq!(terminal(80, &["patches", "list", "--limit", "5"]), PATCHES_80);
    assert_eq!(normalize(&cli.run_ok(&["patches", "list", "--limit", "3"])), PATCHES_PIPE);
    assert_eq!(terminal(80, &["summary"]), SUMMARY_80);
}

const PREVIEW_78: &str = "\
n
SERVER    STATUS  ENVIRONMENT  STARTS  UPDATES  SECURITY  REBOOT
cache-01  online  production   now          12        12  if required

PACKAGE              FROM             TO                    SECURITY  SERVERS
iperf3               5.7.8-6          5.7.8-6+deb12u2       yes             1
ipset                1.20.15-1        1.20.15-1+deb12u1     yes             1
libdigest-hmac-perl  1:0.29.15-5      1:0.29.15-5+deb12u1   yes             1
libgssapi2           3.6.3-6          3.6.3-6+deb12u1       yes             1
libsystemd-bin       1:11.26.15-4     1:11.26.15-4+deb12u1  yes             1
libxext6             0.13.8-9         0.13.8-9+deb12u2      yes             1
libyaml-tiny-perl    6.26.8-5         6.26.8-5+deb12u1      yes             1
microcode            1.6.1-9+deb12u1  1.6.1-9+deb12u2       yes             1
nmap                 1.33.6-7         1.33.6-7+deb12u3      yes             1
openssh              7.25.1-7         7.25.1-7+deb12u1      yes             1
rng-tools            11.23.3-1        11.23.3-1+deb12u1     yes             1
systemd              1:11.26.15-4     1:11.26.15-4+deb12u1  yes             1

Reboots: 0 certain, 1 if the updates require it.

Patch 1 server? [y/N] fleetmend: canceled; nothing was changed
";

const SERVER_78: &str = "\
hostname         db-01
id               srv_ID
status           online
environment      production
tags             role:db, db
os               alpine 3.22.2
kernel           6.12.51-0-lts
arch             x86_64
package manager  apk
agent            0.1.0-swarm
last seen        AGO
last scan        AGO
assessment       no feed
enrolled         AGO
packages         495, 21 updates pending, 0 security
reboot           -

Pending updates
PACKAGE           INSTALLED   AVAILABLE   SECURITY  BLOCKED BY
dbus-dev          0.2.10-r5   0.2.10-r7   -         -
dbus-libs         0.2.10-r5   0.2.10-r7   -         -
devmapper-libs    4.20.2-r5   4.20.2-r6   -         -
gdbm-libs         0.17.4-r0   0.17.4-r1   -         -
json-c-dev        0.32.13-r1  0.32.13-r2  -         -
json-c-libs       0.32.13-r1  0.32.13-r2  -         -
less              8.1.14-r0   8.1.14-r1   -         -
mdadm             11.3.15-r1  11.3.15-r2  -         -
microcode         0.2.13-r0   0.2.13-r1   -         -
netfilter-doc     0.5.1-r7    0.5.1-r8    -         -
netfilter-libs    0.5.1-r7    0.5.1-r8    -         -
nspr-dev          11.18.9-r4  11.18.9-r5  -         -
nspr-libs         11.18.9-r4  11.18.9-r5  -         -
patch             0.6.4-r2    0.6.4-r3    -         -
perl-mozilla-ca   5.13.4-r8   5.13.4-r9   -         -
perl-sub-install  0.27.9-r7   0.27.9-r8   -         -
py3-blinker       0.6.13-r2   0.6.13-r3   -         -
py3-jmespath      1.22.2-r7   1.22.2-r8   -         -
py3-netaddr       11.13.4-r6  11.13.4-r7  -         -
tracefs-doc       4.29.0-r7   4.29.0-r8   -         -
tracefs-libs      4.29.0-r7   4.29.0-r8   -         -

CVEs
Not assessed: no imported feed covers this operating system (`fleetmend feeds import --help`).
";

#[tokio::test(flavor = "multi_thread")]
async fn preview_and_server_have_the_expected_layout() {
    let World { cli, .. } = &world().await;
    let order = ["servers", "patch", "cache-01", "--security-only", "--reboot", "if_required"];
    assert_eq!(normalize(&cli.run_on_terminal(78, &order, "n\n").out), PREVIEW_78);
    assert_eq!(
        normalize(&cli.run_on_terminal(78, &["servers", "show", "db-01"], "").out),
        SERVER_78
    );
}

const SCHEDULE_PIPE: &str = "\
schedule\tWeekly
id\tsch_ID
description\t
enabled\tyes
runs\tEvery Sunday at 03:00
cron\t0 3 * * sun
timezone\tUTC
targets\tall servers
installs\tsecurity updates
reboot\tnever
stagger\t0 min
canary\t0
waves\t-
max parallel\t-
max failures\t-
health\treport
window\t-
last run\t-

Next runs
TIME
TIME
TIME
TIME
TIME
";

#[tokio::test(flavor = "multi_thread")]
async fn schedule_has_the_expected_layout_in_a_pipe() {
    let World { cli, .. } = &world().await;
    let cron = ["--name", "Weekly", "--cron", "0 3 * * sun", "--all", "--security-only"];
    let created = cli.run_ok(&[&["schedules", "create"], &cron[..]].concat());
    assert_eq!(normalize(&created), SCHEDULE_PIPE);
}
