// The device of cuda_runtime.h: its memory, what waits on it, and the fibers of a block.
#include "cuda_runtime.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <csetjmp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#    define TIFFIN_TEST_ADDRESS_SANITIZER
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer)
#        define TIFFIN_TEST_ADDRESS_SANITIZER
#    endif
#endif
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {

struct graph {
    std::vector<work> all;
    bool invalidated = false;  // by a question that no stream answers while it is captured
};
struct item {
    unsigned long long turn;  // when it was put there, of all streams' items
    work run;
};
struct stream {
    int device = 0;
    bool blocking = true;  // it and the default stream wait for each other
    graph* capturing = nullptr;
    std::deque<item> waiting{};
};
// What was on a stream when the event was recorded, or that it was recorded into a graph.
struct event {
    stream* of = nullptr;
    unsigned long long turn = 0;
    graph* in = nullptr;
};

namespace {

device_state state;
struct memory {
    std::size_t bytes;
    int device;
};
std::map<std::uintptr_t, memory> allocations, pinned;
unsigned capturing = 0;
unsigned long long turn = 0;
stream default_stream;
std::set<stream*> streams{&default_stream};

// The device's memory is pages of their own, which the host can reach only while it plays the device: a program that
// reads them without a copy ends as on a real one.
constexpr std::size_t page_bytes = 4096;
std::size_t whole_pages(std::size_t bytes) {
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}
unsigned playing = 0;
void let_reach(int protection) {
    for (const auto& [at, there] : allocations)
        mprotect(reinterpret_cast<void*>(at), whole_pages(there.bytes), protection);
}
struct device_plays {
    device_plays() {
        if (playing++ == 0) let_reach(PROT_READ | PROT_WRITE);
    }
    ~device_plays() {
        if (--playing == 0) let_reach(PROT_NONE);
    }
    device_plays(const device_plays&) = delete;
    device_plays& operator=(const device_plays&) = delete;
};

// The range that an address lies in, or null.
const memory* find(const std::map<std::uintptr_t, memory>& all, const void* data) {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    auto found = all.upper_bound(at);
    if (found == all.begin()) return nullptr;
    --found;
    return at < found->first + found->second.bytes ? &found->second : nullptr;
}

// Runs what is on a stream up to a turn, and before each of it what it waits for by being on the default
// stream or on one that this waits for.
void run_until(stream& on, unsigned long long last) {
    if (on.waiting.empty() || on.waiting.front().turn > last) return;
    const device_plays now_it;
    while (!on.waiting.empty() && on.waiting.front().turn <= last) {
        const item first = std::move(on.waiting.front());
        on.waiting.pop_front();
        if (&on == &default_stream) {
            for (stream* const other : streams)
                if (other != &on && other->blocking) run_until(*other, first.turn);
        } else if (on.blocking) {
            run_until(default_stream, first.turn);
        }
        first.run();
    }
}
void synchronise(stream& on) {
    enqueue(&on == &default_stream ? nullptr : &on, [] {});
    run_until(on, turn);
}

// A stack on which threads run, one after the other until one has to wait.
struct fiber {
    ucontext_t context{};  // for its first entry; from then on jumps, which ask nothing of the system
    jmp_buf place{};
    bool entered = false;
    std::unique_ptr<char[]> stack;
    bool done = true;
};
constexpr std::size_t stack_bytes = std::size_t{256} << 10;

struct barrier {
    unsigned arrived = 0;
    unsigned passed = 0;
};

struct running_block {
    const work* thread = nullptr;
    unsigned threads = 0, started = 0, finished = 0;
    barrier all;
    std::vector<barrier> warps;
    std::vector<float> values;
    unsigned long long events = 0;  // arrivals and ends: what tells progress from a standstill
} now;

std::vector<std::unique_ptr<fiber>> fibers;
jmp_buf scheduler;
fiber* current = nullptr;
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
const void* scheduler_stack = nullptr;
std::size_t scheduler_bytes = 0;
#endif

void to_fiber(fiber& to) {
    current = &to;
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to.stack.get(), stack_bytes);
#endif
    if (_setjmp(scheduler) == 0) {
        if (std::exchange(to.entered, true)) _longjmp(to.place, 1);
        setcontext(&to.context);
    }
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void to_scheduler() {
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(current->done ? nullptr : &fake, scheduler_stack, scheduler_bytes);
#endif
    if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_bytes);
#endif
}

void run_threads() {
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_bytes);
#endif
    while (now.started < now.threads) {
        threadIdx.x = now.started++;
        (*now.thread)();
        ++now.finished;
        ++now.events;
    }
    current->done = true;
    to_scheduler();
}

