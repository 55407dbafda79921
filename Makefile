# The same commands for people and for CI. Recipes use relative paths only: the tree may lie
# under a path with spaces, which make itself cannot handle in target names.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Bytecode is kept, also where the environment says otherwise: tests start hundreds of processes,
# and each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
# Arguments for pytest, e.g. make test ARGS="-k mpa -x"
ARGS ?=
# Processes share the suite, a file of tests at a time. One process, as a debugger wants it: ARGS="-n 0".
SHARED := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: help build ci-full coverage demo sim soak test test-all wheel wheel-check dist lint format asan tsan strict stress fuzz mutate plants timing abi abi-gate abi-all abi-container abi-symbols docs site interop tshark lab-mpi lab-wan lab-test bench bench-check spec fresh clean

ci-full: ## Everything: what the gate (.ci/run) leaves out, too; some two hours, as root; RESUME=1 leaves out what has passed on this commit
	@tools/ci-full $(if $(RESUME),--resume) $(ARGS)

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r t d; do printf 'make %-12s %s\n' "$$t" "$$d"; done

build: ## Make .venv with everything in it and compile (the other targets do this too)
	@tools/setup

demo: ## Two processes on this machine move real data through siwarp; under a minute
	@tools/setup
	@.venv/bin/siwarp demo

test: ## Run the test suite
	@tools/setup --extra test
	@$(PY) -m pytest $(SHARED) $(ARGS)

test-all: ## Run the test suite on every Python 3.10 or newer that this machine has
	@tools/test-all $(SHARED) $(ARGS)

wheel: ## Make the abi3 wheel in dist/
	@tools/wheel

wheel-check: ## Make the wheel, and try it in an empty environment outside the tree
	@tools/wheel
	@tools/wheel-check

dist: ## What a release uploads, in dist/release: sdist, wheels for two processors and C libraries, SBOM; ON=x86_64-musl
	@tools/dist/run $(ON)

lint: ## Linters, type checks, the rules of the layers, an aarch64 cross-compile
	@tests/lint/run

format: ## Write C and Python the way that lint wants them
	@tools/setup --no-build --extra lint
	@tests/lint/run --format

timing: ## Run the tests that race the clock, alone; one that fails is tried once more on a quiet machine
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

soak: ## Random programs of verbs in simulated worlds for MINUTES=60, from SEED on; default: the time
	@tools/setup
	@.venv/bin/siwarp sim --minutes $(or $(MINUTES),60) --seed $(or $(SEED),$(shell date +%s))

strict: ## Run the suite with nothing placed before its CRC is known
	@tools/setup --extra test
	@SIWARP_STRICT=1 $(PY) -m pytest $(SHARED) $(ARGS)
	@SIWARP_STRICT=1 SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim $(ARGS)
	@SIWARP_STRICT=1 SIWARP_SIM=1 $(PY) -m pytest $(SHARED) tests/sim/rd $(ARGS)

stress: ## A million reliable datagrams through a bad network, and an independent peer; SEED=n
	@tools/setup --extra test
	@SIWARP_STRESS_MESSAGES=$(or $(MESSAGES),1000000) SIWARP_STRESS_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -q -m "timing or not timing" tests/stress tests/peer tests/company $(ARGS)
	@SIWARP_SIM=1 SIWARP_STRESS_MESSAGES=$(or $(MESSAGES),1000000) SIWARP_STRESS_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -q tests/sim/peer $(ARGS)

fuzz: ## Fuzz each receive parser for 30 seconds; RUNS=n for so many inputs, the same each time
	@tools/setup --extra test
	@tests/fuzz/run $(if $(RUNS),--runs $(RUNS))

mutate: ## Break the C code with one mutant at a time: do the tests notice? N=how many SEED=which
	@tools/setup --extra test
	@PYTHONPATH=tests $(PY) -m mutants.run $(if $(N),-n $(N)) --seed $(or $(SEED),1) $(ARGS)

plants: ## Plant faults in the C code one at a time: how many seeds of siwarp sim find each? two hours at most
	@tools/setup --extra test
	@PYTHONPATH=tests $(PY) -m mutants.plants $(ARGS)

abi: ## Run programs of libibverbs on siwarp: ibv_*, perftest, UCX, MPIs, pyverbs; the short table
	@tests/abi/run $(ARGS)

abi-gate: ## Some 40 programs from Debian's packages on siwarp: what the gate runs of make abi
	@tests/abi/run --gate

abi-all: ## The whole table; RESUME=1 leaves out what passed with this very build
	@tests/abi/run --all $(if $(RESUME),--resume) $(ARGS)

abi-container: ## docs/containers.md, with podman on a minimal Debian: its image, its lines, its Pod
	@tests/abi/container

docs: ## The job of docs/github.md in a minimal Debian, as a user with sudo; takes root
	@tests/docs/run

site: ## The pages in build/site/html, each link inside of them checked, and the man pages
	@tools/pages/build

abi-symbols: ## Compare what libibverbs.so.1 exports with the committed list
	@tools/setup
	@$(PY) tests/abi/symbols.py

interop: ## Talk to Linux's own iWARP stack in a small VM
	@tools/setup --extra test
	@tests/interop/run

tshark: ## Have stock tshark read captures of ours
	@tools/setup --extra test
	@tests/tshark/run $(ARGS)

bench: ## Print latency and bandwidth beside the raw sockets; fails on a missed figure
	@tools/setup
	@$(PY) -m siwarp.bench

bench-check: ## Compare the ratios to the raw socket with the committed ones; fails on a real loss; quiet machine, 6 minutes
	@tools/setup
	@.venv/bin/siwarp bench check tests/bench/ratios.json $(ARGS)

lab-mpi: ## MPICH on siwarp beside the same MPICH over TCP, and a channel over UD, RC and both; ARGS="--part wire"
	@tools/setup
	@$(PY) -m lab.mpi $(ARGS)

lab-wan: ## RD beside the kernel's TCP on a line with faults, or (ARGS=--matrix) at bottlenecks of many rates and queues
	@tools/setup
	@$(PY) -m lab.wan $(ARGS)

lab-test: ## Test lab/; as root, some minutes
	@tools/setup --extra test
	@$(PY) -m pytest -n 0 tests/laboratory -m "" $(ARGS)

coverage: ## Branches of the C code that the suite takes, by layer; fails below 90%
	@tools/coverage $(SHARED) $(ARGS)

spec: ## Count the clauses of the RFCs that the last make test showed; fails on an open MUST
	@tools/setup --extra test
	@$(PY) spec/check.py

fresh: ## Run the two commands of README.md in a Debian that has nothing yet, as a user and as root; WHO=user
	@tools/fresh $(if $(GATE),--gate) $(WHO)

clean: ## Remove everything that the other targets made
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
