# test/cpu_reference.mk: the CPU ops as an object file per dtype, for tests of the kernels.
ifndef CPU_REFERENCE_LIBS
PRECISION_fp32 := 0
PRECISION_bf16 := 1
CPU_REFERENCE_LIBS := -ldnnl
define cpu_reference
$$(O)/cpu_reference_$(1).o: test/cpu_reference.cpp test/cpu_reference.h $$(HEADERS) $$(wildcard cpu/*.h)
	@mkdir -p $$(@D)
	$$(CXX) -std=c++17 -O3 -g -fno-math-errno -fno-trapping-math -fopenmp $$(WARN) -DDEVICE_CPU \
	    -DUSE_ONEDNN -DPRECISION_BF16=$$(PRECISION_$(1)) -I. -c $$< -o $$@
endef
$(foreach d,fp32 bf16,$(eval $(call cpu_reference,$(d))))
endif
