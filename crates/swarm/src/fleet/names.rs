//! Package names that servers typically have, and how each distribution splits software into
//! packages.
//!
//! The names are plausible, not copied from an archive: some of these packages do not exist.

use super::System;
use vocab::PackageManager;

/// Libraries, each with its ABI version.
pub(super) const LIBRARIES: &str = "\
    acl:1 apparmor:1 archive:13 argon2:1 assuan:0 attr:1 audit:1 avahi:3 blkid:1 bpf:1 brotli:1 \
    bsd:0 bzip2:1 c-ares:2 cairo:2 cap:2 cap-ng:0 cbor:0 cryptsetup:12 cups:2 curl:4 datrie:1 \
    db:5 dbus:3 deflate:0 devmapper:1 drm:2 dw:1 ebtables:0 edit:2 elf:1 estr:0 event:2 evdev:2 \
    expat:1 ext2fs:2 fastjson:4 fdisk:1 ffi:8 fido2:1 fontconfig:1 freetype:6 fribidi:0 fuse:3 \
    gcrypt:20 gd:3 gdbm:6 geoip:1 git2:1 glib:2 gmp:10 gnutls:30 gpg-error:0 gpgme:11 graphite:3 \
    gssapi:2 harfbuzz:0 hiredis:1 hogweed:6 icu:72 idn2:0 image:3 inih:1 ip4tc:2 iscsi:9 isl:23 \
    isns:0 jansson:4 jbig:0 jpeg-turbo:62 jq:1 json-c:5 kmod:2 krb5:3 ksba:8 ldap:2 lmdb:0 \
    lognorm:5 lz4:1 lzo:2 magic:1 maxminddb:0 mbedtls:14 mnl:0 mount:1 mpc:3 mpfr:6 mspack:0 \
    ncurses:6 netfilter:3 nettle:8 newt:0 nfnetlink:0 nftables:1 nghttp2:14 nl:3 npth:0 nspr:4 \
    nss:3 numa:1 oniguruma:5 opus:0 p11-kit:0 pam:0 pango:1 parted:2 pcap:0 pcre:3 pcre2:0 \
    pipeline:1 pixman:1 png:16 polkit:0 popt:0 protobuf:32 psl:5 pwquality:1 qrencode:4 \
    quadmath:0 readline:8 relp:0 rtmp:1 sasl:2 seccomp:2 selinux:1 semanage:2 sensors:5 sepol:2 \
    sigsegv:2 slang:2 smartcols:1 smbclient:0 snappy:1 sodium:23 sqlite3:0 ssh2:1 stemmer:0 \
    systemd:0 talloc:2 tasn1:6 tdb:1 tevent:0 thai:0 tiff:6 tirpc:3 tracefs:1 tss2:0 udev:1 \
    unbound:8 unistring:2 unwind:8 urcu:8 usb:1 uuid:1 uv:1 verto:1 webp:7 wrap:0 x11:6 xau:6 \
    xcb:1 xdmcp:6 xext:6 xml2:2 xmlsec:1 xmu:6 xpm:4 xrender:1 xslt:1 xxhash:0 yajl:2 yaml:0 \
    zip:4 zlib:1 zmq:5 zstd:1";

/// Programs that are a single package on every distribution.
pub(super) const PROGRAMS: &str = "\
    adduser anacron at aria2 autofs bash bash-completion bc bind-utils binutils bridge-utils \
    bubblewrap busybox ca-certificates chrony cloud-init conntrack-tools console-setup coreutils \
    cpio cron cronie cryptsetup dash debianutils dialog diffutils dmidecode dnsmasq dosfstools \
    dracut e2fsprogs ed efibootmgr ethtool exfatprogs expect fail2ban fdisk file findutils \
    firewalld fwupd gawk gdb gdisk gettext git gnupg grep groff grub2 gzip hdparm hostname htop \
    iftop inetutils initramfs-tools init-system-helpers iotop ipcalc iperf3 iproute2 ipset \
    iptables iputils irqbalance jq kbd kexec-tools keyutils kmod less lldpd logrotate lshw lsof \
    lua lvm2 lynx m4 mailcap make man-db man-pages mawk mc mdadm microcode mlocate mtr \
    multipath-tools nano ncdu net-tools netcat nfs-utils nmap ntfs-3g numactl nvme-cli \
    open-iscsi open-vm-tools opensc openssl openssh os-prober parted passwd patch pciutils perf \
    perl pigz pinentry pixz plymouth policycoreutils pollinate popularity-contest powertop \
    procps psmisc publicsuffix pv python3 qemu-guest-agent quota reportbug rng-tools rpcbind \
    rsync rsyslog ruby runit screen sed sg3-utils shadow shared-mime-info smartmontools snapd \
    socat sos squashfs-tools ssl-cert strace stress-ng sudo symlinks sysstat systemd tar tcl \
    tcpdump telnet time tmux traceroute tree tuned tzdata ucf ufw unattended-upgrades unzip \
    update-notifier usbutils util-linux uuid-runtime vim wget whois wireguard-tools xauth \
    xfsprogs xz zerofree zip zsh";

