#!/usr/bin/env bash
# Licences, sources, bans and known vulnerabilities of the crates that Polyrail carries.
#
# cargo-deny is taken from the PATH, or built once into target/tools, without its own release
# profile, whose link-time optimisation doubles the time.
# Without a way to build it, or to reach the advisory database, that part says SKIP.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
log=target/deny.log
mkdir -p "$tools"
export PATH="$tools/bin:$PATH"

if ! command -v cargo-deny >/dev/null; then
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
if ! cargo deny fetch db >"$log" 2>&1; then
    tail -n 3 "$log"
    echo "SKIP advisories: the advisory database cannot be fetched here"
    exit 0
fi
cargo deny --locked --offline check advisories
