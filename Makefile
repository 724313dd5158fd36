# make run    everything from nothing: environment, data, the main job
# make test   everything from nothing: environment, style, types, tests
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: run test check data readings kill-test clean

run: .venv/installed
	@$(BIN)/fedbiad data fetch mnist --if-missing
	$(BIN)/fedbiad compare mnist --methods fedavg,feddrop,fedbiad --seeds 0 --out runs/mnist

test: .venv/installed-test check
	@$(BIN)/fedbiad data fetch mnist --if-missing
	@-$(BIN)/fedbiad data fetch fmnist --if-missing
	$(BIN)/python -m pytest -n 2

check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the tables of docs/readings.md: runs what is missing (hours on two cores), then writes the tables
readings: .venv/installed
	$(BIN)/python scripts/readings.py run
	$(BIN)/python scripts/readings.py render

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