void wait(barrier& at, unsigned wanted()) {
    const unsigned me = threadIdx.x, round = at.passed;
    ++now.events;
    ++at.arrived;
    while (at.passed == round) {
        if (now.started == now.threads && at.arrived == wanted()) {
            at.arrived = 0;
            ++at.passed;
            ++now.events;
            break;
        }
        to_scheduler();
        threadIdx.x = me;
    }
}

[[noreturn]] void give_up(const char* what) {
    std::fprintf(stderr, "emulated device: %s\n", what);
    std::abort();
}

}  // namespace

device_state& device() {
    return state;
}
void look_into(void* to, const void* from, std::size_t bytes) {
    const device_plays now_it;
    std::memcpy(to, from, bytes);
}

void block_barrier() {
    wait(now.all, [] { return now.threads - now.finished; });
}

float exchange(float value, unsigned lane_mask) {
    const unsigned me = threadIdx.x;
    barrier& of_warp = now.warps[me / 32];
    now.values[me] = value;
    wait(of_warp, [] { return 32u; });
    const float other = now.values[me ^ lane_mask];
    wait(of_warp, [] { return 32u; });
    return other;
}

void run_block(unsigned threads, const work& thread) {
    now = {&thread, threads, 0, 0, {}, std::vector<barrier>((threads + 31) / 32), std::vector<float>(threads),
           0};
    while (now.finished < threads) {
        const unsigned long long before = now.events;
        // What waits goes on where it can; a fresh fiber takes the threads that have not begun.
        for (std::size_t i = 0; i < fibers.size() && now.started == threads; ++i)
            if (!fibers[i]->done) to_fiber(*fibers[i]);
        if (now.started < threads) {
            fiber* fresh = nullptr;
            for (const auto& f : fibers)
                if (f->done) fresh = f.get();
            if (fresh == nullptr) {
                fresh = fibers.emplace_back(std::make_unique<fiber>()).get();
                fresh->stack = std::make_unique<char[]>(stack_bytes);
            }
            getcontext(&fresh->context);
            fresh->context.uc_stack.ss_sp = fresh->stack.get();
            fresh->context.uc_stack.ss_size = stack_bytes;
            fresh->context.uc_link = nullptr;
            fresh->done = fresh->entered = false;
            makecontext(&fresh->context, run_threads, 0);
            to_fiber(*fresh);
        }
        if (now.events == before) give_up("threads of a block wait for others that never come");
    }
    for (std::size_t i = 0; i < fibers.size(); ++i)
        if (!fibers[i]->done) to_fiber(*fibers[i]);
}

void run_waiting() {
    for (stream* const one : streams) run_until(*one, turn);
}

bool is_captured(const stream* on) {
    return on != nullptr && on->capturing != nullptr;
}
cudaError_t invalidate(const stream* on) {
    on->capturing->invalidated = true;
    return cudaErrorStreamCaptureUnsupported;
}