/// Python modules that are common on every distribution.
pub(super) const PYTHON: &str = "\
    attrs automat babel bcrypt blinker boto3 botocore cairo certifi cffi chardet click colorama \
    configobj constantly cryptography dateutil dbus decorator distro distutils docutils gi \
    httplib2 hyperlink idna importlib incremental inotify jinja2 jmespath json-pointer jsonpatch \
    jsonschema jwt keyring lazr ldap libselinux lib2to3 lxml magic markdown markupsafe minimal \
    more-itertools netaddr netifaces netplan numpy oauthlib olefile openssl packaging paramiko \
    parted pexpect pil pip pkg-resources ply prettytable problem-report psutil ptyprocess pyasn1 \
    pycparser pycurl pygments pyinotify pynacl pyparsing pyrsistent pyserial pysocks requests \
    rich s3transfer secretstorage service-identity setuptools simplejson six software systemd \
    tornado twisted typing tz urllib3 wadllib wcwidth wheel xdg yaml zipp zope";

/// Perl modules.
pub(super) const PERL: &str = "\
    algorithm-diff algorithm-merge archive-zip authen-sasl b-debug business-isbn capture-tiny \
    carp class-inspector clone common-sense compress-raw-zlib config-general convert-binhex \
    cpan-meta crypt-ssleay data-dump data-optlist dbi digest-hmac digest-sha email-address \
    encode encode-locale error exporter-tiny extutils-config file-basedir file-fcntllock \
    file-find-rule file-listing file-sharedir file-which font-afm getopt-long html-form \
    html-format html-parser html-tagset html-tree http-cookies http-daemon http-date \
    http-message http-negotiate io-html io-socket-ssl io-stringy ipc-run ipc-system-simple json \
    json-xs list-moreutils locale-gettext lwp-mediatypes lwp-protocol-https mailtools mime-tools \
    module-build module-find module-load mozilla-ca net-dbus net-http net-ssleay number-compare \
    package-stash params-util path-tiny pod-parser readonly role-tiny socket6 sub-install \
    sub-quote sys-hostname-long term-readkey test-simple text-charwidth text-glob text-iconv \
    text-wrapi18n tie-ixhash time-hires timedate try-tiny type-tiny uri unicode-map \
    www-robotrules xml-parser xml-sax xml-simple xml-twig yaml-tiny";

/// Host roles, and the software that belongs to each.
pub(super) const ROLES: [(&str, &str); 12] = [
    ("web", "nginx nginx-common certbot brotli modsecurity goaccess apache2-utils varnish"),
    ("app", "nodejs npm yarnpkg gunicorn uwsgi supervisor libvips imagemagick"),
    (
        "db",
        "postgresql-15 postgresql-client-15 postgresql-common pgbouncer pgbackrest barman repmgr patroni",
    ),
    ("cache", "redis-server redis-tools memcached twemproxy keydb"),
    ("queue", "rabbitmq-server erlang-base erlang-crypto erlang-ssl erlang-mnesia erlang-inets"),
    ("lb", "haproxy keepalived corosync pacemaker crmsh bird2"),
    (
        "mail",
        "postfix dovecot-core dovecot-imapd opendkim rspamd spamassassin clamav clamav-daemon",
    ),
    ("dns", "bind9 bind9-utils unbound dnsdist pdns-server pdns-recursor"),
    (
        "ci",
        "docker.io containerd runc buildah podman skopeo openjdk-17-jdk maven golang-1.22 gcc-12 g++-12 cmake",
    ),
    ("mon", "prometheus prometheus-node-exporter grafana alertmanager influxdb telegraf collectd"),
    ("store", "ceph-osd ceph-mon ceph-common glusterfs-server minio nfs-kernel-server samba"),
    (
        "php",
        "php8.2 php8.2-fpm php8.2-mysql php8.2-xml php8.2-mbstring php8.2-curl mariadb-server mariadb-client",
    ),
];

