# What a person does with this source. Each target says what it does; `make help` lists them.
# Everything is installed into .venv and built in build/; nothing else of the machine is touched.

PYTHON ?= python3
JOBS ?= $(shell nproc)
VENV := .venv
PY := $(VENV)/bin/python
CMAKE := $(VENV)/bin/cmake
NATIVE := build/native
PYTEST = $(PY) -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_OPTIONS)
# Tests that are about every platform, and so run a second time on simulated devices.
SIM_TESTS := test_flagos.py test_names.py test_device.py test_stream.py test_event.py \
  test_memory.py test_random.py test_routes.py test_fallback.py test_views.py test_tensor.py \
  test_storage.py test_objects.py test_errors.py test_device_rules.py test_threads.py test_cases_a.py \
  test_cases_b.py test_cases_c.py test_cases_d.py test_cases_e.py test_cases_f.py test_cases_g.py \
  test_cases_h.py test_cases_i.py test_interchange.py test_serialization.py test_sharing.py \
  test_lifetime.py test_as_cuda.py test_as_cuda_tools.py test_as_cuda_run.py test_inside.py test_below.py \
  test_blocks.py test_default_type.py test_minus_one.py test_data_parallel.py test_profiler.py test_trace.py \
  test_queue.py test_queue_worker.py test_queue_bits.py test_linear.py
# Those about the runtime, which run on a vendor's fake as well.
FAKE_TESTS := test_device.py test_stream.py test_event.py test_memory.py test_random.py \
  test_fallback.py test_tensor.py
# Those that see most of what the launch queue could break.
QUEUE_TESTS := test_tensor.py test_storage.py test_views.py test_interchange.py test_serialization.py \
  test_threads.py test_event.py test_stream.py test_boxing_writes.py test_objects.py test_layouts.py \
  test_sharing.py test_rnn.py test_errors.py test_linear.py
QUEUE_OPINFO := -k "test_operator and float32"
SIM_OPINFO := -k "(test_operator or test_foreach or test_sparse) and (float32 or int64) or test_errors or test_jagged"
SAY := @printf '== %s\n'
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
comma := ,

.DELETE_ON_ERROR:
.PHONY: help build native demo test test-full test-fuzz test-cuda coverage bench clean \
	check-rules check-format check-exports test-c test-asan test-tsan test-cpp test-python

help:
	@echo "make build      set up .venv and build and install torch_fl there"
	@echo "make demo       build, then sentence embeddings on flagos and on its twin"
	@echo "make test       build, then every check and test, the large ones sampled"
	@echo "make test-full  the same without sampling, and each fuzz target for a minute"
	@echo "make coverage   lines and branches of src/ that the C tests reach"
	@echo "make test-cuda  the tests that need a CUDA device"
	@echo "make bench      figures of bench/ on this machine"
	@echo "make clean      remove build/ and what it installed; .venv stays"

# --- set-up and build ------------------------------------------------------------------------------

$(VENV)/.made:
	$(SAY) "set-up: looking for a compiler and Python's headers"
	@tools/check_system $(PYTHON)
	$(SAY) "set-up: making $(VENV)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.packages: $(VENV)/.made requirements.txt requirements-dev.txt
	$(SAY) "set-up: installing pinned packages (about 5 GB the first time)"
	@$(PY) -m pip install --disable-pip-version-check --progress-bar off -r requirements-dev.txt \
		| { grep -v '^Requirement already satisfied' || true; }
	@touch $@

# The package in place: Python files of this folder, shared objects from the build below.
$(VENV)/.package: $(VENV)/.packages pyproject.toml tools/build_backend.py
	$(SAY) "set-up: installing the package in place"
	@$(PY) -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	@touch $@

$(NATIVE)/.configured: $(VENV)/.packages
	$(SAY) "build: configuring $(NATIVE)"
	@mkdir -p build
	@$(CMAKE) -S . -B $(NATIVE) -G Ninja --log-level=STATUS \
		-DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" -DPython_EXECUTABLE="$(CURDIR)/$(PY)" \
		-DFL_BUILD_TESTS=OFF -DFL_REQUIRE_PYTHON=ON > $(NATIVE).log 2>&1 || { cat $(NATIVE).log; exit 1; }
	@touch $@

native: $(NATIVE)/.configured
	$(SAY) "build: compiling what changed"
	@$(CMAKE) --build $(NATIVE) -j $(JOBS) --target all fakes
	@$(CMAKE) --install $(NATIVE) --prefix python > $(NATIVE).log || { cat $(NATIVE).log; exit 1; }

build: native $(VENV)/.package

demo: build
	$(SAY) "demo: MiniLM on flagos and on its twin"
	@$(PY) -m torch_fl demo

# --- checks and tests ------------------------------------------------------------------------------

test: build check-rules check-format check-exports test-c test-asan test-tsan test-cpp test-python
	$(SAY) "test: everything passed"

test-full: PYTEST_OPTIONS += --full
test-full: SIM_OPINFO :=
test-full: test test-fuzz

test-fuzz:
	$(SAY) "test: the core on any input, a minute a target"
	@tests/fuzz/run 60

