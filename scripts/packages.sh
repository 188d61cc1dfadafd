#!/usr/bin/env bash
# Makes the Debian packages of the programs in the folder PROGRAMS: target/debian/*.deb.
#
# Three packages: `polyrail` (the command, kernel settings, documents), `polyrail-gateway` and
# `polyrail-cloud`. ARCHITECTURE (default: this machine's) names that of the programs; for another
# one the shared libraries are not looked up. COMPRESSION (default: xz) is that of the packages.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1
architecture=${ARCHITECTURE:-$(dpkg --print-architecture)}
version=$(sed -nE 's/^version = "(.*)"/\1/p' Cargo.toml | head -n 1)
out=target/debian
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
manuals=$work/manuals
mkdir -p "$out" "$manuals"
"${MANUALS:-target/${PROFILE:-ci}/polyrail-manuals}" "$manuals"

# Copies FILES into FOLDER of the package's tree with MODE.
place() {
    local mode=$1 folder=$2
    shift 2
    install -D -m "$mode" -t "$tree/$folder" "$@"
}

# What every package of a program has: the program, manuals, completions, licences.
program() {
    local name=$1 section=$2 manual
    place 755 usr/bin "$programs/$name"
    for manual in "$manuals/$name".[18] "$manuals/$name"-*.[18]; do
        [[ ! -e $manual ]] || gzip -9nc "$manual" |
            install -D -m 644 /dev/stdin "$tree/usr/share/man/man$section/${manual##*/}.gz"
    done
    install -D -m 644 "$manuals/$name.bash" "$tree/usr/share/bash-completion/completions/$name"
    install -D -m 644 "$manuals/_$name" "$tree/usr/share/zsh/vendor-completions/_$name"
    install -D -m 644 "$manuals/$name.fish" "$tree/usr/share/fish/vendor_completions.d/$name.fish"
    place 644 "usr/share/doc/$name" LICENSE-APACHE LICENSE-MIT CHANGELOG.md
}

# The libraries that the program of the package needs, as dpkg-shlibdeps sees them.
libraries() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: polyrail\n\nPackage: polyrail\nArchitecture: any\n' \
        >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O "$1" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
}

pack() {
    local name=$1 depends=libc6 size
    [[ $architecture != "$(dpkg --print-architecture)" ]] ||
        depends=$(libraries "$tree/usr/bin/$name")
    size=$(du -sk "$tree" | cut -f 1)
    mkdir "$tree/DEBIAN"
    sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@SIZE@/$size/" \
        -e "s/@SHLIBS@/$depends/" "packaging/debian/$name/control" >"$tree/DEBIAN/control"
    install -m 755 -t "$tree/DEBIAN" "packaging/debian/$name"/p*
    dpkg-deb --root-owner-group "-Z${COMPRESSION:-xz}" --build "$tree" \
        "$out/${name}_${version}_$architecture.deb"
}

tree=$work/polyrail
program polyrail 1
place 644 usr/lib/sysctl.d packaging/sysctl.d/60-polyrail.conf
place 644 usr/lib/modules-load.d packaging/modules-load.d/polyrail.conf
place 644 usr/lib/sysusers.d packaging/sysusers.d/polyrail.conf
place 644 usr/lib/tmpfiles.d packaging/tmpfiles.d/polyrail.conf
place 644 usr/share/doc/polyrail README.md docs/*.md
place 644 usr/share/doc/polyrail/figures docs/figures/*
mkdir -p "$tree/etc/polyrail"
pack polyrail

tree=$work/polyrail-gateway
program polyrail-gateway 8
place 644 usr/lib/systemd/system packaging/systemd/polyrail-gateway.service \
    packaging/systemd/polyrail-namespace.service packaging/systemd/polyrail-wan@.service
place 644 usr/lib/sysctl.d packaging/sysctl.d/61-polyrail-gateway.conf
place 755 usr/lib/polyrail packaging/namespace/*.sh packaging/examples/routes/polyrail-routes.sh
place 644 usr/share/polkit-1/rules.d packaging/polkit/60-polyrail.rules
place 644 usr/share/doc/polyrail-gateway/examples packaging/gateway.toml \
    packaging/examples/routes/*.network packaging/namespace/namespace.env \
    packaging/systemd/polyrail-gateway.service.d/namespace.conf
pack polyrail-gateway

tree=$work/polyrail-cloud
program polyrail-cloud 8
place 644 usr/lib/systemd/system packaging/systemd/polyrail-cloud.service
place 644 usr/share/doc/polyrail-cloud/examples packaging/cloud.toml
pack polyrail-cloud