void enqueue(stream* on, work one) {
    if (is_captured(on))
        on->capturing->all.push_back(std::move(one));
    else
        (on != nullptr ? *on : default_stream).waiting.push_back({++turn, std::move(one)});
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaMalloc(void** to, std::size_t bytes) {
    if (capturing > 0) return cudaErrorStreamCaptureUnsupported;
    if (state.allocated + bytes > state.memory_limit) return cudaErrorMemoryAllocation;
    // A page that is nobody's behind each.
    *to = mmap(nullptr, whole_pages(bytes) + page_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*to == MAP_FAILED) return cudaErrorMemoryAllocation;
    mprotect(static_cast<char*>(*to) + whole_pages(bytes), page_bytes, PROT_NONE);
    std::memset(*to, 0xFF,
                std::min(bytes, std::size_t{1} << 20));  // workspaces end in memory of cuBLASLt alone
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(*to) + bytes, whole_pages(bytes) - bytes);
#endif
    allocations[reinterpret_cast<std::uintptr_t>(*to)] = {bytes, state.current};
    if (playing == 0) mprotect(*to, whole_pages(bytes), PROT_NONE);
    state.allocated += bytes;
    ++state.allocations;
    return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
    run_waiting();
    const auto found = allocations.find(reinterpret_cast<std::uintptr_t>(data));
    if (found == allocations.end()) return cudaErrorInvalidValue;
    const std::size_t bytes = found->second.bytes;
    state.allocated -= bytes;
    allocations.erase(found);
#if defined(TIFFIN_TEST_ADDRESS_SANITIZER)
    ASAN_UNPOISON_MEMORY_REGION(data, whole_pages(bytes));
#endif
    munmap(data, whole_pages(bytes) + page_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    if (capturing > 0) return cudaErrorStreamCaptureUnsupported;
    synchronise(default_stream);
    const device_plays now_it;
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t on) {
    enqueue(on, [=] { std::memcpy(to, from, bytes); });
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void* data) {
    if (const memory* const there = find(allocations, data))
        *to = {cudaMemoryTypeDevice, there->device};
    else
        *to = {find(pinned, data) != nullptr ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered, -1};
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* to) {
    *to = state.current;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    state.current = device;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* to) {
    return cudaStreamCreateWithFlags(to, cudaStreamDefault);
}
cudaError_t cudaStreamDestroy(cudaStream_t on) {
    run_waiting();
    streams.erase(on);
    delete on;
    return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t on, int* to) {
    if (is_captured(on)) return invalidate(on);
    *to = on != nullptr ? on->device : state.current;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t on) {
    if (is_captured(on)) return invalidate(on);
    synchronise(on != nullptr ? *on : default_stream);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t on, cudaStreamCaptureStatus* to) {
    *to = is_captured(on) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t on, cudaStreamCaptureMode) {
    if (on == nullptr || on->capturing != nullptr) return cudaErrorStreamCaptureUnsupported;
    on->capturing = new graph;
    ++capturing;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t* to) {
    *to = on->capturing;
    for (stream* const one : streams)
        if (one->capturing == *to) one->capturing = nullptr;
    --capturing;
    if (!(*to)->invalidated) return cudaSuccess;
    delete *to;
    *to = nullptr;
    return cudaErrorStreamCaptureInvalidated;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t from, unsigned long long) {
    *to = new graph(*from);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t on) {
    enqueue(on, [graph] {
        for (const work& one : graph->all) one();
    });
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    run_waiting();
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
    synchronise(default_stream);
    const device_plays now_it;
    std::memset(to, byte, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t on) {
    enqueue(on, [=] { std::memset(to, byte, bytes); });
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned flags) {
    *to = new stream{state.current, flags != cudaStreamNonBlocking};
    streams.insert(*to);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned) {
    *to = new event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t on) {
    *event = {on != nullptr ? on : &default_stream, ++turn, on != nullptr ? on->capturing : nullptr};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    run_waiting();
    delete event;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t event, unsigned) {
    if (on == nullptr) on = &default_stream;
    // A stream that waits for what is captured is captured with it; one that is waits for nothing else.
    if (event->in != nullptr && on->capturing == nullptr) on->capturing = event->in;
    if (event->in != on->capturing) return cudaErrorStreamCaptureIsolation;
    if (event->in == nullptr && event->of != nullptr)
        enqueue(on, [of = event->of, last = event->turn] {
            if (streams.count(of) != 0) run_until(*of, last);
        });
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t on, void (*function)(void*), void* data) {
    enqueue(on, [=] { function(data); });
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned) {
    if (data == nullptr || bytes == 0) return cudaErrorInvalidValue;
    const auto first = reinterpret_cast<std::uintptr_t>(data);
    for (const auto& [at, there] : pinned)
        if (first < at + there.bytes && at < first + bytes) return cudaErrorHostMemoryAlreadyRegistered;
    pinned[first] = {bytes, -1};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
    run_waiting();
    return pinned.erase(reinterpret_cast<std::uintptr_t>(data)) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostAlloc(void** to, std::size_t bytes, unsigned) {
    *to = std::malloc(bytes);
    return cudaHostRegister(*to, bytes, 0);
}
cudaError_t cudaFreeHost(void* data) {
    const cudaError_t code = cudaHostUnregister(data);
    std::free(data);
    return code;
}
cudaError_t cudaDeviceGetAttribute(int* to, cudaDeviceAttr, int) {
    *to = 1;
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** to, void* data, unsigned) {
    *to = data;
    return find(pinned, data) != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaEventCreate(cudaEvent_t* to) {
    return cudaEventCreateWithFlags(to, 0);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (event->of != nullptr) run_until(*event->of, event->turn);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* to) {
    *to = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int) {
    *to = {};
    return cudaSuccess;
}
