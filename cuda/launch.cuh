/* launch: what the files of kernels share on the host's side: names of the entries of the table, and errors. */
#ifndef STK_CUDA_LAUNCH_CUH
#define STK_CUDA_LAUNCH_CUH

#include "cuda/cuda.h"
#include "cuda/prelude.cuh"

/* Both builds of a file are linked into one program, their symbols differ in this; the hub has stk_gpu_. */
#ifdef STK_EMU
#define STK_TARGET(name) stk_emu_##name
#else
#define STK_TARGET(name) stk_nvcc_##name
#endif

extern "C" {
int STK_TARGET(rmsnorm)(const stk_cuda_norm *a, stk_cuda_stream *stream);
int STK_TARGET(silu_mul)(const stk_cuda_silu *a, stk_cuda_stream *stream);
int STK_TARGET(quantize)(const stk_cuda_quantize *a, stk_cuda_stream *stream);
int STK_TARGET(embed)(const stk_cuda_embed *a, stk_cuda_stream *stream);
int STK_TARGET(product)(const stk_cuda_product *a, stk_cuda_stream *stream);
int STK_TARGET(gate_up)(const stk_cuda_gate_up *a, stk_cuda_stream *stream);
int STK_TARGET(rotate)(const stk_cuda_rotate *a, stk_cuda_stream *stream);
int STK_TARGET(attend)(const stk_cuda_attend *a, stk_cuda_stream *stream);
int STK_TARGET(route)(const stk_cuda_route *a, stk_cuda_stream *stream);
int STK_TARGET(combine)(const stk_cuda_combine *a, stk_cuda_stream *stream);

/* 0, or stk_fail with the runtime's text; STK_ENOMEM for lack of memory, else STK_EIO. device.cu */
int STK_TARGET(check)(int error, const char *what);
}

static inline cudaStream_t stk_stream_of(stk_cuda_stream *s) { return (cudaStream_t)s; }
static inline uint32_t stk_ceil(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

/* Calls LAUNCH(type) for the type of a variable; `bad` for one without kernels. */
#define STK_FOR_QUANTIZED(type, LAUNCH, bad)                                                                                     \
    switch (type) {                                                                                                              \
    case STK_TYPE_Q8_0: LAUNCH(STK_TYPE_Q8_0); break;                                                                            \
    case STK_TYPE_Q4_0: LAUNCH(STK_TYPE_Q4_0); break;                                                                            \
    case STK_TYPE_Q4_K: LAUNCH(STK_TYPE_Q4_K); break;                                                                            \
    case STK_TYPE_Q5_K: LAUNCH(STK_TYPE_Q5_K); break;                                                                            \
    case STK_TYPE_Q6_K: LAUNCH(STK_TYPE_Q6_K); break;                                                                            \
    default: bad; break;                                                                                                         \
    }
#define STK_FOR_TYPE(type, LAUNCH, bad)                                                                                          \
    switch (type) {                                                                                                              \
    case STK_TYPE_F32: LAUNCH(STK_TYPE_F32); break;                                                                              \
    case STK_TYPE_F16: LAUNCH(STK_TYPE_F16); break;                                                                              \
    case STK_TYPE_BF16: LAUNCH(STK_TYPE_BF16); break;                                                                            \
    default: STK_FOR_QUANTIZED(type, LAUNCH, bad) break;                                                                         \
    }

#endif
