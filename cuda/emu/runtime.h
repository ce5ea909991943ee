/* runtime: the CUDA runtime's names for the functions of emu.h, as far as Stoker uses them. For `.cu` files of the emulation's
 * build. */
#ifndef STK_EMU_RUNTIME_H
#define STK_EMU_RUNTIME_H

#include "cuda/emu/emu.h"

typedef int cudaError_t;
typedef stk_emu_stream *cudaStream_t;
typedef stk_emu_event *cudaEvent_t;

enum {
    cudaSuccess = STK_EMU_SUCCESS,
    cudaErrorMemoryAllocation = STK_EMU_MEMORY_ALLOCATION,
    cudaErrorNotReady = STK_EMU_NOT_READY,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorSystemDriverMismatch = 803,
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocPortable = 1, cudaHostRegisterPortable = 1 };

#define cudaGetDeviceCount           stk_emu_get_device_count
#define cudaSetDevice                stk_emu_set_device
#define cudaMemGetInfo               stk_emu_mem_get_info
#define cudaMalloc                   stk_emu_malloc
#define cudaFree                     stk_emu_free
#define cudaHostAlloc                stk_emu_host_alloc
#define cudaFreeHost                 stk_emu_free_host
#define cudaHostRegister             stk_emu_host_register
#define cudaHostUnregister           stk_emu_host_unregister
#define cudaMemcpyAsync              stk_emu_memcpy_async
#define cudaMemsetAsync              stk_emu_memset_async
#define cudaLaunchHostFunc           stk_emu_launch_host_func
#define cudaStreamCreateWithPriority stk_emu_stream_create_with_priority
#define cudaStreamDestroy            stk_emu_stream_destroy
#define cudaStreamSynchronize        stk_emu_stream_synchronize
#define cudaStreamQuery              stk_emu_stream_query
#define cudaStreamWaitEvent          stk_emu_stream_wait_event
#define cudaEventCreateWithFlags     stk_emu_event_create_with_flags
#define cudaEventDestroy             stk_emu_event_destroy
#define cudaEventRecord              stk_emu_event_record
#define cudaEventQuery               stk_emu_event_query
#define cudaEventSynchronize         stk_emu_event_synchronize
#define cudaDeviceSynchronize        stk_emu_device_synchronize
#define cudaGetLastError             stk_emu_get_last_error
#define cudaGetErrorString           stk_emu_get_error_string

#endif
