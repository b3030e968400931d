// test/fuzz/fuzz.h: what the fuzz targets share. Readers that end the program on a bad file come
// back to the target instead: die_hook jumps, and what the call held by then is given back.
#pragma once

#include <sanitizer/allocator_interface.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

// A file that is open when a reader ends the program must be closed, not just freed.
static FILE *fuzz_file;
static inline FILE *fuzz_fdopen(int fd, const char *mode) {
    return fuzz_file = fdopen(fd, mode);
}
static inline int fuzz_fclose(FILE *f) {
    if (f == fuzz_file) fuzz_file = NULL;
    return fclose(f);
}
#define fdopen fuzz_fdopen
#define fclose fuzz_fclose

#include "../../lib/files.h"

// ---- the input as a file -----------------------------------------------------------------------

static int fuzz_fd = -1;

// A file that holds the input; the next call changes it.
static const char *fuzz_path(const uint8_t *data, size_t size) {
    static char path[64];
    if (fuzz_fd < 0) fuzz_fd = memfd_create("input", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fuzz_fd);
    if (ftruncate(fuzz_fd, 0) != 0 || pwrite(fuzz_fd, data, size, 0) != (ssize_t)size) abort();
    return path;
}

// ---- readers that may end the program ----------------------------------------------------------

enum { FUZZ_BLOCKS = 1 << 16 };
static const volatile void *fuzz_blocks[FUZZ_BLOCKS];  // allocated by the call and not yet freed
static size_t fuzz_count;
static bool fuzz_runs, fuzz_hooked;
static jmp_buf fuzz_back;

// A reader that says its refusals in a Failure must not end the program: that would be a find.
__attribute__((constructor)) static void fuzz_no_end(void) {
    die_hook = abort;
}

static void fuzz_on_malloc(const volatile void *block, size_t) {
    if (!fuzz_runs) return;
    if (fuzz_count == FUZZ_BLOCKS) abort();
    fuzz_blocks[fuzz_count++] = block;
}

static void fuzz_on_free(const volatile void *block) {
    for (size_t i = fuzz_count; fuzz_runs && i-- > 0;)
        if (fuzz_blocks[i] == block) {
            fuzz_blocks[i] = fuzz_blocks[--fuzz_count];
            return;
        }
}

static void fuzz_jump(void) {
    longjmp(fuzz_back, 1);
}

// Gives back what the call held.
static void fuzz_clean(void) {
    if (fuzz_file) fclose(fuzz_file);
    fuzz_runs = false;
    for (size_t i = 0; i < fuzz_count; i++) free((void *)fuzz_blocks[i]);
    close_range((unsigned)fuzz_fd + 1, ~0u, 0);
}

// Calls read(path). What it holds when it returns is a leak, for the leak sanitizer to find.
static int fuzz_reader(void (*read)(const char *path), const uint8_t *data, size_t size) {
    const char *path = fuzz_path(data, size);
    if (!fuzz_hooked) __sanitizer_install_malloc_and_free_hooks(fuzz_on_malloc, fuzz_on_free);
    fuzz_hooked = true, die_hook = fuzz_jump;
    fuzz_count = 0, fuzz_file = NULL, fuzz_runs = true;
    if (setjmp(fuzz_back) == 0) {
        read(path);
        fuzz_runs = false;
        return 0;
    }
    fuzz_clean();
    return 0;
}
