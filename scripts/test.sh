#!/usr/bin/env bash
# Runs `cargo test` with the given arguments (default: the workspace) and adds up what it says.
#
# The output of tests that pass is shown too, because a test that cannot run here says so in a line
# "SKIP name: reason". A skip counts as skipped, not as passed, and one that is not permitted is a
# failure: .ci/allowed-skips names what may be skipped anywhere, POLYRAIL_ALLOW_SKIP (a,b,c) what
# may be skipped in this run. Tests see the sum of both in POLYRAIL_ALLOW_SKIP.
#
# The last line is "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/skips.sh
source scripts/skips.sh
log=${POLYRAIL_TEST_LOG:-target/test.log}
mkdir -p "$(dirname "$log")"
POLYRAIL_ALLOW_SKIP=$(allowed_skips)
export POLYRAIL_ALLOW_SKIP
# Those in namespaces mostly wait, so more of them run at a time than there are processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}

[[ $# -gt 0 ]] || set -- --workspace
tests() {
    cargo test --profile "${PROFILE:-ci}" --no-fail-fast "$@" -- --show-output 2>&1
}
# Those of the packages that only compute, or of all others.
half() {
    tests --workspace --lib --bins --tests \
        --config "target.'cfg(all())'.runner = ['scripts/only.sh', '$1']"
}
status=0
if [[ $* == --workspace ]]; then
    # They run beside the tests that mostly wait, and give way to them.
    set -m
    (renice -n 19 $BASHPID >/dev/null && half computing) >"$log.computing" &
    computing=$!
    set +m
    trap 'kill -- "-$computing" 2>/dev/null || true' EXIT
    { half waiting; waited=$?; tests --workspace --doc && [[ $waited -eq 0 ]]; } |
        tee "$log" || status=$?
    wait "$computing" || status=$?
    tee -a "$log" <"$log.computing"
else
    tests "$@" | tee "$log" || status=$?
fi

# The sum over all test programs of one figure of "test result: ok. 3 passed; 0 failed; ...".
sum() {
    { grep -oE "^test result: .* [0-9]+ $1" "$log" || true; } |
        awk '{ n += $(NF - 1) } END { print n + 0 }'
}
indented() { printf '%s\n' "$1" | sed 's/^/  /'; }

skips=$(skip_lines <"$log")
lines=$(grep -c . <<<"$skips" || true)
skipped=$((lines + $(sum ignored)))
passed=$(($(sum passed) - lines))
failed=$(sum failed)
if [[ -n $skips ]]; then
    echo "skipped:"
    indented "$skips"
fi
if refused=$(refused_skips <<<"$skips"); [[ -n $refused ]]; then
    echo "skipped without leave (.ci/allowed-skips, POLYRAIL_ALLOW_SKIP):"
    indented "$refused"
    status=1
fi
if [[ $passed -le 0 ]]; then
    echo "no test passed: nothing was tested"
    status=1
fi
# Once more at the end, where a reader of a long log looks.
awk '/^failures:$/ { on = 1 } on; /^test result: FAILED/ { on = 0 }' "$log" | cut -c1-300 |
    tail -n 150
# A build that fails, or a test process that dies, has no line of its own.
[[ $status -eq 0 || $failed -gt 0 ]] || failed=1
echo "$passed passed, $failed failed, $skipped skipped"
[[ $status -eq 0 && $failed -eq 0 ]]