/// Tools that an administrator may have installed on individual hosts.
pub(super) const EXTRAS: &str = "\
    atop bpftrace byobu dstat emacs-nox ethstats fio gcc git-lfs iptraf-ng ltrace moreutils mosh \
    ncat neovim nethogs parallel ripgrep sipcalc vnstat";

impl System {
    /// The packages that a library is split into.
    pub(super) fn library(self, stem: &str, number: u32) -> Vec<String> {
        match self.manager() {
            PackageManager::Apt => {
                let joint = if stem.ends_with(|c: char| c.is_ascii_digit()) { "-" } else { "" };
                let number = if number == 0 { "0".to_owned() } else { number.to_string() };
                match stem.len() % 3 {
                    0 => vec![format!("lib{stem}{joint}{number}"), format!("lib{stem}-common")],
                    1 => vec![format!("lib{stem}{joint}{number}"), format!("lib{stem}-bin")],
                    _ => vec![format!("lib{stem}{joint}{number}")],
                }
            }
            PackageManager::Dnf => match stem.len() % 3 {
                0 => vec![format!("lib{stem}"), format!("lib{stem}-devel")],
                1 => vec![format!("lib{stem}"), format!("lib{stem}-utils")],
                _ => vec![format!("lib{stem}"), format!("lib{stem}-common")],
            },
            PackageManager::Zypper => match stem.len() % 2 {
                0 => vec![format!("lib{stem}{number}"), format!("lib{stem}-tools")],
                _ => vec![format!("lib{stem}{number}"), format!("lib{stem}-data")],
            },
            PackageManager::Apk => match stem.len() % 2 {
                0 => vec![stem.to_owned() + "-libs", stem.to_owned() + "-dev"],
                _ => vec![stem.to_owned() + "-libs", stem.to_owned() + "-doc"],
            },
            PackageManager::Pacman => vec![format!("lib{stem}"), format!("lib{stem}-docs")],
        }
    }

    /// The package name of a Python module.
    pub(super) fn python(self, module: &str) -> String {
        match self.manager() {
            PackageManager::Apt | PackageManager::Dnf => format!("python3-{module}"),
            PackageManager::Zypper => format!("python311-{module}"),
            PackageManager::Apk => format!("py3-{module}"),
            PackageManager::Pacman => format!("python-{module}"),
        }
    }

    /// The package name of a Perl module.
    pub(super) fn perl(self, module: &str) -> String {
        match self.manager() {
            PackageManager::Apt => format!("lib{module}-perl"),
            PackageManager::Dnf | PackageManager::Zypper => {
                let parts: Vec<String> =
                    module.split('-').map(|part| part[..1].to_uppercase() + &part[1..]).collect();
                format!("perl-{}", parts.join("-"))
            }
            PackageManager::Apk | PackageManager::Pacman => format!("perl-{module}"),
        }
    }

    /// The kernel packages. An update of the first one requires a reboot.
    pub(super) fn kernel_packages(self) -> &'static [&'static str] {
        match self {
            System::Debian12 => &["linux-image-amd64", "linux-libc-dev", "linux-headers-amd64"],
            System::Ubuntu2204 | System::Ubuntu2404 => &[
                "linux-image-generic",
                "linux-generic",
                "linux-headers-generic",
                "linux-tools-common",
            ],
            System::Rocky9 | System::Alma9 => {
                &["kernel", "kernel-core", "kernel-modules", "kernel-modules-core", "kernel-tools"]
            }
            System::Leap156 => &["kernel-default", "kernel-macros", "kernel-devel"],
            System::Alpine322 => &["linux-lts", "linux-firmware-none"],
            System::Arch => &["linux", "linux-headers"],
        }
    }

    /// The C library, which every process uses. Its update also requires a reboot.
    pub(super) fn libc(self) -> &'static str {
        match self.manager() {
            PackageManager::Apt => "libc6",
            PackageManager::Dnf | PackageManager::Zypper | PackageManager::Pacman => "glibc",
            PackageManager::Apk => "musl",
        }
    }
}
