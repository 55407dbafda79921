# Commands for developers and for CI. Recipes use only relative paths: the path of the tree may
# contain spaces, which make cannot handle in target names.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Keep bytecode even if the environment disables it: tests start hundreds of processes, and each
# would compile the modules that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Arguments for pytest, e.g. make test ARGS="-k mpa -x"
ARGS ?=
# The suite runs in several processes, one test file at a time. For one process, as for a debugger:
# ARGS="-n 0".
SHARED := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: help build check ci-full coverage dask demo sim lanes batching soak test test-all wheel wheel-check dist deb lint format asan tsan strict stress fuzz mutate plants timing abi abi-gate abi-all abi-container abi-symbols docs site interop tshark lab-verbs lab-abi lab-adts lab-aio lab-dask lab-mpi lab-wan lab-walk lab-test bench bench-check spec fresh clean

ci-full: ## Everything, including the checks that the gate (.ci/run) leaves out; about two hours, as root; RESUME=1 skips steps that have passed on this commit
	@tools/ci-full $(if $(RESUME),--resume) $(ARGS)

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r t d; do printf 'make %-12s %s\n' "$$t" "$$d"; done

build: ## Create .venv with all packages and compile (the other targets do this too)
	@tools/setup

check: ## Check a change of a few files: fast lints, unit tests of the affected layers, some simulated ones; two minutes; BASE=branch
	@tools/check $(BASE)

demo: ## Run two processes on this machine that exchange real data through siwarp; under a minute
	@tools/setup
	@.venv/bin/siwarp demo

test: ## Run the test suite
	@tools/setup --extra test
	@$(PY) -m pytest $(SHARED) $(ARGS)

test-all: ## Run the test suite on every Python 3.10 or newer on this machine
	@tools/test-all $(SHARED) $(ARGS)

wheel: ## Build the wheels of siwarp, siwarp-sim and siwarp-ulp in dist/
	@tools/wheel

wheel-check: ## Build the wheels, and test them in an empty environment outside the tree
	@tools/wheel
	@tools/wheel-check

dist: ## Build the files of a release in dist/release: sdist, wheels for two processors and C libraries, SBOM; ON=x86_64-musl
	@tools/dist/run $(ON)

deb: ## Build Debian packages in dist/debian on a minimal Debian 12, and test them on another; needs root
	@tools/deb

lint: ## Run linters, type checks, the checks of the layers, an aarch64 cross-compile
	@tests/lint/run

format: ## Format C and Python as lint requires
	@tools/setup --no-build --extra lint
	@tests/lint/run --format

timing: ## Run the tests that depend on real time, alone; a failed test is repeated once on a quiet machine
	@tools/setup --extra test
	@PYTHONPATH=tests $(PY) -m timing.run $(ARGS)

asan: ## Run the suite with AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/sanitize asan $(SHARED) $(ARGS)

tsan: ## Run the suite with ThreadSanitizer
	@tools/sanitize tsan $(SHARED) $(ARGS)

sim: ## Run the tests of simulated processes: no sockets, virtual time; tests/sim/rd with the layers' own functions
	@tools/setup --extra test
	@SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim $(ARGS)
	@SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim/rd $(ARGS)

lanes: ## Run the tests of devices and connections and 200 random programs on four lanes; make batching does so with the simulated and hostile tests
	@tools/setup --extra test
	@SIWARP_LANES=4 $(PY) -m pytest $(SHARED) tests/unit/cm tests/unit/connect tests/unit/device tests/unit/qp $(ARGS)
	@SIWARP_LANES=4 .venv/bin/siwarp sim --seeds 200 --once

batching: ## Run the simulated and hostile tests, tests with models and 70 random programs: posts never wait for a batch, on one lane; always, on four
	@tools/setup --extra test
	@set -e; for run in "never 1" "always 4"; do \
		read -r SIWARP_BATCHING SIWARP_LANES <<<"$$run"; export SIWARP_BATCHING SIWARP_LANES; \
		echo "SIWARP_BATCHING=$$SIWARP_BATCHING SIWARP_LANES=$$SIWARP_LANES"; \
		$(PY) -m pytest $(SHARED) tests/hostile tests/stress tests/unit/qp/test_qp_model.py tests/unit/device/test_device_mw_model.py $(ARGS); \
		SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim $(ARGS); \
		SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim/rd $(ARGS); \
		.venv/bin/siwarp sim --seeds 70 --once; \
	done

soak: ## Run random verbs programs in simulated worlds for MINUTES=60, from seed SEED on (default: the current time)
	@tools/setup
	@.venv/bin/siwarp sim --minutes $(or $(MINUTES),60) --seed $(or $(SEED),$(shell date +%s))

strict: ## Run the suite with no placement before the CRC check
	@tools/setup --extra test
	@SIWARP_CRC_FIRST=1 $(PY) -m pytest $(SHARED) $(ARGS)
	@SIWARP_CRC_FIRST=1 SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim $(ARGS)
	@SIWARP_CRC_FIRST=1 SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim/rd $(ARGS)

