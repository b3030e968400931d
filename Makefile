# make                 ./train_gpt for the device that is here (a GPU that answers, else the CPU)
# make DEVICE=cpu      needs g++; uses oneDNN (or CBLAS) and MPI where they are installed
# make DEVICE=cuda     needs nvcc, cuBLASLt and NCCL
# make emulate         ./train_gpt_emulated, the CUDA program on a CPU
# make kernel-report   what the kernels of a step do, counted, and how long that should take (doc/gpu-speed.md)
# make test            installs what the tests need, builds and runs them all
# make fuzz-check      some seconds of libFuzzer on every reader of files and options; make fuzz for longer
SHELL := bash
MAKEFLAGS += --no-builtin-rules
DEVICE ?= $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && command -v nvcc >/dev/null && echo cuda || echo cpu)
O ?= build/$(DEVICE)
CXX ?= g++
# STRICT=1, as CI has it: a warning is an error. A user's newer compiler may know more of them.
WARN = -Wall -Wextra $(if $(STRICT),-Werror)
HEADERS = $(wildcard *.h *.cuh lib/*.h checkpoint/*.h eval/*.h generate/*.h plan/*.h) $(O)/flags
PRECISION_fp32 := 0
PRECISION_bf16 := 1

# MPI: where mpicc answers.
MPI ?= $(shell command -v mpicc >/dev/null && echo 1 || echo 0)
ifeq ($(MPI),1)
# Open MPI's wrapper and MPICH's both show the whole command.
MPI_WORDS := $(shell mpicc -show)
MPI_FLAGS = -DUSE_MPI -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(filter -I% -D% -pthread,$(MPI_WORDS))
MPI_LIBS = $(filter -L% -l% -Wl% -pthread,$(MPI_WORDS))
endif
LIBS = -ljansson -lpcre2-8 $(MPI_LIBS)

ifeq ($(filter cpu cuda,$(DEVICE)),)
$(error DEVICE=$(DEVICE): expected cpu or cuda)
endif

.PHONY: all clean what check-format check-rooms FORCE
all: what train_gpt

# Header $(1) has to be there; $(2) is what to install for it.
need = $(if $(shell echo '\#include <$(1)>' | $(CXX) -E -x c++ $(3) - >/dev/null 2>&1 && echo yes),,$(error $(1) is missing: install $(2)))
ifneq ($(filter-out test fuzz-check clean check-format,$(or $(MAKECMDGOALS),all)),)
$(call need,jansson.h,libjansson-dev)
$(call need,pcre2posix.h,libpcre2-dev)
$(call need,xxhash.h,libxxhash-dev)
endif

# The model on the device of --plan, the same in every build.
PLAN_FLAGS = -std=c++17 -O2 -g -fopenmp $(WARN) -DDEVICE_PLAN -DGPT_LEVEL=plan -I. $(EXTRA_FLAGS)
PLAN_MODELS = $(O)/gpt_plan_fp32.o $(O)/gpt_plan_bf16.o
$(O)/gpt_plan_%.o: gpt.cu $(HEADERS) $(wildcard cpu/bf16.h kernels/workspace.h) | $(O)
	$(CXX) $(PLAN_FLAGS) -DPRECISION_BF16=$(PRECISION_$*) -DGPT_CODE=gpt_plan_$* -x c++ -c $< -o $@

include $(if $(filter cuda,$(DEVICE)),kernels,cpu)/device.mk

what:
	@echo "device: $(DEVICE) ($(WHY)); matrix products: $(PRODUCTS); MPI: $(if $(filter 1,$(MPI)),yes,no (--ranks N starts local ranks))"

# The program of the device asked for last.
train_gpt: $(O)/train_gpt FORCE
	@cmp -s $< $@ || cp -f $< $@
FORCE:

# Objects are built anew when the flags are others, say because MPI has been installed since.
FLAGS_NOW = $(CXX) $(DEVICE) $(CPU_FLAGS) $(NVCC_FLAGS) $(MPI_FLAGS)
$(O)/flags: FORCE | $(O)
	@echo '$(FLAGS_NOW)' | cmp -s - $@ || echo '$(FLAGS_NOW)' > $@

# Every source is as .clang-format (version 14) would have it; comments, which that leaves alone, keep to 100 columns.
check-format: SOURCES = $(shell git ls-files '*.h' '*.cu' '*.cuh' '*.cpp')
check-format:
	clang-format --dry-run -Werror $(SOURCES)
	@! LC_ALL=C.UTF-8 grep -nE '^.{101,}' $(SOURCES) | grep '//' || { echo "comments beyond 100 columns"; false; }

# Every file includes only what the table of doc/architecture.md allows its room.
check-rooms:
	python3 dev/check_rooms.py

clean:
	rm -rf build train_gpt train_gpt_emulated

# The CUDA program on a CPU (doc/emulator.md) needs the toolkit's headers.
CUDA_HOME ?= /usr/local/cuda
EMULATOR_HERE := $(wildcard $(CUDA_HOME)/include/cuda_runtime.h)
ifeq ($(DEVICE)$(if $(EMULATOR_HERE),,no),cpu)
include emulator/emulator.mk test/kernels.mk
endif
include test/test.mk test/fuzz.mk
