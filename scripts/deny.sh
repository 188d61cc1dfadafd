#!/usr/bin/env bash
# Licences, sources, bans and known vulnerabilities of the crates that Polyrail carries.
#
# cargo-deny is taken from the PATH, or built once into target/tools, without its own release
# profile, whose link-time optimisation doubles the time. It is not built if the advisory database
# is out of reach and .ci/crates-accepted has the sum of the manifests, the lock file and deny.toml:
# the result would be the same. What it accepts is written there.
# Without a way to build it, or to reach the advisory database, that part says SKIP.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
log=target/deny.log
accepted=.ci/crates-accepted
advisories=https://github.com/RustSec/advisory-db
mkdir -p "$tools"
export PATH="$tools/bin:$PATH"
# Cargo.lock has the checksum of each external crate.
files=(-name Cargo.toml -o -name Cargo.lock -o -name deny.toml)
sum=$(find . -path ./target -prune -o \( "${files[@]}" \) -print0 | LC_ALL=C sort -z |
    xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)

if ! command -v cargo-deny >/dev/null; then
    if [[ $sum == "$(cat "$accepted")" ]] &&
        ! timeout 20 git ls-remote --quiet "$advisories" HEAD 2>"$log"; then
        echo "deny: crates and rules are those that cargo-deny accepted ($accepted)"
        echo "SKIP advisories: the advisory database cannot be reached here"
        exit 0
    fi
    echo "deny: building cargo-deny into target/tools"
    if ! CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_OPT_LEVEL=0 \
        cargo install --quiet --locked --root "$tools" cargo-deny >"$log" 2>&1; then
        tail -n 3 "$log"
        echo "SKIP cargo-deny: it is not installed and cannot be built here"
        exit 0
    fi
fi
cargo deny --locked check --hide-inclusion-graph bans licenses sources
echo "$sum" >"$accepted"
if ! cargo deny fetch db >"$log" 2>&1; then
    tail -n 3 "$log"
    echo "SKIP advisories: the advisory database cannot be fetched here"
    exit 0
fi
cargo deny --locked --offline check advisories
