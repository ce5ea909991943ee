/* device: devices, memory, streams, events and copies through the CUDA runtime, and the table of operations. */
#include <string.h>

#include "cuda/launch.cuh"

/* An error that only the end of the process undoes. */
static bool is_lost(int error) { return error >= 700 && error < 800 && error != 712 && error != 713 && error != 702; }

static int lost; /* any thread may find out */

int STK_TARGET(check)(int error, const char *what) {
    if (error == cudaSuccess) return STK_OK;
    cudaGetLastError(); /* an error that is not final must not show up at an unrelated call */
    if (is_lost(error)) __atomic_store_n(&lost, 1, __ATOMIC_RELAXED);
    const char *text = cudaGetErrorString((cudaError_t)error);
#ifdef STK_EMU
    if (stk_emu_detail()[0]) return stk_fail(STK_EIO, "GPU (emulated): %s: %s: %s", what, text, stk_emu_detail());
#endif
    return stk_fail(error == cudaErrorMemoryAllocation ? STK_ENOMEM : STK_EIO, "GPU: %s: %s (CUDA error %d)", what, text, error);
}

#define CHECK(call, what) STK_TARGET(check)(call, what)

static int get_count(uint32_t *n) {
    int devices = 0, rc = cudaGetDeviceCount(&devices);
    *n = 0;
    if (rc == cudaErrorNoDevice || rc == cudaErrorInsufficientDriver || rc == cudaErrorSystemDriverMismatch) {
        cudaGetLastError();
        return STK_OK;
    }
    STK_TRY(CHECK(rc, "counting devices"));
    *n = (uint32_t)devices;
    return STK_OK;
}

static int get_info(uint32_t device, stk_cuda_info *info) {
    memset(info, 0, sizeof *info);
#ifdef STK_EMU
    size_t free_bytes, total_bytes;
    (void)device;
    STK_TRY(CHECK(cudaMemGetInfo(&free_bytes, &total_bytes), "device information"));
    strcpy(info->name, "emulated on the CPU");
    info->n_sm = 1;
    info->total_bytes = total_bytes;
#else
    cudaDeviceProp p;
    STK_TRY(CHECK(cudaGetDeviceProperties(&p, (int)device), "device information"));
    memcpy(info->name, p.name, sizeof info->name - 1);
    info->major = (uint32_t)p.major;
    info->minor = (uint32_t)p.minor;
    info->n_sm = (uint32_t)p.multiProcessorCount;
    info->total_bytes = p.totalGlobalMem;
#endif
    return STK_OK;
}

static int bind_device(uint32_t device) { return CHECK(cudaSetDevice((int)device), "choosing the device"); }

static int get_mem_info(uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t f = 0, t = 0;
    STK_TRY(CHECK(cudaMemGetInfo(&f, &t), "free memory"));
    *free_bytes = f;
    *total_bytes = t;
    return STK_OK;
}

static bool get_lost(void) {
#ifdef STK_EMU
    return stk_emu_lost(); /* a test may have reset it */
#else
    return __atomic_load_n(&lost, __ATOMIC_RELAXED);
#endif
}

/* ---- Memory ---- */

static int allocated(int error, uint64_t bytes, const char *kind, const char *what) {
    if (error != cudaErrorMemoryAllocation) return CHECK(error, what);
    cudaGetLastError();
    return stk_fail(STK_ENOMEM, "%s: the GPU's driver has no %llu bytes of %s memory left", what, (unsigned long long)bytes,
                    kind);
}

static int open_memory(void **out, uint64_t bytes, const char *what) {
    *out = nullptr;
    return allocated(cudaMalloc(out, bytes), bytes, "device", what);
}
static void close_memory(void *p) {
    if (cudaFree(p) != cudaSuccess) cudaGetLastError(); /* of a lost device, whose memory is gone */
}
static int open_pinned(void **out, uint64_t bytes, const char *what) {
    *out = nullptr;
    return allocated(cudaHostAlloc(out, bytes, cudaHostAllocPortable), bytes, "pinned", what);
}
static void close_pinned(void *p) {
    if (cudaFreeHost(p) != cudaSuccess) cudaGetLastError();
}
static int pin(void *p, uint64_t bytes) {
    return allocated(cudaHostRegister(p, bytes, cudaHostRegisterPortable), bytes, "pinned", "pinning");
}
static void unpin(void *p) {
    if (cudaHostUnregister(p) != cudaSuccess) cudaGetLastError();
}

/* ---- Streams and events ---- */

