#!/usr/bin/env bash
# All benchmarks and evaluations in small: does each still measure? Their figures mean nothing.
#
# Those of `polyrail-lab smoke` mostly wait, so the others run beside them. Its output comes last,
# so that an error of one of many is near the end.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-ci}
built=target/$profile
output=$(mktemp)
"$built/polyrail-lab" smoke >"$output" 2>&1 &
lab=$!
trap 'kill %1 2>/dev/null || true; wait; cat "$output"; rm "$output"' EXIT
cargo bench --locked --profile "$profile" --workspace --bench decision -- \
    --warm-up-time 0.05 --measurement-time 0.1 --nresamples 1001
"$built/polyrail-emulator" bench --seconds 3 --results target/results
"$built/polyrail-sim" smoke
"$built/polyrail-lab" fleet --smoke
"$built/polyrail-lab" rail --smoke
wait "$lab"
