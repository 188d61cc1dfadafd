#!/usr/bin/env bash
# Checks the shell scripts of the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t scripts < <(find . -path ./target -prune -o -path ./.git -prune -o -type f \
    \( -name '*.sh' -o -path './.ci/run' \) -print | sort)
[[ ${#scripts[@]} -gt 0 ]]
for script in "${scripts[@]}"; do
    bash -n "$script"
done
if command -v shellcheck >/dev/null; then
    shellcheck -x "${scripts[@]}"
else
    echo "SKIP shellcheck: not installed; make setup brings it"
fi
echo "${#scripts[@]} scripts are fine"
