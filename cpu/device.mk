# cpu/device.mk: how the program is built for machines without a GPU.
# The model is compiled for each dtype and each level of vector instructions; the program picks at start.
WHY = $(if $(filter command line environment,$(origin DEVICE)),as asked,no GPU answers)

ONEDNN ?= $(shell echo '\#include <dnnl.h>' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(ONEDNN),1)
PRODUCTS = oneDNN
PRODUCT_FLAGS = -DUSE_ONEDNN
PRODUCT_LIBS = -ldnnl
else
HAS_CBLAS := $(shell echo 'int main() {}' | $(CXX) -include cblas.h -x c++ - -lopenblas -o /dev/null >/dev/null 2>&1 && echo 1)
ifeq ($(HAS_CBLAS),1)
PRODUCTS = CBLAS (install libdnnl-dev for faster ones)
PRODUCT_FLAGS = -DUSE_CBLAS
PRODUCT_LIBS = -lopenblas
else
PRODUCTS = plain loops (install libdnnl-dev for products several times as fast)
endif
endif

CPU_FLAGS = -std=c++17 -O3 -g -fno-math-errno -fno-trapping-math -fopenmp $(WARN) -DDEVICE_CPU $(PRODUCT_FLAGS) -I. \
            $(EXTRA_FLAGS)
CPU_LIBS = $(PRODUCT_LIBS) $(LIBS) -lm -lpthread
# Vector instructions by the compiler's architecture; generic has what every processor of it has (SSE2, NEON).
LEVELS = generic $(if $(findstring x86_64,$(shell $(CXX) -dumpmachine)),avx2 avx512)
LEVEL_generic =
LEVEL_avx2 = -mavx2 -mfma
LEVEL_avx512 = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mprefer-vector-width=512
MODELS = $(foreach d,fp32 bf16,$(foreach l,$(LEVELS),$(O)/gpt_$(d)_$(l).o))
DEVICE_OBJECTS = $(MODELS) $(O)/runtime.o $(O)/nccl.o

$(O)/train_gpt: $(O)/train_gpt.o $(DEVICE_OBJECTS) $(PLAN_MODELS)
	$(CXX) $(CPU_FLAGS) $^ -o $@ $(CPU_LIBS)

$(O)/train_gpt.o: train_gpt.cu $(HEADERS) $(wildcard cpu/*.h) | $(O)
	$(CXX) $(CPU_FLAGS) $(MPI_FLAGS) -x c++ -c $< -o $@

$(O)/gpt_fp32_%.o: gpt.cu $(HEADERS) $(wildcard cpu/*.h) | $(O)
	$(CXX) $(CPU_FLAGS) $(LEVEL_$*) -DPRECISION_BF16=0 -DGPT_LEVEL=$* -DGPT_CODE=gpt_fp32_$* -x c++ -c $< -o $@

$(O)/gpt_bf16_%.o: gpt.cu $(HEADERS) $(wildcard cpu/*.h) | $(O)
	$(CXX) $(CPU_FLAGS) $(LEVEL_$*) -DPRECISION_BF16=1 -DGPT_LEVEL=$* -DGPT_CODE=gpt_bf16_$* -x c++ -c $< -o $@

$(O)/%.o: cpu/%.cpp $(HEADERS) $(wildcard cpu/*.h) | $(O)
	$(CXX) $(CPU_FLAGS) $(MPI_FLAGS) -c $< -o $@

$(O):
	@mkdir -p $@
