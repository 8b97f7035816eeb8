# `make run` and `make test` are all one needs; both work in a virtual environment of their own.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Bytecode is written also where the environment forbids it: the tests start hundreds of interpreters.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run install test short-tests style types test-long test-exhaustive moves mutations docs reference fuzz chaos resolve test-cluster test-cluster-long lint lock audit figures protos crds crds-legacy clean

# Prints which build of torch it downloads. TORCH_INDEX=URL takes torch from that index: `make run TORCH_INDEX=URL`.
run: $(VENV)/run-installed
	PATH="$$(cd '$(BIN)' && pwd):$$PATH" examples/quickstart.sh

# ORCA and torch in $(VENV), as `make run` installs them.
install: $(VENV)/run-installed

# mypy takes one processor and pytest both: beside each other they end sooner.
test: style
	@$(MAKE) --no-print-directory --jobs 2 types short-tests

# One process more than processors: tests wait a quarter of their time for processes that they have started. By file: where
# another process takes over half of a file, its servers are started once more.
short-tests: $(VENV)/dev-installed
	$(BIN)/pytest -m 'not long and not exhaustive' --numprocesses 3 --dist loadfile --durations 40

# The tests with the marker `long` but without the marker `exhaustive`.
test-long: $(VENV)/dev-installed
	$(BIN)/pytest -m 'long and not exhaustive' --numprocesses 2 --dist worksteal --durations 40

# The tests for which .ci/run has no time: those with the marker `exhaustive`, then the properties of master, worker and
# kernels with ten times as many examples. An hour.
test-exhaustive: $(VENV)/dev-installed
	$(BIN)/pytest -m exhaustive --numprocesses 2 --dist worksteal --durations 40
	$(BIN)/pytest tests/master tests/worker tests/kernels -m 'hypothesis and not qemu' --hypothesis-profile long --numprocesses 2 --dist worksteal

# Whether every test of before is still collected, under its id or the one of tests/moves/moves.txt.
moves: $(VENV)/dev-installed
	$(BIN)/python tools/compare_tests.py

# Whether the tests catch each of the faults in tests/mutations/mutations.yaml. Minutes.
mutations: $(VENV)/dev-installed
	$(BIN)/python tools/mutate.py

# The documentation as a site, in build/site. A broken link or a page outside of the navigation is an error.
docs: $(VENV)/docs-installed
	$(BIN)/mkdocs build --strict

# Writes docs/reference/options.md and metrics.md anew from the commands' parsers and the registry of metrics, and
# cuda-kernels.md from the compiled kernels; tests compare them.
reference: $(VENV)/dev-installed
	$(BIN)/python tools/reference_pages.py
	$(BIN)/python tools/cuda_resources.py

# Coverage-guided fuzzing of every decoder of strangers' bytes, then schemathesis on every route: SECONDS each (60).
# `make fuzz SECONDS=1800` for half an hour each.
fuzz: $(VENV)/dev-installed
	$(PIP) atheris
	$(BIN)/python tests/fuzz/fuzz.py --seconds $(or $(SECONDS),60)
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz_http.py --seconds $(or $(SECONDS),60)

# Faults of every kind under 30 streams: every stream must be that of the undisturbed run. N of each kind at each of the
# places (10, three quarters of an hour); the seed is printed, `make chaos SEED=5` repeats it.
chaos: $(VENV)/dev-installed
	PYTHONPATH=tests $(BIN)/python -m chaos.campaign --repetitions $(or $(N),10) $(if $(SEED),--seed $(SEED))

# Whether every extra can be installed from the public registry alone, and tests/protos at the lowest versions declared.
resolve: $(VENV)/dev-installed
	$(BIN)/pytest tests/registry --confcutdir tests/registry --verbose --numprocesses 2

# On the cluster of KUBECONFIG, whose nodes have the images {OPERATOR,MASTER,WORKER}_IMAGE (localhost/orca-*:dev). Needs
# kubectl and npm; on a server before 1.25 it installs the CRD without CEL rules. CONTRIBUTING.md: kind and minikube.
# Figures of passed tests are printed.
test-cluster: $(VENV)/dev-installed
	$(BIN)/pytest tests/cluster -m 'not long' -raP

# The cluster tests for which CI has no time: ten minutes of steady load do not change the number of pipelines, the seconds
# of an edit of `replicas`, further edits, broken edits and shapes, edits while requests wait, certificates that are
# replaced under load, and upgrades and kills of the operator under way.
test-cluster-long: $(VENV)/dev-installed
	$(BIN)/pytest tests/cluster -m long -raP

lint: style types

style: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev-installed
	$(BIN)/mypy

# Writes images/*.txt, the packages of the images with their hashes, for the versions of constraints.txt.
lock: $(VENV)/dev-installed
	$(BIN)/python tools/lock_images.py

# Known vulnerabilities of the images' packages. Says "not reached", with exit code 3, where the sources do not answer.
audit: $(VENV)/dev-installed
	$(PIP) pip-audit
	$(BIN)/python tools/audit_images.py

# Writes the generated files of protos/orca_protos anew; a test compares them with protos/*.proto.
protos: $(VENV)/dev-installed
	$(BIN)/python -m grpc_tools.protoc -Iorca_protos=protos --python_out=protos --pyi_out=protos \
		orca_protos/engine.proto orca_protos/engine_link.proto
	$(BIN)/python -m grpc_tools.protoc -Iorca_protos=protos --grpc_python_out=protos orca_protos/engine.proto

# Writes crds/ and docs/api.md anew from operator/orca_operator/api.py; a test compares them.
crds: $(VENV)/dev-installed
	$(BIN)/python -m orca_operator.crd .

# The CRD without CEL rules, for API servers before 1.25: they refuse the rules under server-side apply.
crds-legacy: $(VENV)/dev-installed
	mkdir -p build
	$(BIN)/python -m orca_operator.crd --legacy build/orcadeployment-legacy.yaml

# The paper's Figures 8 to 11 on this machine, small (minutes): docs/figures/figure{8,9,10,11}.svg and .json.
figures: $(VENV)/dev-installed
	for number in 8 9 10 11; do $(BIN)/python benchmarks/figure$$number.py; done

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# install_torch.py needs the pip of constraints.txt.
$(VENV)/run-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) pip
	$(BIN)/python tools/install_torch.py $(if $(TORCH_INDEX),--index '$(TORCH_INDEX)')
	$(PIP) --editable '.[worker]'
	touch $@

$(VENV)/docs-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) pip
	$(PIP) --editable '.[docs]'
	touch $@

# pip would compile on one processor, for half a minute. A file of torch's has the syntax of a later Python.
$(VENV)/dev-installed: $(VENV)/run-installed
	$(PIP) --no-compile --editable '.[worker,hub,s3,operator,bench,docs,dev]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $@
