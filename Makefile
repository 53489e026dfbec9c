# `make demo` and `make test` set up all they need, from an empty machine with Python 3.11 and a C++ compiler.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
# Without this, `import torch` loads torch_npu, which needs CANN. The virtual NPU turns it on for itself.
export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
# The CPU tests run in two processes; those on the virtual NPU in one, since it lives in the process that starts it.
CPU_TESTS := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 tests --ignore=tests/virtual_npu
NPU := $(PY) -W ignore -m thunder_npu.virtual_npu

.PHONY: setup demo test quick mutants thunder-suite lint bench clean
setup: $(VENV)/ready

$(VENV)/ready: requirements/dev.txt requirements/npu.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --no-deps -r requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(NPU) examples/demo.py --device npu

test: lint
	$(CPU_TESTS)
	$(NPU) --devices 2 -m pytest tests/virtual_npu
	THUNDER_NPU_TEST_DEVICE=npu $(NPU) -m pytest tests/bug_reports

quick: lint
	$(CPU_TESTS) -m "not slow"

# Thunder's own tests of its operators, with our executors in front: hours on two cores (run.py's docstring: what to install)
thunder-suite: setup
	$(PY) tests/thunder_suite/run.py test_ops test_grad

# Small faults put into the compiler one by one: do the quick tests notice? Half an hour.
mutants: setup
	$(PY) -m tests.mutation.run --jobs 2

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: setup
	$(PY) benchmarks/compile_overhead.py
	$(PY) benchmarks/host_overhead.py
	$(PY) benchmarks/ascend_compile.py
	$(NPU) benchmarks/virtual_npu.py

clean:
	rm -rf $(VENV)
