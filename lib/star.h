// lib/star.h: ranks that find each other by sockets, where no MPI has started them. Rank 0 listens
// at a port that all know. Every other rank connects to it twice: once for the words that hosts
// exchange, once for its end, which may come in any thread at any time: a rank that has said why it
// ends sends a byte there, one that is killed just closes it. The network is trusted, as NCCL
// trusts it.
#pragma once

#include "clock.h"
#include "die.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { STAR_WORDS, STAR_ENDS, STAR_SOCKETS };  // of each rank

typedef struct {
    int rank, world;
    // (world) of each; -1: none. On rank 0 [i] is rank i's, on the others [0] is rank 0's.
    struct pollfd *sockets[STAR_SOCKETS];
    bool leaves;  // all are at the end of the job: sockets may close
} Star;

// What a rank says first on a socket.
typedef struct {
    char magic[16];
    int rank, world, socket;
} StarHello;
static const char star_magic[16] = "fsdp.c star 1";

// ---- sockets -----------------------------------------------------------------------------------

// A machine that has gone is noticed within a minute.
static inline void star_keep_alive(int fd) {
    const int on = 1, idle = 20, interval = 10, probes = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// A socket at this port of all addresses of the machine; -1 with errno.
static inline int star_bind(int family, int port) {
    const int on = 1, off = 0;
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    memset(&six, 0, sizeof six), memset(&four, 0, sizeof four);
    six.sin6_family = AF_INET6, six.sin6_port = htons((uint16_t)port);
    four.sin_family = AF_INET, four.sin_port = htons((uint16_t)port);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    int error = family == AF_INET6 ? bind(fd, (struct sockaddr *)(void *)&six, sizeof six)
                                   : bind(fd, (struct sockaddr *)(void *)&four, sizeof four);
    if (!error && !listen(fd, SOMAXCONN)) return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

// Version 6 takes version 4's connections too, where a machine has it.
static inline int star_listen(int port) {
    int fd = star_bind(AF_INET6, port);
    if (fd < 0 && errno != EADDRINUSE) fd = star_bind(AF_INET, port);
    if (fd < 0)
        die("rank 0 cannot listen at port %d, where the other ranks look for it: %s (MASTER_PORT "
            "chooses another one)",
            port, strerror(errno));
    return fd;
}

// -1 with the reason.
static inline int star_try_connect(const char *host, int port, const char **why) {
    struct addrinfo hints, *all;
    char service[16];
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(host, service, &hints, &all), fd = -1;
    if (error) {
        *why = gai_strerror(error);
        return -1;
    }
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
        *why = strerror(errno);
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(all);
    return fd;
}

// ---- the end of a rank -------------------------------------------------------------------------

// Tells the others that this rank has said why it ends; for die_hook.
static inline void star_say_end(const Star *s) {
    for (int i = 0; s->sockets[STAR_ENDS] && i < s->world; i++) {
        int fd = __atomic_load_n(&s->sockets[STAR_ENDS][i].fd, __ATOMIC_RELAXED);
        if (fd >= 0) send(fd, "e", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

// For the watchdog: has a rank ended? One that has said why takes this one along in silence.
static inline bool star_failed(const Star *s, char *text, size_t room) {
    struct pollfd *ends = s->sockets[STAR_ENDS];
    if (!ends || __atomic_load_n(&s->leaves, __ATOMIC_ACQUIRE)) return false;
    if (poll(ends, (nfds_t)s->world, 0) <= 0) return false;
    int lost = -1;
    for (int i = 0; i < s->world; i++) {
        char byte;
        if (ends[i].fd < 0 || !ends[i].revents) continue;
        if (recv(ends[i].fd, &byte, 1, MSG_DONTWAIT) == 1) die_now();
        lost = i;
    }
    if (lost < 0 || __atomic_load_n(&s->leaves, __ATOMIC_ACQUIRE)) return false;
    snprintf(text, room, "rank %d has ended without a word: killed, or its machine is lost", lost);
    return true;
}

// Words of rank i no longer come. The watchdog is about to say why.
NORETURN static inline void star_lost(int i) {
    sleep(2);
    die("the connection to rank %d is lost", i);
}

// ---- words -------------------------------------------------------------------------------------

static inline void star_write(const Star *s, int i, const void *words, size_t bytes) {
    for (const char *at = (const char *)words, *end = at + bytes; at < end;) {
        ssize_t n = send(s->sockets[STAR_WORDS][i].fd, at, (size_t)(end - at), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) star_lost(i);
        at += n;
    }
}

// As many of the bytes as are there.
static inline size_t star_read(const Star *s, int i, void *words, size_t bytes) {
    ssize_t n = recv(s->sockets[STAR_WORDS][i].fd, words, bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) star_lost(i);
    return (size_t)n;
}

// ---- start -------------------------------------------------------------------------------------

static inline void star_set(Star *s, int socket, int i, int fd) {
    star_keep_alive(fd);
    __atomic_store_n(&s->sockets[socket][i].fd, fd, __ATOMIC_RELEASE);
}

// A connection that says nothing for a while, or something else, is none of ours.
static inline bool star_read_hello(int fd, StarHello *h) {
    const struct timeval limit = {5, 0}, none = {0, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    bool whole = recv(fd, h, sizeof *h, MSG_WAITALL) == (ssize_t)sizeof *h;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    return whole && !memcmp(h->magic, star_magic, sizeof h->magic) && h->socket >= 0 &&
           h->socket < STAR_SOCKETS;
}

// Names up to eight of the ranks that have not come.
NORETURN static inline void star_die_waiting(const Star *s, int port, int seconds) {
    char names[160] = "";
    int missing = 0;
    for (int i = 1; i < s->world; i++) {
        if (s->sockets[STAR_WORDS][i].fd >= 0) continue;
        size_t used = strlen(names);
        if (missing++ < 8) snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", i);
    }
    die("expected %d ranks, %d have not come to port %d within %d seconds: %s%s", s->world, missing,
        port, seconds, names, missing > 8 ? ", ..." : "");
}

// Takes a rank's connection, if it is one.
static inline bool star_take(Star *s, int fd) {
    StarHello h;
    if (!star_read_hello(fd, &h)) {
        close(fd);
        return false;
    }
    const bool sane = h.world == s->world && h.rank > 0 && h.rank < s->world;
    if (sane && s->sockets[h.socket][h.rank].fd < 0) {
        star_set(s, h.socket, h.rank, fd);
        return true;
    }
    if (send(fd, "e", 1, MSG_NOSIGNAL) < 0) close(fd);
    if (h.world != s->world)
        die("rank %d was started as one of %d, rank 0 as one of %d", h.rank, h.world, s->world);
    die("two processes were started as rank %d", h.rank);
}

static inline void star_wait_for_ranks(Star *s, int port, int seconds) {
    const double until = clock_ms() + 1e3 * seconds;
    struct pollfd listener = {star_listen(port), POLLIN, 0};
    for (int missing = STAR_SOCKETS * (s->world - 1); missing > 0;) {
        double left = until - clock_ms();
        if (left <= 0) star_die_waiting(s, port, seconds);
        if (poll(&listener, 1, (int)left + 1) <= 0) continue;
        int fd = accept4(listener.fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            missing -= star_take(s, fd);
        else if (errno == EMFILE || errno == ENFILE)
            die("rank 0 cannot open a socket for each rank: %s (ulimit -n)", strerror(errno));
    }
    close(listener.fd);
}

// Rank 0 may listen later than others look for it.
static inline int star_connect(const char *host, int port, int seconds) {
    const double until = clock_ms() + 1e3 * seconds;
    const char *why = "";
    for (;;) {
        int fd = star_try_connect(host, port, &why);
        if (fd >= 0) return fd;
        if (clock_ms() > until)
            die("rank 0 does not answer at %s, port %d, within %d seconds: %s", host, port, seconds,
                why);
        usleep(100 * 1000);
    }
}

// Returns when all ranks are connected to rank 0, on rank 0; on the others when it has answered.
static inline void star_join(Star *s, int rank, int world, const char *host, int port,
                             int seconds) {
    s->rank = rank, s->world = world;
    for (int k = 0; k < STAR_SOCKETS; k++) {
        struct pollfd *all = (struct pollfd *)malloc_check(sizeof *all * (size_t)world);
        for (int i = 0; i < world; i++) all[i] = (struct pollfd){-1, POLLIN, 0};
        __atomic_store_n(&s->sockets[k], all, __ATOMIC_RELEASE);
    }
    if (rank == 0) {
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
            files.rlim_cur = files.rlim_max;
            setrlimit(RLIMIT_NOFILE, &files);
        }
        star_wait_for_ranks(s, port, seconds);
        return;
    }
    for (int k = STAR_SOCKETS - 1; k >= 0; k--) {  // its end first
        StarHello h;
        memset(&h, 0, sizeof h);
        memcpy(h.magic, star_magic, sizeof h.magic);
        h.rank = rank, h.world = world, h.socket = k;
        star_set(s, k, 0, star_connect(host, port, seconds));
        if (send(s->sockets[k][0].fd, &h, sizeof h, MSG_NOSIGNAL) != (ssize_t)sizeof h)
            star_lost(0);
    }
}

// After the last words.
static inline void star_leave(Star *s) {
    for (int k = 0; k < STAR_SOCKETS; k++)
        for (int i = 0; i < s->world; i++)
            if (s->sockets[k][i].fd >= 0) close(s->sockets[k][i].fd);
}
