# `make demo` and `make test` set up all that they need in .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE := 1

.PHONY: bench-sim figures validation setup demo test lint bench-sharing bench-policy bench-linear bench-own-layers bench-sizing chaos proto proto-check proto-lint clean

setup: $(VENV)/.ready

# --no-deps: see requirements/cpu.txt.  Bytecode is compiled on all cores, which pip does on one;
# where nobody may write it later, engines would start without it.  The native library is built
# once, for this machine.
$(VENV)/.ready: requirements/cpu.txt requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --no-compile -r requirements/cpu.txt -r requirements/dev.txt
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true  # templates are no Python
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m mirage_core.native
	@touch $@

demo: setup
	$(BIN)/python -m benchmarks.sharing --demo

test: setup lint
	$(BIN)/python -m pytest -m "not engines" --numprocesses auto --dist loadfile
	$(BIN)/python -m pytest -m engines

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy mirage_core node_agent cluster
	$(BIN)/lint-imports

bench-sharing: setup
	$(BIN)/python -m benchmarks.sharing $(if $(QUICK),--quick)

bench-policy: setup
	$(BIN)/python -m benchmarks.policy

bench-linear: setup
	$(BIN)/python -m benchmarks.linear

bench-own-layers: setup
	$(BIN)/python -m benchmarks.own_layers

# Traces: MIRAGE_AZURE_CODE and MIRAGE_AZURE_CONV; seeded ones without.  Claims and validation are
# those of the last `make figures` and `make validation`.
bench-sim: setup
	$(BIN)/python -m benchmarks.sizing
	$(BIN)/python -m benchmarks.simulator

# The paper's evaluation by simulation: PNGs, claims.json (see README for how long it takes).
figures: setup
	$(BIN)/python -m benchmarks.figures

# Real runs, each repeated five times, at two rates, then with other lengths and pools; and the
# simulator, calibrated on one of them, against all others (half an hour).
REPEATS := build/bench/repeats
validation: setup
	rm -rf $(REPEATS)
	$(BIN)/python -m benchmarks.sharing --demo --loads 1,2 --repeats 5 --out $(REPEATS)/rates/sharing.json
	$(BIN)/python -m benchmarks.sharing --demo --loads 1.5 --splits 0.5 --length-scale 0.35 --repeats 5 --out $(REPEATS)/lengths/sharing.json
	$(BIN)/python -m benchmarks.validation --runs $(REPEATS)/rates/runs --runs $(REPEATS)/lengths/runs

bench-sizing: setup
	$(BIN)/python -m benchmarks.sizing

bench-control: setup
	$(BIN)/python -m benchmarks.control $(if $(QUICK),--quick)

# A client in another language drives the admin API through reflection (needs node and npm).
real-client: setup
	cd tests/real_client && npm ci --silent --no-audit --no-fund --ignore-scripts
	$(BIN)/python -m tests.real_client

chaos: setup
	$(BIN)/python -m pytest tests/chaos --rounds=20

# Stubs come from the oldest generator whose output every supported protobuf runtime accepts.
# They live in mirage_core/wire/v1, so their imports of each other are rewritten.
PROTOS := mirage/v1/engine.proto mirage/v1/common.proto mirage/v1/agent.proto mirage/v1/admin.proto
STUBS := mirage_core/wire/v1

build/proto-venv/.ready:
	$(PYTHON) -m venv build/proto-venv
	build/proto-venv/bin/pip install --quiet 'grpcio-tools==1.71.2'
	@touch $@

build/proto/SOURCES.sha256: build/proto-venv/.ready $(addprefix proto/,$(PROTOS))
	rm -rf build/proto && mkdir -p build/proto
	cd proto && ../build/proto-venv/bin/python -m grpc_tools.protoc -I. --python_out=../build/proto \
		--pyi_out=../build/proto --grpc_python_out=../build/proto $(PROTOS)
	rm build/proto/mirage/v1/engine_pb2_grpc.py build/proto/mirage/v1/common_pb2_grpc.py
	sed -i 's/^from mirage\.v1 import/from mirage_core.wire.v1 import/' build/proto/mirage/v1/*
	mv build/proto/mirage/v1/* build/proto/ && rm -r build/proto/mirage
	cd proto && sha256sum $(PROTOS) > ../build/proto/SOURCES.sha256

proto: build/proto/SOURCES.sha256
	cp build/proto/* $(STUBS)/

# Fails when the stubs are not those of the sources.
proto-check: build/proto/SOURCES.sha256
	diff -r --exclude=__init__.py --exclude=__pycache__ build/proto $(STUBS)

# Style of the sources, and whether what they changed since BASE breaks older peers (needs npm).
BASE ?= HEAD
proto-lint:
	cd proto && npx --yes @bufbuild/buf lint && npx --yes @bufbuild/buf format --diff --exit-code
	rm -rf build/proto-base && mkdir -p build/proto-base
	git archive $(BASE) proto | tar -x -C build/proto-base
	cd proto && npx --yes @bufbuild/buf breaking --against ../build/proto-base/proto

clean:
	rm -rf build
