# Two commands do all their own set-up: `make demo` and `make test`. See `make help`.
.PHONY: help setup engine demo demo-stop test lint format bench-cli bench-doctor gpu-kit gpu-test bench-store rehearse compile-kernels test-kernels bench-kernels clean

SETUP = sh tools/python.sh tools/setup.py
VENV = .venv/bin
# Further arguments for pytest, such as: make test ARGS="-m 'not engine' -k shard"
ARGS =

help:
	@echo "make demo       serve the demo model with a real SGLang on this machine, and ask it"
	@echo "make demo-stop  end that"
	@echo "make test       all tests (as root also the simulated cluster)"
	@echo "make lint       ruff, formatting, mypy"
	@echo "make format     let ruff mend what it can"
	@echo "make bench-cli  how fast the command line starts, and a launch on 4 nodes against 1 (root)"
	@echo "make bench-doctor doctor over 4 simulated nodes and over 16, in one run (root)"
	@echo "make gpu-kit    packages for a machine with a Hopper GPU and no network (tests/gpu)"
	@echo "make gpu-test   on such a machine: rows in CUDA graphs, prefetching, real servers"
	@echo "make compile-kernels  every kernel compiled for a Spark without one: registers, spills, MMA"
	@echo "make test-kernels     the kernels' tests, on a GPU (sm_90, sm_12x) where there is one"
	@echo "make bench-kernels    on such a GPU: kernels against bandwidth and stock alternatives"
	@echo "make bench-pack packing of Engram rows against a direct copy of the same bytes"
	@echo "make bench-store rows from NVMe against fio and a pool of threads (fio, 4 GiB of disk)"
	@echo "make rehearse   real-size tables packed, read and served by an engine (root, 26 GiB)"
	@echo "make setup      the environment in .venv alone"
	@echo "make engine     .venv and a real SGLang for the CPU"
	@echo "make clean      remove .venv and everything that was downloaded or built"

setup:
	@$(SETUP) dev

engine:
	@$(SETUP) engine

demo:
	@$(SETUP) engine weights
	@$(VENV)/python tools/demo.py start

demo-stop:
	@$(VENV)/python tools/demo.py stop

test:
	@$(SETUP) engine weights tokenizer testbed cross
	@$(VENV)/python -m pytest $(ARGS)

lint:
	@$(SETUP) dev
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/mypy --strict native/sparkserve_native
	$(VENV)/mypy --strict kernels/sparkserve_kernels

format:
	@$(SETUP) dev
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

bench-cli:
	@$(SETUP) dev
	@$(VENV)/python tools/bench_cli.py
	@$(VENV)/python tools/bench_fanout.py

bench-doctor:
	@$(SETUP) testbed
	@$(VENV)/python tools/bench_doctor.py $(ARGS)

gpu-kit:
	@$(SETUP) dev
	@$(VENV)/python -m tests.gpu.build_kit

gpu-test:
	@python3 -m tests.gpu.run --out .gpu/out

# PYTHON picks another one, such as the GPU machine's own: make bench-kernels PYTHON=python3
PYTHON = $(VENV)/python
KERNELS = PYTHONPATH=kernels $(PYTHON)

compile-kernels:
	@$(SETUP) engine
	@$(KERNELS) -m sparkserve_kernels.compile --arch sm_121a $(ARGS)

test-kernels:
	@$(KERNELS) -m pytest -q tests/kernels --confcutdir tests/kernels $(ARGS)

bench-kernels:
	@$(KERNELS) -m sparkserve_kernels.bench $(ARGS)

bench-pack:
	@$(SETUP) engine
	@$(VENV)/python tools/bench_pack.py $(ARGS)

bench-store:
	@$(SETUP) dev
	@$(VENV)/python -m sparkserve_native.bench $(ARGS)

rehearse:
	@$(SETUP) engine testbed
	@$(VENV)/python tools/rehearse_engram.py
	@$(VENV)/python tools/rehearse_serving.py

clean:
	rm -rf .venv .cache .demo .gpu native/build
