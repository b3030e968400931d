# test/test.mk: the tests. Each is one program of cmocka tests; `make test` installs what they need, builds
# them and runs them all. One alone: make build/test/test_fsdp && build/test/test_fsdp
T = build/test
# Freed buffers are filled with NaN.
TEST_FLAGS = $(CPU_FLAGS) -DFSDP_POISON
TEST_DEPENDS = $(HEADERS) $(wildcard cpu/*.h test/*.h)
TEST_PACKAGES = g++ make libjansson-dev libpcre2-dev libxxhash-dev libdnnl-dev openmpi-bin libopenmpi-dev libcmocka-dev procps gnuplot-nox
LEVELS_HERE = generic $(if $(shell grep -m1 -w avx2 /proc/cpuinfo),$(filter avx2,$(LEVELS))) $(if $(shell grep -m1 -w avx512bw /proc/cpuinfo),$(filter avx512,$(LEVELS)))
OPS_TESTS = $(foreach d,fp32 bf16,$(foreach l,$(LEVELS_HERE),$(T)/test_ops_$(d)_$(l)))
TESTS = $(T)/test_lib $(T)/test_tokenizer $(T)/test_machine $(T)/test_launch $(T)/test_roofline $(T)/test_checkpoint $(T)/test_dataloader $(T)/test_nccl $(OPS_TESTS) $(T)/test_fsdp $(T)/test_plan $(T)/test_skip $(T)/test_parity \
        $(T)/test_hugging_face $(T)/test_program $(T)/test_generate $(T)/test_eval $(T)/test_resume $(T)/test_faults $(T)/test_scripts $(if $(EMULATOR_HERE),$(T)/test_emulated)
EMULATED = $(foreach v,plain race,$(O)/emu/$(v)/train_gpt)
FUZZ_SEEDS ?= 20

.PHONY: test test-build test-run install-arm check-arm emulate-fuzz test-faults test-page
# In steps, so that what the first installs is found by the second; builds side by side, tests one by one, as many of
# them run several ranks.
test:
	@scripts/install.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory DEVICE=cpu -j$$(nproc) test-build
	@$(MAKE) --no-print-directory DEVICE=cpu test-run

test-build: train_gpt $(TESTS) $(if $(EMULATOR_HERE),$(EMULATED) build-emulator-tests build-kernel-tests $(O)/kernel_report)

test-run: SHELL = bash -o pipefail
# What failed is said again at the end, where the log of a CI is read.
test-run:
	@failed=; for t in $(TESTS); do echo "== $$t"; $$t 2>&1 | tee $$t.log || failed="$$failed $$t"; done; \
	for t in $$failed; do echo "== failed: $$t"; sed -n '/^\[  ERROR/,/^\[  FAILED/p' $$t.log; done; \
	echo "$(words $(TESTS)) test programs, $$(wc -w <<< "$$failed") failed"; test -z "$$failed" -a $(words $(TESTS)) -gt 10
ifdef EMULATOR_HERE
	@$(MAKE) --no-print-directory -j$$(nproc) -Otarget DEVICE=cpu test-emulator test-kernels check-kernel-counts
else
	@echo "skipped: the emulator's and the kernels' tests, which need the CUDA toolkit's headers in $(CUDA_HOME)/include"
endif

# The program for 64-bit Arm, built by Debian's cross compiler and run by QEMU: the parts by themselves, and a training
# on two ranks whose losses are those of the reference.
ARM_TESTS = test_lib test_tokenizer test_dataloader test_nccl
ARM_MAKE = $(MAKE) --no-print-directory CXX="$(filter ccache,$(CXX)) aarch64-linux-gnu-g++" DEVICE=cpu MPI=0 ONEDNN=0 O=build/arm T=build/arm/test
ARM_PACKAGES = g++-aarch64-linux-gnu qemu-user-static libstdc++6:arm64 libgomp1:arm64 libjansson-dev:arm64 libpcre2-dev:arm64 libxxhash-dev:arm64 libcmocka-dev:arm64
install-arm:
	@scripts/install.sh $(ARM_PACKAGES)

check-arm:
	@$(ARM_MAKE) -j$$(nproc) build/arm/train_gpt $(ARM_TESTS:%=build/arm/test/%)
	@for t in $(ARM_TESTS); do echo "== $$t"; qemu-aarch64-static build/arm/test/$$t || exit 1; done
	@for p in fp32 bf16; do echo "== training, $$p"; qemu-aarch64-static build/arm/train_gpt --ranks 2 --threads 1 --precision $$p \
	--config test/reference/small/options.cfg --batch 1 --steps 2 --json | grep -o '"loss":[^,]*' | tee build/arm/losses && \
	sed -n 's/.*trl:\([^ ]*\).*/\1/p' test/reference/small/main_$$p.log | paste -d: build/arm/losses - | head -n 2 | \
	awk -F: '{d = $$2 - $$3; if (d > 1e-3 || d < -1e-3) bad = 1} END {exit bad || NR != 2}' || exit 1; done

# Processes killed 200 times, at random moments.
test-faults: train_gpt $(T)/test_faults
	FAULTS=200 $(T)/test_faults

# The page of scripts/page in a browser.
test-page:
	@scripts/install.sh $(TEST_PACKAGES) chromium libjs-dygraphs python3
	@$(MAKE) --no-print-directory DEVICE=cpu train_gpt $(T)/test_page
	$(T)/test_page

# Many schedules and orders of device threads, for an idle machine.
emulate-fuzz: $(EMULATED) $(O)/train_gpt
	@for seed in $$(seq $(FUZZ_SEEDS)); do for schedule in random priority; do \
	echo "== seed $$seed, schedule $$schedule"; EMU_SEED=$$seed EMU_SCHEDULE=$$schedule $(O)/emu/plain/train_gpt --ranks 2 \
	--config test/reference/tiny/options.cfg --steps 2 --json | grep -o '"loss":[^,]*' | tee $(O)/fuzz.$$seed.$$schedule \
	|| exit 1; cmp $(O)/fuzz.$$seed.$$schedule $(O)/fuzz.1.random || exit 1; done; done

$(T):
	@mkdir -p $@

$(T)/gpt_fp32_generic.o: gpt.cu $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) -DPRECISION_BF16=0 -DGPT_LEVEL=generic -DGPT_CODE=gpt_fp32_generic -x c++ -c $< -o $@

