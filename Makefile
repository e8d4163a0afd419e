# The house's own commands. `make` alone lists them. Everything happens in .venv; nothing outside this folder is touched.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash

PYTHON_IN_VENV := .venv/bin/python
LANES := unit contract model crash integration kill hosts e2e
LINTS := lint-style lint-format lint-types lint-imports

# More words for pytest: make unit ARGS="-k stamp -x"
ARGS ?=

.PHONY: help setup run test $(LANES) lint $(LINTS) format mutants mutants-generated soak soak-fleet bench lock changelog clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv from requirements.lock, and this project in it (again: well under a second)
	@bash tools/setup.sh

# SIM travels as a variable of the environment: never pasted into a command line.
run: export TENURE_DEMO_SIM := $(SIM)
run: setup ## the main job on this machine: lease a device, run a job, show the verdict (SIM=4xH100 adds simulated devices)
	@$(PYTHON_IN_VENV) -m tenure.cli.demo

# Every lane and every check runs even where an earlier one failed: one run tells the whole story.
test: setup ## everything CI holds: lint, then every lane
	@$(MAKE) --no-print-directory --keep-going lint $(LANES)

unit: setup ## fast tests of single parts
contract: setup ## one suite held against every store and every fake of a port
model: setup ## state machines and simulated fleets from a seed
crash: setup ## power cuts replayed: every folder that one could have left
integration: setup ## real processes, sockets, databases and kernels
kill: setup ## whole homes attacked: a thousand kills, a hundred crashes (TENURE_KILLS=60 TENURE_CRASHES=10 for a quick look)
hosts: setup ## many hosts: cut networks, reboots, frozen processes, full disks, jumping clocks, another version
e2e: setup ## whole commands as a person types them

# pytest ends with 5 where it collected nothing and 4 where the folder is missing; both fail the lane.
$(LANES):
	@echo "== lane $@"
	@$(PYTHON_IN_VENV) -m pytest tests/$@ $(ARGS)

lint: $(LINTS) ## style, format, types and the layers
lint-style: setup ## ruff check
	@.venv/bin/ruff check .
lint-format: setup ## ruff format, looking only
	@.venv/bin/ruff format --check .
lint-types: setup ## mypy, strict, on src and tests
	@.venv/bin/mypy
lint-imports: setup ## imports point downward only
	@.venv/bin/lint-imports

format: setup ## ruff's fixes and format, written to the files
	@.venv/bin/ruff check --fix-only .
	@.venv/bin/ruff format .

soak: setup ## a job's output at full size (1 GiB, kills, peak memory), with figures (ARGS=--quick: a sixteenth)
	@$(PYTHON_IN_VENV) -m tests.soak $(ARGS)

mutants: setup ## remove one guard at a time and see the model tests catch it
	@$(PYTHON_IN_VENV) -m tests.mutants $(ARGS)

mutants-generated: setup ## twenty changes by rule to every file of the domain, each to be caught or listed (hours; ARGS="queue grants" takes some)
	@$(PYTHON_IN_VENV) -m tests.mutants.generated $(ARGS)

soak-fleet: setup ## simulated fleets, seed after seed, with every fault (ARGS="--minutes 60"; one million steps unless told)
	@$(PYTHON_IN_VENV) -m tenure.testing.sim $(or $(ARGS),--steps 1000000)

bench: setup ## Tenure, its peers and the machine's limits measured side by side (ARGS=--quick: two minutes)
	@$(PYTHON_IN_VENV) -m bench $(ARGS)

# Not after setup: a lock that cannot be installed must still be replaceable. ARGS=--upgrade takes the newest releases.
lock: ## requirements.lock anew from pyproject.toml
	@test -x .venv/bin/uv || bash tools/setup.sh
	@.venv/bin/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
		--output-file requirements.lock $(ARGS)

changelog: setup ## what the next release would say
	@.venv/bin/towncrier build --draft --version next

clean: ## remove .venv and every cache
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
