/* stream: queued work of the emulated device, and the order in which it runs. */
#include "cuda/emu/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/emu/block.h"
#include "cuda/emu/memory.h"

enum kind { LAUNCH, COPY, FILL, RECORD, WAIT, CALL };

typedef struct work {
    struct work *next;
    enum kind kind;
    stk_emu_launch_info launch;
    void *dst;
    const void *src;
    size_t bytes;
    int value;
    stk_emu_event *event;
    uint64_t generation; /* of the event */
    void (*fn)(void *);
    void *ctx;
    _Alignas(16) uint8_t payload[]; /* arguments of a kernel; what was in pageable memory at the time of the call */
} work;

struct stk_emu_stream {
    stk_emu_stream *next;
    work *first, **last;
};

struct stk_emu_event {
    stk_emu_event *next;
    uint64_t recorded, done; /* records queued, and run */
    uint32_t n_ref;          /* the caller's, and one of each queued work */
};

static stk_emu_stream *streams;
static stk_emu_event *events;

/* ---- Events ---- */

static void event_put(stk_emu_event *e) {
    if (--e->n_ref) return;
    stk_emu_event **at = &events;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    free(e);
}

static void free_work(work *w) {
    if (w->event) event_put(w->event);
    free(w);
}

/* ---- Running ---- */

static int lose(int error, const char *detail) {
    stk_emu.lost = error;
    snprintf(stk_emu.detail, sizeof stk_emu.detail, "%s", detail);
    return error;
}

