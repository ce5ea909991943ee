/* ops: the tables of this build, by name. */
#include <string.h>

#include "cuda/cuda.h"

#ifdef STK_HAS_CUDA
extern const stk_cuda_ops stk_nvcc_ops;
#endif
#ifdef STK_HAS_CUDA_EMU
extern const stk_cuda_ops stk_emu_ops;
#endif

const stk_cuda_ops *stk_cuda_ops_get(const char *name) {
    if (!name) name = "cuda";
#ifdef STK_HAS_CUDA
    if (strcmp(name, "cuda") == 0) return &stk_nvcc_ops;
#endif
#ifdef STK_HAS_CUDA_EMU
    if (strcmp(name, "emu") == 0) return &stk_emu_ops;
#endif
    return NULL;
}
