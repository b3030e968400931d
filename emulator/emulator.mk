# emulator.mk: builds the emulator and programs on it; included by the top Makefile or used alone:
#   make -f emulator/emulator.mk test-emulator
# O         build folder
# EMU_VARIANTS
#   plain   fast
#   asan    AddressSanitizer and UndefinedBehaviorSanitizer in kernels and host code
#   race    races, missing waits, bounds, uninitialised reads (the compiler's thread instrumentation with the
#           emulator's own callbacks; its runtime is not linked)
#   count   counts what a profiler would (the same instrumentation), for kernel reports; not a variant to test with
# For a production or test source DIR/NAME.cu:  $(O)/emu/VARIANT/DIR/NAME.o, link it with $(O)/libemu_VARIANT.a
# and $(EMU_LDLIBS), with $(EMU_LDFLAGS_VARIANT) in front.

O ?= build
CUDA_HOME ?= /usr/local/cuda
EMU_VARIANTS := plain asan race
EMU_BUILDS := $(EMU_VARIANTS) count
EMU_COMMON := report symbols tensor streams nccl blas
EMU_PER_VARIANT := fibers memory race counters instrument

# device code is free of some of g++'s worries under nvcc too
EMU_WARNINGS := -Wall -Wextra $(if $(STRICT),-Werror) -Wno-class-memaccess -Wno-sign-compare
EMU_CXXFLAGS := -std=c++17 -g -isystem $(CUDA_HOME)/include $(EMU_WARNINGS)
EMU_DEFINE_plain :=
EMU_DEFINE_asan := -DEMU_ASAN
EMU_DEFINE_race := -DEMU_RACE
EMU_DEFINE_count := -DEMU_COUNT
EMU_COMPILE_plain := -O2
EMU_COMPILE_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -DEMU_ASAN
# a memcpy that the compiler expands itself would not be seen
EMU_INSTRUMENTED := -O1 -fsanitize=thread --param tsan-instrument-func-entry-exit=0 \
	-fno-builtin-memcpy -fno-builtin-memmove -fno-builtin-memset
EMU_COMPILE_race := $(EMU_INSTRUMENTED) -DEMU_RACE
# a struct that is loaded whole is to stay one load
EMU_COMPILE_count := $(EMU_INSTRUMENTED) -fno-tree-sra -DEMU_COUNT
EMU_RENAMED_race := memcpy memmove memset
EMU_RENAMED_count := $(EMU_RENAMED_race) expf exp2f logf log2f tanhf exp log
EMU_LDFLAGS_asan := -fsanitize=address,undefined
EMU_LDLIBS := -lstdc++ -lm -lpthread

# ---- the library: never instrumented itself -----------------------------------------------------------------
EMU_LIB_CC = $(CXX) $(EMU_CXXFLAGS) -O2 -mno-red-zone -fno-strict-aliasing -MMD -MP -c $< -o $@
$(O)/emu/lib/%.o: emulator/%.cpp
	@mkdir -p $(@D)
	$(EMU_LIB_CC)
define emu_library
$$(O)/libemu_$(1).a: $$(EMU_COMMON:%=$$(O)/emu/lib/%.o) $$(EMU_PER_VARIANT:%=$$(O)/emu/lib_$(1)/%.o)
	rm -f $$@ && ar rcs $$@ $$^
$$(O)/emu/lib_$(1)/%.o: emulator/%.cpp
	@mkdir -p $$(@D)
	$$(EMU_LIB_CC) $$(EMU_DEFINE_$(1))
endef
$(foreach v,$(EMU_BUILDS),$(eval $(call emu_library,$(v))))

# ---- converted sources: a mirror of the tree, .cu, .cuh and .h alike, so that quoted includes find each other --
EMU_MIRRORED := $(patsubst ./%,%,$(shell find . \( -path ./$(O) -o -path ./build -o -path ./cpu -o -path ./data \
	-o -path ./.git \) -prune -o \( -name '*.cu' -o -name '*.cuh' -o -name '*.h' \) -print))
EMU_MIRROR := $(addprefix $(O)/emu/src/,$(EMU_MIRRORED))
$(O)/emu/src/%: % emulator/cu2cpp.py
	@python3 emulator/cu2cpp.py $< $@

