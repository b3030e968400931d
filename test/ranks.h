// test/ranks.h: forked processes as the ranks of a communicator of the CPU device.
#pragma once

#include "../cpu/nccl.h"
#include "../lib/die.h"

#include <omp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// Runs run_rank(rank, id) in `world` processes with one thread each; the exit status of the first
// that fails, 0 if none does.
template <class RunRank> static int on_ranks(int world, RunRank run_rank) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    fflush(NULL);
    std::vector<pid_t> ranks((size_t)world);
    for (int rank = 0; rank < world; rank++)
        if ((ranks[(size_t)rank] = fork()) == 0) {
            omp_set_num_threads(1);
            process.rank = rank, process.world = world;
            run_rank(rank, id);
            _exit(0);
        }
    int first = 0;
    for (int i = 0, status; i < world; i++) {
        wait(&status);
        if (!status || first) continue;
        first = status;  // the others may wait for it for ever
        for (pid_t pid : ranks) kill(pid, SIGKILL);
    }
    // The descriptor in the id is this process's: the ranks open it through /proc.
    int fd;
    memcpy(&fd, id.internal + 8, sizeof fd);
    close(fd);
    return first;
}
