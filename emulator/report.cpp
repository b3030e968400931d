// report.cpp: settings from the environment, error reports, error codes on demand.
#include "core.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nccl.h>
#include <set>
#include <unistd.h>

namespace emu {

static int rank_from_launcher() {
    for (const char *name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"})
        if (const char *value = getenv(name)) return atoi(value);
    return -1;
}
int rank = rank_from_launcher();

static int choice(const char *name, std::initializer_list<const char *> names, int otherwise) {
    const char *value = getenv(name);
    if (!value) return otherwise;
    int i = 0;
    std::string known;
    for (const char *candidate : names) {
        if (!strcmp(value, candidate)) return i;
        known += std::string(" ") + candidate;
        i++;
    }
    fatal("%s=%s: expected one of%s", name, value, known.c_str());
}

static double number(const char *name, double otherwise) {
    const char *value = getenv(name);
    if (!value) return otherwise;
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end || x < 0) fatal("%s=%s: expected a number", name, value);
    return x;
}

const Settings &settings() {
    static Settings s;
    static bool read = false;
    if (read) return s;
    read = true;
    s.schedule =
        (Schedule)choice("EMU_SCHEDULE", {"eager", "random", "lazy", "priority"}, PRIORITY);
    s.order = (Order)choice("EMU_ORDER", {"ascending", "descending", "random", "sticky"}, STICKY);
    s.seed = (unsigned)number("EMU_SEED", 1);
    s.stall_seconds = number("EMU_STALL_SECONDS", 60);
    s.kernel_seconds = (int)number("EMU_KERNEL_SECONDS", 120);
    s.memory = (size_t)number("EMU_MEMORY", 16e9);
    s.devices = (int)number("EMU_DEVICES", 64);
    s.pci_bus = (int)number("EMU_PCI_BUS", 0);
    s.nccl_version = (int)number("EMU_NCCL_VERSION", NCCL_VERSION_CODE);
    s.nccl_memory = (size_t)number("EMU_NCCL_MEMORY", 0);
    s.multiprocessors = (int)number("EMU_SMS", 4);
    s.trace = number("EMU_TRACE", 0) != 0;
    return s;
}

void Random::seed(uint32_t s) {
    state = s * 2654435761u | 1;
    for (int i = 0; i < 4; i++) next();
}
uint32_t Random::next() {  // xorshift32
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static std::string vtext(const char *format, va_list arguments) {
    char buffer[4096];
    vsnprintf(buffer, sizeof buffer, format, arguments);
    return buffer;
}
#define FORMAT_ARGUMENTS(out)                                                                      \
    va_list arguments;                                                                             \
    va_start(arguments, format);                                                                   \
    std::string out = vtext(format, arguments);                                                    \
    va_end(arguments)

static void print(const char *kind, const std::string &message) {
    fflush(stdout);
    if (rank >= 0)
        fprintf(stderr, "emulator [rank %d] %s: %s\n", rank, kind, message.c_str());
    else
        fprintf(stderr, "emulator %s: %s\n", kind, message.c_str());
    fflush(stderr);
}

std::string text(const char *format, ...) {
    FORMAT_ARGUMENTS(out);
    return out;
}

void fatal(const char *format, ...) {
    FORMAT_ARGUMENTS(message);
    print("error", message);
    _exit(EXIT_REPORT);
}

static std::set<std::string> reported;
constexpr size_t REPORT_LIMIT = 10;

void end_if_reported() {
    if (reported.empty()) return;
    fatal("%zu defect%s reported above (EMU_SEED=%u)", reported.size(),
          reported.size() == 1 ? "" : "s", settings().seed);
}

void report(const char *format, ...) {
    FORMAT_ARGUMENTS(message);
    if (reported.empty()) atexit(end_if_reported);
    if (!reported.insert(message).second) return;
    print("race", message);
    if (reported.size() >= REPORT_LIMIT) end_if_reported();
}

std::string in_thread() {
    return text(" [block (%u,%u,%u) thread (%u,%u,%u)]", ctx.block.x, ctx.block.y, ctx.block.z,
                ctx.thread.x, ctx.thread.y, ctx.thread.z);
}

void device_error(const char *format, ...) {
    FORMAT_ARGUMENTS(message);
    const char *name = running ? running->config.name : "no kernel";
    fatal("kernel %s: %s%s (EMU_SEED=%u)", name, message.c_str(), in_thread().c_str(),
          settings().seed);
}

// "cudaMalloc:3" or "1@ncclAllGather:2:6"; the entries are read again on each call, there are few
int injected_failure(const char *function, int default_code) {
    static std::mutex one;  // a watchdog may ask while another thread computes
    std::lock_guard<std::mutex> lock(one);
    static const char *plan = getenv("EMU_FAIL");
    static std::map<std::string, long> calls;
    if (!plan) return 0;
    long call = ++calls[function];
    std::string rest = plan;
    while (!rest.empty()) {
        size_t comma = rest.find(',');
        std::string entry = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        char name[64];
        int only_rank = -1, code = default_code;
        long nth = 0;
        bool ranked =
            sscanf(entry.c_str(), "%d@%63[^:]:%ld:%d", &only_rank, name, &nth, &code) >= 3;
        if (!ranked && sscanf(entry.c_str(), "%63[^:]:%ld:%d", name, &nth, &code) < 2)
            fatal("EMU_FAIL: expected function:n[:code], found \"%s\"", entry.c_str());
        if (!strcmp(name, function) && nth == call && (!ranked || only_rank == rank)) return code;
    }
    return 0;
}

}  // namespace emu
