# make demo: the main job on the shipped model; make test: the tests; make check: what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check lint clean

demo: $(VENV)/installed
	$(BIN)/ctx-embed demo

test: $(VENV)/installed-dev
	HF_HUB_OFFLINE=1 $(BIN)/pytest -q

check: lint test

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,peers,plots,mteb,integrations]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
