# Everything runs in .venv, which the first target that needs it makes; `make` alone says what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: bench $(shell sed -nE 's/^([a-z-]+):.* ## .*/\1/p' $(MAKEFILE_LIST)) $(shell sed -nE 's/^(bench-[a-z-]+):.*/\1/p' $(MAKEFILE_LIST))

# Each target carries its line: `target: ## group: text`.
help: ## Start: what you are reading
	@awk -F ' ## ' '/^[a-z-]+:.* ## / { colon = index($$2, ": "); group = substr($$2, 1, colon - 1); \
		if (!(group in lines)) groups[++n] = group; sub(/:.*/, "", $$1); \
		lines[group] = lines[group] sprintf("  %-16s %s\n", $$1, substr($$2, colon + 2)) } \
		END { for (i = 1; i <= n; i++) printf "%s\n%s", groups[i], lines[groups[i]] }' $(MAKEFILE_LIST)

setup: $(READY) ## Start: install into .venv; PYTHON=python3.12 chooses the interpreter

# PyTorch first and by version: a later install then finds it satisfied and does not exchange the build. Twice quiet, pip
# tells errors only.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else "threadcast needs Python 3.11 to 3.13, this is %d.%d; try make PYTHON=python3.12" % v)'
	@echo "setting up $(VENV): installing PyTorch, about a minute ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) torch==2.13.0
	@echo "installing the other packages, about a minute ..."
	@$(PIP) -e '.[dev]'
	@echo "compiling the engine and the planner, about a minute ..."
	@$(BIN)/python -m compileall -q threadcast
	@$(BIN)/threadcast compile || echo "No plans are made until a C++ compiler is there."
	@touch $@

demo: $(READY) ## Start: all stages once, with real measurements: build/demo/report.html
	@$(BIN)/threadcast demo --output build/demo

clean: ## Start: remove .venv and all that was built
	rm -rf build $(VENV)

PYTEST = $(BIN)/python -m pytest -n $(or $(PROCESSES),auto) --dist loadfile --no-loadscope-reorder --max-worker-restart 2
test: $(READY) ## Test: what needs no server and no network, in 8 minutes on 2 cores; PROCESSES=4 uses more
	$(BIN)/python -m threadcast.scheduler.compile_planner
	$(PYTEST) -m "not system"

test-system: $(READY) ## Test: with servers, browser, clusters, long runs; asks before it installs, INSTALL=1 does not
	INSTALL=$(INSTALL) $(BIN)/python -m tests.services
	$(BIN)/python -m threadcast.scheduler.compile_planner
	INSTALL=$(INSTALL) $(PYTEST) -m system -rs

lint: $(READY) ## Test: linters and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY) ## Documents: the site, build/site/index.html; links that lead nowhere are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html; $(BIN)/mkdocs serve shows it at http://127.0.0.1:8000 and follows changes"

# Benchmarks. OPTIONS="--rounds 2" goes to each benchmark in place of --write, which stores its table in data/studies and
# writes its section of docs/figures. Without them `bench` stores nothing. All others:
# `python benchmarks/NAME.py --help`.
WITH = $(or $(OPTIONS),--write)

bench: $(READY) ## Benchmarks: the papers' tables, simulated, and short figures of this machine; minutes
	$(BIN)/python benchmarks/paper_tables.py $(OPTIONS)
	$(BIN)/python benchmarks/paper_protocol.py $(OPTIONS)
	$(BIN)/python benchmarks/operators.py $(OPTIONS)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/engine_overhead.py
	mkdir -p build && rm -f build/bench.db*
	$(BIN)/threadcast profile resnet18 --size small --batch 8 --store sqlite:///build/bench.db

bench-engine: $(READY) ## Benchmarks: optimised steps beside eager PyTorch and torch.compile; hours
	$(BIN)/python benchmarks/engine.py $(WITH)

bench-shared: $(READY) ## Benchmarks: training processes that share the cores, by hand and under the arbiter; an hour
	$(BIN)/python benchmarks/malleable.py $(WITH)

# The libraries are in an environment of their own. GRAPHNET=path is a clone of GraphNet (MIT), else it is cloned into
# build; most of its graphs, by hashes of their paths, are held out and not read.
ZOO := build/zoo-venv
$(ZOO)/.ready: pyproject.toml
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[all]' transformers==5.23.0 torch_geometric==2.8.1 pillow safetensors six
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchvision==0.28.0 timm==1.0.31 torchaudio==2.11.0
	rm -f $(ZOO)/lib/python3*/site-packages/torchaudio/lib/*.so
	touch $@

bench-warmup: $(ZOO)/.ready ## Benchmarks: how steps begin: 40 models, ten scripts, pairs, beside Inductor; 16 hours
	$(ZOO)/bin/python benchmarks/warmup.py $(WITH)

bench-zoo: $(ZOO)/.ready ## Benchmarks: 40 models of five libraries, 100 graphs of GraphNet; hours
	test -n "$(GRAPHNET)" -o -d build/graphnet/repository || git clone --depth 1 --no-checkout https://github.com/PaddlePaddle/GraphNet build/graphnet/repository
	$(ZOO)/bin/python benchmarks/judge.py zoo $(WITH)
	GRAPHNET=$(GRAPHNET) $(ZOO)/bin/python benchmarks/judge.py graphnet $(WITH)

bench-models: $(READY) ## Benchmarks: how well models forecast times of ops, also of machines that nobody measured
	$(BIN)/python benchmarks/models.py $(WITH)
	$(BIN)/python benchmarks/shipped_prior.py $(WITH)

bench-profiling: $(READY) ## Benchmarks: how few measurements decide well
	$(BIN)/python benchmarks/profiling.py $(WITH)

bench-planner: $(READY) ## Benchmarks: plans beside bounds, baselines and CP-SAT; an hour
	$(BIN)/python benchmarks/planner.py $(WITH)
	$(BIN)/python benchmarks/planner_scale.py --write

bench-service: $(READY) ## Benchmarks: the service's speed, large tables, changed requests
	$(BIN)/python benchmarks/service.py $(WITH)
	$(BIN)/python benchmarks/service_batches.py $(WITH)
	BODIES=$(or $(BODIES),10000) $(BIN)/python -m pytest -q --timeout 3600 tests/service/test_mutated_bodies.py

bench-servers: $(READY) ## Benchmarks: the service's HTTP server beside others; needs wrk and nginx; ten minutes
	$(BIN)/python benchmarks/servers.py $(WITH)

# Without a network. By .venv where there is one, else by $(PYTHON), which needs torch and numpy; WHEELS=folder installs the
# wheels in it, for this alone. PARTS=steps,recording and THREADS=1,2,4,8 choose. COMMIT=hash names the commit where no git
# does. The same command once more measures what is missing: docs/figures/many-cores.md.
MANY_SITE := build/many-cores-site
MANY_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
bench-many-cores: ## Benchmarks: what two cores cannot show; ten minutes at most, BUDGET_S=120 seconds
	$(if $(WHEELS),$(MANY_PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-deps --upgrade --target $(MANY_SITE) $(wildcard $(WHEELS)/*.whl))
	COMMIT=$(COMMIT) PYTHONPATH=$(CURDIR):$(CURDIR)/$(MANY_SITE):$(PYTHONPATH) $(MANY_PYTHON) benchmarks/many_cores.py $(if $(BUDGET_S),--budget-s $(BUDGET_S)) $(if $(PARTS),--parts $(PARTS)) $(if $(THREADS),--threads $(THREADS)) $(if $(OUT),--out $(OUT))
