#!/usr/bin/env bash
# Plays passengers' datagrams on the rail, next to single carriers: LAB TRIPS.
#
# Trips that nobody tunes on, with 6 % and with 16 % of handovers failing, and without handovers.
set -euo pipefail
lab=$1
trips=$2

# Plays groups of contenders, at most three at a time: two cores starve more. Then all groups again
# where they were starved, and the last report has them all. FAILURES WORKLOAD TRIPS GROUP...
play() {
    local group resume=()
    for group in "${@:4}" "${@:4}"; do
        "$lab" rail --held-back --speed "${speed:-300}" --failures "$1" --workload "$2" \
            --trips "$3" --contenders "$group" "${resume[@]}"
        resume=(--resume)
    done
}

singles=quic,single-a,single-b
# Copies by forecasts, and by chance: more bytes than by forecasts.
copies=quic~forecast,quic~forecast+linkdb,quic~always:1700
for failures in 6 16; do
    play "$failures" call-bulk "$trips" $singles $copies tls
    # A trip has few downloads, and their times vary a lot.
    play "$failures" quic-downloads $((2 * trips)) $singles tls
    # The same users' TCP, to compare.
    play "$failures" downloads "$trips" $singles
done
play 16 quic-bulk "$trips" $singles
play 16 requests "$trips" $singles

# The train stands: rates change, but no handovers.
speed=0 play 6 call-bulk "$trips" $singles
speed=0 play 6 quic-downloads "$trips" $singles
