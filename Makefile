# `make` alone lists what there is. Every target first installs what it needs into .venv, once, and again when requirements change.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# An activated environment elsewhere must not leak into this one.
unexport PYTHONHOME PYTHONPATH
# Installing compiles nothing (PIP below): Python compiles what is imported and must be allowed to keep it.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# How many pytest processes: the suite is made for two cores, and waits for half of its time.
JOBS ?= 3
# Further arguments for pytest, for instance: make test ARGS='-k digest'
ARGS ?=
PYTEST := $(PY) -m pytest

# Compiling every module of PyTorch takes longer than unpacking it; few of them are ever imported.
PIP := $(PY) -m pip install --quiet --no-compile --constraint requirements/constraints.txt

# One file per set of requirements that is installed. Each set stands on the one before: demo, then everything, then peers and docs.
DEMO := $(VENV)/.demo
INSTALLED := $(VENV)/.installed
PEERS := $(VENV)/.peers
DOCS := $(VENV)/.docs
BENCHMARKS := overhead exchange rescale start checkpoint resume policies server sharing dashboard noise straggler autoscale hosts

.PHONY: help setup test-deps web docs pins lint format test test-long demo experiments bench bench-page clean \
        test-core test-slow test-page test-again test-chaos test-exits test-sim test-durability test-hosts test-hosts-core test-hosts-chaos test-fuzz test-server-chaos test-ordinary test-programs \
        $(addprefix bench-,$(BENCHMARKS))

help:
	@awk 'BEGIN {FS = ":.*## "} \
	     /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	     /^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Set up

setup: $(INSTALLED)  ## make .venv with pinned requirements and this package in it

$(DEMO): requirements/constraints.txt requirements/demo.txt pyproject.toml
	@echo 'Installing into $(VENV), once: PyTorch and 40 packages. The CPU build is 300 MB to download, 1 GB on disk.'
	@command -v nvidia-smi > /dev/null || [ "$$(uname)" != Linux ] || [ -n "$${PIP_EXTRA_INDEX_URL:-}$${PIP_FIND_LINKS:-}" ] || \
	  echo 'No GPU here, but PyPI has PyTorch with CUDA: gigabytes. For the CPU build stop this and add to the command:' \
	       'PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) --requirement requirements/demo.txt
	@$(PIP) --no-build-isolation --editable '.[plot]'
	@touch $@

$(INSTALLED): $(DEMO) requirements/dev.txt
	@echo 'Installing into $(VENV), once: what tests and tools need. 200 MB to download, 600 MB on disk.'
	@$(PIP) --requirement requirements/dev.txt
	@$(PIP) --no-build-isolation --editable '.[all]'
	@touch $@

$(PEERS): requirements/peers.txt $(INSTALLED)
	@echo 'Installing into $(VENV), once: the systems that benchmarks compare with.'
	@$(PIP) --requirement requirements/peers.txt
	@touch $@

$(DOCS): requirements/docs.txt $(INSTALLED)
	@echo 'Installing into $(VENV), once: what builds the documentation. 100 MB on disk.'
	@$(PIP) --requirement requirements/docs.txt
	@touch $@

test-deps:  ## install what tests use beside Python: etcd, Chromium, sshd, PostgreSQL, iproute2, iptables (root)
	.ci/deps

web: setup  ## build the dashboard into the package
	$(PY) web/build.py

docs: $(DOCS)  ## write the generated reference pages and build the site; a broken link, anchor or name fails it
	$(PY) docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open site/index.html"

pins: $(PEERS) $(DOCS)  ## write requirements/constraints.txt from what .venv has now
	{ head -n 2 requirements/constraints.txt; \
	  $(PY) -m pip freeze --exclude-editable | sed -e '/^#/d' -e 's/^\(torch==[^+]*\)+.*/\1/'; } > $(VENV)/pins.txt
	mv $(VENV)/pins.txt requirements/constraints.txt

##@ Check

lint: setup  ## ruff's linter and formatter, pyright, import-linter; Biome for web/ where npm is installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports
	$(PY) web/build.py lint --if-npm

format: setup  ## let ruff and Biome fix what they can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(PY) web/build.py format --if-npm

test: test-core test-page  ## the suite: about 11 minutes on two cores; says what it skipped and why

