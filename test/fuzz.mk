# test/fuzz.mk: every reader of files and options under libFuzzer, AddressSanitizer and UBSan.
#   make fuzz-check             some seconds each, for CI: always the same inputs, as many as the time allows
#   make fuzz FUZZ_TIME=3600    for as long as you like; what it finds on its way stays in build/fuzz/
# Seeds are in test/fuzz/corpus/NAME and test/reference/. A crash leaves its input in build/fuzz/NAME.crash-*:
#   build/fuzz/fuzz_NAME FILE   runs it again
FUZZERS = safetensors hf_config model_bin tokenizer shard index options
FUZZ_TIME ?= 600
F = build/fuzz
FUZZ_CXX = clang++
FUZZ_FLAGS = -std=c++17 -O2 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
	-fsanitize-coverage-ignorelist=test/fuzz/uncovered.txt -DDEVICE_CPU -I.
REFERENCE = test/reference
FUZZ_ALSO_safetensors = $(REFERENCE)/hugging_face/bf16 $(REFERENCE)/hugging_face/fp16
FUZZ_ALSO_hf_config = $(REFERENCE)/hugging_face/fp32

.PHONY: fuzz fuzz-check fuzz-build
fuzz-build: $(FUZZERS:%=$(F)/fuzz_%)

$(F)/fuzz_%: test/fuzz/fuzz_%.cpp test/fuzz/fuzz.h test/fuzz/uncovered.txt $(HEADERS) | $(F)
	$(FUZZ_CXX) $(FUZZ_FLAGS) $< -o $@ -ljansson -lpcre2-8 -lpthread

$(F):
	@mkdir -p $@

# $(1) target, $(2) seconds, $(3) more flags. Its messages of refusal are not wanted (2: stderr).
fuzz_run = mkdir -p $(F)/$(1) && $(F)/fuzz_$(1) -max_total_time=$(2) -close_fd_mask=3 -max_len=4096 -rss_limit_mb=2048 \
	-timeout=10 -artifact_prefix=$(F)/$(1). -print_final_stats=1 $(3) $(F)/$(1) test/fuzz/corpus/$(1) $(FUZZ_ALSO_$(1))

fuzz-check:
	@scripts/install.sh clang libclang-rt-dev libjansson-dev libpcre2-dev libxxhash-dev
	@$(MAKE) --no-print-directory DEVICE=cpu -j$$(nproc) fuzz-build
	@$(foreach f,$(FUZZERS),$(call fuzz_run,$(f),2,-seed=1) >$(F)/$(f).log 2>&1 || { cat $(F)/$(f).log; exit 1; }; \
	echo "fuzz_$(f): $$(grep number_of_executed_units $(F)/$(f).log | tr -dc 0-9) inputs";)

fuzz: fuzz-build
	$(foreach f,$(FUZZERS),$(call fuzz_run,$(f),$(FUZZ_TIME)) &&) true
