/*
 * device: what a kernel of a `.cu` file sees when the host's compiler builds it: the built-in variables, vector types, barriers,
 * warp operations, atomics, half and bfloat16, __dp4a, the integer mma, and shared arrays whose every access is checked
 * (block.h). C++ because `.cu` files are; everything is inline over the C of block.h.
 */
#ifndef STK_EMU_DEVICE_CUH
#define STK_EMU_DEVICE_CUH

#include "cuda/emu/block.h"
#include "cuda/emu/runtime.h"
#include "src/numeric.h"

#define __global__
#define __device__
#define __host__
#define __restrict__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx stk_emu_thread_idx
#define blockIdx  stk_emu_block_idx
#define blockDim  stk_emu_block_dim
#define gridDim   stk_emu_grid_dim

struct dim3 : stk_emu_dim {
    dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : stk_emu_dim{x_, y_, z_} {}
};

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

/* ---- Scalars ---- */

static inline float __int_as_float(int i) { return stk_bits_f32((uint32_t)i); }
static inline float __uint_as_float(uint32_t u) { return stk_bits_f32(u); }
static inline int __float_as_int(float f) { return (int)stk_f32_bits(f); }
static inline uint32_t __float_as_uint(float f) { return stk_f32_bits(f); }

struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
static inline __half __ushort_as_half(unsigned short u) { return {u}; }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline float __half2float(__half h) { return stk_f16_f32(h.bits); }
static inline __half __float2half_rn(float x) { return {stk_f32_f16(x)}; }
static inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
static inline float __bfloat162float(__nv_bfloat16 h) { return stk_bf16_f32(h.bits); }

static inline int __dp4a(int a, int b, int c) {
    uint32_t sum = (uint32_t)c;
    for (int i = 0; i < 32; i += 8) sum += (uint32_t)((int8_t)((uint32_t)a >> i) * (int8_t)((uint32_t)b >> i));
    return (int)sum;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = selector >> 4 * i & 15u, byte = (uint32_t)(both >> 8 * (s & 7u)) & 255u;
        out |= (s & 8u ? (byte >> 7) * 255u : byte) << 8 * i;
    }
    return out;
}
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((uint32_t)x) : 32; }
template <class T> static inline T __ldg(const T *p) { return *p; }
static inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* ---- Rendezvous ---- */

#define STK_EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(STK_EMU_HERE) { stk_emu_sync_block({file, line}); }
static inline int __syncthreads_count(int predicate, STK_EMU_HERE) { return stk_emu_sync_count({file, line}, predicate); }
static inline int __syncthreads_or(int predicate, STK_EMU_HERE) { return stk_emu_sync_count({file, line}, predicate) != 0; }
static inline void __syncwarp(uint32_t mask = ~0u, STK_EMU_HERE) { stk_emu_sync_warp({file, line}, mask); }

struct stk_emu_shuffle {
    uint32_t bits;
    int source; /* lane, counted from the first of the segment, or none: -1 for its own */
};

static inline const char *stk_emu_combine_shuffle(uint32_t mask, const void *const in[32], void *const out[32]) {
    for (int lane = 0; lane < 32; lane++) {
        if (!in[lane]) continue;
        int source = ((const stk_emu_shuffle *)in[lane])->source;
        if (source < 0) source = lane;
        if (!(mask >> source & 1u) || !in[source]) return "a shuffle from a lane that is not in the mask";
        *(uint32_t *)out[lane] = ((const stk_emu_shuffle *)in[source])->bits;
    }
    return nullptr;
}

template <class T>
static inline T stk_emu_shuffle_from(const char *op, uint32_t mask, T value, int source, const char *file, int line) {
    static_assert(sizeof(T) == 4, "shuffles move 32 bits");
    stk_emu_shuffle in = {0, source};
    uint32_t bits = 0;
    memcpy(&in.bits, &value, 4);
    stk_emu_warp_op({file, line}, op, mask, &in, &bits, stk_emu_combine_shuffle);
    memcpy(&value, &bits, 4);
    return value;
}

/* The lane of the running thread; blocks are one row of threads. */
static inline int stk_emu_lane() { return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32u); }

template <class T> static inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32, STK_EMU_HERE) {
    int base = stk_emu_lane() & ~(width - 1);
    return stk_emu_shuffle_from("__shfl_sync", mask, value, base + (source & (width - 1)), file, line);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, STK_EMU_HERE) {
    int lane = stk_emu_lane(), source = lane ^ bits;
    return stk_emu_shuffle_from("__shfl_xor_sync", mask, value, source / width > lane / width ? -1 : source, file, line);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32, STK_EMU_HERE) {
    int lane = stk_emu_lane(), source = lane + (int)by;
    return stk_emu_shuffle_from("__shfl_down_sync", mask, value, source / width != lane / width ? -1 : source, file, line);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32, STK_EMU_HERE) {
    int lane = stk_emu_lane(), source = lane - (int)by;
    return stk_emu_shuffle_from("__shfl_up_sync", mask, value, source < lane / width * width ? -1 : source, file, line);
}

