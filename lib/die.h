// lib/die.h: how a rank ends when something is wrong: one line on stderr, then the whole job.
// die() is for what this rank has found; it takes the other ranks down through die_hook. die_all()
// is for what every rank finds alike (a bad option, a bad file): rank 0 speaks for all, and a rank
// that still lives two seconds later was alone with it and speaks up. Of the ranks of a node, only
// the first speaks.
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
#define NORETURN [[noreturn]]
#else
#define NORETURN _Noreturn
#endif
// One object in the program, however many of its files include this one.
#define ONE_OBJECT __attribute__((weak))

// The process's only global state: who it is and where it stands.
typedef struct {
    int rank, world;
    long step;            // optimizer step, from 0; -1 outside the training loop
    unsigned long signs;  // of life, see lib/watchdog.h
    bool waits;           // for other ranks, in ranks.h
    int patient;          // waits of which the watchdog takes no notice, see lib/watchdog.h
    bool ends;            // another thread is about to end the process
    unsigned run;         // a random number of the run, in the names of its temporary files
} Process;
ONE_OBJECT Process process = {0, 1, -1, 0, false, 0, false, 0};

// The main thread has got on. If the process ends it gets on no more: collectives that were given
// up have left anything behind, and nothing of that is to be saved or said.
static inline void process_alive(void) {
    __atomic_fetch_add(&process.signs, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&process.ends, __ATOMIC_ACQUIRE)) pause();
}

// The main thread begins or ends to wait for other ranks.
static inline void process_waits(bool waits) {
    __atomic_store_n(&process.waits, waits, __ATOMIC_RELAXED);
}

// Ends the other ranks; set by ranks.h once there are any. May be NULL.
ONE_OBJECT void (*die_hook)(void) = NULL;

// A file that this process has begun to write, see lib/replace.h; "": none.
ONE_OBJECT char die_unfinished[4096] = "";

// Shared by the ranks of a node, set by ranks.h: not 0 once one of them has spoken. May be NULL.
ONE_OBJECT int *die_spoken = NULL;

// Writes "train_gpt: [where] message\n" in one piece, so that lines of several ranks do not mix.
// Control bytes of the message (a file may have any name) come as \x1b, so that it stays one line
// and commands nothing to a terminal. People count steps from 1.
static inline void die_print(bool name_rank, const char *format, va_list args) {
    enum { ESCAPE = 4 };  // the longest: \x1b
    char message[2048] = "", line[4096] = "train_gpt: ";
    size_t used = strlen(line);
    if (name_rank && process.step >= 0)
        used += (size_t)snprintf(line + used, sizeof line - used, "[rank %d, step %ld] ",
                                 process.rank, process.step + 1);
    else if (name_rank)
        used += (size_t)snprintf(line + used, sizeof line - used, "[rank %d] ", process.rank);
    vsnprintf(message, sizeof message, format, args);
    for (const char *c = message; *c && used < sizeof line - ESCAPE - 1; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte < 32 || byte == 127)
            used += (size_t)snprintf(line + used, ESCAPE + 1, "\\x%02x", byte);
        else
            line[used++] = *c;
    }
    line[used++] = '\n';
    fflush(stdout);
    // stderr is the last place to complain, so a failed write has nobody to be told to.
    if (write(STDERR_FILENO, line, used) < 0) return;
}

// _exit, not exit: destructors of libraries may wait for threads or ranks that will never answer.
NORETURN static inline void die_now(void) {
    if (die_unfinished[0]) unlink(die_unfinished);
    if (die_hook) die_hook();
    _exit(1);
}

// The first of the ranks that come here returns; it takes the others down while they wait.
static inline void die_in_turn(void) {
    if (!die_spoken || !__atomic_exchange_n(die_spoken, 1, __ATOMIC_ACQ_REL)) return;
    sleep(2);
    die_now();
}

// The line of die(), for a thread that has something left to do before the end.
__attribute__((format(printf, 1, 2))) static inline void die_say(const char *format, ...) {
    die_in_turn();
    va_list args;
    va_start(args, format);
    die_print(true, format, args);
    va_end(args);
}

NORETURN __attribute__((format(printf, 1, 2))) static inline void die(const char *format, ...) {
    die_in_turn();
    va_list args;
    va_start(args, format);
    die_print(true, format, args);
    va_end(args);
    die_now();
}

NORETURN __attribute__((format(printf, 1, 2))) static inline void die_all(const char *format, ...) {
    if (process.rank != 0) sleep(2);
    die_in_turn();
    va_list args;
    va_start(args, format);
    die_print(process.rank != 0, format, args);
    va_end(args);
    die_now();
}

// ---- memory ------------------------------------------------------------------------------------

static inline void *malloc_check(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) die("out of memory: asked for %zu bytes", bytes);
    return p;
}

static inline void *realloc_check(void *p, size_t bytes) {
    p = realloc(p, bytes);
    if (!p) die("out of memory: asked for %zu bytes", bytes);
    return p;
}

static inline char *strdup_check(const char *text) {
    size_t bytes = strlen(text) + 1;
    return (char *)memcpy(malloc_check(bytes), text, bytes);
}
