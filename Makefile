# make demo   train on four local ranks with profiling, print the verdict, write the report, serve the dashboard
# make test   every test            make lint   ruff            make types   mypy --strict
# make test-hta   the tests that need HolisticTraceAnalysis, in an environment of its own
# make test-frameworks   the hooks in transformers, torchtitan, Megatron-Core, DeepSpeed and OLMo-core, likewise
# make docs   write every command's --help into its page
#
# Every target sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
# Variables: SERVE=0 ends the demo after the report; PORT; RUN (the demo's folder); PYTHON (3.11 or newer);
# PIP_FLAGS goes to pip install, for example an --extra-index-url that offers CPU-only builds of torch.

PYTHON ?= python3
PIP_FLAGS ?=
SERVE ?= 1
PORT ?= 8050
RUN ?= runs/demo
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-dev
HTA_VENV := .venv-hta
HTA_STAMP := $(HTA_VENV)/.installed
FRAMEWORKS_VENV := .venv-frameworks
FRAMEWORKS_BIN := $(FRAMEWORKS_VENV)/bin
FRAMEWORKS_STAMP := $(FRAMEWORKS_VENV)/.installed

.PHONY: demo test test-hta test-frameworks lint types docs clean

demo: $(STAMP)
	$(BIN)/moescope train --ranks 4 --profile --out $(RUN) --force
	$(BIN)/moescope analyze $(RUN)
	$(BIN)/moescope report $(RUN) -o $(RUN)/report.html --force
ifneq ($(SERVE),0)
	$(BIN)/moescope serve $(RUN) --port $(PORT)
endif

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 600

test-hta: $(STAMP) $(HTA_STAMP)
	MOESCOPE_HTA_PYTHON=$(HTA_VENV)/bin/python $(BIN)/python -m pytest tests/crosscheck

# Version 4 of transformers lies beside version 5 and is put before it.
test-frameworks: $(FRAMEWORKS_STAMP)
	MOESCOPE_FRAMEWORKS=1 $(FRAMEWORKS_BIN)/python -m pytest tests/frameworks
	MOESCOPE_FRAMEWORKS=1 PYTHONPATH=$(FRAMEWORKS_VENV)/transformers4 \
	  $(FRAMEWORKS_BIN)/python -m pytest tests/frameworks/test_transformers.py -k gates

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	MOESCOPE_UPDATE_DOCS=1 $(BIN)/python -m pytest -q tests/test_docs.py

clean:
	rm -rf $(VENV) $(HTA_VENV) $(FRAMEWORKS_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info moescope/trace/_block.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml setup.py constraints.txt moescope/trace/_block.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_FLAGS) --editable '.[dev]'
	touch $@

# Apart from the rest: it brings JupyterLab along.
$(HTA_STAMP): constraints.txt
	$(PYTHON) -m venv $(HTA_VENV)
	$(HTA_VENV)/bin/python -m pip install --quiet --constraint constraints.txt $(PIP_FLAGS) HolisticTraceAnalysis 'pandas<3'
	touch $@

# Apart from the rest: frameworks disagree with our pins. torchtitan imports triton, which torch for CPUs leaves out;
# DeepSpeed's set-up imports torch, and compiles nothing so.
FRAMEWORKS_PIP := $(FRAMEWORKS_BIN)/python -m pip install --quiet --retries 5 $(PIP_FLAGS)
$(FRAMEWORKS_STAMP): tests/frameworks/requirements.txt tests/frameworks/beside.txt pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS_VENV)
	@echo 'installing torch and the frameworks into $(FRAMEWORKS_VENV): some minutes'
	$(FRAMEWORKS_PIP) -r tests/frameworks/requirements.txt
	$(FRAMEWORKS_BIN)/python -c 'import triton' 2>/dev/null || $(FRAMEWORKS_PIP) --no-deps triton==3.9.0
	DS_BUILD_OPS=0 $(FRAMEWORKS_PIP) --no-build-isolation --no-deps deepspeed==0.19.8
	$(FRAMEWORKS_PIP) --no-deps --upgrade --target $(FRAMEWORKS_VENV)/transformers4 -r tests/frameworks/beside.txt
	$(FRAMEWORKS_PIP) --no-build-isolation --no-deps --editable .
	touch $@
