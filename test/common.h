// test/common.h: what the test programs share: cmocka with what it needs, and a folder for all
// that a test program writes.
#pragma once

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

static char folder[64];

static inline int make_folder_of_tests(void **) {
    snprintf(folder, sizeof folder, "/tmp/%s.XXXXXX", program_invocation_short_name);
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder_unless(int failed) {
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return failed ? failed : system(command) != 0;
}

// For main: the folder is there in all tests, and stays if one of them fails.
#define run_in_folder(tests)                                                                       \
    remove_folder_unless(cmocka_run_group_tests(tests, make_folder_of_tests, NULL))

// A path in the folder; good until the fourth call after it.
static inline const char *temporary(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline const char *write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "w");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        fail_msg("cannot write %s: %s", path, strerror(errno));
    return path;
}

// As much of the file as there is room for; "" if there is none.
static inline char *read_text(const char *path, char *text, size_t room) {
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, room - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    return text;
}

// The same, good until the next call.
static inline char *read_file(const char *path) {
    static char text[65536];
    return read_text(path, text, sizeof text);
}
