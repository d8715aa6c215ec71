# Everything a fresh Debian machine needs, by name. `make run` and `make test` install it themselves.
# Build results survive a fresh clone, and each checkout has its own: cargo takes a file of another
# checkout for its own if that is newer.
CHECKOUT := $(shell printf %s '$(CURDIR)' | cksum | cut -d' ' -f1)
export CARGO_TARGET_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/atoll/target/$(CHECKOUT)
SHELL := /bin/bash
CARGO := $(shell command -v cargo || echo $(HOME)/.cargo/bin/cargo)
# The target is named in .cargo/config.toml, and with it a directory.
TARGET = $(shell PATH="$$PATH:$$HOME/.cargo/bin" rustc -vV | sed -n 's/^host: //p')
ATOLL = $(CARGO_TARGET_DIR)/$(TARGET)/release/atoll
# What a run of the tests says of each, for `deploy/failures`.
JUNIT = target/nextest/default/junit.xml

MDBOOK = $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/atoll/mdbook/bin/mdbook

PREFIX ?= /usr/local

.PHONY: run serve install test test-v2 soak check bench docs build target-directory infra-up infra-down infra-reset setup setup-test setup-bench setup-docs

## Build, make the template `base`, run a first sandbox and show what happened.
run: build
	@echo
	@$(ATOLL) doctor
	@echo
	@echo '$$ atoll run -- python3 -c "print(6*7)"'
	@$(ATOLL) run -- python3 -c 'print(6*7)'
	@echo '$$ atoll run -- sh -c "id; hostname; nproc; ls /"'
	@$(ATOLL) run -- sh -c 'id; hostname; nproc; ls /'
	@echo
	@echo "The command is $(ATOLL); try: $(ATOLL) run --help"

## Build, and serve sandboxes over HTTP on this machine.
serve: build
	@$(ATOLL) serve

## Install the command, its completions, a systemd unit and an example of its configuration, which is never
## written over. PREFIX is where, DESTDIR what is put before it.
install: build
	@deploy/install $(ATOLL) '$(DESTDIR)' '$(PREFIX)'

build: setup
	@$(CARGO) build --release --locked -p atoll

## All tests, as root, for real.
test: setup-test
	@$(CARGO) build --locked -p atoll
	@rm -f $(JUNIT)
	@deploy/with-postgres $(CARGO) nextest run --locked --workspace || { code=$$?; deploy/failures $(JUNIT); exit $$code; }
	@$(CARGO) test --locked --workspace --doc -q
	@deploy/guest/run

## PostgreSQL and NATS with JetStream on this machine, for development: start, stop, and delete their data.
infra-up:
	@deploy/infra up
infra-down:
	@deploy/infra down
infra-reset:
	@deploy/infra reset

## Lives of sandboxes and kills of their server for SECONDS (an hour): nothing grows.
soak: setup-test
	@$(CARGO) build --locked -p atoll
	@ATOLL_SOAK_SECONDS=$(or $(SECONDS),3600) $(CARGO) nextest run --locked -p atoll --profile soak -E 'test(soak)'

## A short form of the suite on Debian's kernel with cgroup v2 alone, in an emulated machine.
test-v2: setup-test
	@deploy/guest/run

## Format, lints, documents, links and words.
check: setup-test
	@deploy/links
	@deploy/words
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --locked --workspace --all-targets -q -- -D warnings
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items -q

## Every figure, beside the machine's floor and its peers.
bench: build setup-bench
	@setsid -w $(ATOLL) bench --work --storage --peers --json > $(CARGO_TARGET_DIR)/bench.json
	@bench/plot $(CARGO_TARGET_DIR)/bench.json docs/pictures/figures.svg
	@bench/e2b/run $(ATOLL)
	@bench/sdk/run $(ATOLL)

## The documents as a static site with search.
docs: setup-docs
	@deploy/links
	@deploy/site $(MDBOOK) $(CARGO_TARGET_DIR)/site

## Where build results are.
target-directory:
	@echo $(CARGO_TARGET_DIR)

setup:
	@deploy/setup build
setup-test:
	@deploy/setup test
setup-bench:
	@deploy/setup bench
setup-docs:
	@deploy/setup docs