SUITE := $(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-core: setup $(DOCS)
	$(SUITE) -m 'not hosts and not slow and not long and not page' $(ARGS)

test-slow: setup  ## what takes too long for `make test`; CI runs it
	$(SUITE) -m 'slow and not hosts and not long and not page' $(ARGS)

test-page: setup
	$(PYTEST) -m 'page and not long' tests/page

test-again: setup  ## only what failed in the last run, one test after the other
	$(PYTEST) --last-failed --last-failed-no-failures none $(ARGS)

test-long: setup  ## the tests that take half a minute and more
	$(PYTEST) -n $(JOBS) -m 'long and not hosts' $(ARGS)

test-chaos: setup  ## N=200 random schedules of real processes: joins, leaves, kills, freezes; one digest
	STRETTO_CHAOS_RUNS=$(or $(N),200) $(PYTEST) --timeout 0 tests/chaos $(ARGS)

test-exits: setup  ## N=500 short scripts end beside a busy machine, each with the exit code that it should have
	STRETTO_EXITS=$(or $(N),500) $(PYTEST) --timeout 0 tests/train/test_exits.py $(ARGS)

test-ordinary: setup  ## ordinary scripts under joins, kills and resumes: each ends like plain python or is refused; N more random schedules
	STRETTO_ORDINARY_SEEDS=$(or $(N),0) $(PYTEST) -n $(JOBS) --timeout 600 -m long tests/ordinary $(ARGS)

test-programs: setup  ## N=200 random training scripts under random schedules, from seed SEED: the same rule
	STRETTO_PROGRAMS=$(or $(N),200) STRETTO_PROGRAMS_SEED=$(or $(SEED),0) $(PYTEST) -n $(JOBS) --timeout 600 -m 'not slow and not long' tests/ordinary/test_programs.py $(ARGS)

test-sim: setup  ## SEEDS=20000 seeds of the simulated roster protocol
	$(PY) -m stretto.simulation.rosters --seeds $(or $(SEEDS),20000) $(ARGS)

test-durability: setup  ## LIVES=100 kills of a whole job with saves under way; each resumes to the same digest
	STRETTO_LIVES=$(or $(LIVES),100) $(PYTEST) --timeout 0 tests/durability/test_kill_and_resume.py $(ARGS)

test-hosts-core: setup
	$(PYTEST) -m 'hosts and not long' $(ARGS)

test-hosts: setup  ## several hosts as network namespaces, with etcd and sshd (root)
	$(PYTEST) -m hosts $(ARGS)

test-hosts-chaos: setup  ## N=50 random failures of hosts, links and etcd members (root)
	STRETTO_HOSTS_RUNS=$(or $(N),50) $(PYTEST) --timeout 0 tests/hosts/test_hosts_chaos.py $(ARGS)

test-fuzz: setup  ## 100,000 hostile requests to the server
	STRETTO_FUZZ_REQUESTS=100000 $(PYTEST) --timeout 0 tests/server/test_server_fuzz.py $(ARGS)

test-server-chaos: setup  ## ten minutes of kills of workers, agents and the server under load
	STRETTO_SERVER_CHAOS_S=600 $(PYTEST) --timeout 0 tests/server/test_server_real.py $(ARGS)

##@ See

demo: $(DEMO)  ## train while workers come, go and are killed; compare the bits; draw it (2 minutes)
	$(PY) examples/demo.py $(ARGS)

experiments: setup  ## batch size and learning rate: the figures of docs/explanation/experiments.md
	$(PY) -m experiments $(ARGS)

##@ Measure (a table, and benchmarks/results/NAME.json)

bench: $(addprefix bench-,$(BENCHMARKS))  ## all of the following, one after the other

bench-overhead: $(PEERS)  ## step time against DDP and against the plain loop
bench-exchange: $(PEERS)  ## the fixed tree against gloo's all-reduce
bench-rescale: $(PEERS)  ## the survivors' pause, beside torchrun and torchft
bench-start: $(PEERS)  ## from `stretto scale` to the newcomer's first step
bench-checkpoint: $(PEERS)  ## step time while saving, and the time that a save blocks
bench-resume: $(PEERS)  ## everything killed to the first new step, beside torchrun
bench-policies: $(PEERS)  ## completion times of the scheduling policies, and their decision times
bench-server: $(PEERS)  ## latency, memory and events of a server with 2,000 jobs
bench-sharing: $(PEERS)  ## eight jobs on one machine against FIFO
bench-dashboard: $(PEERS)  ## the page in Chromium: first view, long tasks with live 10,000-point curves
bench-noise: $(PEERS)  ## the cost of measuring noise scale and goodput
bench-straggler: $(PEERS)  ## one slow worker: rebalanced against ignored
bench-autoscale: $(PEERS)  ## time and cost of jobs that size themselves
bench-hosts: $(PEERS)  ## losing a host, beside torchrun (root)

bench-page: setup  ## write docs/explanation/benchmarks.md and the README's table from the results
	$(PY) -m benchmarks.page

$(addprefix bench-,$(BENCHMARKS)): bench-%:
	$(PY) -m benchmarks.$* $(ARGS)

##@ Clean

clean:  ## remove what tools left behind; .venv stays
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis dist build demo site
