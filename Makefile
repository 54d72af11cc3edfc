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
		lines[group] = lines[group] sprintf("  %-14s %s\n", $$1, substr($$2, colon + 2)) } \
		END { for (i = 1; i <= n; i++) printf "%s\n%s", groups[i], lines[groups[i]] }' $(MAKEFILE_LIST)

setup: $(READY) ## Start: install into .venv; PYTHON=python3.12 chooses the interpreter

# PyTorch first and by version: a later install then finds it satisfied and does not exchange the build.
$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else "threadcast needs Python 3.11 to 3.13, this is %d.%d; try make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/threadcast compile || echo "Optimised steps run by the Python engine until a C++ compiler is there."
	touch $@

demo: $(READY) ## Start: all stages once, with real measurements: build/demo/report.html
	$(BIN)/threadcast demo --output build/demo $(if $(BUSY),--allow-busy)

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

# The papers' tables beside ours on the simulated Xeon Phi, then what is measured on this machine.
bench: $(READY)
	$(BIN)/python benchmarks/paper_tables.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/engine_overhead.py
	mkdir -p build && rm -f build/bench.db*
	$(BIN)/threadcast profile resnet18 --size small --batch 8 --store sqlite:///build/bench.db

# The planner against CP-SAT, its baselines and its bounds: docs/planner-tables.md. CURVES=folder takes other curves.
bench-planner: $(READY)
	CURVES=$(CURVES) $(BIN)/python benchmarks/planner.py --write

# Time and memory of plans for up to 5,000 operators on 128 cores: docs/planner-scale-tables.md. Two minutes.
bench-planner-scale: $(READY)
	$(BIN)/python benchmarks/planner_scale.py --write

# Optimised steps against eager PyTorch at every setting, torch.compile and other backends: docs/engine-tables.md. Hours.
# Then what each part of the engine adds (docs/engine-contributions.md), and a first step by a kept plan.
bench-engine: $(READY)
	$(BIN)/python benchmarks/engine.py --write
	$(BIN)/python benchmarks/engine_contributions.py --write
	$(BIN)/python benchmarks/engine_warm_start.py

# Models on curves of large machines, by held-out ops, single samples and five seeds: docs/model-tables.md. CURVES=folder
# adds ADSALA's.
bench-models: $(READY)
	$(BIN)/python benchmarks/models.py $(if $(CURVES),--curves $(CURVES)) --write

# How long the learned curve takes, and each model in a comparison of all of them: the last section of
# docs/model-tables.md. MILLION=1 also learns from a million samples.
bench-model-speed: $(READY)
	$(BIN)/python benchmarks/model_speed.py $(if $(MILLION),--million) --compare --write

# How often 90 % intervals hold, by model, samples and distance from what is known: docs/interval-tables.md. CURVES=folder
# prints those on ADSALA's curves.
bench-intervals: $(READY)
	$(BIN)/python benchmarks/intervals.py $(if $(CURVES),--curves $(CURVES),--write)

# How often changes of times are found where there are none, and how soon where there are some: docs/change-tables.md.
# Half a minute.
bench-changes: $(READY)
	$(BIN)/python benchmarks/changes.py --write

# The learned curve over known ops and samples, beside an oracle, on ADSALA's curves: docs/known-ops-tables.md.
bench-known-ops: $(READY)
	$(BIN)/python benchmarks/known_ops.py --curves $(CURVES) --write

# How few measurements decide well, by campaigns replayed on the simulated Xeon Phi: docs/profiling-tables.md. CURVES=folder
# prints those on ADSALA's curves. RIVALS=learned_curve measures the rows of one way to decide again.
bench-profiling: $(READY)
	$(BIN)/python benchmarks/profiling.py --seeds 2 $(if $(RIVALS),--rivals $(RIVALS)) $(if $(CURVES),--curves $(CURVES) --only sgemm+sdot,--write)

# Forecasts for machines that nobody measured, from the prior that the package ships: docs/new-machine-tables.md and its
# picture. CURVES=folder prints those on ADSALA's curves. PRIOR=--store learns the prior again and puts it into the package.
bench-new-machine: $(READY)
	$(BIN)/python benchmarks/shipped_prior.py $(PRIOR) $(if $(CURVES),--curves $(CURVES),--page)

