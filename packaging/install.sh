#!/bin/sh
# Installs the Fleetmend agent on this server, enrolls the server and starts the agent.
#
#   curl -fsSL @SERVER@/install.sh | sudo sh -s -- TOKEN
#
# Run it again to repair or upgrade an installation. `--help` lists the options.
# The service fills in the values between @ signs when it sends this script.
set -eu

SERVER='@SERVER@'
VERSION='@VERSION@'
SHA256_X86_64='@SHA256_X86_64@'
SHA256_AARCH64='@SHA256_AARCH64@'
# `no` if the service has a certificate that only its own installation trusts. The download is then
# verified by its digest alone, and this script by the public key in the command that fetched it.
VERIFY_CERTIFICATE='@VERIFY_CERTIFICATE@'

STATE_DIR=/var/lib/fleetmend-agent
HOOKS_DIR=/etc/fleetmend/hooks
SYSTEMD_UNIT=/etc/systemd/system/fleetmend-agent.service
OPENRC_SCRIPT=/etc/init.d/fleetmend-agent
# Packages own /usr/bin; this script never writes there.
PROGRAM=/usr/local/bin/fleetmend-agent

usage() {
    cat <<'END_OF_USAGE'
Usage: install.sh [OPTIONS] TOKEN
       install.sh uninstall [--dry-run] [--keep-identity]

Installs the Fleetmend agent, enrolls this server and starts the agent. Run it again to repair or
upgrade an installation; a server that is already enrolled needs no token.

Options:
  --environment NAME   environment of this server, unless the token sets one
  --tag TAG            tag of this server, unless the token sets tags; repeatable
  --server URL         address of the service, if it differs from the one that sent this script
  --dry-run            print what would be done, and change nothing
  --keep-identity      with `uninstall`: keep the identity, so that the server stays the same server
                       when the agent is installed again
  --help               print this help
END_OF_USAGE
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command, or prints it with --dry-run.
run() {
    if [ "$DRY_RUN" = yes ]; then
        say "would run: $*"
    else
        "$@"
    fi
}

detect_architecture() {
    machine=$(uname -m)
    case $machine in
        x86_64 | amd64) ARCH=x86_64 SHA256=$SHA256_X86_64 ;;
        aarch64 | arm64) ARCH=aarch64 SHA256=$SHA256_AARCH64 ;;
        *) fail "there is no agent for the architecture $machine (supported: x86_64, aarch64)" ;;
    esac
}

detect_system() {
    SYSTEM=$(uname -s)
    [ "$SYSTEM" = Linux ] || fail "the agent runs on Linux only, and this is $SYSTEM"
    if [ -r /etc/os-release ]; then
        # shellcheck source=/dev/null
        SYSTEM=$(. /etc/os-release && printf '%s' "${PRETTY_NAME:-${NAME:-Linux}}")
    fi
    # By the database of installed packages, as the agent does: any system may have the programs of
    # several package managers.
    MANAGER=
    if [ -s /var/lib/dpkg/status ]; then
        MANAGER=apt
    elif [ -s /lib/apk/db/installed ] || [ -s /usr/lib/apk/db/installed ]; then
        MANAGER=apk
    elif [ -n "$(ls -A /var/lib/pacman/local 2>/dev/null)" ]; then
        MANAGER=pacman
    elif [ -n "$(ls -A /var/lib/rpm /usr/lib/sysimage/rpm 2>/dev/null)" ]; then
        MANAGER=dnf
        if have zypper; then MANAGER=zypper; fi
    fi
    [ -n "$MANAGER" ] || fail "no supported package manager on $SYSTEM (apt, dnf, zypper, pacman or apk)"
}

# INIT is the service manager, RUNNING whether it is in charge of this system. It is not while an
# image is built, for example.
detect_init() {
    RUNNING=no
    if have systemctl; then
        INIT=systemd
        if [ -d /run/systemd/system ]; then RUNNING=yes; fi
    elif have rc-service; then
        INIT=openrc
        if [ -e /run/openrc/softlevel ]; then RUNNING=yes; fi
    else
        INIT=none
    fi
}

# Whether a package of the distribution owns the agent. Then only the package manager upgrades it.
is_packaged() {
    if have dpkg-query; then
        dpkg-query -W -f '${Status}' fleetmend-agent 2>/dev/null | grep -q ' installed$' && return 0
    fi
    if have rpm; then
        rpm -q fleetmend-agent >/dev/null 2>&1 && return 0
    fi
    return 1
}

is_enrolled() { [ -s "$STATE_DIR/identity.json" ] && [ ! -e "$STATE_DIR/removed" ]; }

