#!/usr/bin/env bash
# Runs a test program if its half is the given one: "computing" has the packages below, "waiting"
# all others. Cargo names the package.
computing=" model scheduler session predictor congestion sim tests "
half=waiting
[[ $computing != *" ${CARGO_PKG_NAME#polyrail-} "* ]] || half=computing
if [[ $1 == "$half" ]]; then
    shift
    exec "$@"
fi