static uint64_t draw64(void) {
    uint64_t z = stk_emu.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int run_launch(const work *w) {
    char fault[sizeof stk_emu.detail] = "";
    int rc = stk_emu_grid_run(&w->launch, draw64(), fault, sizeof fault);
    if (rc) return lose(rc, fault);
    const char *beyond = stk_emu_memory_check();
    if (!beyond) return STK_EMU_SUCCESS;
    snprintf(fault, sizeof fault, "kernel %s: %s", w->launch.kernel, beyond);
    return lose(STK_EMU_ILLEGAL_ADDRESS, fault);
}

static int run_work(work *w) {
    int rc = w->kind == LAUNCH || w->kind == COPY ? stk_emu_injected(STK_EMU_FAIL_LOST) : 0;
    if (rc) return lose(rc, "the device was lost, as a test asked for");
    switch (w->kind) {
    case LAUNCH: return run_launch(w);
    case COPY: memcpy(w->dst, w->src, w->bytes); break;
    case FILL: memset(w->dst, w->value, w->bytes); break;
    case RECORD: w->event->done = STK_MAX(w->event->done, w->generation); break;
    case WAIT: break;
    case CALL:
        stk_emu.in_host_func = true;
        w->fn(w->ctx);
        stk_emu.in_host_func = false;
        break;
    }
    return STK_EMU_SUCCESS;
}

static bool runnable(const stk_emu_stream *s) {
    return s->first && !(s->first->kind == WAIT && s->first->event->done < s->first->generation);
}

/* Runs one piece of work of a random stream; *any tells whether there was one. */
static int run_one(bool *any) {
    uint32_t n = 0;
    for (stk_emu_stream *s = streams; s; s = s->next) n += runnable(s);
    *any = n > 0;
    if (!n) return STK_EMU_SUCCESS;
    uint32_t pick = (uint32_t)(draw64() % n);
    stk_emu_stream *s = streams;
    while (!runnable(s) || pick--) s = s->next;
    work *w = s->first;
    s->first = w->next;
    if (!s->first) s->last = &s->first;
    int rc = run_work(w);
    free_work(w);
    return rc;
}

static bool stream_done(const void *s) { return !((const stk_emu_stream *)s)->first; }
static bool event_done(const void *e) { return ((const stk_emu_event *)e)->done >= ((const stk_emu_event *)e)->recorded; }
static bool all_done(const void *unused) {
    (void)unused;
    for (const stk_emu_stream *s = streams; s; s = s->next)
        if (s->first) return false;
    return true;
}

static int run_until(bool (*done)(const void *), const void *what) {
    while (!done(what)) {
        bool any;
        int rc = run_one(&any);
        if (rc) return rc;
        if (!any) {
            snprintf(stk_emu.detail, sizeof stk_emu.detail, "every stream waits for an event that no stream will record");
            return STK_EMU_LAUNCH_TIMEOUT;
        }
    }
    return STK_EMU_SUCCESS;
}

int stk_emu_run_all(void) { return run_until(all_done, NULL); }

/* ---- Queueing ---- */

static work *new_work(enum kind kind, size_t payload_bytes) {
    work *w = calloc(1, sizeof *w + payload_bytes);
    if (w) w->kind = kind;
    return w;
}

static int queue(stk_emu_stream *s, work *w) {
    if (!w) return STK_EMU_MEMORY_ALLOCATION;
    *s->last = w;
    s->last = &w->next;
    return STK_EMU_SUCCESS;
}

static int enter_stream(const stk_emu_stream *s) {
    int rc = stk_emu_enter();
    return rc || s ? rc : STK_EMU_INVALID_HANDLE;
}

int stk_emu_launch(const char *kernel, stk_emu_dim grid, stk_emu_dim block, size_t dynamic_bytes, stk_emu_stream *stream,
                   void (*run)(const void *args), const void *args, size_t args_bytes) {
    int rc = enter_stream(stream);
    uint64_t threads = (uint64_t)block.x * block.y * block.z, most_yz = 65535;
    if (!rc && (!threads || threads > STK_EMU_MAX_THREADS || !grid.x || !grid.y || !grid.z || grid.x > INT32_MAX ||
                grid.y > most_yz || grid.z > most_yz || dynamic_bytes > STK_EMU_SHARED_BYTES))
        rc = STK_EMU_INVALID_CONFIGURATION;
    if (!rc) rc = stk_emu_injected(STK_EMU_FAIL_LAUNCH);
    work *w = rc ? NULL : new_work(LAUNCH, args_bytes);
    if (w) {
        memcpy(w->payload, args, args_bytes);
        w->launch = (stk_emu_launch_info){kernel, grid, block, dynamic_bytes, run, w->payload};
        stk_emu.stats.n_launch++;
    }
    return stk_emu_leave(rc ? rc : queue(stream, w));
}

/* Pageable memory is read during the call; a copy to it has happened when the call returns. */
int stk_emu_memcpy_async(void *dst, const void *src, size_t bytes, int kind, stk_emu_stream *stream) {
    enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3 };
    int rc = enter_stream(stream);
    enum stk_emu_where from = stk_emu_memory_where(src, bytes), to = stk_emu_memory_where(dst, bytes);
    bool from_device = kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE,
         to_device = kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
    if (!rc && (from == STK_EMU_PARTLY || to == STK_EMU_PARTLY || (from == STK_EMU_DEVICE) != from_device ||
                (to == STK_EMU_DEVICE) != to_device))
        rc = STK_EMU_INVALID_VALUE;
    if (!rc) rc = stk_emu_injected(STK_EMU_FAIL_COPY);
    work *w = rc ? NULL : new_work(COPY, from == STK_EMU_PAGEABLE ? bytes : 0);
    if (w) {
        w->dst = dst;
        w->src = src;
        w->bytes = bytes;
        if (from == STK_EMU_PAGEABLE) w->src = memcpy(w->payload, src, bytes);
        stk_emu.stats.n_copy++;
        stk_emu.stats.copy_bytes += bytes;
    }
    if (!rc) rc = queue(stream, w);
    if (!rc && to == STK_EMU_PAGEABLE) rc = run_until(stream_done, stream);
    return stk_emu_leave(rc);
}

int stk_emu_memset_async(void *dst, int value, size_t bytes, stk_emu_stream *stream) {
    int rc = enter_stream(stream);
    if (!rc && stk_emu_memory_where(dst, bytes) != STK_EMU_DEVICE) rc = STK_EMU_INVALID_VALUE;
    if (!rc) rc = stk_emu_injected(STK_EMU_FAIL_COPY);
    work *w = rc ? NULL : new_work(FILL, 0);
    if (w) {
        w->dst = dst;
        w->value = value;
        w->bytes = bytes;
    }
    return stk_emu_leave(rc ? rc : queue(stream, w));
}

int stk_emu_launch_host_func(stk_emu_stream *stream, void (*fn)(void *), void *ctx) {
    int rc = enter_stream(stream);
    work *w = rc ? NULL : new_work(CALL, 0);
    if (w) {
        w->fn = fn;
        w->ctx = ctx;
    }
    return stk_emu_leave(rc ? rc : queue(stream, w));
}

/* ---- Streams and events ---- */

