# kernels/device.mk: how the program is built for GPUs. ARCH narrows the code to some of sm_80 sm_90 sm_100; the last
# of them comes as PTX too.
WHY = $(if $(filter command line environment,$(origin DEVICE)),as asked,a GPU answers)
PRODUCTS = cuBLASLt
ARCH ?= 80 90 100
NVCC ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA = $(patsubst %/bin/,%,$(dir $(NVCC)))

ifeq ($(NVCC),)
$(error DEVICE=cuda needs nvcc: install the CUDA toolkit (cuda-toolkit-13-0) or set CUDA_HOME; without a GPU use make DEVICE=cpu)
endif
$(call need,cublasLt.h,the CUDA toolkit's libcublas-dev-13-0,-I$(CUDA)/include)
$(call need,nccl.h,NVIDIA's libnccl-dev,-I$(CUDA)/include)

comma = ,
# Code for each of them, and PTX of the last, which the driver compiles for newer ones.
GENCODE = $(foreach a,$(ARCH),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
          -gencode arch=compute_$(lastword $(ARCH))$(comma)code=compute_$(lastword $(ARCH))
# nvcc knows some of the host compiler's flags only; the others it passes on.
for_nvcc = $(foreach f,$(1),$(if $(filter -I% -D% -L% -l%,$(f)),$(f),$(if $(filter -Wl%,$(f)),$(f:-Wl%=-Xlinker %),-Xcompiler $(f))))
NVCC_FLAGS = -std=c++17 -O3 -lineinfo --expt-relaxed-constexpr $(if $(STRICT),-Werror all-warnings) -Xcompiler -Wall$(comma)-Wextra$(comma)-Wno-unused-function$(comma)-Wno-unused-parameter$(comma)-fopenmp \
             $(GENCODE) -I. $(EXTRA_FLAGS)
CUDA_LIBS = -L$(CUDA)/lib64 -L$(CUDA)/lib -lcublasLt -lnccl $(LIBS) -lpthread
CUDA_HEADERS = $(HEADERS) $(wildcard kernels/*.cuh)

$(O)/train_gpt: $(O)/train_gpt.o $(O)/gpt_fp32.o $(O)/gpt_bf16.o $(PLAN_MODELS)
	$(NVCC) $(GENCODE) -Xcompiler -fopenmp $^ -o $@ $(call for_nvcc,$(CUDA_LIBS))

$(O)/train_gpt.o: train_gpt.cu $(CUDA_HEADERS) | $(O)
	$(NVCC) $(NVCC_FLAGS) $(call for_nvcc,$(MPI_FLAGS)) -c $< -o $@



include test/cpu_reference.mk

# What ptxas says about the kernels is kept.
$(O)/gpt_%.o: gpt.cu $(CUDA_HEADERS) | $(O)
	$(NVCC) $(NVCC_FLAGS) -Xptxas -v -DPRECISION_BF16=$(PRECISION_$*) -DGPT_LEVEL=cuda -DGPT_CODE=gpt_$* -c $< -o $@ \
	    2> $(O)/gpt_$*.ptxas || { grep -vE '^ptxas info|bytes stack frame' $(O)/gpt_$*.ptxas; rm -f $@; exit 1; }

# ---- registers, spills, shared memory and stack of each kernel ----------------------------------------------------
PTXAS_LOGS = $(O)/gpt_fp32.ptxas $(O)/gpt_bf16.ptxas
.PHONY: resources check-resources
resources: $(O)/gpt_fp32.o $(O)/gpt_bf16.o
	python3 dev/kernel_resources.py $(PTXAS_LOGS) > kernels/resources.txt

check-resources: $(O)/gpt_fp32.o $(O)/gpt_bf16.o
	@python3 dev/kernel_resources.py --check kernels/resources.txt $(PTXAS_LOGS)

# Instructions of each kernel, loop by loop, for `make kernel-report`. Needs cuobjdump and nvdisasm, see the script.
.PHONY: instructions check-instructions
instructions: $(O)/gpt_bf16.o
	python3 dev/kernel_instructions.py $< > kernels/instructions.txt.new && mv kernels/instructions.txt.new kernels/instructions.txt

check-instructions: $(O)/gpt_bf16.o
	@python3 dev/kernel_instructions.py --check kernels/instructions.txt $<

# ---- for dev/gpu_check.sh: tests and times of the kernels on a GPU -------------------------------------------------
$(O)/test_kernels_%.o: test/test_kernels.cu $(wildcard test/*.h) $(CUDA_HEADERS) | $(O)
	$(NVCC) $(NVCC_FLAGS) -DPRECISION_BF16=$(PRECISION_$*) -c $< -o $@

$(O)/test_kernels_%: $(O)/test_kernels_%.o $(O)/cpu_reference_%.o
	$(NVCC) -Xcompiler -fopenmp $^ -o $@ -L$(CUDA)/lib64 -lcublasLt -lcmocka $(CPU_REFERENCE_LIBS)

$(O)/bench_kernels_%: dev/bench_kernels.cu $(CUDA_HEADERS) | $(O)
	$(NVCC) $(NVCC_FLAGS) -DPRECISION_BF16=$(PRECISION_$*) $< -o $@ -L$(CUDA)/lib64 -lcublasLt

$(O):
	@mkdir -p $@
