# `make demo` and `make test` set up all that they need in .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE := 1

.PHONY: setup demo test lint bench-sharing bench-policy bench-linear bench-own-layers chaos proto clean

setup: $(VENV)/.ready

# --no-deps: see requirements/cpu.txt.  The native library is built once, for this machine.
$(VENV)/.ready: requirements/cpu.txt requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps -r requirements/cpu.txt -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m mirage_core.native
	@touch $@

demo: setup
	$(BIN)/python -m benchmarks.sharing --demo

test: setup lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy mirage_core node_agent
	$(BIN)/lint-imports

bench-sharing: setup
	$(BIN)/python -m benchmarks.sharing $(if $(QUICK),--quick)

bench-policy: setup
	$(BIN)/python -m benchmarks.policy

bench-linear: setup
	$(BIN)/python -m benchmarks.linear

bench-own-layers: setup
	$(BIN)/python -m benchmarks.own_layers

chaos: setup
	$(BIN)/python -m pytest tests/chaos --rounds=20

# Stubs come from the oldest generator whose output every supported protobuf runtime accepts.
proto:
	$(PYTHON) -m venv build/proto-venv
	build/proto-venv/bin/pip install --quiet 'grpcio-tools==1.71.2'
	rm -rf build/proto && mkdir -p build/proto
	cd proto && ../build/proto-venv/bin/python -m grpc_tools.protoc -I. --python_out=../build/proto --pyi_out=../build/proto mirage/v1/engine.proto
	cp build/proto/mirage/v1/engine_pb2.py build/proto/mirage/v1/engine_pb2.pyi mirage_core/wire/v1/

clean:
	rm -rf build