EMU_INCLUDES := -include emulator/emu.h -I$(O)/emu/src -I. -DEMULATOR -ffile-prefix-map=$(O)/emu/src/=
# $(call emu_cc,VARIANT,FLAGS): the recipe that compiles $< to $@, for rules that need flags of their own
define emu_cc
@mkdir -p $(@D)
$(CXX) -x c++ $(EMU_CXXFLAGS) $(EMU_COMPILE_$(1)) $(EMU_INCLUDES) $(2) -MMD -MP -c $< -o $@
$(if $(EMU_RENAMED_$(1)),objcopy $(foreach f,$(EMU_RENAMED_$(1)),--redefine-sym $(f)=emu_$(f)) $@)
endef
define emu_compile
$$(O)/emu/$(1)/%.o: $$(O)/emu/src/%.cu | $$(EMU_MIRROR)
	$$(call emu_cc,$(1))
endef
$(foreach v,$(EMU_BUILDS),$(eval $(call emu_compile,$(v))))

# ---- the program: $(O)/emu/VARIANT/train_gpt; `make emulate` puts the plain one at ./train_gpt_emulated ---------
EMU_GPT_fp32 := -DPRECISION_BF16=0 -DGPT_LEVEL=cuda -DGPT_CODE=gpt_fp32
EMU_GPT_bf16 := -DPRECISION_BF16=1 -DGPT_LEVEL=cuda -DGPT_CODE=gpt_bf16
EMU_PROGRAM_FLAGS := -Wno-unknown-pragmas -Wno-unused-function -Wno-unused-parameter
define emu_program
$$(O)/emu/$(1)/gpt_fp32.o $$(O)/emu/$(1)/gpt_bf16.o: $$(O)/emu/$(1)/gpt_%.o: $$(O)/emu/src/gpt.cu | $$(EMU_MIRROR)
	$$(call emu_cc,$(1),$$(EMU_PROGRAM_FLAGS) $$(EMU_GPT_$$*))
$$(O)/emu/$(1)/train_gpt.o: $$(O)/emu/src/train_gpt.cu | $$(EMU_MIRROR)
	$$(call emu_cc,$(1),$$(EMU_PROGRAM_FLAGS) $$(MPI_FLAGS))
$$(O)/emu/$(1)/train_gpt: $$(addprefix $$(O)/emu/$(1)/,train_gpt.o gpt_fp32.o gpt_bf16.o) $(PLAN_MODELS) $$(O)/libemu_$(1).a
	$$(CXX) $$(EMU_LDFLAGS_$(1)) $$^ $$(EMU_LDLIBS) $$(LIBS) -o $$@
endef
$(foreach v,$(EMU_BUILDS),$(eval $(call emu_program,$(v))))
emulate: $(O)/emu/plain/train_gpt
	cp -f $< train_gpt_emulated
.PHONY: emulate

# ---- the program's sources call only what emulator/api.txt lists -----------------------------------------------
check-cuda-api:
	python3 emulator/check_api.py $(filter-out emulator/% test/%,$(EMU_MIRRORED))
.PHONY: check-cuda-api

# ---- the emulator's own tests ---------------------------------------------------------------------------------
EMU_TESTS := device faults streams blas
define emu_test
$$(O)/emu/$(1)/test_$(2): $$(O)/emu/$(1)/emulator/test_$(2).o $$(O)/libemu_$(1).a
	$$(CXX) $$(EMU_LDFLAGS_$(1)) $$^ -lcmocka $$(EMU_LDLIBS) -o $$@
test-emulator: test-emulator-$(1)-$(2)
build-emulator-tests: $$(O)/emu/$(1)/test_$(2)
test-emulator-$(1)-$(2): $$(O)/emu/$(1)/test_$(2)
	./$$<
.PHONY: test-emulator-$(1)-$(2)
endef
$(foreach v,$(EMU_VARIANTS),$(foreach t,$(EMU_TESTS),$(eval $(call emu_test,$(v),$(t)))))
$(eval $(call emu_test,count,counters))

test-emulator: test-emulator-scripts
test-emulator-scripts:
	python3 emulator/test_scripts.py
.PHONY: test-emulator test-emulator-scripts build-emulator-tests
.SECONDARY:

-include $(shell find $(O)/emu -name '*.d' 2>/dev/null)
