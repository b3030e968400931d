# test/test.mk: the tests. Each is one program of cmocka tests; `make test` installs what they need, builds
# them and runs them all. One alone: make build/test/test_fsdp && build/test/test_fsdp
T = build/test
# Freed buffers are filled with NaN.
TEST_FLAGS = $(CPU_FLAGS) -DFSDP_POISON
TEST_DEPENDS = $(HEADERS) $(wildcard cpu/*.h) test/death.h
TEST_PACKAGES = g++ make libdnnl-dev openmpi-bin libopenmpi-dev libcmocka-dev procps
LEVELS_HERE = generic $(if $(shell grep -m1 -w avx2 /proc/cpuinfo),avx2) $(if $(shell grep -m1 -w avx512bw /proc/cpuinfo),avx512)
OPS_TESTS = $(foreach d,fp32 bf16,$(foreach l,$(LEVELS_HERE),$(T)/test_ops_$(d)_$(l)))
TESTS = $(T)/test_lib $(T)/test_dataloader $(T)/test_nccl $(OPS_TESTS) $(T)/test_fsdp $(T)/test_skip $(T)/test_parity $(T)/test_program

.PHONY: test test-install test-run
# In two steps, so that what the first installs is found by the second.
test:
	@scripts/install.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory DEVICE=cpu test-run

test-run: train_gpt $(TESTS)
	@failed=0; for t in $(TESTS); do echo "== $$t"; $$t || failed=$$((failed + 1)); done; \
	echo "$(words $(TESTS)) test programs, $$failed failed"; test $$failed = 0

$(T):
	@mkdir -p $@

$(T)/gpt_fp32_generic.o: gpt.cu $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) -DPRECISION_BF16=0 -DGPT_LEVEL=generic -DGPT_CODE=gpt_fp32_generic -x c++ -c $< -o $@

$(T)/gpt_bf16_generic.o: gpt.cu $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) -DPRECISION_BF16=1 -DGPT_LEVEL=generic -DGPT_CODE=gpt_bf16_generic -x c++ -c $< -o $@

$(T)/test_ops_fp32_%: test/test_ops.cpp $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) $(LEVEL_$*) -DPRECISION_BF16=0 $< -o $@ $(CPU_LIBS) -lcmocka

$(T)/test_ops_bf16_%: test/test_ops.cpp $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) $(LEVEL_$*) -DPRECISION_BF16=1 $< -o $@ $(CPU_LIBS) -lcmocka

$(T)/test_nccl: $(O)/nccl.o
$(T)/test_skip: $(O)/runtime.o $(O)/nccl.o gpt.cu
$(T)/test_skip: TEST_FLAGS += -DPRECISION_BF16=0 -DGPT_LEVEL=generic -DGPT_CODE=gpt_fp32_generic
$(T)/test_fsdp $(T)/test_parity: $(T)/gpt_fp32_generic.o $(T)/gpt_bf16_generic.o $(O)/runtime.o $(O)/nccl.o
$(T)/%: test/%.cpp $(TEST_DEPENDS) | $(T)
	$(CXX) $(TEST_FLAGS) $< $(filter %.o,$^) -o $@ $(CPU_LIBS) -lcmocka
