# Every verb sets up what it needs first: a virtual environment, the dependencies and
# the built extension. Nothing is done twice when nothing changed.
#
#   PYTHON=...      interpreter that makes the environment (default: python3, if 3.11+)
#   VENV=...        where the environment is (default: .venv)
#   EXTRAS=...      extras of pyproject.toml to install for the checks (default below)
#   BESIDE=...      files of requirements for environments beside it (default: TorchRL, if EXTRAS has torch)
#   ARGS=...        further arguments for bench and bench-gpu
#   FUZZ_SECONDS=N  how long each fuzz target runs

SHELL := /bin/sh
.SHELLFLAGS := -ec
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The shell that calls make may have an environment active; ours must not see it.
unexport PYTHONPATH PYTHONHOME PYTHONSAFEPATH PYTHONSTARTUP PYTHONWARNINGS
unexport VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTEST_ADDOPTS MYPYPATH

VENV ?= .venv
EXTRAS ?= dev,torch,jax,sb3
BESIDE ?= $(if $(findstring torch,$(EXTRAS)),benches/replay/torchrl.txt)
DEMO_EXTRAS ?= demo
BENCH_EXTRAS ?= dev,torch,jax
FUZZ_SECONDS ?= 60
ARGS ?=

recent = $(shell $(1) -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)
PYTHON ?= $(or $(call recent,python3),$(call recent,python3.14),$(call recent,python3.13),$(call recent,python3.12),$(call recent,python3.11))

CHECKS := lint types stubs imports rustfmt clippy rust-test pytest snippets docs

py := $(VENV)/bin/python
setup = "$${python:?relive needs Python 3.11 or newer: make PYTHON=/path/to/python3}" -m tools.setup --venv "$(VENV)"

.PHONY: help setup test demo bench bench-gpu fuzz faults sanitize format clean $(CHECKS)

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20
	@printf '%s\n' '  make CHECK        one check of: $(CHECKS)'

setup: ## the environment, the dependencies, the built extension
	@python='$(PYTHON)'; $(setup) --extras '$(EXTRAS)' --beside '$(BESIDE)'

test: setup ## every check; the last line says how it went
	@$(py) -m tools.check

$(CHECKS): setup
	@$(py) -m tools.check $@

demo: ## the whole story on your machine; leaves build/demo/report.html
	@python='$(PYTHON)'; $(setup) --extras '$(DEMO_EXTRAS)'
	@$(py) examples/demo.py
	@test -f build/demo/report.html
	@echo 'relive: demo done, see build/demo/report.html'

bench: ## measure against the peers
	@python='$(PYTHON)'; $(setup) --extras '$(BENCH_EXTRAS)' --peers bench
	@$(py) -m benches $(ARGS)

bench-gpu: ## the measurements that need a CUDA device
	@python='$(PYTHON)'; $(setup) --extras '$(BENCH_EXTRAS)' --peers bench
	@$(py) -m benches gpu $(ARGS)

fuzz: setup ## hostile bytes against every parser (needs nightly Rust and cargo-fuzz)
	@$(py) -m tools.fuzz --seconds '$(FUZZ_SECONDS)'

sanitize: setup ## the core under AddressSanitizer, ThreadSanitizer, valgrind and loom (needs nightly Rust)
	@$(py) -m tools.sanitize

faults: setup ## the long campaigns: writers killed at every call or dropped, power cuts, full disks, flipped bits, interrupts
	@RELIVE_FLIPS=10000 cargo test --quiet --release -p relive-core flipped_bits
	@RELIVE_DRAWS=10000000 cargo test --quiet --release -p relive-core sumtree
	@mkdir -p build
	@RELIVE_KILLS=all RELIVE_RANDOM_KILLS=500 RELIVE_CUTS=10400 RELIVE_DAMAGE=10000 RELIVE_READ_OPS=1500 \
		RELIVE_EPISODE_KILLS=240 RELIVE_EPISODE_DAMAGE=12000 RELIVE_BITS=all RELIVE_EPISODE_READS=150 \
		RELIVE_EPISODE_EDITS=300 RELIVE_INTERRUPTS=1000 RELIVE_BATCHES=100000 \
		RELIVE_REPLAY_KILLS=300 RELIVE_REPLAY_CUTS=2400 RELIVE_REPLAY_FLIPS=10000 RELIVE_REPLAY_STEPS=1000000 \
		RELIVE_LIVE_READS=1000000 RELIVE_LEARNING_KILLS=100 RELIVE_SLOW_KILLS=100 RELIVE_SLOW_DRAWS=100000 \
		RELIVE_MIGRATE_KILLS=300 RELIVE_PUBLISH_KILLS=240 RELIVE_PUBLISH_RACES=200 RELIVE_GC_ROUNDS=200 \
		RELIVE_STREAM_EPOCHS=20 RELIVE_DROPPED=100 \
		RELIVE_GC_TURNS=300 RELIVE_CACHE_ROUNDS=100 RELIVE_ORDER_EXAMPLES=3000 \
		RELIVE_STREAM_BATCHES=20000 \
		$(py) -m pytest -q -p no:cacheprovider --no-header --timeout=3600 -n auto --dist worksteal \
		-o junit_family=xunit1 --junitxml=build/faults.xml tests/faults \
		tests/publish/manage/test_garbage_turns.py tests/properties/test_block_order.py
	@grep -oE 'name="figure" value="[^"]*"' build/faults.xml | sed -E 's/.* value="(.*)"/\1/'
	@echo 'relive: faults done, nothing was lost'

format: setup ## let the formatters rewrite the sources
	@$(py) -m ruff format .
	@$(py) -m ruff check --fix-only .
	@cargo fmt --all

clean: ## remove what was built; the environment stays, delete it by hand
	@rm -rf build target site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@rm -f python/relive/_native*.so
	@echo 'relive: clean'
