#!/usr/bin/env bash
# Installs the Debian packages of scripts/packages.txt that are missing, fetches the kernel of the
# tests' guest, and says what it does.
#
# Does nothing when all is there. Asks nothing. Needs root or sudo only when something is missing.
# Starts no service: Debian starts freshly installed servers (nginx, caddy, stund) and gpsd at once
# and at each boot, which would take ports and receivers of this machine; both are prevented here,
# what was there before is left as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
policy=/usr/sbin/policy-rc.d

say() { echo "setup: $*"; }
fail() { say "$*" >&2; exit 1; }
present() { if [[ $1 == /* ]]; then [[ -e $1 ]]; else command -v "$1" >/dev/null; fi; }

as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# Keeps the units of a package that is among those installed from starting at boot.
keep_off() {
    local package=$1 units=$2
    shift 2
    [[ " $* " == *" $package "* ]] && command -v systemctl >/dev/null || return 0
    # shellcheck disable=SC2086 # several units
    as_root systemctl --quiet disable $units 2>/dev/null || true
    say "$package is installed for tests and not started at boot"
}

check_rust() {
    command -v cargo >/dev/null || fail "no cargo: install Rust from https://rustup.rs"
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d' ' -f2)
    [[ $(printf '%s\n' "$wanted" "$have" | sort -V | head -n1) == "$wanted" ]] ||
        fail "Rust $have is too old: Polyrail needs $wanted or later (rustup update)"
}

install() {
    command -v apt-get >/dev/null ||
        fail "this machine has no apt-get: install by your own means: $*"
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null || fail "run this as root, or install sudo; missing: $*"
        [[ -t 0 ]] || sudo -n true 2>/dev/null ||
            fail "sudo asks for a password and nobody is there to type it; missing: $*"
    fi
    say "installing with apt-get: $*"
    if [[ ! -e $policy ]]; then
        trap 'as_root rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    # Debian would create a cluster, and start it at each boot.
    local clusters=/etc/postgresql-common/createcluster.conf
    if [[ " $* " == *" postgresql-15 "* && ! -e $clusters ]]; then
        as_root mkdir -p "${clusters%/*}"
        echo 'create_main_cluster = false' | as_root tee "$clusters" >/dev/null
    fi
    as_root apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "$@" </dev/null
    keep_off nginx-light nginx "$@"
    keep_off gpsd "gpsd.socket gpsd" "$@"
    keep_off caddy caddy "$@"
    keep_off stun-server stun "$@"
}

# Fetches the kernel of the tests' guest (lab/emulator/src/guest.rs). Its package is unpacked, not
# installed, because its scripts would add it to this machine's boot menu.
fetch_guest_kernel() (
    folder=~/.cache/polyrail/guest
    [[ ! -e $folder ]] || exit 0
    command -v apt-get >/dev/null ||
        fail "this machine has no apt-get: put vmlinuz and veth.ko, tun.ko, ... into $folder"
    say "fetching the kernel of the tests' guest"
    mkdir -p "${folder%/*}"
    work=$(mktemp -d "$folder.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    # Missing package lists name no package, and stale ones name a package that is gone.
    download_kernel 2>/dev/null || { as_root apt-get -qq update && download_kernel; } ||
        fail "apt-get cannot download linux-image-cloud-amd64"
    dpkg-deb --fsys-tarfile ./*.deb | tar -x --wildcards --transform 's,.*/,,' \
        './boot/vmlinuz-*' '*/veth.ko' '*/tun.ko' '*/sch_netem.ko' '*/sch_fq.ko' '*/tcp_bbr.ko'
    rm ./*.deb
    mv vmlinuz-* vmlinuz
    # A concurrent run may have been faster.
    mv -T "$work" "$folder" 2>/dev/null || [[ -e $folder ]]
)

# Downloads the package on which linux-image-cloud-amd64 depends into the current folder. Root's
# apt-get would do so as the user _apt, who may not write there.
download_kernel() {
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p')
    [[ -n $package ]] && apt-get -qq -o APT::Sandbox::User=root download "$package"
}

check_rust
missing=()
while read -r package probe; do
    present "$probe" || missing+=("$package")
done < <(sed 's/#.*//' scripts/packages.txt | awk 'NF == 2')

[[ ${#missing[@]} -eq 0 ]] || install "${missing[@]}"
fetch_guest_kernel
say "all is there"
