// core.h: what the parts of the emulator share: reports, settings, device memory, streams, the race
// detector's hooks. Nothing here is seen by production code.
#pragma once

#include "emu.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace emu {

// ---- settings, from the environment at first use (report.cpp) ----------------------------------
enum Schedule { EAGER, RANDOM, LAZY, PRIORITY };  // EMU_SCHEDULE: order of stream operations
enum Order { ASCENDING, DESCENDING, RANDOM_LANE, STICKY };  // EMU_ORDER: order of device threads
struct Settings {
    Schedule schedule = PRIORITY;
    Order order = STICKY;
    unsigned seed = 1;          // EMU_SEED
    double stall_seconds = 60;  // EMU_STALL_SECONDS: no progress for so long is a deadlock
    int kernel_seconds = 120;   // EMU_KERNEL_SECONDS of processor time for one launch: it spins
    size_t memory = 0;          // EMU_MEMORY, bytes of device memory
    int devices = 0;            // EMU_DEVICES
    int pci_bus = 0;            // EMU_PCI_BUS
    int nccl_version = 0;       // EMU_NCCL_VERSION
    size_t nccl_memory = 0;     // EMU_NCCL_MEMORY, bytes of device memory for a connection
    int multiprocessors = 0;    // EMU_SMS
    bool trace = false;         // EMU_TRACE: print each operation as it runs
};
const Settings &settings();

struct Random {
    uint32_t state = 1;
    void seed(uint32_t s);
    uint32_t next();
};

// ---- reports (report.cpp) ----------------------------------------------------------------------
extern int rank;  // of this process: the launcher's, then the first communicator's; -1: not known
constexpr int EXIT_REPORT = 66;

// One report on stderr, then the process ends with EXIT_REPORT.
[[noreturn]] void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
// A race or another defect after which execution can go on; each text once. The process ends with
// EXIT_REPORT at the next host synchronisation, or at exit.
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void end_if_reported();
std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string in_thread();  // " [block (x,y,z) thread (x,y,z)]"

// Error codes on demand: EMU_FAIL=function:n[:code],... makes the n-th call fail;
// "rank@function:n" on one rank.
int injected_failure(const char *function, int default_code);

// ---- the executable's symbols (symbols.cpp) ----------------------------------------------------
std::string source_line(const void *pc);  // "file:line", or the address if unknown
// Static __shared__ variables are function-local statics.
struct StaticVariable {
    const char *begin, *end;
    std::string owner;  // mangled name of the enclosing function, without its leading _Z
};
const StaticVariable *find_static(const void *p);
bool is_program(const void *pc);                   // anywhere in the executable
bool is_constant(const void *p);                   // in its read-only part
size_t static_shared_bytes(const void *function);  // declared in this kernel itself
std::string function_name(const void *function);   // mangled; "" if unknown

// ---- fibers (fibers.cpp) -----------------------------------------------------------------------
void run_grid(Kernel &kernel);
extern Kernel *running;                 // the kernel being run, or NULL
extern thread_local bool runs_kernels;  // the one thread of the process that does
extern const void *last_access_pc;      // set by the race detector
bool on_own_stack(const void *p);
bool copy_in_flight(const void *p, size_t bytes);  // cp.async of this thread to p, not waited for

// ---- device and pinned memory (memory.cpp) -----------------------------------------------------
struct Allocation {
    char *begin;
    size_t bytes;
    bool live;
};
bool is_device(const void *p);  // anywhere in the device's address range
bool is_pinned(const void *p);
const Allocation *find_allocation(const void *p);  // live and containing p, device or pinned
// Checks that [p, p + bytes) lies within one live device allocation, and reports the
// access to the race detector.
void device_range(const char *what, const void *p, size_t bytes, bool write);
// Memory of the device that a library takes for itself, or gives back (less than 0); false: it is
// not free.
bool take_memory(long bytes);
void check_red_zones(const char *after);
void check_launch(const Kernel &kernel, cudaError_t *error);
cudaError_t set_error(cudaError_t error);  // for cudaGetLastError
void end_if_launch_failed();               // a launch error that nobody has asked for

// ---- streams (streams.cpp) ---------------------------------------------------------------------
typedef std::vector<uint32_t> VectorClock;  // [0] host, [i] stream i
void join(VectorClock &a, const VectorClock &b);

// Completion of one operation; events and later operations hold it.
struct Completion {
    bool done = false;
    double seconds = 0;
    VectorClock clock;
};
typedef std::shared_ptr<Completion> Token;

struct Stream;
struct Operation {
    std::string name;
    std::function<void()> run;     // may be empty
    std::function<bool()> ready;   // polled at the head of the stream; empty: always
    std::vector<Token> after;      // ordered by the program: happens-before
    std::vector<Token> after_too;  // only held back (collectives of one communicator)
};
Token enqueue(Stream *stream, Operation operation);
Stream *stream_of(cudaStream_t handle);
bool progress(
    bool patient);  // runs one operation if one can run; patient: may give collectives a moment
void wait_for(const Token &token);
void wait_for_all();
void reseed(unsigned salt);
void idle_wait(double &since, const std::function<std::string()> &state);

// ---- collectives (nccl.cpp) --------------------------------------------------------------------
std::string describe_communicators();

// ---- race detector (race.cpp, only in the race build; NULL elsewhere) --------------------------
struct Record {  // an operation that has started
    std::string name;
    int stream;      // 0: host
    uint32_t index;  // its stream's clock
    VectorClock clock;
};
struct RaceDetector {
    void (*block_begin)();
    void (*barrier)();
    void (*warp_sync)(unsigned warp);
    void (*grid_end)();
    void (*access)(const void *p, size_t bytes, bool write, bool atomic, const void *pc);
    void (*fence)();
    void (*range)(const void *p, size_t bytes, bool write);
    void (*forget)(const void *p, size_t bytes);  // memory was allocated or freed
};
extern const RaceDetector *const race_detector;

// ---- counters (counters.cpp, only in the count build; NULL elsewhere) ---------------------------
struct CountedLaunch;
struct CountHooks {
    unsigned (*grid_begin)(const Kernel &kernel);  // returns how many of its blocks shall run
    void (*block_begin)();
    void (*block_end)();
    void (*grid_end)();
    void (*barrier)(int warps);
    void (*access)(const void *p, size_t bytes, bool write, bool atomic, const void *pc);
    void (*async_copy)(const void *shared, const void *global, size_t bytes, bool valid,
                       const void *pc);
    void (*warp_operation)(const WarpOp &op, int warp, const WarpLane *lane, bool all, Site site);
    void (*special_function)(const void *pc);
    bool (*product)(const CountedLaunch &product);  // true: it need not run
    bool (*only_counts)();                          // see count_first_blocks
};
extern const CountHooks *const counters;
extern uint32_t current_record;  // 0: the host
extern std::vector<Record> records;
extern VectorClock host_clock;

}  // namespace emu
