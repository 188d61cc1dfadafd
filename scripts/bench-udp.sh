#!/usr/bin/env bash
# Plays passengers' datagrams on the rail, next to single carriers: LAB TRIPS.
#
# Trips that nobody tunes on, with 6 % and with 16 % of handovers failing, and without handovers.
set -euo pipefail
lab=$1
trips=$2

play() {
    "$lab" rail --held-back --trips "$trips" --failures "$1" --workload "$2" --contenders "$3"
}

contenders=quic,tls,single-a,single-b
for failures in 6 16; do
    play "$failures" call-bulk "$contenders,quic~off,quic~forecast,quic~forecast+linkdb"
    play "$failures" quic-downloads "$contenders"
    # The same users' TCP, to compare.
    play "$failures" downloads "$contenders"
    play "$failures" quic-bulk "$contenders"
    play "$failures" requests "$contenders"
done

# The train stands: rates change, but no handovers.
for workload in call-bulk quic-downloads; do
    "$lab" rail --held-back --trips "$trips" --speed 0 --workload "$workload" \
        --contenders "$contenders"
done
