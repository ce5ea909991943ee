/*
 * plan_replay: a trace on a modelled machine with a GPU: VRAM over RAM over the drive (tiers.h), the four queues of the plan
 * (plan.h), one event after another on a virtual clock. Nothing is computed or moved: an event takes what its plan comes to, the
 * dense part before it what the cost table says.
 *
 * Who may call it: replay.c and tests. Threads: one owner.
 */
#ifndef STK_PLAN_REPLAY_H
#define STK_PLAN_REPLAY_H

#include "tiers.h"
#include "traces/source.h"

typedef struct stk_plan_replay_config {
    stk_source *source; /* read to its end */
    const stk_cost *cost;
    stk_tiers_config tiers; /* its header is the source's */
    /* Hears of every event as it was planned: items [event->n_distinct] with their routes, in their order. NULL: nobody. Returns
     * 0 or an error, which ends the replay. */
    int (*on_event)(void *user, const stk_event *event, const stk_plan_queues *queues, const stk_plan_item *items,
                    const stk_plan_times *times);
    void *user;
    stk_progress_fn progress;
    void *progress_user;
} stk_plan_replay_config;

/* *prefill and *decode: struct_bytes are set here; *ns: the clock at the end; vram_bytes, ram_bytes: of slots in use. Errors: the
 * source's, those of stk_tiers_open, STK_EINVAL (a cost table without a GPU), STK_ECANCELED. */
typedef struct stk_plan_replay_result {
    stk_replay_tiers prefill, decode;
    uint64_t n_step, virtual_ns, vram_bytes, ram_bytes;
} stk_plan_replay_result;
int stk_plan_replay(const stk_plan_replay_config *config, stk_plan_replay_result *result) STK_CHECKED;

/* How often each expert of a source is used, uses [n_layer * n_expert]: a profile for modes that want one. */
int stk_plan_profile(stk_source *source, uint64_t *uses) STK_CHECKED;

/* stk_replay_many with vram_bytes or mode. */
int stk_replay_tiers_run(const char *const *traces, uint32_t n, const stk_replay_options *options,
                         stk_replay_result *result) STK_CHECKED;

/* As stk_plan_profile, of a trace of a model of that shape; *uses [n_layer * n_expert] is the caller's to free. STK_EINVAL
 * (another shape), and as stk_source_open. In replay_tiers.c. */
int stk_uses_load(const char *path, uint32_t n_layer, uint32_t n_expert, uint64_t **uses) STK_CHECKED;

#endif
