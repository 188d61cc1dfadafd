#!/usr/bin/env bash
# Builds the fuzz targets (tests/fuzz) and runs each for FUZZ_SECONDS of processor time (default
# 600), two at a time. FUZZ="wire session" chooses surfaces. Results are RESULT lines and
# target/results/fuzz.json. A surface's findings stay in target/fuzz/findings until its next run,
# its corpus in target/fuzz/corpus. `scripts/fuzz.sh merge DIR` minimises the corpora into DIR.
#
# Stable Rust has no option for coverage; the pass of LLVM behind it can be enabled all the same.
# `--target` keeps the instrumentation out of build scripts.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
program=target/fuzz/$host/ci/polyrail-fuzz
results=target/results
seconds=${FUZZ_SECONDS:-600}
read -ra names <<<"${FUZZ:-$(cd tests/fuzz/corpus && echo *)}"

build() {
    local llvm=-Cllvm-args=-sanitizer-coverage flags
    flags="-Cpasses=sancov-module $llvm-level=4 $llvm-inline-8bit-counters $llvm-pc-table"
    flags+=" $llvm-trace-compares"
    RUSTFLAGS=$flags cargo build --locked --profile ci --target "$host" \
        --target-dir target/fuzz -p polyrail-fuzz --features libfuzzer
}

# Runs libFuzzer once; appends its output to the surface's log, and the processor time to stdout.
fuzz() {
    local name=$1 findings=$2
    shift 2
    local TIMEFORMAT='%U %S'
    {
        time POLYRAIL_SURFACE=$name "$program" -max_len=8192 -timeout=20 -rss_limit_mb=1024 \
            -print_final_stats=1 -artifact_prefix="$findings/" "$@" \
            >>"target/fuzz/$name.log" 2>&1 || true
    } 2>&1 | awk '{ print int($1 + $2 + 0.5) }'
}

# Runs one surface until its processor time is used up, also after findings.
surface() {
    local name=$1 corpus=target/fuzz/corpus/$1 findings=target/fuzz/findings/$1
    local used=0 left runs=0 found=0 executions word=ok
    rm -rf "$findings" "target/fuzz/$name.log"
    mkdir -p "$corpus" "$findings"
    while left=$((seconds - used)) && [[ $left -gt 0 && $found -lt 20 && $runs -lt 200 ]]; do
        used=$((used + $(fuzz "$name" "$findings" -max_total_time=$left "$corpus" \
            "tests/fuzz/corpus/$name")))
        runs=$((runs + 1))
        found=$(find "$findings" -type f ! -name 'slow-unit-*' | wc -l)
    done
    executions=$(awk '/number_of_executed_units/ { n += $2 } END { print n + 0 }' \
        "target/fuzz/$name.log")
    [[ $executions -gt 0 ]] || word=short
    echo "RESULT fuzz_${name}_executions $executions runs goal >= 1 $word"
    [[ $found -eq 0 ]] && word=ok || word=short
    echo "RESULT fuzz_${name}_findings $found inputs goal <= 0 $word"
    echo "RESULT fuzz_${name}_cpu $used s goal >= 0 ok"
}

# The smallest set of inputs with the same coverage.
merge() {
    local name
    for name in "${names[@]}"; do
        mkdir -p "$1/$name" "target/fuzz/corpus/$name"
        fuzz "$name" target/fuzz -merge=1 "$1/$name" "tests/fuzz/corpus/$name" \
            "target/fuzz/corpus/$name" >/dev/null
        echo "$name: $(find "$1/$name" -type f | wc -l) inputs"
    done
}

# RESULT lines as JSON, in the form of the other measuring targets.
json() {
    awk 'BEGIN { printf "[" }
        { printf "%s\n  {\"name\": \"%s\", \"value\": %s, \"unit\": \"%s\", ", (NR > 1 ? "," : ""),
            $2, $3, $4
          printf "\"goal\": \"%s %s\", \"met\": %s, \"samples\": []}", $6, $7,
            ($8 == "ok" ? "true" : "false") }
        END { print "\n]" }'
}

case ${1:-} in
surface) surface "$2" ;;
merge)
    build
    merge "$2"
    ;;
*)
    build
    mkdir -p "$results"
    printf '%s\n' "${names[@]}" | xargs -P 2 -I{} "$0" surface {} | tee target/fuzz/results.txt
    json <target/fuzz/results.txt >"$results/fuzz.json"
    ;;
esac