$(T)/gpt_bf16_generic.o: gpt.cu $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) -DPRECISION_BF16=1 -DGPT_LEVEL=generic -DGPT_CODE=gpt_bf16_generic -x c++ -c $< -o $@

$(T)/test_ops_fp32_%.o: test/test_ops.cpp $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) $(LEVEL_$*) -DPRECISION_BF16=0 -c $< -o $@

$(T)/test_ops_bf16_%.o: test/test_ops.cpp $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) $(LEVEL_$*) -DPRECISION_BF16=1 -c $< -o $@

$(T)/bad_disk.so: test/bad_disk.cpp | $(T)
	$(CXX) -std=c++17 -O1 $(WARN) -shared -fPIC $< -o $@

$(T)/test_nccl: $(O)/runtime.o $(O)/nccl.o
$(T)/test_program $(T)/test_resume $(T)/test_faults: $(T)/bad_disk.so
$(T)/test_skip: $(O)/runtime.o $(O)/nccl.o
$(T)/test_skip.o: gpt.cu
$(T)/test_skip.o: TEST_FLAGS += -DPRECISION_BF16=0 -DGPT_LEVEL=generic -DGPT_CODE=gpt_fp32_generic
$(T)/test_emulated.o: CPU_FLAGS += -DEMULATED='"$(O)/emu"'
$(T)/test_checkpoint $(T)/test_fsdp $(T)/test_parity $(T)/test_hugging_face $(T)/test_generate: $(T)/gpt_fp32_generic.o $(T)/gpt_bf16_generic.o $(O)/runtime.o $(O)/nccl.o
$(T)/test_plan: $(T)/gpt_fp32_generic.o $(T)/gpt_bf16_generic.o $(O)/runtime.o $(O)/nccl.o $(PLAN_MODELS)
$(T)/%.o: test/%.cpp $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) -c $< -o $@
# In two steps, as ccache keeps objects and no programs.
$(T)/%: $(T)/%.o
	$(CXX) $(TEST_FLAGS) $(filter %.o,$^) -o $@ $(CPU_LIBS) -lcmocka
.PRECIOUS: $(T)/%.o
