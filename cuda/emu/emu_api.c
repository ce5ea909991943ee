/* emu_api: devices, memory and errors of the emulated runtime. Its streams are in stream.c. */
#include "cuda/emu/emu.h"

#include <string.h>

#include "cuda/emu/block.h"
#include "cuda/emu/memory.h"
#include "cuda/emu/stream.h"

stk_emu_state stk_emu = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

stk_emu_config stk_emu_config_default(void) {
    return (stk_emu_config){.vram_bytes = UINT64_C(24) << 30, .pin_bytes = UINT64_MAX, .seed = 1, .n_device = 1};
}

static void start(const stk_emu_config *config) {
    stk_emu.config = *config;
    stk_emu.random = config->seed;
    stk_emu.started = true;
    stk_emu_memory_reset(config->vram_bytes, config->pin_bytes);
}

void stk_emu_reset(const stk_emu_config *config) {
    pthread_mutex_lock(&stk_emu.lock);
    stk_emu_streams_reset();
    stk_emu_grid_release();
    stk_emu.last_error = stk_emu.lost = 0;
    stk_emu.detail[0] = 0;
    memset(stk_emu.fail, 0, sizeof stk_emu.fail);
    memset(&stk_emu.stats, 0, sizeof stk_emu.stats);
    start(config);
    pthread_mutex_unlock(&stk_emu.lock);
}

void stk_emu_fail_next(enum stk_emu_fail kind, uint32_t after, uint32_t count, int error) {
    pthread_mutex_lock(&stk_emu.lock);
    stk_emu.fail[kind] = (stk_emu_failure){after, count, error};
    pthread_mutex_unlock(&stk_emu.lock);
}

const char *stk_emu_detail(void) { return stk_emu.detail; }

bool stk_emu_lost(void) {
    pthread_mutex_lock(&stk_emu.lock);
    bool lost = stk_emu.lost != 0;
    pthread_mutex_unlock(&stk_emu.lock);
    return lost;
}

void stk_emu_stats_get(stk_emu_stats *out) {
    pthread_mutex_lock(&stk_emu.lock);
    *out = stk_emu.stats;
    stk_emu_memory_stats(out);
    pthread_mutex_unlock(&stk_emu.lock);
}

/* ---- Calls ---- */

int stk_emu_enter(void) {
    pthread_mutex_lock(&stk_emu.lock);
    if (!stk_emu.started) {
        stk_emu_config config = stk_emu_config_default();
        start(&config);
    }
    if (stk_emu.lost) return stk_emu.lost;
    return stk_emu.in_host_func ? STK_EMU_NOT_PERMITTED : STK_EMU_SUCCESS;
}

int stk_emu_leave(int rc) {
    if (rc && rc != STK_EMU_NOT_READY) stk_emu.last_error = rc;
    pthread_mutex_unlock(&stk_emu.lock);
    return rc;
}

int stk_emu_injected(enum stk_emu_fail kind) {
    stk_emu_failure *f = &stk_emu.fail[kind];
    if (f->count == 0) return STK_EMU_SUCCESS;
    if (f->after) {
        f->after--;
        return STK_EMU_SUCCESS;
    }
    f->count--;
    return f->error;
}

int stk_emu_get_last_error(void) {
    pthread_mutex_lock(&stk_emu.lock);
    int rc = stk_emu.lost ? stk_emu.lost : stk_emu.last_error;
    stk_emu.last_error = 0;
    pthread_mutex_unlock(&stk_emu.lock);
    return rc;
}

const char *stk_emu_get_error_string(int error) {
    switch (error) {
    case STK_EMU_SUCCESS: return "no error";
    case STK_EMU_INVALID_VALUE: return "invalid argument";
    case STK_EMU_MEMORY_ALLOCATION: return "out of memory";
    case STK_EMU_INVALID_CONFIGURATION: return "invalid configuration of a launch";
    case STK_EMU_INVALID_DEVICE: return "no such device";
    case STK_EMU_INVALID_HANDLE: return "invalid stream or event";
    case STK_EMU_NOT_READY: return "not ready";
    case STK_EMU_ILLEGAL_ADDRESS: return "an illegal memory access";
    case STK_EMU_LAUNCH_TIMEOUT: return "waiting for work that nothing will do";
    case STK_EMU_HOST_ALREADY_REGISTERED: return "part of the memory is pinned already";
    case STK_EMU_HOST_NOT_REGISTERED: return "the memory is not pinned";
    case STK_EMU_LAUNCH_FAILURE: return "a kernel failed";
    case STK_EMU_NOT_PERMITTED: return "a call from a host function";
    default: return "unknown error";
    }
}

int stk_emu_get_device_count(int *n) {
    int rc = stk_emu_enter();
    *n = (int)stk_emu.config.n_device;
    return stk_emu_leave(rc);
}

int stk_emu_set_device(int device) {
    int rc = stk_emu_enter();
    if (!rc && (device < 0 || (uint32_t)device >= stk_emu.config.n_device)) rc = STK_EMU_INVALID_DEVICE;
    return stk_emu_leave(rc);
}

int stk_emu_mem_get_info(size_t *free_bytes, size_t *total_bytes) {
    int rc = stk_emu_enter();
    stk_emu_stats stats = {0};
    stk_emu_memory_stats(&stats);
    *total_bytes = stk_emu.config.vram_bytes;
    *free_bytes = stk_emu.config.vram_bytes - stats.vram_bytes;
    return stk_emu_leave(rc);
}

static int open_memory(void **out, size_t bytes, bool device) {
    int rc = stk_emu_enter();
    *out = NULL;
    if (!rc) rc = stk_emu_injected(device ? STK_EMU_FAIL_MALLOC : STK_EMU_FAIL_HOST_ALLOC);
    if (!rc) rc = stk_emu_memory_open(out, bytes, device);
    return stk_emu_leave(rc);
}

/* Waits for all work, as the runtime does, because it might use the memory. */
static int close_memory(void *p, bool device) {
    int rc = stk_emu_enter();
    if (!rc && p) rc = stk_emu_run_all();
    int closed = stk_emu_memory_close(p, device);
    return stk_emu_leave(rc ? rc : closed);
}

int stk_emu_malloc(void **out, size_t bytes) { return open_memory(out, bytes, true); }
int stk_emu_free(void *p) { return close_memory(p, true); }
int stk_emu_host_alloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    return open_memory(out, bytes, false);
}
int stk_emu_free_host(void *p) { return close_memory(p, false); }

int stk_emu_host_register(void *p, size_t bytes, unsigned flags) {
    (void)flags;
    int rc = stk_emu_enter();
    if (!rc) rc = stk_emu_injected(STK_EMU_FAIL_HOST_ALLOC);
    if (!rc) rc = stk_emu_memory_register(p, bytes);
    return stk_emu_leave(rc);
}

int stk_emu_host_unregister(void *p) {
    int rc = stk_emu_enter();
    if (!rc) rc = stk_emu_run_all();
    int closed = stk_emu_memory_unregister(p);
    return stk_emu_leave(rc ? rc : closed);
}
