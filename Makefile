# make help lists the targets.
PYTHON ?= python3
# Processes that share the tests; each takes up to 2 GB.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
# The model in a package of its own, of which an sdist holds the card alone.
PERMISSIVE := $(patsubst %/pyproject.toml,%,$(wildcard models/*/pyproject.toml))

MINUTES ?= 10
# Versions and hashes of what a release was tested with, for pip install --require-hashes -r.
HASHES := build/requirements-hashes.txt
AUDIT ?= $(BIN)/pip-audit --strict --disable-pip --progress-spinner off -r $(HASHES)

# Where releases are built. The compiler is pinned, since the bytes depend on it.
DIST ?= dist
ZIG := ziglang==0.17.1

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: help demo test check check-slow lint docs pages size picture clients aarch64 fuzz soak mutants kernel wasm sanitize models wheels release-check clean

demo: $(VENV)/installed ## install without torch, and search the documentation of Python's library
	$(BIN)/ctx-embed demo

# Compiled modules are kept, whatever the environment says: the tests start hundreds of processes.
test: $(VENV)/installed-dev ## install what the tests need, and run them; WORKERS=4 for more processes
	HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n $(WORKERS) --dist loadfile $(TESTS)

check: lint test docs size ## what CI runs: lint, types, tests, the site, the size

check-slow: TESTS = --slow
check-slow: check ## the same with the tests that take minutes

lint: $(VENV)/installed-dev ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

size: $(VENV)/installed-dev ## installed lines, functions with one use and the files of a query
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.size

picture: $(VENV)/installed-dev ## the folders as layers of imports, for CONTRIBUTING.md
	@$(BIN)/python -m tests.size --picture

docs: $(VENV)/installed-dev ## the site, in docs/_build/html
	HF_HUB_OFFLINE=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

pages: $(VENV)/installed-dev ## write public names, what commands print, and the tables of stored results into README and docs
	HF_HUB_OFFLINE=1 $(BIN)/python -W ignore -m tests.docs.reference
	HF_HUB_OFFLINE=1 $(BIN)/python -W ignore -m tests.docs.pages
	$(BIN)/python benchmarks/pages.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# Without torch, see docs/install.md.
$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt requirements-light.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -r requirements-light.txt
	$(BIN)/python -m pip install --quiet --no-deps .
	touch $@

# Pinned versions need no resolver, so three processes share them; the second pip adds the project and what they lack.
# Compiled with all processors; pip would take two minutes with one. Some files are templates, and no Python; a third of
# all are API clients and models that nothing here imports.
$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt $(addsuffix /pyproject.toml,$(PERMISSIVE))
	rm -rf $(VENV)/pins && mkdir $(VENV)/pins && awk '{ print > ("$(VENV)/pins/" NR % 3) }' constraints.txt
	ls $(VENV)/pins/* | xargs -P 3 -n 1 $(BIN)/python -m pip install --quiet --no-compile --no-deps -r || true
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev,peers,mteb,integrations,docs,documents,onnx,server,stores,papers]" $(addprefix -e ,$(PERMISSIVE))
	$(BIN)/python -m compileall -q -j 0 -x '/tests?/|/kubernetes/|/transformers/models/' $(VENV)/lib >/dev/null 2>&1 || true
	touch $@

clients: ## every program of docs/clients.md, each in an environment of its own: minutes with uv, an hour with pip
	$(PYTHON) tests/clients/run.py

aarch64: $(VENV)/installed-dev ## the wheel for aarch64 under qemu-user, against this machine
	$(BIN)/python -m pip install --quiet build $(ZIG)
	$(BIN)/python -m tests.clients.aarch64

fuzz: $(VENV)/installed-dev ## damaged input of every kind, with new seeds; MINUTES=10
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.fuzz.fuzzing $(MINUTES)

soak: $(VENV)/installed-dev ## readers and writers of one index, while servers and writers are killed; MINUTES=60
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.soak.soak $(MINUTES)

# Where the texts are, and a folder or a name on the hub.
DATA ?= $(CTX_EMBED_DATA)
MPNET ?= all-mpnet-base-v2
STAGES := results/models
MODELS := permissive-first permissive-second permissive-third default-first default-second
models: $(VENV)/installed-dev ## train the permissive model, then the default, in results/models; hours, and resumed; DATA= MPNET=
	mkdir -p $(STAGES)
	cd $(STAGES) && for stage in $(MODELS); do \
		test -e $$stage || $(CURDIR)/$(BIN)/ctx-embed distill --recipe $(CURDIR)/recipes/$$stage.toml --data $(abspath $(DATA)) \
			$$(case $$stage in permissive-second|default-first) echo --second-teacher $(MPNET);; esac) --cache teachers -o $$stage || exit 1; \
	done

N ?= 200
mutants: $(VENV)/installed-dev ## faults planted one at a time, and the share that the tests notice; N=200 SEED=commit ROOM=all
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.mutate $(N) $(if $(SEED),--seed $(SEED)) $(if $(ROOM),--room $(ROOM))

kernel: ## compile ctx_embed/kernel again after a change
	$(PYTHON) build_kernel.py

wasm: $(VENV)/installed-dev ## compile it for browsers, with the pinned compiler
	$(BIN)/python -m pip install --quiet $(ZIG)
	$(BIN)/python build_kernel.py wasm

sanitize: $(VENV)/installed-dev ## the kernel's tests under the compiler's sanitizers
	$(BIN)/pytest -q --slow tests/kernel/test_build.py -k "sanitizers or other_processors"

# Made from the sdist, which therefore holds all that they need.
wheels: $(VENV)/installed-dev ## an sdist, and a wheel for each platform, in dist/
	$(BIN)/python -m pip install --quiet build $(ZIG)
	rm -rf $(DIST) build/source
	mkdir -p build/source
	$(BIN)/python -m build --no-isolation --sdist --outdir $(DIST)
	tar -xzf $(DIST)/*.tar.gz --strip-components 1 -C build/source
	for platform in $$($(BIN)/python -c "from build_kernel import TARGETS; print(*TARGETS)"); do \
		CTX_EMBED_PLATFORM=$$platform $(BIN)/python -m build --no-isolation --wheel --outdir $(DIST) build/source || exit 1; \
	done
	$(BIN)/python -m tests.kernel.wheels $(DIST)
	$(BIN)/python -m build --no-isolation --wheel --outdir $(DIST) models/permissive

# The same sources give the same bytes twice; the wheel works without the sources, and compiled.
release-check: $(VENV)/installed-dev ## a release without the upload: builds, compares, checks, audits (AUDIT= leaves the audit out)
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

clean: ## remove what these targets made
	rm -rf $(VENV) .clients build dist *.egg-info docs/_build
