/*
 * engine: one model under fixed budgets: the parts, opened in an order in which every byte is known before it is taken.
 *
 * Who may call it: src/engine*.c; everyone else uses stoker.h.
 */
#ifndef STK_ENGINE_H
#define STK_ENGINE_H

#include "forward.h"
#include "src/device/device.h"
#include "src/hooks/policy_user.h"
#include "src/hooks/predictor_user.h"
#include "src/spec.h"
#include "src/tune/profile_file.h"
#include "watch.h"

struct stk_engine {
    const stk_model *model;
    const stk_catalogue *experts; /* the model's, or: */
    stk_catalogue *own_experts;   /* a class for each layer */
    stk_profile_file profile;     /* of o.profile; without one all 0 */
    stk_engine_options o;         /* with every default filled in; its strings belong to the caller and are not kept */
    const stk_cpu_ops *ops;
    stk_pool *pool;
    stk_fast *fast; /* NULL: float products are exact */
    stk_slots *slots;
    stk_io *io;
    stk_dense dense;
    stk_routers routers; /* of the layers ahead; only where the predictor asks them */
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
    uint32_t *pinned_slots; /* [n_class] of RAM, the first ones */
    uint32_t n_cpu_layer;   /* layers whose attention is the CPU's, the first ones */
    stk_executor *executor;
    stk_stepper stepper;
    stk_trace_writer *trace;
    stk_memory_info memory;
    char policy_text[STK_SPEC_BYTES]; /* as it was named, and taken apart: */
    stk_spec policy;
    char predictor_text[STK_SPEC_BYTES]; /* likewise; "" for none */
    stk_watch watch;                     /* of reading ahead */
    bool may_prefetch;                   /* not every expert has a slot */
    bool prefetch_off;                   /* turned off by the watch */
    bool switch_due;                     /* as the next step begins, to what the watch says */
    bool warm_loaded;                    /* the cache did not begin empty */
    uint64_t n_switch;                   /* times that it was turned off or on */
    char *warm_path;                     /* NULL: nothing is kept for the next run */
    uint64_t model_id;                   /* for that file */
    bool opened;                         /* the run could begin */
    stk_policy_user policy_user;         /* of o.hooks */
    stk_predictor_user predictor_user;   /* of o.predictor_hooks */
    uint32_t n_transit;                  /* slots of each class for refused experts */

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
/* Pins as many of the expert slots in RAM as o.pin_bytes asks for; all of them before their memory changes, none. */
void stk_engine_pin_slots(stk_engine *e);
void stk_engine_unpin_slots(stk_engine *e);
/* rc, or STK_ELOST where a failure has lost the device. */
int stk_engine_device_check(const stk_engine *e, int rc) STK_CHECKED;
/* Of all layers, wherever their tiles are. */
stk_kv_config stk_engine_kv_config(const stk_engine *e);

/* Opens e->fast if it is asked for and this machine can (engine_float.c). */
int stk_engine_float_open(stk_engine *e) STK_CHECKED;

/* All counters since open. */
void stk_engine_count(const stk_engine *e, stk_stats *s);

/* Takes the caller's options: experts, profile, policy and predictor are known after that (engine_options.c). */
int stk_engine_take_options(stk_engine *e, const stk_engine_options *given) STK_CHECKED;
/* Slots of each class [n_class of experts]: equal shares, or what the profile says of each layer. */
int stk_engine_divide_slots(const stk_engine *e, uint64_t ram_bytes, uint32_t *n_slot) STK_CHECKED;

/* Registers the slots' memory for reads (engine_resize.c); sets what memory.* says of them. */
int stk_engine_register_slots(stk_engine *e) STK_CHECKED;
void stk_engine_count_memory(stk_engine *e);

/* Sets whether the next steps read ahead: as there is need and the watch allows (engine_watch.c). */
int stk_engine_attach_prefetch(stk_engine *e) STK_CHECKED;
/* Turns reading ahead off or on between steps, on record. */
int stk_engine_switch_prefetch(stk_engine *e, bool on) STK_CHECKED;
/* A step of n_tok tokens was done; *before was counted before it. What follows is applied as the next one begins. */
void stk_engine_watch(stk_engine *e, uint32_t n_tok, const stk_stats *before);
int stk_engine_apply_watch(stk_engine *e) STK_CHECKED;

/* Loads what an earlier run has left, and reads its experts; leaves it for a later one (engine_warm.c). */
int stk_engine_warm_open(stk_engine *e, const char *path) STK_CHECKED;
int stk_engine_warm_close(stk_engine *e) STK_CHECKED;

/* Begins the trace of a run (engine_trace.c), and ends it with the counters that a verifying replay compares. */
int stk_engine_trace_open(stk_engine *e, const char *path, const uint32_t *n_slot) STK_CHECKED;
int stk_engine_trace_close(stk_engine *e) STK_CHECKED;

#endif
