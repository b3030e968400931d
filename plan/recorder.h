// plan/recorder.h: what the device of a plan (device.h) is told, and what it has noted.
#pragma once

#include "cluster.h"
#include "simulate.h"

typedef struct PlanComm {
    Group group;
    bool peers;  // ranks send to each other one by one
} PlanComm;

enum { PLAN_COMMS = 8 };

// The device of a process; one plan at a time.
typedef struct {
    Cluster cluster;
    int world, rank, K;  // of the planned run
    size_t exchange_elements, cpu_workspace;
    Sim sim;
    PlanComm comms[PLAN_COMMS];
    int ncomms;
    size_t allocated;         // bytes of device memory
    double flops;             // as utilisation counts them
    double work[WORK_KINDS];  // seconds alone
    size_t exchanged;         // bytes of the group of sends under way
    PlanComm *exchanging;
} PlanDevice;
ONE_OBJECT PlanDevice plan_device;

// The rank that is planned: the second, where there is one. Of it a communicator's colour and key
// tell whether its members are neighbours (see ncclCommSplit).
static inline int plan_rank(int world) {
    return world > 1 ? 1 : 0;
}

static inline int plan_ranks_of_node(void) {
    const PlanDevice *d = &plan_device;
    return d->cluster.per_node < d->world ? d->cluster.per_node : d->world;
}
