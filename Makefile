# Two commands: `make demo` and `make test`; `make docs` builds the site. All may be run again; nothing that is up to date is done twice.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test docs lint types clean

demo: $(VENV)/.study
	$(BIN)/termwise study --variants softmax,linear_elu,taylor:0..2,taylor:0..4 --seeds 1 --steps 150 --demonstration --out termwise-runs/demo

test: $(VENV)/.dev lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

docs: $(VENV)/.docs
	$(BIN)/python docs/site/build_site.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.study: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[study]"
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@ $(VENV)/.study

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@ $(VENV)/.study $(VENV)/.docs

clean:
	rm -rf $(VENV) build/docs .pytest_cache .mypy_cache .ruff_cache .hypothesis