static cudaEvent_t event_of(stk_cuda_event *e) { return (cudaEvent_t)e; }

static int open_stream(stk_cuda_stream **out, bool urgent) {
    cudaStream_t s = nullptr;
    *out = nullptr;
    STK_TRY(CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, urgent ? -1 : 0), "opening a stream"));
    *out = (stk_cuda_stream *)s;
    return STK_OK;
}
static void close_stream(stk_cuda_stream *s) {
    if (s && cudaStreamDestroy(stk_stream_of(s)) != cudaSuccess) cudaGetLastError();
}
static int sync_stream(stk_cuda_stream *s) { return CHECK(cudaStreamSynchronize(stk_stream_of(s)), "waiting for a stream"); }

static int asked(int error, const char *what) {
    if (error == cudaErrorNotReady) return 0;
    STK_TRY(CHECK(error, what));
    return 1;
}
static int query_stream(stk_cuda_stream *s) { return asked(cudaStreamQuery(stk_stream_of(s)), "asking a stream"); }
static int wait_event(stk_cuda_stream *s, stk_cuda_event *e) {
    return CHECK(cudaStreamWaitEvent(stk_stream_of(s), event_of(e), 0), "waiting for an event");
}
static int open_event(stk_cuda_event **out) {
    cudaEvent_t e = nullptr;
    *out = nullptr;
    STK_TRY(CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "opening an event"));
    *out = (stk_cuda_event *)e;
    return STK_OK;
}
static void close_event(stk_cuda_event *e) {
    if (e && cudaEventDestroy(event_of(e)) != cudaSuccess) cudaGetLastError();
}
static int record_event(stk_cuda_event *e, stk_cuda_stream *s) {
    return CHECK(cudaEventRecord(event_of(e), stk_stream_of(s)), "recording an event");
}
static int sync_event(stk_cuda_event *e) { return CHECK(cudaEventSynchronize(event_of(e)), "waiting for an event"); }
static int query_event(stk_cuda_event *e) { return asked(cudaEventQuery(event_of(e)), "asking an event"); }
static int call_host(stk_cuda_stream *s, void (*fn)(void *), void *ctx) {
    return CHECK(cudaLaunchHostFunc(stk_stream_of(s), fn, ctx), "queueing a host function");
}

/* ---- Copies ---- */

static int copy(void *dst, const void *src, uint64_t bytes, cudaMemcpyKind kind, stk_cuda_stream *s, const char *what) {
    if (bytes == 0) return STK_OK;
    return CHECK(cudaMemcpyAsync(dst, src, bytes, kind, stk_stream_of(s)), what);
}
static int to_device(void *dst, const void *src, uint64_t bytes, stk_cuda_stream *s) {
    return copy(dst, src, bytes, cudaMemcpyHostToDevice, s, "a copy to the device");
}
static int to_host(void *dst, const void *src, uint64_t bytes, stk_cuda_stream *s) {
    return copy(dst, src, bytes, cudaMemcpyDeviceToHost, s, "a copy from the device");
}
static int on_device(void *dst, const void *src, uint64_t bytes, stk_cuda_stream *s) {
    return copy(dst, src, bytes, cudaMemcpyDeviceToDevice, s, "a copy on the device");
}
static int fill(void *dst, uint8_t byte, uint64_t bytes, stk_cuda_stream *s) {
    if (bytes == 0) return STK_OK;
    return CHECK(cudaMemsetAsync(dst, byte, bytes, stk_stream_of(s)), "filling device memory");
}

/* In the order of the struct: nvcc's C++17 has no designated initialisers. */
extern "C" {
extern const stk_cuda_ops STK_TARGET(ops);
const stk_cuda_ops STK_TARGET(ops) = {
#ifdef STK_EMU
    "emu",
#else
    "cuda",
#endif
    get_count,
    get_info,
    bind_device,
    get_mem_info,
    get_lost,
    open_memory,
    close_memory,
    open_pinned,
    close_pinned,
    pin,
    unpin,
    open_stream,
    close_stream,
    sync_stream,
    query_stream,
    wait_event,
    open_event,
    close_event,
    record_event,
    sync_event,
    query_event,
    call_host,
    to_device,
    to_host,
    on_device,
    fill,
    STK_TARGET(rmsnorm),
    STK_TARGET(silu_mul),
    STK_TARGET(quantize),
    STK_TARGET(embed),
    STK_TARGET(product),
    STK_TARGET(gate_up),
    STK_TARGET(rotate),
    STK_TARGET(attend),
    STK_TARGET(route),
    STK_TARGET(combine),
};
}
