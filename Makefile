# Every target creates the environment if it is missing. `make help` lists the targets.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two marker files: the environment has what the pipeline and the service need, and also what tests and checks need.
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
# With PROFILE and DATA, params.yaml is changed first; otherwise it is used unchanged.
PROFILE ?=
DATA ?=
PORT ?= 5000
MODEL ?=
TEACHER ?=
SCALE ?= 1
SET ?=
POOL ?=
SIZE ?= 0.5b

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | column -t -s '|'

$(READY): EXTRAS := embedders,server
$(READY): GB := 2.5
$(DEV): EXTRAS := dev
$(DEV): GB := 3.3

# By uv, which takes torch's build for this machine, if it is here and succeeds; else by pip.
$(READY) $(DEV): pyproject.toml requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "convrec needs Python 3.11 or newer; name it with make PYTHON=...")'
	@echo "installing into $(VENV): $(GB) GB, about 4 minutes without further output (10 on a busy machine)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@{ command -v uv > /dev/null && UV_TORCH_BACKEND=$${UV_TORCH_BACKEND:-auto} \
		uv pip install --quiet --python $(BIN)/python -c requirements/constraints.txt -e '.[$(EXTRAS)]'; } || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[$(EXTRAS)]'
	@touch $@ $(READY)
	@echo "installed; make the command convrec available: source $(BIN)/activate"

install: $(READY)  ## create the virtual environment with the locked versions; without what tests need

try: $(READY)  ## serve the trained demo model, which comes with the package, as a web page
	@convrec app --model demo

demo-model: $(READY)  ## make that model from the last demo (docs/make_demo_model.py)
	@python docs/make_demo_model.py

demo: $(READY)  ## run the whole pipeline; PROFILE=name, DATA=folder and SET="key=value ..." choose another profile and its data
	@if [ -n "$(DATA)" ] && [ -z "$(PROFILE)" ]; then echo "DATA=$(DATA): name its PROFILE, too" >&2; exit 2; fi
	@if [ -n "$(PROFILE)" ]; then convrec profile $(PROFILE) $(if $(DATA),--set data.path=$(DATA)) $(SET:%=--set %); fi
	@python -m flows.train

reproduce: $(READY)  ## the published table: MODEL=qwen2.5-0.5b DATA=folder TEACHER=name SCALE=0.05 SET="key=value ..." (docs/reproduce.md)
	@test -n "$(MODEL)" || { echo "MODEL is empty: give MODEL=qwen2.5-0.5b, for instance" >&2; exit 2; }
	@convrec reproduce $(MODEL) --scale $(SCALE) $(if $(DATA),--data $(DATA)) $(if $(TEACHER),--teacher $(TEACHER)) $(SET:%=--set %)
	@dvc repro data
	@convrec preflight
	@python -m flows.train
	@convrec results --published

deploy: $(READY)  ## register prefect.yaml's deployments with the server of PREFECT_API_URL; POOL=cpu without a GPU
	@test -n "$$PREFECT_API_URL" || { echo "PREFECT_API_URL is not set; set it to the server's address (docs/stack.md)" >&2; exit 2; }
	@for pool in cpu gpu; do prefect work-pool create $$pool --type process > /dev/null 2>&1 || true; done  # they may exist
	@prefect gcl create gpu --limit 1 > /dev/null 2>&1 || true
	@prefect --no-prompt automation delete "convrec: flow runs without heartbeat have crashed" > /dev/null 2>&1 || true
	@prefect automation create --from-file flows/lost_runs.yaml
	@PREFECT_LOGGING_LEVEL=ERROR CONVREC_TRAINING_POOL=$(or $(POOL),gpu) prefect --no-prompt deploy --all
	@echo "Your own workers need CONVREC_REPOSITORY and CONVREC_WORKSPACES (docs/operations.md)."

PYTEST := python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15

test: $(DEV)  ## run the fast tests: about 4 minutes on two cores
	$(PYTEST) -m "not (slow or nightly or gpu or loop)"