# How well slow-downs of ops side by side are forecast from few pairs: docs/corun-tables.md. MEASURE=1 times all pairs on
# this machine first (five minutes, on a quiet machine).
bench-corun: $(READY)
	$(BIN)/python benchmarks/corun.py $(if $(MEASURE),--measure) --write

# Table IV of Liu et al. 2018 by the paper's protocol, simulated and on recorded times: data/studies/paper_protocol.csv.
bench-paper-study: $(READY)
	$(BIN)/python benchmarks/paper_protocol.py --write

# Training processes that share this machine's cores, and larger ones in simulation: docs/malleable-*.md and pictures.
bench-malleable: $(READY)
	$(BIN)/python benchmarks/malleable.py --write
	$(BIN)/python benchmarks/malleable_resize.py --write
	$(BIN)/python benchmarks/malleable_simulated.py --write
	$(BIN)/python benchmarks/malleable_timelines.py --output docs/images
	$(BIN)/python benchmarks/malleable_faults.py

# The service beside a bare Flask echo and MLflow: docs/service-tables.md; 10,000 changed request bodies; the dashboard's
# pages over 100,000 ops. ROUNDS, SECONDS, BODIES and OPS make it shorter; the first two leave the page as it is.
# SOAK=minutes in place of all that loads it with everything at once: one service on SQLite, then two on PostgreSQL, or
# one of the two with DATABASE=sqlite or DATABASE=postgresql (docs/service-soak.md).
bench-service: $(READY)
ifdef SOAK
	for database in $(or $(DATABASE),sqlite postgresql); do $(BIN)/python benchmarks/service.py --soak $(SOAK) --database $$database --write || exit 1; done
else
	$(BIN)/python benchmarks/service.py $(if $(ROUNDS)$(SECONDS),--rounds $(or $(ROUNDS),5) --seconds $(or $(SECONDS),4),--write)
	BODIES=$(or $(BODIES),10000) $(BIN)/python -m pytest -q --timeout 3600 tests/service/test_mutated_bodies.py
	$(BIN)/python benchmarks/dashboard.py $(if $(OPS),--ops $(OPS) --store build/dashboard-$(OPS).db,--store build/dashboard.db)
endif

# HTTP servers by attacks and loads: docs/server-tables.md. Needs wrk and nginx; about ten minutes.
bench-servers: $(READY)
	$(BIN)/python benchmarks/servers.py $(if $(ROUNDS)$(SECONDS)$(ODD),--rounds $(or $(ROUNDS),5) --seconds $(or $(SECONDS),3) --odd $(or $(ODD),2000),--write)

# How many samples a second the store and the service take, from 10^5 to 10^8 stored ones, on SQLite and PostgreSQL:
# docs/ingest-tables.md. Half an hour and 10 GB of disk. SAMPLES=10000000 ends at smaller stores and leaves the page as it is.
bench-ingest: $(READY)
	PYTHONPATH=. $(BIN)/python benchmarks/ingest.py $(if $(SAMPLES)$(DATABASES),$(if $(SAMPLES),--samples $(SAMPLES)) $(if $(DATABASES),--databases $(DATABASES)),--write)

# Large tables as JSON and as Arrow, and the client's deadline with them: docs/service-batch-tables.md. Half a minute.
bench-service-batches: $(READY)
	$(BIN)/python benchmarks/service_batches.py --write

# Memory of a service's processes, and what rates, logs and traces add to a request: docs/service-sizes.md. A minute or two.
bench-service-sizes: $(READY)
	$(BIN)/python benchmarks/service_sizes.py --write

# How optimised steps begin: cumulative time against eager from the first call on, of ten networks: docs/warmup-tables.md
# and its picture. SECONDS of calls each, NETWORKS="U-Net;LSTM", STATES=cold,store,bundle, ONLY=networks, small (functions
# of microseconds) or shapes. LONG=1 first measures how fast they become when settling may take ten minutes:
# data/studies/long_measurement.csv.
bench-warmup: $(READY)
	$(if $(LONG),$(BIN)/python benchmarks/warmup.py --long --seconds 600 $(if $(NETWORKS),--networks "$(NETWORKS)"))
	$(BIN)/python benchmarks/warmup.py --write $(if $(SECONDS),--seconds $(SECONDS)) $(if $(NETWORKS),--networks "$(NETWORKS)") $(if $(STATES),--states $(STATES)) $(if $(ONLY),--only $(ONLY))