check-rules:
	$(SAY) "check: include rules and house rules"
	@tools/rules

check-format:
	$(SAY) "check: clang-format"
	@tools/check_format

check-exports: build
	$(SAY) "check: exported symbols begin with fl_"
	@tools/check_exports python/torch_fl/lib/*.so

# One build of the core and its tests a kind of sanitizer; the Python parts are left out there.
define c_tests
	@mkdir -p build
	@$(CMAKE) -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" \
		-DFL_BUILD_PYTHON=OFF -DFL_SANITIZE=$(2) -DTORCH_FL_DEBUG=$(3) > build/$(1).log 2>&1 \
		|| { cat build/$(1).log; exit 1; }
	@$(CMAKE) --build build/$(1) -j $(JOBS)
	@$(VENV)/bin/ctest --test-dir build/$(1) -j $(JOBS) --output-on-failure --no-tests=error
endef

test-c: $(VENV)/.packages
	$(SAY) "test: the core in C"
	$(call c_tests,plain,,2)

test-asan: $(VENV)/.packages
	$(SAY) "test: the core in C under the address and undefined-behaviour sanitizers"
	$(call c_tests,asan,address$(comma)undefined,3)

test-tsan: $(VENV)/.packages
	$(SAY) "test: the core in C under the thread sanitizer"
	$(call c_tests,tsan,thread,2)

test-cpp: build
	$(SAY) "test: the adapter in C++, shadows also under the thread sanitizer"
	@$(CMAKE) --build $(NATIVE) -j $(JOBS) --target cpp_tests
	@$(VENV)/bin/ctest --test-dir $(NATIVE)/tests/cpp --output-on-failure --no-tests=error

test-python: build
	$(SAY) "test: PyTorch on flagos"
	@$(PYTEST) tests/torch
	$(SAY) "test: PyTorch on flagos, the launch queue on and late"
	@TORCH_FL_QUEUE=1 TORCH_FL_QUEUE_DELAY_US=200 $(PYTEST) $(addprefix tests/torch/,$(QUEUE_TESTS))
	@TORCH_FL_QUEUE=1 $(PYTEST) tests/torch/test_opinfo.py $(QUEUE_OPINFO)
	$(SAY) "test: operators with each side in a process of its own, as on a card"
	@TORCH_FL_TEST_PEERS=1 PYTHONHASHSEED=0 $(PYTEST) tests/torch/test_opinfo.py \
		-k "test_errors or (test_operator and complex32 and add)"
	$(SAY) "test: PyTorch on flagos, platform sim"
	@TORCH_FL_PLATFORM=sim $(PYTEST) $(addprefix tests/torch/,$(SIM_TESTS))
	$(SAY) "test: operators on the host route, platform sim"
	@TORCH_FL_PLATFORM=sim $(PYTEST) tests/torch/test_opinfo.py $(SIM_OPINFO)
	$(SAY) "test: PyTorch on flagos, platform musa on its fake"
	@TORCH_FL_PLATFORM=musa TORCH_FL_VENDOR_PATH="$(CURDIR)/$(NATIVE)/fakes" \
		$(PYTEST) $(addprefix tests/torch/,$(FAKE_TESTS))

# Less than 90 % of the lines of a folder is a failure.
coverage: $(VENV)/.packages
	$(SAY) "coverage: the core in C"
	@tools/coverage

test-cuda: build
	$(SAY) "test: PyTorch on flagos, platform cuda"
	@PYTHONHASHSEED=0 TORCH_FL_PLATFORM=cuda $(PY) -m pytest $(PYTEST_OPTIONS) tests/torch

# The core without assertions, beside the build that is installed.
bench: build
	$(SAY) "bench: the core on this machine"
	@$(CMAKE) -S . -B build/bench -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" \
		-DFL_BUILD_PYTHON=OFF -DTORCH_FL_DEBUG=0 > build/bench.log 2>&1 \
		|| { cat build/bench.log; exit 1; }
	@$(CMAKE) --build build/bench -j $(JOBS) --target bench_alloc bench_copy bench_replay
	@build/bench/bench/c/bench_alloc
	@build/bench/bench/c/bench_copy
	@build/bench/bench/c/bench_replay bench/c/traces/*.trace
	$(SAY) "bench: the adapter on this machine"
	@$(CMAKE) --build $(NATIVE) -j $(JOBS) --target cpp_benches
	@$(PY) bench/cpp/bind.py $(NATIVE) --instructions
	@$(PY) bench/torch/overhead.py
	@! command -v valgrind > /dev/null || \
		$(PY) bench/torch/overhead.py --instructions $(NATIVE)/bench/cpp/libcount_calls.so
	@! command -v valgrind > /dev/null || ! test -e $(NATIVE)/bench/cpp/libidle_cuda.so || \
		$(PY) bench/torch/idle_cuda.py $(NATIVE)/bench/cpp

clean:
	$(SAY) "clean: removing build/ and what it installed"
	@rm -rf build python/torch_fl/lib python/torch_fl/_C.abi3.so
