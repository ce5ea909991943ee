/* device: opening, memory, copies. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "src/mem.h"

/* 1: *ops has a device; 0: there is none, though it was not asked for by name. */
static int find(const char *name, const stk_cuda_ops **ops) {
    bool any = !name || strcmp(name, "auto") == 0;
    const char *wanted = any ? "cuda" : name;
    uint32_t n = 0;
    if (strcmp(wanted, "none") == 0) return 0;
    if (strcmp(wanted, "cuda") != 0 && strcmp(wanted, "emu") != 0)
        return stk_fail(STK_EINVAL, "there is no device '%s'; there are cuda, emu and none", wanted);
    *ops = stk_cuda_ops_get(wanted);
    if (!*ops && any) return 0;
    if (!*ops)
        return stk_fail(STK_EUNSUPPORTED, "this build has no device '%s'; build with -DSTK_CUDA=on, or run with --device none",
                        wanted);
    int rc = (*ops)->count(&n);
    if (rc < 0 && !any) return rc;
    if (rc < 0) stk_log(STK_LOG_WARN, "%s; the CPU computes everything", stk_error_detail());
    if (rc >= 0 && n == 0 && !any)
        return stk_fail(STK_EUNSUPPORTED, "no GPU that can be used; run with --device none, or --device emu for an emulated one");
    return rc >= 0 && n > 0;
}

static int open_on(stk_device *d, uint64_t cap_bytes) {
    uint64_t free_bytes, total_bytes;
    STK_TRY(stk_device_bind(d));
    STK_TRY(d->ops->info(0, &d->info));
    STK_TRY(d->ops->mem_info(&free_bytes, &total_bytes));
    /* The emulated device's memory is the machine's. */
    if (strcmp(d->ops->name, "emu") == 0) free_bytes = STK_MIN(free_bytes, stk_mem_available());
    d->cap_bytes = cap_bytes ? STK_MIN(cap_bytes, free_bytes) : free_bytes;
    STK_TRY(d->ops->stream_open(&d->compute, true));
    STK_TRY(d->ops->stream_open(&d->up, false));
    return d->ops->stream_open(&d->down, false);
}

int stk_device_open(stk_device **out, const char *name, uint64_t cap_bytes) {
    const stk_cuda_ops *ops = NULL;
    *out = NULL;
    int found = find(name, &ops);
    if (found <= 0) return found;
    stk_device *d = calloc(1, sizeof *d);
    if (!d) return stk_fail(STK_ENOMEM, "device: out of memory");
    d->ops = ops;
    int rc = open_on(d, cap_bytes);
    if (rc < 0) stk_device_close(&d);
    *out = d;
    return rc;
}

void stk_device_close(stk_device **device) {
    stk_device *d = *device;
    if (!d) return;
    if (stk_device_bind(d) < 0) stk_log(STK_LOG_DEBUG, "closing the device: %s", stk_error_detail());
    d->ops->stream_close(d->compute);
    d->ops->stream_close(d->up);
    d->ops->stream_close(d->down);
    for (uint32_t i = 0; i < d->n_pinned; i++) d->ops->host_unregister(d->pinned[i].base);
    for (uint32_t i = 0; i < d->n_host_block; i++) d->ops->host_free(d->host_blocks[i]);
    for (uint32_t i = 0; i < d->n_block; i++) d->ops->free(d->blocks[i]);
    free(d);
    *device = NULL;
}

int stk_device_bind(const stk_device *d) { return d->ops->bind(0); }

bool stk_device_lost(const stk_device *d) { return d->ops->lost(); }

int stk_device_room(const stk_device *d, uint64_t *bytes) {
    uint64_t free_bytes, total_bytes;
    STK_TRY(d->ops->mem_info(&free_bytes, &total_bytes));
    *bytes = STK_MIN(free_bytes, d->cap_bytes - d->used_bytes);
    return STK_OK;
}

int stk_device_take(stk_device *d, void **out, uint64_t bytes, const char *what) {
    char want[32], room[32];
    *out = NULL;
    if (bytes == 0) return STK_OK;
    if (d->n_block == STK_DEVICE_N_BLOCK) return stk_fail(STK_ENOMEM, "%s: too many blocks of device memory", what);
    if (bytes > d->cap_bytes - d->used_bytes)
        return stk_fail(STK_ENOMEM, "%s: %s of device memory are needed, %s are left", what, stk_bytes_text(bytes, want),
                        stk_bytes_text(d->cap_bytes - d->used_bytes, room));
    STK_TRY(d->ops->malloc(out, bytes, what));
    d->blocks[d->n_block++] = *out;
    d->used_bytes += bytes;
    return STK_OK;
}

bool stk_device_pin(stk_device *d, void *base, uint64_t bytes, const char *what) {
    if (bytes == 0 || d->n_pinned == STK_DEVICE_N_BLOCK) return false;
    if (d->ops->host_register(base, bytes) < 0) {
        stk_log(STK_LOG_WARN, "%s are not pinned (%s): copies of them are slower", what, stk_error_detail());
        return false;
    }
    d->pinned[d->n_pinned].base = base;
    d->pinned[d->n_pinned++].bytes = bytes;
    d->pinned_bytes += bytes;
    return true;
}

void stk_device_unpin(stk_device *d, const void *base) {
    uint32_t i = 0;
    while (i < d->n_pinned && d->pinned[i].base != base) i++;
    if (i == d->n_pinned) return;
    d->ops->host_unregister(d->pinned[i].base);
    d->pinned_bytes -= d->pinned[i].bytes;
    d->pinned[i] = d->pinned[--d->n_pinned];
}

void *stk_device_take_pinned(stk_device *d, uint64_t bytes, const char *what) {
    void *p = NULL;
    if (bytes == 0 || d->n_host_block == STK_DEVICE_N_BLOCK) return NULL;
    if (d->ops->host_malloc(&p, bytes, what) < 0) {
        stk_log(STK_LOG_WARN, "%s are not pinned (%s): copies of them are slower", what, stk_error_detail());
        return NULL;
    }
    d->host_blocks[d->n_host_block++] = p;
    d->pinned_bytes += bytes;
    return p;
}

int stk_device_up(const stk_device *d, void *dst, const void *src, uint64_t bytes, stk_cuda_stream *stream) {
    int rc = d->ops->to_device(dst, src, bytes, stream);
    return rc < 0 && !stk_device_lost(d) ? d->ops->to_device(dst, src, bytes, stream) : rc;
}

int stk_device_down(const stk_device *d, void *dst, const void *src, uint64_t bytes, stk_cuda_stream *stream) {
    int rc = d->ops->to_host(dst, src, bytes, stream);
    return rc < 0 && !stk_device_lost(d) ? d->ops->to_host(dst, src, bytes, stream) : rc;
}
