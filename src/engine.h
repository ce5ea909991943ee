/*
 * engine: one model under fixed budgets: the parts, opened in an order in which every byte is known before it is taken.
 *
 * Who may call it: src/engine*.c; everyone else uses stoker.h.
 */
#ifndef STK_ENGINE_H
#define STK_ENGINE_H

#include "device.h"
#include "forward.h"
#include "policy_user.h"

struct stk_engine {
    const stk_model *model;
    stk_engine_options o; /* with every default filled in; its strings belong to the caller and are not kept */
    const stk_cpu_ops *ops;
    stk_pool *pool;
    stk_slots *slots;
    stk_io *io;
    stk_dense dense;
    stk_kv *kv;
    stk_cache *cache;
    stk_store *store;
    stk_cost cost;
    stk_forward *forward;
    stk_prefetch *prefetch; /* NULL: nothing is read ahead */
    stk_device *device;     /* NULL: the CPU computes everything */
    stk_gpu *gpu;           /* of device */
    stk_link *link;         /* to the device's expert slots; NULL: it has none */
    stk_vram *vram;         /* who is in them */
    uint32_t *vram_slots;   /* [n_class] */
    uint32_t n_cpu_layer;   /* layers whose attention is the CPU's, the first ones */
    stk_executor *executor;
    stk_stepper stepper;
    stk_trace_writer *trace;
    stk_memory_info memory;
    stk_policy_user policy_user; /* of o.hooks */
    uint32_t n_transit;          /* slots of each class for refused experts */

    /* The step, copied: a caller's arrays end with the call. [n_batch] */
    int32_t *token, *seq, *pos;
    uint8_t *logits;
    uint32_t n_tok;     /* of the last step that succeeded; 0: none */
    uint32_t *seq_next; /* [n_seq_max] next position while a step is checked */

    uint16_t *forced; /* [n_layer, k] */
    uint8_t *forced_layers;
    atomic_int cancel; /* set by stk_cancel from any thread, cleared by the step that returns because of it; relaxed: it carries
                          no data */

    stk_stats baseline; /* counters at the last reset: what is shown starts there, the trace's totals do not */
};

/* The device and what it will take (engine_device.c): plan fills memory.vram_* and o.vram_bytes, before anything is taken. */
int stk_engine_device_plan(stk_engine *e) STK_CHECKED;
int stk_engine_device_open(stk_engine *e) STK_CHECKED;
/* What an emulated device takes of the host's memory. */
uint64_t stk_engine_device_host_bytes(const stk_engine *e);
void stk_engine_device_close(stk_engine *e);
/* rc, or STK_ELOST where a failure has lost the device. */
int stk_engine_device_check(const stk_engine *e, int rc) STK_CHECKED;
/* Of all layers, wherever their tiles are. */
stk_kv_config stk_engine_kv_config(const stk_engine *e);

/* All counters since open. */
void stk_engine_count(const stk_engine *e, stk_stats *s);

/* Begins the trace of a run (engine_trace.c), and ends it with the counters that a verifying replay compares. */
int stk_engine_trace_open(stk_engine *e, const char *path, const uint32_t *n_slot, const char *policy) STK_CHECKED;
int stk_engine_trace_close(stk_engine *e) STK_CHECKED;

#endif
