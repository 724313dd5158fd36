# make run    everything from nothing: environment, data, the main job
# make test   everything from nothing: environment, style, types, tests
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: run test check chromium readings results bench bench-peers kill-test fuzz clean

run: .venv/installed
	@$(BIN)/fedbiad data fetch mnist --if-missing
	$(BIN)/fedbiad compare mnist --methods fedavg,feddrop,fedbiad --seeds 0 --out runs/mnist
	@$(BIN)/fedbiad report runs/mnist --out runs/mnist/report.html

test: .venv/installed-test check chromium
	@$(BIN)/fedbiad data fetch mnist --if-missing
	@-$(BIN)/fedbiad data fetch fmnist --if-missing
	$(BIN)/python -m pytest -n 2

check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# a browser for the tests of the report; where none can be installed they are skipped and say so
chromium:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } || \
	echo "chromium is missing: the tests of the report in a browser will be skipped" >&2

# docs/results.md: runs what is missing of the paper's tables (hours on two cores), then writes the page
results: .venv/installed
	$(BIN)/fedbiad reproduce table1
	$(BIN)/fedbiad reproduce table2
	$(BIN)/fedbiad reproduce frontier
	$(BIN)/fedbiad results

# 100,000 mutated messages: none may be accepted or do harm
fuzz: .venv/installed
	$(BIN)/python scripts/fuzz_wire.py --count 100000

# the tables of docs/readings.md: runs what is missing (hours on two cores), then writes the tables
readings: .venv/installed
	$(BIN)/python scripts/readings.py run
	$(BIN)/python scripts/readings.py render

# the engine against itself (some minutes; the machine should be idle), then docs/performance.md
bench: .venv/installed
	@$(BIN)/fedbiad data fetch mnist --if-missing
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/lstm_step.py
	$(BIN)/python benchmarks/memory.py --store disk --out results/memory.json
	$(BIN)/python benchmarks/page.py

# the same work in other simulators, each in an environment of its own (4 GB, made once): a quarter of an hour
bench-peers: .venv/installed
	@$(BIN)/fedbiad data fetch mnist --if-missing
	$(BIN)/python benchmarks/peers/run.py --out results/peers.json

# 100 random SIGKILLs, 100 bit-identical resumes
kill-test: .venv/installed
	$(BIN)/python scripts/kill_test.py --kills 100

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	@touch $@

.venv/installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[test]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis
