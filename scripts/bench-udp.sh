#!/usr/bin/env bash
# Plays passengers' datagrams on the rail, next to single carriers: LAB TRIPS.
#
# Trips that nobody tunes on, with 6 % and with 16 % of handovers failing. Two contenders at once at
# most where all of them send packet by packet, because two processors carry no more.
set -euo pipefail
lab=$1
trips=$2

play() {
    "$lab" rail --held-back --trips "$trips" --failures "$1" --workload "$2" --contenders "$3"
}

for failures in 6 16; do
    play "$failures" call-bulk quic,tls,single-a,single-b
    play "$failures" call-bulk quic~off,quic~forecast,quic~forecast+linkdb
    play "$failures" quic-downloads quic,tls,single-a,single-b
    play "$failures" quic-bulk quic,tls,single-a,single-b
    play "$failures" requests quic,tls,single-a,single-b
done