static inline const char *stk_emu_combine_ballot(uint32_t, const void *const in[32], void *const out[32]) {
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (in[lane] && *(const int *)in[lane]) votes |= 1u << lane;
    for (int lane = 0; lane < 32; lane++)
        if (out[lane]) *(uint32_t *)out[lane] = votes;
    return nullptr;
}
static inline uint32_t __ballot_sync(uint32_t mask, int predicate, STK_EMU_HERE) {
    uint32_t votes = 0;
    stk_emu_warp_op({file, line}, "__ballot_sync", mask, &predicate, &votes, stk_emu_combine_ballot);
    return votes;
}
static inline int __any_sync(uint32_t mask, int predicate, STK_EMU_HERE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(uint32_t mask, int predicate, STK_EMU_HERE) {
    return __ballot_sync(mask, !predicate, file, line) == 0;
}

/* ---- Integer mma (the wrappers in cuda/mma.cuh; fragments as in the PTX manual) ---- */

template <int K> struct stk_emu_mma { /* m16n8kK, s8 */
    uint32_t a[K / 8], b[K / 16];
    int32_t c[4];
};

static inline int stk_emu_byte(uint32_t word, int i) { return (int8_t)(word >> 8 * i); }

/* a register i of lane: row lane / 4 + 8 (i % 2), k 4 (lane % 4) + 16 (i / 2); b register i: column lane / 4, k likewise. */
template <int K> static const char *stk_emu_combine_mma(uint32_t mask, const void *const in[32], void *const out[32]) {
    if (mask != ~0u) return "an mma without all 32 lanes";
    for (int lane = 0; lane < 32; lane++)
        if (!in[lane]) return "an mma in a block that does not fill its last warp";
    int8_t a[16][K], b[8][K];
    for (int lane = 0; lane < 32; lane++) {
        const stk_emu_mma<K> *m = (const stk_emu_mma<K> *)in[lane];
        for (int i = 0; i < K / 8; i++)
            for (int j = 0; j < 4; j++)
                a[lane / 4 + 8 * (i % 2)][4 * (lane % 4) + 16 * (i / 2) + j] = (int8_t)stk_emu_byte(m->a[i], j);
        for (int i = 0; i < K / 16; i++)
            for (int j = 0; j < 4; j++) b[lane / 4][4 * (lane % 4) + 16 * i + j] = (int8_t)stk_emu_byte(m->b[i], j);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const int8_t *row = a[lane / 4 + 8 * (i / 2)], *column = b[2 * (lane % 4) + i % 2];
            uint32_t sum = (uint32_t)((const stk_emu_mma<K> *)in[lane])->c[i];
            for (int k = 0; k < K; k++) sum += (uint32_t)(row[k] * column[k]);
            ((int32_t *)out[lane])[i] = (int32_t)sum;
        }
    return nullptr;
}

/* ---- Atomics: a thread is never interrupted ---- */

template <class T> static inline T atomicAdd(T *p, T value) {
    T old = *p;
    *p = old + value;
    return old;
}
template <class T> static inline T atomicMax(T *p, T value) {
    T old = *p;
    *p = old > value ? old : value;
    return old;
}
template <class T> static inline T atomicExch(T *p, T value) {
    T old = *p;
    *p = value;
    return old;
}
template <class T> static inline T atomicCAS(T *p, T expected, T value) {
    T old = *p;
    if (old == expected) *p = value;
    return old;
}
static inline void __threadfence() {}

/* ---- Shared memory ---- */

/* One element: reading and assigning it is recorded. */
template <class T> struct stk_emu_cell {
    static_assert(sizeof(T) % 4 == 0, "threads share whole words");
    T *p;
    stk_emu_place at;
    operator T() const {
        stk_emu_shared_read(p, sizeof(T), at);
        return *p;
    }
    const stk_emu_cell &operator=(T value) const {
        stk_emu_shared_write(p, sizeof(T), at);
        *p = value;
        return *this;
    }
    const stk_emu_cell &operator=(const stk_emu_cell &other) const { return *this = (T)other; }
    const stk_emu_cell &operator+=(T value) const { return *this = (T) * this + value; }
};

/* A pointer into shared memory. */
template <class T> struct stk_shared {
    T *p;
    stk_emu_place at;
    stk_emu_cell<T> operator[](size_t i) const { return {p + i, at}; }
    stk_emu_cell<T> operator*() const { return {p, at}; }
    stk_shared operator+(size_t i) const { return {p + i, at}; }
};
template <class U, class T> static inline stk_shared<U> stk_shared_as(stk_shared<T> s) { return {(U *)s.p, s.at}; }

template <class T> static inline stk_shared<T> stk_emu_shared_of(size_t bytes, const char *file, int line) {
    size_t array_bytes;
    return {(T *)stk_emu_shared_array({file, line}, bytes, &array_bytes), {file, line}};
}
#define STK_SHARED(T, name, n)      const stk_shared<T> name = stk_emu_shared_of<T>((n) * sizeof(T), __FILE__, __LINE__)
#define STK_SHARED_DYNAMIC(T, name) const stk_shared<T> name = stk_emu_shared_of<T>(0, __FILE__, __LINE__)

/* ---- Launches ---- */

template <class T> struct stk_emu_plain { typedef T type; };
template <class T> struct stk_emu_plain<const T> : stk_emu_plain<T> {};
template <class T> struct stk_emu_plain<T &> : stk_emu_plain<T> {};

#define STK_LAUNCH(grid, block, shared_bytes, stream, args, ...)                                                                 \
    stk_emu_launch(                                                                                                              \
        #__VA_ARGS__, grid, block, shared_bytes, stream,                                                                         \
        [](const void *stk_raw) { __VA_ARGS__(*(const stk_emu_plain<decltype(args)>::type *)stk_raw); }, &(args), sizeof(args))

#endif
