// lib/paths.h: the files that a user's pattern names: a glob, several with commas between them, or
// the shell's braces: `data/*.bin`, `a.txt,b.txt`, `{a,b}/*.txt`. Each of them has to name a file.
// What is itself the name of a file means that file, whatever commas and brackets are in it.
#pragma once

#include "files.h"

#include <glob.h>

typedef struct {
    int count;
    char **names;  // in the order of the patterns, those of a glob in alphabetical order
} Paths;

static inline void paths_add(Paths *p, const char *name) {
    p->names = (char **)realloc_check(p->names, ((size_t)p->count + 1) * sizeof(char *));
    p->names[p->count++] = strdup_check(name);
}

static inline void paths_free(Paths *p) {
    for (int i = 0; i < p->count; i++) free(p->names[i]);
    free(p->names);
}

// One glob; folders that match are left out.
static inline bool paths_add_glob(Paths *p, const char *pattern, Failure *failure) {
    glob_t all;
    memset(&all, 0, sizeof all);
    int error = glob(pattern, 0, NULL, &all), before = p->count;
    if (error == GLOB_NOMATCH)
        return fails(failure, "no file matches %s", pattern[0] ? pattern : "(empty)");
    if (error) return fails(failure, "cannot list %s", pattern);
    for (size_t i = 0; i < all.gl_pathc; i++)
        if (!is_folder(all.gl_pathv[i])) paths_add(p, all.gl_pathv[i]);
    if (p->count == before)
        fails(failure,
              "%s: expected files, found only %zu folder(s); to take all files of one: "
              "%s/*",
              pattern, all.gl_pathc, pattern);
    globfree(&all);
    return p->count > before;
}

// The end of the alternative that text begins with: a comma or a brace that is not in braces of its
// own, or the end.
static inline const char *alternative_end(const char *text) {
    int depth = 0;
    for (; *text; text++) {
        if (depth == 0 && (*text == ',' || *text == '}')) return text;
        depth += *text == '{' ? 1 : *text == '}' ? -1 : 0;
    }
    return text;
}

// The first brace that opens a list; NULL if there is none.
static inline const char *braces_open(const char *pattern) {
    for (const char *open = strchr(pattern, '{'); open; open = strchr(open + 1, '{')) {
        const char *end = alternative_end(open + 1);
        if (*end != ',') continue;  // as the shell: {a} is no list
        while (*end == ',') end = alternative_end(end + 1);
        if (*end) return open;
    }
    return NULL;
}

// Adds what the pattern names; false if one of its parts names nothing.
static inline bool paths_try_pattern(Paths *p, const char *pattern, Failure *failure) {
    char one[PATH_BYTES];
    if (access(pattern, F_OK) == 0 && !is_folder(pattern)) {
        paths_add(p, pattern);
        return true;
    }
    const char *end = alternative_end(pattern), *open = braces_open(pattern);
    if (*end == ',') {
        for (; *end == ','; pattern = end + 1, end = alternative_end(pattern)) {
            path_print(one, "%.*s", (int)(end - pattern), pattern);
            if (!paths_try_pattern(p, one, failure)) return false;
        }
        return paths_try_pattern(p, pattern, failure);
    }
    if (!open) return paths_add_glob(p, pattern, failure);
    const char *close = open, *at = open + 1;
    do close = alternative_end(close + 1);
    while (*close == ',');
    for (; at <= close; at = end + 1) {
        end = alternative_end(at);
        path_print(one, "%.*s%.*s%s", (int)(open - pattern), pattern, (int)(end - at), at,
                   close + 1);
        if (!paths_try_pattern(p, one, failure)) return false;
    }
    return true;
}

static inline void paths_add_pattern(Paths *p, const char *pattern) {
    Failure failure;
    if (!paths_try_pattern(p, pattern, &failure)) die_all("%s", failure.text);
}
