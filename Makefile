# Build, test and install targets. They install missing Debian packages and tools with deploy/setup.
# Build results are outside of the checkout, in a directory for each checkout: cargo would use newer
# files of another checkout as its own.
CHECKOUT := $(shell printf %s '$(CURDIR)' | cksum | cut -d' ' -f1)
export CARGO_TARGET_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/atoll/target/$(CHECKOUT)
SHELL := /bin/bash
CARGO := $(shell command -v cargo || echo $(HOME)/.cargo/bin/cargo)
# .cargo/config.toml sets the target explicitly, so that its name is part of the path.
TARGET = $(shell PATH="$$PATH:$$HOME/.cargo/bin" rustc -vV | sed -n 's/^host: //p')
ATOLL = $(CARGO_TARGET_DIR)/$(TARGET)/release/atoll
# Test results as JUnit XML, for `deploy/failures`.
JUNIT = target/nextest/default/junit.xml

MDBOOK = $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/atoll/mdbook/bin/mdbook

PREFIX ?= /usr/local

# Data directories of `run-dev` and `run-pg`, and the files of `infra-up`.
DEV_DATA ?= /var/lib/atoll-dev
PG_DATA ?= /var/lib/atoll-pg
INFRA = $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/atoll/infra

.PHONY: run run-dev run-pg seed serve install test test-v2 soak check bench docs build target-directory infra-up infra-down infra-reset setup setup-test setup-bench setup-docs

## Build, create the template `base`, check the host and run a first sandbox.
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

## Install the command, shell completions, a systemd unit and a configuration file. An existing configuration
## file is not overwritten. PREFIX is the target directory; DESTDIR is prepended to all paths.
install: build
	@deploy/install $(ATOLL) '$(DESTDIR)' '$(PREFIX)'

build: setup
	@$(CARGO) build --release --locked -p atoll

## All tests: unit tests, tests with real sandboxes, doctests, and a part of them in a virtual machine. Needs root.
test: setup-test
	@$(CARGO) build --locked -p atoll
	@rm -f $(JUNIT)
	@deploy/with-postgres $(CARGO) nextest run --locked --workspace || { code=$$?; deploy/failures $(JUNIT); exit $$code; }
	@ATOLL_TEST_DATABASE=postgres deploy/with-postgres $(CARGO) nextest run --locked -p atoll --profile postgres || \
		{ code=$$?; deploy/failures $(subst default,postgres,$(JUNIT)); exit $$code; }
	@$(CARGO) test --locked --workspace --doc -q
	@deploy/guest/run

## PostgreSQL and NATS with JetStream on this machine, for development: start, stop, and delete their data.
infra-up:
	@deploy/infra up
infra-down:
	@deploy/infra down
infra-reset:
	@deploy/infra reset
	@[ ! -e $(PG_DATA) ] || echo "the sandboxes of run-pg are still in $(PG_DATA): start once with --adopt-orphans, or remove it"

## A server for development: without keys, on loopback only.
run-dev: build
	@$(ATOLL) serve --dev --data-dir $(DEV_DATA)

## A server with the PostgreSQL of `make infra-up`, and the key that `make seed` gives an org.
run-pg: build
	@[ -e $(INFRA)/urls ] || { echo "PostgreSQL is not running: make infra-up" >&2; exit 1; }
	@install -m 600 deploy/test-key $(INFRA)/test-key
	@set -a && . $(INFRA)/urls && exec $(ATOLL) serve --data-dir $(PG_DATA) \
		--static-key-file $(INFRA)/test-key --static-key-org test-org

## The org `test-org`, whose API key on the server of `make run-pg` is `test-key`.
seed: build
	@ATOLL_DATA_DIR=$(PG_DATA) deploy/seed $(ATOLL)

## Soak test: create and delete sandboxes and kill the server for SECONDS (default: 3600), and check for leaks.
soak: setup-test
	@$(CARGO) build --locked -p atoll
	@ATOLL_SOAK_SECONDS=$(or $(SECONDS),3600) $(CARGO) nextest run --locked -p atoll --profile soak -E 'test(soak)'

## A part of the tests on Debian's kernel with cgroup v2 only, in a virtual machine.
test-v2: setup-test
	@deploy/guest/run

## Check format, lints, rustdoc, links and wording.
check: setup-test
	@deploy/links
	@deploy/words
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --locked --workspace --all-targets -q -- -D warnings
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items -q

## All benchmarks, compared with plain processes and with other isolation programs.
bench: build setup-bench
	@setsid -w $(ATOLL) bench --work --storage --peers --json > $(CARGO_TARGET_DIR)/bench.json
	@bench/plot $(CARGO_TARGET_DIR)/bench.json docs/pictures/figures.svg
	@bench/e2b/run $(ATOLL)
	@bench/sdk/run $(ATOLL)
	@bench/postgres $(ATOLL)

## Build the documents as a static site with search.
docs: setup-docs
	@deploy/links
	@deploy/site $(MDBOOK) $(CARGO_TARGET_DIR)/site

## Print the directory of build results.
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
