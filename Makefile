# Polyrail's commands. `make help` lists them.
#
# Everything is built with the profile `ci`: optimised, quick to link, with assertions on.
# `make PROFILE=dev test` uses another one.

PROFILE ?= ci
CARGO ?= cargo
MODE ?= auto
SIM_TRIPS ?= 24
TRIPS ?= 10
SIM ?=
LINKDB ?=
STUDIES ?=
DEFAULT_CHAIN := --only gains --chain polyrail
export PREVIOUS ?= HEAD~1
PURE := -p polyrail-model -p polyrail-scheduler -p polyrail-session -p polyrail-predictor \
	-p polyrail-congestion
export PROFILE

.DEFAULT_GOAL := help
.PHONY: help setup build release test check quick fmt shell clippy doc deny tidy fuzz-smoke
.PHONY: attack compile-tests fuzz previous check-release soak packages packages-arm64 guide
.PHONY: random-million random-moves demo matrix bench bench-tunnel bench-udp bench-linkdb bench-rail
.PHONY: bench-operate bench-scale bench-rail-smoke smoke
.PHONY: sim sim-calibrate sim-validate sim-rail studies linkdb-eval

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 20

setup: ## install the Debian packages that are missing
	@scripts/setup.sh

# There are no examples, but with `--examples` the development dependencies count in the choice of
# features, as in `cargo test`. Without it the tests build some thirty external crates,
# among them quiche and tokio, and most of ours a second time.
build: ## build all programs
	$(CARGO) build --locked --profile $(PROFILE) --workspace --bins --examples

# One call each: a common one would give the daemons the feature `issue` of the command.
release: ## the programs to install
	$(CARGO) build --locked --release -p polyrail-gateway
	$(CARGO) build --locked --release -p polyrail-cloud
	$(CARGO) build --locked --release -p polyrail-cli

packages: setup release ## Debian packages of the programs: target/debian/*.deb
	$(CARGO) build --locked --release -p polyrail-manuals
	MANUALS=target/release/polyrail-manuals scripts/packages.sh target/release

packages-arm64: setup ## the same for ARM64, cross-built, and started under qemu (long)
	@scripts/arm64.sh

guide: setup build ## follow docs/operations.md, section 1, in containers with the packages
	COMPRESSION=none scripts/packages.sh target/$(PROFILE)
	scripts/guide.sh

# Features that only development dependencies choose are missing there.
check-release: ## do the programs to install compile by themselves?
	$(CARGO) check --locked --profile $(PROFILE) -p polyrail-gateway
	$(CARGO) check --locked --profile $(PROFILE) -p polyrail-cloud
	$(CARGO) check --locked --profile $(PROFILE) -p polyrail-cli

previous: build ## the daemons of the previous commit, for rows of version skew; PREVIOUS=REVISION
	@scripts/previous.sh

compile-tests: build
	$(CARGO) test --locked --profile $(PROFILE) --workspace --no-run

test: setup build previous ## run all tests (as root: those in network namespaces too)
	@scripts/test.sh --workspace

check: fmt shell deny clippy check-release doc test ## all that CI gates, except the smoke run

fmt: ## is the code formatted?
	$(CARGO) fmt --all --check

shell: ## are the scripts sound?
	@scripts/shell.sh

quick: fmt ## format, lints and unit tests of the crates without I/O: the loop of a day's work
	$(CARGO) clippy --locked --profile $(PROFILE) $(PURE) --all-targets -- -D warnings
	@scripts/test.sh $(PURE) --lib

clippy: ## lints, warnings denied
	$(CARGO) clippy --locked --profile $(PROFILE) --workspace --all-targets -- -D warnings

# `--examples` as in `build`: without it, the crates that clippy has checked are checked again. It
# needs the other targets by name: those that Cargo documents of its own accord.
doc: ## documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --profile $(PROFILE) --workspace --no-deps \
		--lib --bin polyrail --bin polyrail-lab --examples --document-private-items

deny: ## licences, sources, bans and advisories of external crates
	@scripts/deny.sh

tidy: ## sizes, widths, arrows between crates
	@scripts/test.sh -p polyrail-tests --test tidy

fuzz-smoke: ## decoders and sessions against a million random frames
	@scripts/test.sh --workspace fuzz

fuzz: setup ## each surface with libFuzzer (long); FUZZ_SECONDS=600 of each, FUZZ="wire dns"
	@scripts/fuzz.sh