test-tools: $(DEV)  ## install what the other tests need: Chromium, PostgreSQL, vLLM
	python -m tests.tools

test-ci: test-tools  ## run the tests of `.ci/run`: also the slow ones, and one of each nightly kind
	$(PYTEST) -m "not (nightly or gpu or loop)"

test-nightly: test-tools  ## run what seldom breaks: vLLM, DeepSpeed, native servers, pages in a browser, schedulers' files
	$(PYTEST) -m "nightly and not gpu"

test-loop: $(DEV)  ## run the story of docs/loop.md: about 50 minutes on two cores
	python -m pytest -m loop tests/test_loop.py

# On one GPU; without $(READY), so that nothing is installed. `--confcutdir` leaves out tests/conftest.py, which needs the extra `dev`.
ON_ONE_GPU := CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES:-0} HF_HUB_OFFLINE=1

test-gpu:  ## run the tests of a GPU: at most 10 minutes on one, without network; prints figures and the reasons of skips
	$(ON_ONE_GPU) MLFLOW_DISABLE_TELEMETRY=true TOKENIZERS_PARALLELISM=false \
		python -m pytest tests/gpu --confcutdir tests/gpu --durations 15 -o tmp_path_retention_policy=failed

bench-gpu:  ## measure speed and memory on a GPU; SIZE=tiny (also without a GPU), 0.5b (default) or 1b
	$(ON_ONE_GPU) python -m benchmarks.gpu --size $(SIZE)

check: $(DEV)  ## lint, formatting, layers, types
	ruff check .
	ruff format --check .
	lint-imports
	mypy

# pip-audit has its own environment, so that its packages stay out of the project's.
AUDIT := .cache/audit
ACCEPTED := requirements/accepted-vulnerabilities.txt

audit:  ## check the locked versions for known vulnerabilities; needs access to PyPI
	test -x $(AUDIT)/bin/pip-audit || ($(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/pip install --quiet 'pip-audit==2.10.1')
	$(AUDIT)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off --requirement requirements/constraints.txt \
		$$(sed -n 's/^\([A-Z][A-Za-z0-9-]*\) .*/--ignore-vuln \1/p' $(ACCEPTED))

docs-figures: $(DEV)  ## draw README.md's figures from the last demo, and those of the docs; write docs/walkthrough.md
	@python docs/draw_figures.py && python docs/walkthrough.py && PYTHONPATH=. python docs/draw_monitoring.py

ui: $(READY)  ## open the tracking UI of the local store, on port PORT (5000)
	@case "$${MLFLOW_TRACKING_URI:-}" in http*) echo "The tracking server's own UI: $$MLFLOW_TRACKING_URI"; exit 1;; esac
	@page=$$(python -c 'from convrec.project.config.params import load_params; from convrec.registry.tracking import runs_page; \
		print(runs_page(max(load_params().common.cutoffs)))') || exit; \
	(until sleep 0.5; kill -0 $$$$ || exit; python -c 'from urllib.request import urlopen; urlopen("http://127.0.0.1:$(PORT)/health")' 2> /dev/null; do :; done; \
		echo "Runs: http://127.0.0.1:$(PORT)/#/$$page") & \
	store=$${MLFLOW_TRACKING_URI:-sqlite:///$(CURDIR)/mlruns/mlflow.db}; \
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false PYTHONWARNINGS=ignore exec mlflow ui --backend-store-uri "$$store" --registry-store-uri "$$store" --host 127.0.0.1 --port $(PORT) \
		--workers 1 --uvicorn-opts "--log-level warning"

clean:  ## delete the outputs of runs (models, records, caches); keep parameters, environment and teacher answers
	rm -rf data/processed data/demonstrations models predictions reports comparison evaluations checkpoints mlruns runs .dvc/cache .dvc/tmp .prefect

.PHONY: help install try demo-model demo reproduce deploy test test-tools test-ci test-nightly test-loop test-gpu bench-gpu check audit docs-figures ui clean
