# make quickstart   install what is needed, go through a day of work on a real tree, leave a mount
#                   STORE=s3: in a bucket, of an S3 server that it starts
# make test         install what tests need, run every check and every test
# make bench        measure; writes bench/results/
# make clean        remove what the others made here
#
# All work twice in a row; after the first time they need no network.

VENV := .venv
BIN := $(VENV)/bin
# What is installed depends on what pyproject.toml says, not on when it was checked out.
SUM := $(shell sha256sum pyproject.toml | cut -c1-16)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
STORE := file
# Tests wait for disks, servers and timers as much as they compute.
WORKERS := $(shell echo $$(( $$(nproc) < 7 ? $$(nproc) + 1 : 8 )))

.PHONY: quickstart test bench compiled clean

quickstart: compiled
	@STORE=$(STORE) ./quickstart.sh

test: $(VENV)/test-$(SUM) compiled
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

bench: $(VENV)/bench-$(SUM) compiled
	$(BIN)/python -m bench

# Where PYTHONDONTWRITEBYTECODE is set, nothing else would, and every start would compile all.
compiled: $(VENV)/run-$(SUM)
	@$(BIN)/python -m compileall -q workspacefs daemon

clean:
	-@test ! -x $(BIN)/workspacefs || ./quickstart.sh --remove
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# With what tests need as well: the quickstart imports this environment, and shall be of a size
# that people have.
$(VENV)/run-$(SUM):
	@python=$$(.ci/system-packages run) && { test -x $(BIN)/pip || "$$python" -m venv $(VENV); }
	@echo "installing into $(VENV): about half a minute, once"
	@$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/test-$(SUM): $(VENV)/run-$(SUM)
	@.ci/system-packages test >/dev/null
	@touch $@

$(VENV)/bench-$(SUM): $(VENV)/test-$(SUM)
	$(BIN)/pip install --quiet --editable '.[bench]'
	@touch $@