random-million: ## a million random worlds; POLYRAIL_FIRST=n sets the first seed
	POLYRAIL_RUNS=1000000 scripts/test.sh -p polyrail-tests --test random_worlds

random-moves: ## 10,000 random joins, restarts and rebindings of tunnels between workers
	POLYRAIL_MOVES=10000 scripts/test.sh -p polyrail-tunnel --test all quic_workers
	POLYRAIL_MOVES=10000 scripts/test.sh -p polyrail-relay --lib workers

demo: setup build ## a download over two carriers, one of which fails; MODE=quic, tls or auto
	target/$(PROFILE)/polyrail-lab demo --mode $(MODE)

matrix: setup build previous ## every mode, family and fault; an hour; ROWS=--cover: those of CI
	target/$(PROFILE)/polyrail-lab matrix $(ROWS)

bench: setup ## the measured figures, as RESULT lines (release build; takes a while)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-emulator bench --results target/results
	$(CARGO) bench --locked --profile release -p polyrail-scheduler --bench decision
	target/release/polyrail-lab bench

bench-tunnel: setup ## QUIC against TLS, and path restart, as RESULT lines (release build; long)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab bench-tunnel

bench-udp: setup ## passengers' datagrams: calls, the users' own QUIC, requests (release; long)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab bench-udp
	scripts/bench-udp.sh target/release/polyrail-lab $(TRIPS)

bench-linkdb: setup ## what forecasts are worth with real daemons, as RESULT lines (release; long)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab bench-linkdb

bench-operate: setup ## clouds that die and drain, caps, load, as RESULT lines (release; 12 min)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab bench-operate

bench-scale: setup ## clouds of one and two workers, 200 gateways, a shared LinkDB (release; 15 min)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab bench-workers
	target/release/polyrail-lab fleet

attack: setup ## passengers and gateways that misbehave; how others fare (release; long)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab attack

soak: setup ## load, faults, reloads and kills together, 27 minutes (release)
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab soak

bench-rail: setup ## Polyrail next to its rivals on the same trips (release; long); RAIL=OPTIONS
	$(CARGO) build --locked --release --workspace --bins
	target/release/polyrail-lab rail $(RAIL)

bench-rail-smoke: setup build ## the same, one short trip
	target/$(PROFILE)/polyrail-lab rail --smoke

smoke: setup build ## all benchmarks and evaluations in small: does each still measure?
	@scripts/smoke.sh

sim: setup ## schedulers on the simulated rail, tuning and held-back trips; SIM_TRIPS=24 of each
	$(CARGO) build --locked --release -p polyrail-sim --bin polyrail-sim
	target/release/polyrail-sim compare --trips $(SIM_TRIPS) $(SIM)
	target/release/polyrail-sim compare --trips $(SIM_TRIPS) --held-back $(SIM)

sim-calibrate: setup ## the generated rail beside the published figures
	$(CARGO) build --locked --release -p polyrail-sim --bin polyrail-sim
	target/release/polyrail-sim calibrate

sim-validate: setup ## the simulator beside the kernel and the daemons, as root; 15 minutes
	$(CARGO) build --locked --release --workspace --bins
	nice -n -15 target/release/polyrail-lab trials
	target/release/polyrail-sim validate

sim-rail: setup ## the simulator on the recorded runs of the rail bench
	$(CARGO) build --locked --release -p polyrail-sim --bin polyrail-sim
	target/release/polyrail-sim rail target/results/rail/*.jsonl

studies: setup ## the papers' studies: BBR+, coupled control, rate maps; STUDIES=OPTIONS
	$(CARGO) build --locked --release -p polyrail-sim --bin polyrail-sim
	target/release/polyrail-sim studies --figures docs/figures $(STUDIES)

linkdb-eval: setup ## LinkDB's forecasts, and bench-linkdb (long); LINKDB="--metro FOLDER"
	$(CARGO) build --locked --release -p polyrail-sim --bin polyrail-sim
	target/release/polyrail-sim linkdb-eval $(LINKDB)
	target/release/polyrail-sim linkdb-eval --held-back
	target/release/polyrail-sim linkdb-eval --pilot
	target/release/polyrail-sim linkdb-eval --pilot --held-back
	target/release/polyrail-sim linkdb-eval --held-back $(DEFAULT_CHAIN)
	target/release/polyrail-sim linkdb-eval --held-back $(DEFAULT_CHAIN) --failures 2.857
	@$(MAKE) --no-print-directory bench-linkdb
