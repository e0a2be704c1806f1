# make demo: the main job on the shipped model; make test: the tests; make docs: the site;
# make size: installed lines and the files of a query; make check: what CI runs;
# make check-slow: the same with the tests that take minutes;
# make fuzz MINUTES=10: damaged input of every kind, with new seeds;
# make soak MINUTES=60: readers and writers of one index, while servers and writers are killed;
# make kernel: compile ctx_embed/kernel again after a change; make sanitize: its tests under GCC's or Clang's sanitizers;
# make wheels: an sdist, and a wheel for each platform, in dist/;
# make release-check: a release without the upload: builds, compares, checks and audits (AUDIT= leaves the audit out);
# make clients: every program of docs/clients.md, each in an environment of its own (minutes with uv, an hour with pip).
PYTHON ?= python3
# Processes that share the tests; each takes up to 2 GB.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin

MINUTES ?= 10
# Versions and hashes of what a release was tested with, for pip install --require-hashes -r.
HASHES := build/requirements-hashes.txt
AUDIT ?= $(BIN)/pip-audit --strict --disable-pip --progress-spinner off -r $(HASHES)

# Where releases are built. The compiler is pinned, since the bytes depend on it.
DIST ?= dist
ZIG := ziglang==0.17.1

.PHONY: demo test check check-slow lint docs size clients fuzz soak kernel sanitize wheels release-check clean

demo: $(VENV)/installed
	$(BIN)/ctx-embed demo

test: $(VENV)/installed-dev
	HF_HUB_OFFLINE=1 $(BIN)/pytest -q -n $(WORKERS) --dist loadfile $(TESTS)

check: lint test docs size

check-slow: TESTS = --slow
check-slow: check

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

size: $(VENV)/installed-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.size

docs: $(VENV)/installed-dev
	HF_HUB_OFFLINE=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt .
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,peers,mteb,integrations,docs,documents,onnx,server,stores,ray,papers]"
	touch $@

clients:
	$(PYTHON) tests/clients/run.py

fuzz: $(VENV)/installed-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.fuzz $(MINUTES)

soak: $(VENV)/installed-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.soak $(MINUTES)

kernel:
	$(PYTHON) ctx_embed/kernel/build.py

sanitize: $(VENV)/installed-dev
	$(BIN)/pytest -q --slow tests/kernel/test_exercise.py

# Made from the sdist, which therefore holds all that they need.
wheels: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet build $(ZIG)
	rm -rf $(DIST) build/source
	mkdir -p build/source
	$(BIN)/python -m build --no-isolation --sdist --outdir $(DIST)
	tar -xzf $(DIST)/*.tar.gz --strip-components 1 -C build/source
	for platform in $$($(BIN)/python -c "from ctx_embed.kernel.build import TARGETS; print(*TARGETS)"); do \
		CTX_EMBED_PLATFORM=$$platform $(BIN)/python -m build --no-isolation --wheel --outdir $(DIST) build/source || exit 1; \
	done
	$(BIN)/python -m tests.kernel.wheels $(DIST)

# The same sources give the same bytes twice; the wheel works without the sources, and compiled.
release-check: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet build twine uv $(if $(AUDIT),pip-audit)
	rm -rf dist build
	$(MAKE) wheels DIST=dist
	$(MAKE) wheels DIST=build/again
	diff -r dist build/again
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pip install --quiet --no-deps --no-index --find-links dist --target build/installed ctx-embed
	cd build/installed && HF_HUB_OFFLINE=1 CTX_EMBED_KERNEL=plain $(CURDIR)/$(BIN)/python -m ctx_embed demo
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11.5 --generate-hashes --no-header --no-annotate \
		--extra server --extra documents -c constraints.txt pyproject.toml -o $(HASHES)
	$(AUDIT)

clean:
	rm -rf $(VENV) .clients build dist *.egg-info docs/_build