digest() {
    if have sha256sum; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif have openssl; then
        openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
    else
        fail "sha256sum and openssl are missing, so the download cannot be verified"
    fi
}

# Downloads an address to a file.
download() {
    if have curl; then
        set -- -fsS --proto '=http,https' --connect-timeout 30 --retry 3 -o "$2" "$1"
        if [ "$VERIFY_CERTIFICATE" = no ]; then set -- -k "$@"; fi
        curl "$@"
    elif have wget; then
        set -- -q -T 30 -O "$2" "$1"
        if [ "$VERIFY_CERTIFICATE" = no ]; then set -- --no-check-certificate "$@"; fi
        wget "$@"
    else
        fail "install curl or wget, then run this script again"
    fi
}

install_program() {
    [ -n "$SHA256" ] || fail "the service has no agent for $ARCH; install a package of the agent, or add the program to the service's --agent-dir"
    if [ -x "$PROGRAM" ] && [ "$(digest "$PROGRAM")" = "$SHA256" ]; then
        say "The agent $VERSION is already installed."
        return
    fi
    url=$SERVER/agent/v1/releases/$ARCH
    if [ "$DRY_RUN" = yes ]; then
        say "would download $url to $PROGRAM (version $VERSION, SHA-256 $SHA256)"
        CHANGED=yes
        return
    fi
    say "Downloading the agent $VERSION for $ARCH …"
    mkdir -p "${PROGRAM%/*}"
    # In the same directory, so that the rename replaces the program at once.
    NEW=$(mktemp "${PROGRAM%/*}/.fleetmend-agent.XXXXXX")
    trap 'rm -f "$NEW"' EXIT
    download "$url" "$NEW" || fail "cannot download $url"
    actual=$(digest "$NEW")
    [ "$actual" = "$SHA256" ] || fail "the download is damaged: its SHA-256 is $actual instead of $SHA256; nothing was installed"
    chmod 755 "$NEW"
    "$NEW" --version >/dev/null 2>&1 || fail "the agent does not run on this system; nothing was installed"
    mv -f "$NEW" "$PROGRAM"
    trap - EXIT
    if have restorecon; then restorecon "$PROGRAM" || true; fi
    CHANGED=yes
}

# Writes standard input to a file with a mode, unless the file is already the same.
install_file() {
    content=$(cat)
    if [ -f "$1" ] && [ "$(cat "$1")" = "$content" ]; then return; fi
    CHANGED=yes
    if [ "$DRY_RUN" = yes ]; then
        say "would write $1"
        return
    fi
    mkdir -p "${1%/*}"
    printf '%s\n' "$content" >"$1.new"
    chmod "$2" "$1.new"
    mv -f "$1.new" "$1"
}

install_service() {
    case $INIT in
        systemd)
            install_file "$SYSTEMD_UNIT" 644 <<'END_OF_UNIT'
@SYSTEMD_UNIT@
END_OF_UNIT
            ;;
        openrc)
            install_file "$OPENRC_SCRIPT" 755 <<'END_OF_SCRIPT'
@OPENRC_SCRIPT@
END_OF_SCRIPT
            ;;
    esac
}

enroll() {
    if is_enrolled; then
        say "This server is already enrolled."
        return
    fi
    [ -n "$TOKEN" ] || fail "this server is not enrolled: add an enrollment token (fme_…), which \`fleetmend tokens create\` or the dashboard creates"
    if [ "$DRY_RUN" = yes ]; then
        say "would enroll this server at $SERVER"
        return
    fi
    set -- enroll --server "$SERVER"
    if [ -n "$ENVIRONMENT" ]; then set -- "$@" --environment "$ENVIRONMENT"; fi
    for tag in $TAGS; do set -- "$@" --tag "$tag"; done
    # In the environment, not in the process list.
    FLEETMEND_ENROLLMENT_TOKEN=$TOKEN "$PROGRAM" "$@" || fail "the enrollment failed; fix the problem above and run this script again"
}

start() {
    case $INIT-$RUNNING in
        systemd-yes)
            run systemctl daemon-reload
            run systemctl --quiet enable fleetmend-agent
            if [ "$CHANGED" = yes ]; then
                run systemctl restart fleetmend-agent
            else
                run systemctl start fleetmend-agent
            fi
            ;;
        systemd-no) run systemctl --quiet enable fleetmend-agent ;;
        openrc-*)
            run rc-update -q add fleetmend-agent default
            if [ "$RUNNING" = no ]; then return; fi
            if [ "$CHANGED" = yes ]; then
                run rc-service fleetmend-agent restart
            else
                run rc-service fleetmend-agent --ifstopped start
            fi
            ;;
    esac
}

