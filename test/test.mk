# test/test.mk: the tests. Each is one program; `make test` builds and runs them all.
TEST_FLAGS = $(CPU_FLAGS) -DFSDP_POISON
T = build/test

$(T):
	@mkdir -p $@

$(T)/gpt_fp32_generic.o: gpt.cu $(HEADERS) $(wildcard cpu/*.h) | $(T)
	$(CXX) $(TEST_FLAGS) -DPRECISION_BF16=0 -DGPT_LEVEL=generic -DGPT_CODE=gpt_fp32_generic -x c++ -c $< -o $@

$(T)/gpt_bf16_generic.o: gpt.cu $(HEADERS) $(wildcard cpu/*.h) | $(T)
	$(CXX) $(TEST_FLAGS) -DPRECISION_BF16=1 -DGPT_LEVEL=generic -DGPT_CODE=gpt_bf16_generic -x c++ -c $< -o $@

$(T)/%.o: test/%.cpp $(HEADERS) $(wildcard cpu/*.h) | $(T)
	$(CXX) $(TEST_FLAGS) -c $< -o $@

$(T)/test_fsdp: $(T)/test_fsdp.o $(T)/gpt_fp32_generic.o $(T)/gpt_bf16_generic.o $(O)/runtime.o $(O)/nccl.o
	$(CXX) $(TEST_FLAGS) $^ -o $@ $(CPU_LIBS) -lcmocka