int stk_emu_stream_create_with_priority(stk_emu_stream **out, unsigned flags, int priority) {
    (void)flags;
    (void)priority;
    *out = NULL;
    int rc = stk_emu_enter();
    if (!rc) rc = stk_emu_injected(STK_EMU_FAIL_STREAM);
    stk_emu_stream *s = rc ? NULL : calloc(1, sizeof *s);
    if (!rc && !s) rc = STK_EMU_MEMORY_ALLOCATION;
    if (s) {
        s->last = &s->first;
        s->next = streams;
        streams = s;
        stk_emu.stats.n_stream++;
        *out = s;
    }
    return stk_emu_leave(rc);
}

static void free_stream(stk_emu_stream *s) {
    for (work *w; (w = s->first);) {
        s->first = w->next;
        free_work(w);
    }
    stk_emu_stream **at = &streams;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    free(s);
    stk_emu.stats.n_stream--;
}

int stk_emu_stream_destroy(stk_emu_stream *stream) {
    int rc = enter_stream(stream);
    if (!rc) rc = run_until(stream_done, stream);
    if (stream) free_stream(stream);
    return stk_emu_leave(rc);
}

int stk_emu_stream_synchronize(stk_emu_stream *stream) {
    int rc = enter_stream(stream);
    return stk_emu_leave(rc ? rc : run_until(stream_done, stream));
}

/* Asking is progress: one piece of work runs first. */
static int query(bool (*done)(const void *), const void *what) {
    bool any;
    int rc = done(what) ? STK_EMU_SUCCESS : run_one(&any);
    return rc || done(what) ? rc : STK_EMU_NOT_READY;
}

int stk_emu_stream_query(stk_emu_stream *stream) {
    int rc = enter_stream(stream);
    return stk_emu_leave(rc ? rc : query(stream_done, stream));
}

int stk_emu_event_create_with_flags(stk_emu_event **out, unsigned flags) {
    (void)flags;
    *out = NULL;
    int rc = stk_emu_enter();
    if (!rc) rc = stk_emu_injected(STK_EMU_FAIL_EVENT);
    stk_emu_event *e = rc ? NULL : calloc(1, sizeof *e);
    if (!rc && !e) rc = STK_EMU_MEMORY_ALLOCATION;
    if (e) {
        e->n_ref = 1;
        e->next = events;
        events = e;
        stk_emu.stats.n_event++;
        *out = e;
    }
    return stk_emu_leave(rc);
}

int stk_emu_event_destroy(stk_emu_event *event) {
    int rc = stk_emu_enter();
    if (event) {
        stk_emu.stats.n_event--;
        event_put(event);
    }
    return stk_emu_leave(event ? rc : STK_EMU_INVALID_HANDLE);
}

static int queue_event(stk_emu_stream *s, stk_emu_event *e, enum kind kind) {
    work *w = new_work(kind, 0);
    if (!w) return STK_EMU_MEMORY_ALLOCATION;
    w->event = e;
    w->generation = kind == RECORD ? ++e->recorded : e->recorded;
    e->n_ref++;
    return queue(s, w);
}

int stk_emu_event_record(stk_emu_event *event, stk_emu_stream *stream) {
    int rc = enter_stream(stream);
    if (!rc && !event) rc = STK_EMU_INVALID_HANDLE;
    return stk_emu_leave(rc ? rc : queue_event(stream, event, RECORD));
}

int stk_emu_stream_wait_event(stk_emu_stream *stream, stk_emu_event *event, unsigned flags) {
    (void)flags;
    int rc = enter_stream(stream);
    if (!rc && !event) rc = STK_EMU_INVALID_HANDLE;
    return stk_emu_leave(rc ? rc : queue_event(stream, event, WAIT));
}

int stk_emu_event_query(stk_emu_event *event) {
    int rc = stk_emu_enter();
    return stk_emu_leave(rc ? rc : query(event_done, event));
}

int stk_emu_event_synchronize(stk_emu_event *event) {
    int rc = stk_emu_enter();
    return stk_emu_leave(rc ? rc : run_until(event_done, event));
}

int stk_emu_device_synchronize(void) {
    int rc = stk_emu_enter();
    return stk_emu_leave(rc ? rc : stk_emu_run_all());
}

void stk_emu_streams_reset(void) {
    while (streams) free_stream(streams);
    for (stk_emu_event *e; (e = events);) {
        events = e->next;
        free(e);
    }
}
