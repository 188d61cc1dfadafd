# shellcheck shell=bash
# What may be skipped: functions for scripts that run in the root folder. To be sourced.

# The names that may be skipped, with commas: those of the file and those of this run.
allowed_skips() {
    local names
    names=$(sed 's/#.*//' .ci/allowed-skips | awk 'NF { printf "%s,", $1 }')
    names="$names${POLYRAIL_ALLOW_SKIP:-}"
    echo "${names%,}"
}

# The "SKIP name: reason" lines of a log on standard input; also behind the name of a test whose
# output was not captured.
skip_lines() {
    { grep -oE '(^|\.\.\. )SKIP [A-Za-z0-9_.-]+: .*' || true; } | sed 's/^\.\.\. //'
}

# Those of the lines on standard input that nobody allowed.
refused_skips() {
    local allowed line name
    allowed=",$(allowed_skips),"
    while read -r line; do
        name=${line#SKIP }
        name=${name%%:*}
        [[ -z $line || $allowed == *",$name,"* ]] || echo "$line"
    done
}