# Waits until the service has answered the agent, at most 30 seconds.
report() {
    if [ "$DRY_RUN" = yes ]; then
        say "Nothing was changed (--dry-run)."
        return
    fi
    if [ "$INIT" = none ]; then
        say "No service manager was found. Start \`$PROGRAM run\` with the supervisor of this system."
        return
    fi
    if [ "$RUNNING" = no ]; then
        say "Installed. The agent starts with the next boot of this system."
        return
    fi
    "$PROGRAM" status --wait 30 || fail "the agent was started, but the service has not answered it yet: see \`$PROGRAM status\`"
    say "Done. The server appears in the dashboard: $SERVER/servers"
}

install_agent() {
    detect_architecture
    detect_system
    detect_init
    say "$SYSTEM on $ARCH, with $MANAGER, service manager: $INIT"
    if is_packaged; then
        PROGRAM=/usr/bin/fleetmend-agent
        say "The agent was installed as a package. Upgrade it with the package manager; this script only enrolls and starts it."
    else
        install_program
        install_service
    fi
    for hook in pre-install post-install pre-reboot; do
        [ -d "$HOOKS_DIR/$hook.d" ] || run mkdir -p "$HOOKS_DIR/$hook.d"
    done
    enroll
    start
    report
}

uninstall_agent() {
    detect_init
    if is_packaged; then
        fail "the agent was installed as a package: remove it with the package manager"
    fi
    case $INIT-$RUNNING in
        systemd-*)
            if [ -e "$SYSTEMD_UNIT" ]; then
                if [ "$RUNNING" = yes ]; then run systemctl stop fleetmend-agent; fi
                run systemctl --quiet disable fleetmend-agent
                run rm -f "$SYSTEMD_UNIT"
                if [ "$RUNNING" = yes ]; then run systemctl daemon-reload; fi
            fi
            ;;
        openrc-*)
            if [ -e "$OPENRC_SCRIPT" ]; then
                if [ "$RUNNING" = yes ]; then run rc-service fleetmend-agent --ifstarted stop; fi
                run rc-update -q delete fleetmend-agent default || true
                run rm -f "$OPENRC_SCRIPT"
            fi
            ;;
    esac
    run rm -f "$PROGRAM" "$PROGRAM.previous"
    if [ "$KEEP_IDENTITY" = yes ]; then
        say "Kept the identity of this server in $STATE_DIR."
    else
        run rm -rf "$STATE_DIR"
    fi
    # Only what is empty: hooks belong to the administrator, and so does limits.toml.
    for directory in "$HOOKS_DIR/pre-install.d" "$HOOKS_DIR/post-install.d" "$HOOKS_DIR/pre-reboot.d" "$HOOKS_DIR" /etc/fleetmend; do
        if [ -d "$directory" ] && [ -z "$(ls -A "$directory")" ]; then run rmdir "$directory"; fi
    done
    if [ "$DRY_RUN" = yes ]; then
        say "Nothing was changed (--dry-run)."
    else
        say "The agent is removed. Also remove the server from the fleet: \`fleetmend servers remove NAME\`, or its page in the dashboard."
    fi
}

# An option's value.
value() {
    [ "$#" -ge 2 ] || fail "$1 needs a value"
    printf '%s' "$2"
}

# Everything is in functions, so that a script that was cut off while it was downloaded does nothing.
main() {
    ACTION=install TOKEN='' ENVIRONMENT='' TAGS='' DRY_RUN=no KEEP_IDENTITY=no CHANGED=no
    while [ "$#" -gt 0 ]; do
        case $1 in
            uninstall) ACTION=uninstall ;;
            --environment) ENVIRONMENT=$(value "$@") && shift ;;
            --tag) TAGS="$TAGS $(value "$@")" && shift ;;
            --server) SERVER=$(value "$@") && shift ;;
            --dry-run) DRY_RUN=yes ;;
            --keep-identity) KEEP_IDENTITY=yes ;;
            --help | -h)
                usage
                exit 0
                ;;
            fme_*) TOKEN=$1 ;;
            *) fail "unknown argument: $1 (an enrollment token starts with fme_; see --help)" ;;
        esac
        shift
    done
    SERVER=${SERVER%/}
    if [ "$DRY_RUN" = no ] && [ "$(id -u)" -ne 0 ]; then
        fail "run this as root, for example with sudo"
    fi
    umask 022
    if [ "$ACTION" = uninstall ]; then
        uninstall_agent
    else
        install_agent
    fi
}

main "$@"
