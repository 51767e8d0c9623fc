# Everything happens in .venv (.venv-export for what needs torch, .venv-extras, .venv-lerobot for LeRobot); each is made when missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXPORT_BIN := .venv-export/bin
TORCH ?= torch==2.13.0
EXTRAS_BIN := .venv-extras/bin
LEROBOT_BIN := .venv-lerobot/bin
LEROBOT_PYTHON ?= python3.12
LEROBOT ?= lerobot[smolvla,pi,diffusion]==0.6.1
WHEEL_TESTS := $(addprefix tests/,edge_runtime/realtime edge_runtime/wire/test_codec.py edge_runtime/planning \
  edge_runtime/link edge_runtime/robots edge_runtime/virtual_arm/test_scene.py policy_server/engines/test_flow.py \
  policy_server/engines/test_tokens.py e2e/test_main_job.py)
SOURCES := $(wildcard cython_ext/*.px*) pyproject.toml

.PHONY: demo test check bench soak fuzz protos docs test-export test-extras test-lerobot test-wheel wheel build clean

demo: build  ## the main job: a virtual arm, sequential against asynchronous
	$(BIN)/edge-runtime demo $(ARGS)

test: build  ## the core suite; needs no torch
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder $(ARGS)

check: build  ## lint, types, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint cython_ext scripts/rig/race.pyx  # it looks for pycodestyle there
	$(BIN)/vermin --target=3.10- --violations --no-tips --quiet edge_runtime policy_server scripts tests
	$(BIN)/python -m scripts.benches.house
	$(MAKE) --no-print-directory protos
	git diff --exit-code -- edge_runtime/wire

bench: build  ## every figure in short form; ARGS="--only=[ring,loop]" without limits, --full for the long form
	$(BIN)/python -m scripts.bench $(ARGS)

soak: build  ## sixty faults on a running virtual arm, six minutes; ARGS=--minutes=2 for a shorter one
	$(BIN)/python -m scripts.soak $(ARGS)

fuzz: build  ## every door through which a stranger's bytes come in, ten minutes on two cores
	$(BIN)/python -m scripts.fuzz $(ARGS)

protos: build  ## protos/policy.proto -> edge_runtime/wire
	$(BIN)/python -m grpc_tools.protoc -Iedge_runtime/wire=protos --python_out=. --pyi_out=. edge_runtime/wire/policy.proto

test-export: .venv-export/ready  ## what needs torch, in an environment of its own
	$(EXPORT_BIN)/python -m pytest -m export tests/policy_server/export $(ARGS)

docs: .venv-extras/ready  ## the pages as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(EXTRAS_BIN)/python -m mkdocs build --strict --quiet

test-extras: .venv-extras/ready  ## the smaller extras, against the other sides as they are published
	$(EXTRAS_BIN)/python -m pytest -m extras tests/extras $(ARGS)

test-lerobot: .venv-lerobot/ready  ## live against LeRobot 0.6.1: the engine that runs it, and the export; gigabytes
	$(LEROBOT_BIN)/python -m pytest -m lerobot tests/edge_runtime/program/test_lerobot_flags.py tests/policy_server/engines/test_lerobot.py tests/policy_server/export/test_lerobot.py $(ARGS)

wheel: build  ## dist/*.whl for publication: without the policies of the demo, which are 28 MB
	EDGE_RUNTIME_POLICIES=none $(BIN)/python -m build --wheel --outdir dist .

test-wheel:  ## the wheel that `pip install .` makes, and the tests of what is in it; PYTHON=python3.12 for another Python
	rm -rf build/$(PYTHON) && mkdir -p build/$(PYTHON)
	$(PYTHON) -m venv build/$(PYTHON)/venv
	build/$(PYTHON)/venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir build/$(PYTHON) .
	build/$(PYTHON)/venv/bin/python -m pip install --quiet "$$(ls build/$(PYTHON)/*.whl)[server,demo,top]" pytest pytest-timeout hypothesis feetech-servo-sdk onnx Cython
	$(call build_race,build/$(PYTHON)/venv/bin/python)
	cp -r tests scripts pyproject.toml build/$(PYTHON)/
	cd build/$(PYTHON) && venv/bin/python -m pytest -q $(WHEEL_TESTS)

build: $(VENV)/ready scripts/rig/race.c

# for the tests: the ring beside a reader that races it, in no wheel; $(1) is the Python that will import it
define build_race
	$(1) -m cython -3 scripts/rig/race.pyx
	$(CC) -shared -fPIC -O1 -ffp-contract=off -I$$($(1) -c "import sysconfig; print(sysconfig.get_path('include'))") \
	  scripts/rig/race.c -o scripts/rig/race$$($(1) -c "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))") -lm
endef

scripts/rig/race.c: scripts/rig/race.pyx $(SOURCES) $(VENV)/ready
	$(call build_race,$(BIN)/python)

# setuptools calls its own table for extensions experimental, and says so at every build
$(VENV)/ready: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --editable '.[server,demo,dev]'
	touch $@

.venv-export/ready: $(SOURCES)
	test -x $(EXPORT_BIN)/python || $(PYTHON) -m venv .venv-export
	$(EXPORT_BIN)/python -m pip install --quiet --upgrade pip
	$(EXPORT_BIN)/python -m pip install --quiet '$(TORCH)'
	PYTHONWARNINGS=ignore $(EXPORT_BIN)/python -m pip install --quiet --editable '.[export,server,dev]'
	touch $@

# openpi-client asks for numpy 1 and for dm-tree, of which its WebSocket client uses neither.
.venv-extras/ready: $(SOURCES)
	test -x $(EXTRAS_BIN)/python || $(PYTHON) -m venv .venv-extras
	$(EXTRAS_BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(EXTRAS_BIN)/python -m pip install --quiet --editable '.[server,demo,dev,openpi,docs]'
	$(EXTRAS_BIN)/python -m pip install --quiet --no-deps openpi-client==0.1.2
	$(EXTRAS_BIN)/python -m pip install --quiet typing_extensions
	touch $@

# PyPI's torch for x86-64 is a CUDA build: it computes on the CPU here, and is most of the gigabytes.
.venv-lerobot/ready: $(SOURCES)
	test -x $(LEROBOT_BIN)/python || $(LEROBOT_PYTHON) -m venv .venv-lerobot
	$(LEROBOT_BIN)/python -m pip install --quiet --upgrade pip
	$(LEROBOT_BIN)/python -m pip install --quiet '$(LEROBOT)'
	PYTHONWARNINGS=ignore $(LEROBOT_BIN)/python -m pip install --quiet --editable '.[server,lerobot,dev]'
	touch $@

clean:
	rm -rf build dist *.egg-info $(VENV) .venv-export .venv-extras .venv-lerobot edge_runtime/*.so scripts/rig/race*.so scripts/rig/race.c
