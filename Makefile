# make serve | test | test-core | test-more | test-experiments | check | fix | bench | load | drill | soak | docs.  PIP_ARGS is handed to pip, see docs/start.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(PIP_ARGS)
# Folders whose tests start servers, and those whose tests wait for other programs besides.
SERVED := tests/e2e
WAITING := tests/loadtest
# Folders whose tests need neither torch nor a loop.
PURE := tests/scheduler tests/simulator
# What needs large packages is left to `make test-more`, also where they are installed: a Ray takes 20 s of CPU, and its
# daemons more.
MORE := tests/test_site.py $(wildcard tests/ray_serve/test_ray_serve*.py)

.DEFAULT_GOAL := help
.PHONY: help serve test test-core test-more test-oldest test-experiments check lint fix bench load drill soak docs clean

help:
	@echo "make serve   install once, then serve the demo models on http://127.0.0.1:8000"
	@echo "make test    install once, then lint, type-check and run the tests that protect the product"
	@echo "make test-core   the tests of the scheduler and the simulator, a few examples of each, in seconds"
	@echo "make test-more   manifests against Kubernetes' schemas, the documentation as a site, Ray: large packages"
	@echo "make test-oldest   engine, models and HTTP on the oldest libraries that pyproject.toml allows"
	@echo "make test-experiments   types and tests of experiments/, which makes the figures of docs/bench/"
	@echo "make check   lint and types only;  make fix   format and mend what a tool can"
	@echo "make bench   measure this machine: figures into docs/bench/"
	@echo "make docs    the documentation as a site, in out/site/"
	@echo "make drill   replace servers behind nginx under load: no request may fail"
	@echo "make soak    half an hour of load with faults: nothing may be lost, memory must be flat"
	@echo "make load    serve, put Locust's load on it, leave a report in out/load/;  USERS= DURATION= SHAPE= MODEL= PAYLOAD="

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Two stamps: serving needs neither pytest nor transformers.
$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV): a minute or two, once"
	@$(PIP) -e .
	@touch $@

# Bytecode is made where it is imported: that of everything installed took pip a minute, and the tests need a quarter.
$(STAMP)-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), with what the tests need: a minute or two, once"
	@$(PIP) --no-compile -e '.[test]'
	@touch $(STAMP) $@

# Of the files of all packages two fifths are Kubernetes' schemas and the icons of a theme, and Ray brings 30 packages,
# for a handful of tests.
$(STAMP)-more: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), with schemas, MkDocs and Ray: a minute or two, once"
	@$(PIP) --no-compile -e '.[test,docs,schemas,ray]'
	@touch $(STAMP) $(STAMP)-test $(STAMP)-docs $@

$(STAMP)-load: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), with Locust: a minute or two, once"
	@$(PIP) -e '.[load]'
	@touch $(STAMP) $@

$(STAMP)-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), with MkDocs: a minute or two, once"
	@$(PIP) -e '.[docs]'
	@touch $(STAMP) $@

# An environment of its own, with what these releases need of the packages that are pinned for newer ones. Wheels with
# CUDA bring gigabytes along, which go where PIP_ARGS names others.
OLD := $(VENV)-oldest
AGED := torch|transformers|onnxruntime|pydantic|httptools
OLDEST = $(shell sed -nE 's/.*"($(AGED))>=([0-9.]+)".*/\1==\2.*/p' pyproject.toml | sort -u)
$(OLD)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(OLD), with $(OLDEST): two or three minutes, once"
	@$(PYTHON) -m venv $(OLD)
	@grep -vE '^($(AGED)|huggingface_hub|pydantic_core|setuptools)==' constraints.txt >$(OLD)/constraints.txt
	@$(OLD)/bin/python -m pip install --disable-pip-version-check -q --no-compile -c $(OLD)/constraints.txt $(PIP_ARGS) \
		$(patsubst %,'%',$(OLDEST)) -e '.[test]'
	@touch $@

serve: $(STAMP)
	@exec $(BIN)/starling serve $(ARGS)