# Two models in two threads of a process, each on half of the cores: docs/two-models-tables.md. About 2 minutes.
bench-two-models: $(READY)
	$(BIN)/python benchmarks/two_models.py --write

# On a machine of many cores, without a network: docs/many-cores.md. Ten minutes at most; BUDGET_S=120 seconds,
# PARTS=steps,recording and THREADS=1,2,4,8 choose. By .venv where there is one, else by $(PYTHON), which needs torch and
# numpy; WHEELS=folder installs the wheels in it, for this alone. COMMIT=hash names the commit where no git does. The same
# command once more measures what is missing.
MANY_SITE := build/many-cores-site
MANY_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
bench-many-cores:
	$(if $(WHEELS),$(MANY_PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-deps --upgrade --target $(MANY_SITE) $(wildcard $(WHEELS)/*.whl))
	COMMIT=$(COMMIT) PYTHONPATH=$(CURDIR):$(CURDIR)/$(MANY_SITE):$(PYTHONPATH) $(MANY_PYTHON) benchmarks/many_cores.py $(if $(BUDGET_S),--budget-s $(BUDGET_S)) $(if $(PARTS),--parts $(PARTS)) $(if $(THREADS),--threads $(THREADS)) $(if $(OUT),--out $(OUT))

# Inference in float32 and in bfloat16 by choice, of five networks: docs/types-tables.md. About 13 minutes.
bench-types: $(READY)
	$(BIN)/python benchmarks/number_types.py --write

# Operators of threadcast beside PyTorch's: docs/operator-tables.md. About 1.5 minutes.
bench-operators: $(READY)
	$(BIN)/python benchmarks/operators.py --write

# torch.compile(backend="threadcast") beside eager PyTorch, Inductor and optimised calls: docs/compiled-tables.md. NETWORKS="U-Net;LSTM",
# REUSE=1 measures only what has no record in build/compiled yet. About 30 minutes on 2 idle cores.
bench-compile: $(READY)
	$(BIN)/python benchmarks/compiled.py --write $(if $(NETWORKS),--networks "$(NETWORKS)") $(if $(REUSE),--reuse)

# 40 models of torchvision, timm, transformers, torchaudio and torch_geometric, and 100 graphs of GraphNet, by threadcast,
# eager PyTorch and Inductor: are results right, what runs them, how fast. QUICK=1 takes some seconds a model and measures
# nothing, with COMPILED=1 it looks at torch.compile's backend. FAST=1 takes about a minute a model. MODES=inference,
# MOST=50 graphs, ONLY="bert;resnet" select; SECONDS=number is the longest time of learning. The libraries are in an
# environment of their own. GRAPHNET=path is a clone of GraphNet (MIT); without it, it is cloned into build. Most of its
# graphs, by hashes of their paths, are held out and not read.
ZOO := build/zoo-venv
JUDGE = $(ZOO)/bin/python benchmarks/judge.py
JUDGED = $(if $(QUICK),--quick) $(if $(COMPILED),--compiled) $(if $(ONLY),--only "$(ONLY)") $(if $(REUSE),--reuse) $(if $(FAST),--fast) $(if $(MOST),--most $(MOST)) $(if $(MODES),--modes $(MODES)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ONLY)$(QUICK),,--write)
$(ZOO)/.ready: pyproject.toml
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[all]' transformers==5.23.0 torch_geometric==2.8.1 pillow safetensors
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchvision==0.28.0 timm==1.0.31 torchaudio==2.11.0
	rm -f $(ZOO)/lib/python3*/site-packages/torchaudio/lib/*.so
	touch $@

bench-zoo: $(ZOO)/.ready
	$(JUDGE) zoo $(JUDGED)

bench-graphnet: $(ZOO)/.ready
	test -n "$(GRAPHNET)" -o -d build/graphnet/repository || git clone --depth 1 --no-checkout https://github.com/PaddlePaddle/GraphNet build/graphnet/repository
	GRAPHNET=$(GRAPHNET) $(JUDGE) graphnet $(JUDGED)
