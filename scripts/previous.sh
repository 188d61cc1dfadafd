#!/usr/bin/env bash
# Builds the daemons of an earlier commit for the rows of version skew: PREVIOUS, default HEAD~1.
#
# They are in target/PROFILE/previous afterwards, with the commit's number in the file `commit`
# and, in `wire`, whether its golden vectors are those of this tree.
# Sources and build have folders of their own below target/previous, because Cargo would take crates
# of the other tree for its own. External crates are copied from this tree's build: run `make build`
# first. Without the commit, as in a shallow clone, the file `skipped` has the reason, and the rows
# are skipped with it.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-ci}
wanted=${PREVIOUS:-HEAD~1}
built=target/$profile
out=$built/previous
sources=target/previous/src
folder=target/previous/build
daemons=(polyrail-gateway polyrail-cloud)

if ! commit=$(git rev-parse --quiet --verify "$wanted^{commit}"); then
    rm -rf "$out"
    mkdir -p "$out"
    echo "$wanted is not in this clone" | tee "$out/skipped"
    exit 0
fi
# Whether the golden vectors agree, and with them what both versions can exchange.
wire() {
    if git diff --quiet "$commit" -- session/vectors predictor/vectors; then
        echo same
    else
        echo differs
    fi >"$out/wire"
}

if [[ $(cat "$out/commit" 2>/dev/null) == "$commit" ]]; then
    wire
    echo "the daemons of ${commit:0:12} are built"
    exit 0
fi
rm -rf "$out"
if [[ -e $sources/.git ]]; then
    # Files that did not change keep their times, so Cargo builds only what changed.
    git -C "$sources" checkout --quiet --force --detach "$commit"
else
    git worktree add --quiet --force --detach "$sources" "$commit"
fi

# External crates alone. Their libraries are linked, because nothing writes to them; Cargo writes to
# the files of the other folders.
if [[ ! -d $folder/$profile ]]; then
    mkdir -p "$folder/$profile"/{deps,build,.fingerprint}
    find "$built/deps" -name 'lib*' ! -name 'libpolyrail_*' -print0 |
        xargs -0 -r cp -al -t "$folder/$profile/deps"
    for part in build .fingerprint; do
        find "$built/$part" -mindepth 1 -maxdepth 1 ! -name 'polyrail-*' -print0 |
            xargs -0 -r cp -a -t "$folder/$profile/$part"
    done
fi

arguments=()
for daemon in "${daemons[@]}"; do arguments+=(--bin "$daemon"); done
# The whole workspace and `--examples` decide the features of external crates, as in `make build`.
# Our crates are compiled quickly: no figure comes from these daemons.
quick=()
for crate in cloud congestion gateway model predictor relay scheduler session tunnel; do
    quick+=(--config "profile.$profile.package.polyrail-$crate.opt-level=0")
done
# The path of .cargo/config.toml, else BoringSSL is built again.
export HOST_CMAKE_TOOLCHAIN_FILE=$PWD/.cargo/boringssl.cmake
if ! (cd "$sources" && CARGO_TARGET_DIR="$PWD/../build" cargo build --locked "${quick[@]}" \
    --profile "$profile" --workspace "${arguments[@]}" --examples); then
    echo "${commit:0:12} does not build; PREVIOUS=REVISION names another commit"
    exit 1
fi
mkdir -p "$out"
for daemon in "${daemons[@]}"; do cp "$folder/$profile/$daemon" "$out/"; done
wire
echo "$commit" >"$out/commit"