lint: $(STAMP)-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check: lint
	$(BIN)/mypy

# Threads of OpenBLAS and of torch are slower than one at matrices this small. Bytecode is kept even where the
# environment says not to: pytest rewrites the assertions of each file it has no bytecode of.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest
BEHIND := $(ONE_THREAD) nice -n 10 $(BIN)/python -m pytest

# The whole suite as four runs at once, so that two cores are busy to the end. Types are checked beside them. The runs
# with servers go first where cores are few, since they are the longest and often wait. What the others print is shown
# after the last, and all must pass. With ARGS all that they choose is one run, after the check.
# What all runs import is imported once before the first of them, or each of them would compile it.
ifeq ($(strip $(ARGS)),)
test: lint
	@said=$$(mktemp -d); \
	nice -n 10 $(BIN)/mypy >"$$said/types" 2>&1 & typed=$$!; \
	trap 'kill $$typed $$served $$waiting $$pure; rm -rf "$$said"' EXIT; \
	test -e $(STAMP)-compiled || PYTHONDONTWRITEBYTECODE= $(BIN)/python -c \
		"import tests.e2e.preloaded, tests.e2e.preloaded_transformers" && touch $(STAMP)-compiled; \
	$(PYTEST) $(SERVED) >"$$said/served" 2>&1 & served=$$!; \
	$(PYTEST) $(WAITING) >"$$said/waiting" 2>&1 & waiting=$$!; \
	$(BEHIND) $(PURE) >"$$said/pure" 2>&1 & pure=$$!; \
	$(BEHIND) $(patsubst %,--ignore=%,$(SERVED) $(WAITING) $(PURE) $(MORE) tests/experiments); failed=$$?; \
	for run in $$served $$waiting $$pure $$typed; do wait $$run || failed=$$?; done; trap - EXIT; \
	cat "$$said"/*; rm -rf "$$said"; exit $$failed
else
test: check
	$(PYTEST) $(ARGS)
endif

# Two runs at once, as above. Of the plugins only the one that the settings in pyproject.toml are for: the others take as
# long to load as the tests.
CORE := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(PYTEST) -p pytest_asyncio.plugin --core -q $(ARGS)
test-core: $(STAMP)-test
	@said=$$(mktemp); $(CORE) tests/scheduler/test_*.py >"$$said" 2>&1 & other=$$!; \
	$(CORE) tests/scheduler/[a-z]*/ tests/simulator; first=$$?; wait $$other; second=$$?; \
	cat "$$said"; rm "$$said"; exit $$((first ? first : second))

test-more: $(STAMP)-more
	$(PYTEST) $(ARGS) tests/deploy $(MORE)

# Beside the pinned versions, which all other tests run on.
test-oldest: $(OLD)/.installed
	$(ONE_THREAD) $(OLD)/bin/python -m pytest -q $(ARGS) tests/engine tests/models tests/test_http

test-experiments: $(STAMP)-test
	$(BIN)/mypy --explicit-package-bases experiments loadtest
	$(PYTEST) $(ARGS) tests/experiments

fix: $(STAMP)-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)-test
	$(BIN)/python -m loadtest.bench $(ARGS)

# The variable stops an announcement of the theme's authors.
docs: $(STAMP)-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q $(ARGS)

drill: $(STAMP)-test
	@exec $(BIN)/python -m loadtest.drill $(ARGS)

soak: $(STAMP)-test
	@exec $(BIN)/python -m loadtest.soak $(ARGS)

# `exec`: the signal of a Ctrl-C or a kill reaches what has children to end.
LOAD := $(if $(USERS),--users $(USERS)) $(if $(DURATION),--duration $(DURATION)) $(if $(SHAPE),--shape $(SHAPE)) \
	$(if $(MODEL),--model $(MODEL)) $(if $(PAYLOAD),--payload $(PAYLOAD)) $(if $(WEB),--web)
load: $(STAMP)-load
	@exec $(BIN)/python -m loadtest.run_locust $(LOAD) $(ARGS)

clean:
	rm -rf $(VENV) $(OLD) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
