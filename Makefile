# Needs python3 (3.11 or newer) and make; everything else is installed into .venv, once.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
LOCK := $(shell $(PYTHON) -c 'import sys, sysconfig; print("locks/%s-%s.txt" % (sys.implementation.cache_tag, sysconfig.get_platform().replace(".", "_")))')
STAMP := $(VENV)/installed-$(shell cat constraints.txt pyproject.toml $(LOCK) 2>/dev/null | cksum | cut -d' ' -f1)
SOURCES := secure_fl tests benchmarks release vectors

.PHONY: demo test long slow check types docs bench bench-tests wheelhouse release clean

demo: $(STAMP)  ## three hospitals train together on built-in data
	$(VENV)/bin/secure-fl demo

test: $(STAMP)  ## the tests (two processes; the longest are in `make long` and `make slow`)
	$(PY) -m pytest -m "not slow and not long" -n 2 --dist worksteal --durations=25 tests

long: $(STAMP)  ## the tests in tests/long_tests.txt
	$(PY) -m pytest -m "long and not slow" -n 2 --dist worksteal --durations=25 tests

slow: $(STAMP)  ## the tests that take minutes
	$(PY) -m pytest -m slow tests benchmarks/tests

bench-tests: $(STAMP)  ## the benchmarks' own tests
	$(PY) -m pytest -m "not slow" benchmarks/tests -n 2 --dist worksteal

check: $(STAMP)  ## style, types, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(SOURCES)
	$(VENV)/bin/lint-imports

types: $(STAMP)  ## examples and snippets as pyright sees them: it brings Node, so not in `check`
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[types]'
	$(PY) -m pytest tests/typing/test_examples.py

bench: $(STAMP)  ## the figures that the docs quote
	$(PY) -m benchmarks all

docs: $(STAMP)  ## this documentation as a site, in build/site
	$(VENV)/bin/mkdocs build --strict

wheelhouse: $(STAMP)  ## every wheel, for a machine without network: dist/wheelhouse
	rm -rf dist
	$(PY) -m release wheelhouse

release: $(STAMP)  ## wheels, sdist, SBOM and checksums: dist; KEY=release.pem signs
	rm -rf dist
	$(PY) -m release all $(if $(KEY),--key $(KEY))

clean:  ## remove everything that make made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "secure_fl needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@test -f $(LOCK) || echo "there is no $(LOCK): packages are checked by version, not by digest"
	test ! -f $(LOCK) || $(PY) -m pip install --quiet --no-deps --require-hashes --requirement $(LOCK)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@rm -f $(VENV)/installed-*
	@touch $@
