#!/usr/bin/env bash
# Builds the programs and their Debian packages for ARM64 with Debian's cross compiler, and starts
# both daemons under qemu. Installs what is missing (not part of `make setup`: 200 MB).
#
# Not static: boring-sys (QUIC's TLS) compiles C++ and links libstdc++, and Debian has no C++
# compiler for musl (musl-tools has musl-gcc alone). So programs need glibc 2.36, as in Debian 12.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu tools=aarch64-linux-gnu
as_root() { if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi; }
if ! command -v $tools-g++ qemu-aarch64 >/dev/null; then
    as_root apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        g++-$tools libc6-dev-arm64-cross qemu-user </dev/null
fi
rustup target list --installed | grep -qx "$target" || rustup target add "$target"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$tools-gcc
export CC_aarch64_unknown_linux_gnu=$tools-gcc CXX_aarch64_unknown_linux_gnu=$tools-g++
export BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_gnu="--sysroot=/usr/$tools"
for package in polyrail-gateway polyrail-cloud polyrail-cli; do
    cargo build --locked --release --target "$target" -p "$package"
done
built=target/$target/release
[[ -x target/release/polyrail-manuals ]] ||
    cargo build --locked --release -p polyrail-manuals
ARCHITECTURE=arm64 MANUALS=target/release/polyrail-manuals scripts/packages.sh "$built"

work=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -rf "$work"' EXIT
emulated() { qemu-aarch64 -L "/usr/$tools" "$built/$1" "${@:2}"; }
emulated polyrail pki init --dir "$work"
emulated polyrail pki issue --dir "$work" --role cloud cloud
emulated polyrail pki issue --dir "$work" --role gateway train-7
tls='[tls]\ncertificate = "%s.crt"\nkey = "%s.key"\nauthority = "ca.crt"\n'
{
    echo 'listen = ["127.0.0.1:44330"]'
    # shellcheck disable=SC2059 # the format is ours
    printf "$tls" cloud cloud
} >"$work/cloud.toml"
{
    # shellcheck disable=SC2059
    printf "$tls" train-7 train-7
    printf '[cloud]\nname = "cloud"\naddresses = ["127.0.0.1:44330"]\n[[carrier]]\nname = "a"\n'
    printf '[socks5]\nlisten = ["127.0.0.1:44331"]\n'
} >"$work/gateway.toml"
start() {
    # Not `emulated`, whose shell alone the signal would reach.
    qemu-aarch64 -L "/usr/$tools" "$built/polyrail-$1" --config "$work/$1.toml" \
        >"$work/$1.log" 2>&1 &
    daemon=$!
    for _ in {1..100}; do
        grep -q "polyrail-$1 started" "$work/$1.log" && break
        kill -0 "$daemon" || break
        sleep 0.1
    done
    grep "polyrail-$1 started" "$work/$1.log" || { cat "$work/$1.log"; exit 1; }
}
start cloud
cloud=$daemon
start gateway
for _ in {1..100}; do grep -q "session up" "$work/gateway.log" && break; sleep 0.1; done
grep "session up" "$work/gateway.log" || { cat "$work"/*.log; exit 1; }
kill "$daemon" "$cloud"
wait
ls -l target/debian/*_arm64.deb
