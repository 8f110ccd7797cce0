# make demo   install everything, then run the main workflow, from real games to tables, in ./.chessreg/
# make test   install everything, then run the tests; failed tests are repeated once, alone, and listed at the end
# make deps   system packages that tests can use: stockfish (engine), tmux (drives the TUI), slurm-wlm (a cluster of one)
# make slow   the slow tests, which make test leaves out
# make bench  timings, as ratios; make faults: long rounds of induced crashes; make wheel: the wheel in dist/
# make docs   the documentation site in site/, with its links checked
# make figures  the figures and tables of docs/results, from the rows in tests/fixtures
# make gpu    correctness and speed on a GPU, and a model trained with the time left; needs only torch, numpy, safetensors
.PHONY: demo test slow docs figures deps bench gpu faults wheel setup stockfish format clean

VENV := .venv
BIN := $(VENV)/bin
# Without an NVIDIA GPU, the smaller build suffices: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
# Number of test processes: more than two cores, because some tests mostly wait
WORKERS ?= 4

demo: $(VENV)/.installed stockfish
	@$(BIN)/chessreg demo

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 -q $(ARGS) || { \
		status=$$?; test $$status = 1 || exit $$status; \
		echo "== repeating the failed tests in one process: a fault of the code fails again"; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -v $(ARGS); }

slow: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 -q -m slow $(ARGS)

bench: $(VENV)/.installed-dev
	@for b in tests/benchmarks/bench_*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

docs: $(VENV)/.installed
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build -q $(ARGS)

figures: $(VENV)/.installed-dev
	@$(BIN)/python docs/figures.py

gpu:
	@python=$(BIN)/python; test -x $$python || python=python3; $$python tests/gpu/run.py $(ARGS)

faults: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -m faults $(ARGS)

wheel: $(VENV)/.installed-dev
	@$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix -q . && $(BIN)/ruff format -q .

setup: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "chessreg needs Python 3.11 or newer; install it and run make again"; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "that Python has no venv; on Debian: sudo apt-get install python3-venv"; exit 1; }

# torch is installed first and pinned, so that no dependency installs another build
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing chessreg and its dependencies (a few minutes the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
		-c constraints.txt torch
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[web]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

stockfish:
	@PATH="$$PATH:/usr/games:/opt/homebrew/bin:/usr/local/bin"; command -v stockfish >/dev/null || $(MAKE) -s install PACKAGES=stockfish

deps:
	@PATH="$$PATH:/usr/games:/usr/sbin"; missing=; for p in stockfish tmux; do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	command -v brew >/dev/null || command -v slurmctld >/dev/null || missing="$$missing slurm-wlm"; \
	test -z "$$missing" || $(MAKE) -s install PACKAGES="$$missing"

# Installs PACKAGES with apt or brew, through sudo if necessary and possible; otherwise prints the command.
install:
	@if command -v brew >/dev/null; then brew install -q $(PACKAGES); \
	elif command -v apt-get >/dev/null; then \
		if [ "$$(id -u)" = 0 ]; then run=; elif command -v sudo >/dev/null; then run=sudo; \
		else echo "run as root: apt-get install $(PACKAGES)"; exit 1; fi; \
		$$run apt-get update -qq >/dev/null 2>&1; \
		DEBIAN_FRONTEND=noninteractive $$run apt-get install -y -qq $(PACKAGES) >/dev/null 2>&1 \
			|| { echo "run: $$run apt-get install $(PACKAGES)"; exit 1; }; \
	else echo "install $(PACKAGES) with this system's package manager, then run make again"; exit 1; fi

clean:
	@rm -rf $(VENV) dist build *.egg-info
