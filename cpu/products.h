// cpu/products.h: how this processor multiplies bf16 matrices fastest. A matter of what it is, not
// of a measurement, so that it cannot change from run to run:
//   AMX tiles where they are usable; else vdpbf16ps, except on Intel's processors, which have it at
//   half the rate of fp32 multiply-adds (Cooper Lake, the first, is built for it); else operands
//   are widened to fp32. The sums are fp32 in each form, but not in the same order.
// FSDP_PRODUCTS=native|widened overrules that, for tests.
#pragma once

#include "../lib/die.h"

#ifdef USE_ONEDNN
#include <dnnl.h>
#endif

typedef enum { PRODUCTS_WIDENED, PRODUCTS_VECTOR, PRODUCTS_AMX } ProductForm;

static inline const char *products_name(ProductForm form) {
    static const char *const names[] = {"widened to fp32", "by vdpbf16ps", "by AMX"};
    return names[form];
}

#if defined(USE_ONEDNN) && defined(__x86_64__)
// The best that the library can do here.
static inline ProductForm products_native(void) {
    const int isa = dnnl_get_effective_cpu_isa();
    const int amx = dnnl_cpu_isa_avx512_core_amx, vector = dnnl_cpu_isa_avx512_core_bf16;
    return (isa & amx) == amx         ? PRODUCTS_AMX
           : (isa & vector) == vector ? PRODUCTS_VECTOR
                                      : PRODUCTS_WIDENED;
}

static inline bool products_vector_is_slow(void) {
    return __builtin_cpu_is("intel") && !__builtin_cpu_is("cooperlake");
}
#else
static inline ProductForm products_native(void) {
    return PRODUCTS_WIDENED;
}

static inline bool products_vector_is_slow(void) {
    return false;
}
#endif

static inline ProductForm products_of_bf16(void) {
    const char *wish = getenv("FSDP_PRODUCTS");
    const ProductForm native = products_native();
    if (wish && strcmp(wish, "native") && strcmp(wish, "widened"))
        die_all("FSDP_PRODUCTS=%s: expected native or widened", wish);
    if (wish) return !strcmp(wish, "native") ? native : PRODUCTS_WIDENED;
    return native == PRODUCTS_VECTOR && products_vector_is_slow() ? PRODUCTS_WIDENED : native;
}