stress: ## Send a million reliable datagrams through a lossy network, and test an independent peer; SEED=n
	@tools/setup --extra test
	@SIWARP_STRESS_MESSAGES=$(or $(MESSAGES),1000000) SIWARP_STRESS_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -q -m "timing or not timing" tests/stress tests/peer $(ARGS)
	@set -e; for batching in never always; do \
		SIWARP_BATCHING=$$batching SIWARP_STRESS_MESSAGES=$(or $(MESSAGES),1000000) SIWARP_STRESS_SEED=$(or $(SEED),1) \
			$(PY) -m pytest -q tests/stress $(ARGS); \
	done
	@SIWARP_SIM=1 SIWARP_STRESS_MESSAGES=$(or $(MESSAGES),1000000) SIWARP_STRESS_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -q tests/sim/peer $(ARGS)

fuzz: ## Fuzz each receive parser for 30 seconds; RUNS=n for n inputs, the same each time
	@tools/setup --extra test
	@tests/fuzz/run $(if $(RUNS),--runs $(RUNS))

mutate: ## Test the tests: run them against C code with one mutant at a time; N=number SEED=selection
	@tools/setup --extra test
	@PYTHONPATH=tests $(PY) -m mutants.run $(if $(N),-n $(N)) --seed $(or $(SEED),1) $(ARGS)

plants: ## Plant faults in the C code, one at a time, and count the seeds of siwarp sim that detect each; at most two hours
	@tools/setup --extra test
	@PYTHONPATH=tests $(PY) -m mutants.plants $(ARGS)

abi: ## Run libibverbs programs on siwarp: ibv_*, perftest, UCX, MPIs, pyverbs; the short table
	@tests/abi/run $(ARGS)

abi-gate: ## Run about 40 programs from Debian's packages on siwarp: the part of make abi that the gate runs
	@tests/abi/run --gate

abi-all: ## Run the complete table; RESUME=1 skips programs that have passed with this build
	@tests/abi/run --all $(if $(RESUME),--resume) $(ARGS)

abi-container: ## Test docs/containers.md with podman on a minimal Debian: its image, its commands, its Pod
	@tests/abi/container

docs: ## Run the job of docs/github.md in a minimal Debian, as a user with sudo; needs root
	@tests/docs/run

site: ## Build the pages in build/site/html, check each internal link, and build the man pages
	@tools/pages/build

abi-symbols: ## Compare the symbols exported by libibverbs.so.1 with the committed list
	@tools/setup
	@$(PY) tests/abi/symbols.py

interop: ## Test against Linux's own iWARP stack in a small VM
	@tools/setup --extra test
	@tests/interop/run

tshark: ## Test that stock tshark reads siwarp's captures
	@tools/setup --extra test
	@tests/tshark/run $(ARGS)

bench: ## Print latency and bandwidth beside the raw sockets; fails if a figure misses its limit
	@tools/setup
	@$(PY) -m siwarp.cli bench table $(ARGS)

bench-check: ## Compare the ratios to the raw socket with the committed ones; fails after a loss, or if a result is partial or unreliable; 2 minutes
	@tools/setup
	@$(PY) -m lab.check $(ARGS)

lab-verbs: ## Measure figures of queue pairs that make bench leaves out, with limits, and both personas of RC; ARGS="--part promises"
	@tools/setup
	@$(PY) -m lab.verbs $(ARGS)

lab-abi: ## Compare perftest and UCX on siwarp with raw sockets, and measure the cost of libibverbs.so.1; ARGS="--part translation"
	@tools/setup
	@$(PY) -m lab.abi $(ARGS)

lab-adts: ## Measure file transfers over RD, RC and TCP: promised figures, and those of the paper; ARGS="--part all", as root
	@tools/setup
	@$(PY) -m lab.papers.adts $(ARGS)

lab-aio: ## Compare siwarp.aio with asyncio's own streams
	@tools/setup
	@$(PY) -m lab.aio $(ARGS)

lab-mpi: ## Compare MPICH on siwarp with the same MPICH over TCP, and a channel over UD, RC and both; ARGS="--part wire"
	@tools/setup
	@$(PY) -m lab.mpi $(ARGS)

lab-wan: ## Compare RD with the kernel's TCP on a lossy link, or (ARGS=--matrix) at bottlenecks of many rates and queues
	@tools/setup
	@$(PY) -m lab.wan $(ARGS)

lab-walk: ## Count the calls and locks of one message by layer, for RC, UD and RD; ARGS="--calls --types rd"
	@tools/setup
	@$(PY) -m lab.walk $(ARGS)

lab-dask: ## Compare dask.distributed over siwarp with its own TCP comm; ARGS="--part debian" runs its comm tests
	@tools/setup --extra dask
	@$(PY) -m lab.dask $(ARGS)

lab-test: ## Run the tests of lab/; as root, a few minutes
	@tools/setup --extra test --extra dask
	@$(PY) -m pytest -n 0 tests/laboratory $(ARGS)

dask: ## Run the tests of siwarp.ulp.dask with the newest dask.distributed
	@tools/setup --extra test --extra dask
	@$(PY) -m pytest -n 0 tests/dask_comm $(ARGS)

coverage: ## Count the branches of the C code that the suite takes, by layer; fails below 90%
	@tools/coverage $(SHARED) $(ARGS)

spec: ## Count the RFC clauses that the last make test verified; fails if a MUST is open
	@tools/setup --extra test
	@$(PY) spec/check.py

fresh: ## Run the two commands of README.md in a minimal Debian, as a user and as root; WHO=user
	@tools/fresh $(WHO)

clean: ## Remove all files that the other targets created
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
