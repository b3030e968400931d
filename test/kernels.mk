# test/kernels.mk: every kernel, in the emulator: `make test-kernels`, each dtype in the plain, asan
# and race builds. On a GPU the same source is built by dev/gpu_check.sh. One alone:
#   make test-kernels-race, or a program of it: build/cpu/emu/race/test_kernels_bf16
include test/cpu_reference.mk

# Orders of device threads, with their seeds, that each build runs under.
KERNEL_RUNS_plain := ascending:1 descending:1 random:2
KERNEL_RUNS_asan := sticky:1
KERNEL_RUNS_race := sticky:1

# $(1) variant, $(2) dtype
define kernel_test
$$(O)/emu/$(1)/test_kernels_$(2).o: $$(O)/emu/src/test/test_kernels.cu | $$(EMU_MIRROR)
	$$(call emu_cc,$(1),$$(EMU_PROGRAM_FLAGS) -DSEEDED_DEFECTS -DPRECISION_BF16=$$(PRECISION_$(2)))
$$(O)/emu/$(1)/test_kernels_$(2): $$(O)/emu/$(1)/test_kernels_$(2).o $$(O)/cpu_reference_$(2).o $$(O)/libemu_$(1).a
	$$(CXX) -fopenmp $$(EMU_LDFLAGS_$(1)) $$^ -lcmocka $$(CPU_REFERENCE_LIBS) $$(EMU_LDLIBS) -o $$@
endef
$(foreach v,$(EMU_VARIANTS),$(foreach d,fp32 bf16,$(eval $(call kernel_test,$(v),$(d)))))

define kernel_run
test-kernels: test-kernels-$(1)
build-kernel-tests: $$(foreach d,fp32 bf16,$$(O)/emu/$(1)/test_kernels_$$(d))
test-kernels-$(1): $$(foreach d,fp32 bf16,$$(O)/emu/$(1)/test_kernels_$$(d))
	@set -e; for t in $$^; do for r in $$(KERNEL_RUNS_$(1)); do echo "== $$$$t, threads $$$$r"; \
	EMU_ORDER=$$$${r%:*} EMU_SEED=$$$${r#*:} $$$$t; done; done
.PHONY: test-kernels build-kernel-tests test-kernels-$(1)
endef
$(foreach v,$(EMU_VARIANTS),$(eval $(call kernel_run,$(v))))

# ---- what the kernels do, counted, and how long that should take (doc/gpu-speed.md) ---------------------------------
REPORT_SIZES := 124M 1558M 13B 175B
REPORT_GPUS := a100-80gb h100-sxm
$(O)/emu/count/dev/kernel_report.o: $(O)/emu/src/dev/kernel_report.cu | $(EMU_MIRROR)
	$(call emu_cc,count,$(EMU_PROGRAM_FLAGS) -DPRECISION_BF16=1)
$(O)/kernel_report: $(O)/emu/count/dev/kernel_report.o $(O)/emu/count/gpt_bf16.o $(O)/libemu_count.a
	$(CXX) $^ $(EMU_LDLIBS) -o $@
$(O)/emu/count/dev/bench_kernels.o: $(O)/emu/src/dev/bench_kernels.cu | $(EMU_MIRROR)
	$(call emu_cc,count,$(EMU_PROGRAM_FLAGS) -DPRECISION_BF16=1)
$(O)/predict_kernels: $(O)/emu/count/dev/bench_kernels.o $(O)/libemu_count.a
	$(CXX) $^ $(EMU_LDLIBS) -o $@
kernel-report: $(REPORT_SIZES:%=$(O)/report.%)
	@cat $^
$(O)/report.%: $(O)/kernel_report kernels/resources.txt kernels/instructions.txt
	@$< $* $(REPORT_GPUS) > $@.new && mv $@.new $@
kernel-counts: $(O)/kernel_report
	$< --counts > kernels/counters.txt
check-kernel-counts: $(O)/kernel_report
	$< --check kernels/counters.txt
.PHONY: kernel-report kernel-counts check-kernel-counts
