/*
 * hook_event: an event as hooks of the user's hear of it (stk_policy_event of stoker.h).
 *
 * Who may call it: policy_user.c and predictor_user.c.
 */
#ifndef STK_HOOK_EVENT_H
#define STK_HOOK_EVENT_H

#include "src/event.h"
#include "src/stoker.h"

/* keys [n]: the event's distinct experts as hooks name them. Everything is borrowed. */
static inline stk_policy_event stk_hook_event(const stk_event *e, const uint32_t *keys, uint32_t n) {
    return (stk_policy_event){.struct_bytes = sizeof(stk_policy_event),
                              .layer = e->layer,
                              .step = e->step,
                              .n_tok = e->n_tok,
                              .k = e->k,
                              .n_top = e->n_top,
                              .n = n,
                              .keys = keys,
                              .counts = e->counts,
                              .seq = e->seq,
                              .pos = e->pos,
                              .token = e->token,
                              .ids = e->ids,
                              .weights = e->weights,
                              .top_ids = e->top_ids,
                              .top_scores = e->top_scores};
}

#endif
