// A device on the host: enough of CUDA's runtime to run tiffin's kernels in an ordinary program, so that
// they are tested where there is no GPU. Not a simulator: no time, no caches, one block at a time.
//
// Launches are put off until something waits for them, and then no more is run than it waits for: what one
// stream needs of another and did not wait for has not happened. The threads of a block are fibers that
// change places at __syncthreads and at shuffles; a barrier that some never reach ends the program. New
// memory is filled with bytes that are NaN in every format. What a kernel reads beyond an allocation is for
// the address sanitizer to find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#define CUDART_VERSION 13000
#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define CUDART_CB

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3() = default;
    explicit dim3(unsigned across) : x(across) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInvalidConfiguration,
    cudaErrorInvalidDevicePointer,
    cudaErrorNotSupported,
    cudaErrorStreamCaptureUnsupported,
    cudaErrorStreamCaptureInvalidated,
    cudaErrorInvalidResourceHandle,
    cudaErrorHostMemoryAlreadyRegistered,
    cudaErrorStreamCaptureIsolation,
    cudaErrorUnknown,
};
inline const char* cudaGetErrorName(cudaError_t code) {
    static constexpr const char* names[] = {"cudaSuccess",
                                            "cudaErrorInvalidValue",
                                            "cudaErrorMemoryAllocation",
                                            "cudaErrorInvalidConfiguration",
                                            "cudaErrorInvalidDevicePointer",
                                            "cudaErrorNotSupported",
                                            "cudaErrorStreamCaptureUnsupported",
                                            "cudaErrorStreamCaptureInvalidated",
                                            "cudaErrorInvalidResourceHandle",
                                            "cudaErrorHostMemoryAlreadyRegistered",
                                            "cudaErrorStreamCaptureIsolation",
                                            "cudaErrorUnknown"};
    return names[code];
}
inline const char* cudaGetErrorString(cudaError_t code) {
    return code == cudaErrorMemoryAllocation ? "out of memory" : "as its name says";
}

namespace emulated {

using work = std::function<void()>;

// What is waiting to run, what a test may set, and what it may count.
struct device_state {
    int current = 0;
    std::size_t memory_limit = ~std::size_t{0};
    std::size_t allocated = 0;
    std::size_t allocations = 0;
    std::size_t launches = 0;
    cudaError_t next_launch = cudaSuccess;  // what the launch answers that comes after so many others
    std::size_t launches_before_next = 0;
    bool blas_knows_a_way = true;
    std::size_t blas_questions = 0;  // for a way
    std::size_t blas_products = 0;
};
device_state& device();
// Reads the device's memory as it is now: nothing that waits on a stream runs before.
void look_into(void* to, const void* from, std::size_t bytes);
void run_waiting();
void run_block(unsigned threads, const work& thread);
// Puts work on a stream: into its graph while that is captured.
void enqueue(struct stream* on, work one);  // null: the default stream
void block_barrier();
float exchange(float value, unsigned lane_mask);

struct stream;
struct event;
struct graph;

}  // namespace emulated

using cudaStream_t = emulated::stream*;
using cudaEvent_t = emulated::event*;
using cudaGraph_t = emulated::graph*;
using cudaGraphExec_t = emulated::graph*;

enum cudaMemcpyKind {
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged
};
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };

cudaError_t cudaMalloc(void** to, std::size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t on);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void* data);
cudaError_t cudaMemset(void* to, int byte, std::size_t bytes);
cudaError_t cudaGetDevice(int* to);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError();
cudaError_t cudaStreamCreate(cudaStream_t* to);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* to);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* to);
enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDisableTiming = 2,
    cudaHostRegisterMapped = 2,
    cudaHostRegisterReadOnly = 8,
    cudaHostAllocMapped = 2
};
enum cudaDeviceAttr { cudaDevAttrHostRegisterReadOnlySupported };
cudaError_t cudaDeviceGetAttribute(int* to, cudaDeviceAttr what, int device);
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t on);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t on);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventCreate(cudaEvent_t* to);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin,
                                 cudaEvent_t end);  // 1: no time passes
struct cudaDeviceProp {
    char name[256] = "emulated";
    int l2CacheSize = 1;
};
cudaError_t cudaGetDeviceCount(int* to);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data);
cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* data);
cudaError_t cudaHostAlloc(void** to, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaHostGetDevicePointer(void** to, void* data, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* to);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

inline void __syncthreads() {
    emulated::block_barrier();
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
    return emulated::exchange(value, static_cast<unsigned>(mask));
}
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
    const unsigned long long before = *at;
    if (value < before) *at = value;
    return before;
}

inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected,
                                    unsigned long long value) {
    const unsigned long long before = *at;
    if (before == expected) *at = value;
    return before;
}

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    std::size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    void* attrs = nullptr;
    unsigned numAttrs = 0;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
    auto& device = emulated::device();
    if (device.next_launch != cudaSuccess && device.launches_before_next-- == 0) {
        device.launches_before_next = 0;
        return std::exchange(device.next_launch, cudaSuccess);
    }
    ++device.launches;
    emulated::enqueue(config->stream, [kernel, grid = config->gridDim, block = config->blockDim,
                                       ... held = std::remove_const_t<Parameters>(arguments)] {
        gridDim = grid;
        blockDim = block;
        for (unsigned b = 0; b < grid.x; ++b) {
            blockIdx.x = b;
            emulated::run_block(block.x, [&] { kernel(held...); });
        }
    });
    return cudaSuccess;
}
