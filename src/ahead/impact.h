/*
 * impact: the choice that reading by value is measured against: HybriMoE's impact-driven prefetching (Zhong et al., arXiv
 * 2504.05897). It takes what is predicted for the next layers as certain, simulates these layers with and without each absent
 * expert, reads the one ahead that makes the most difference, and goes on with the next until none does.
 *
 * Who may call it: src/ahead/chooser.c. Pure.
 */
#ifndef STK_IMPACT_H
#define STK_IMPACT_H

#include "gain.h"
#include "src/event.h"

enum { STK_IMPACT_DEPTH = 4 };

typedef struct stk_impact {
    const stk_gain_now *now;
    stk_gain_times times;
    uint32_t layer, n_expert, depth;    /* of the event; layers ahead that are predicted */
    double n_absent[STK_IMPACT_DEPTH];  /* of those predicted of each layer ahead, neither there nor on their way */
    double n_ahead[STK_IMPACT_DEPTH];   /* chosen, by layer */
    double finish_ns[STK_IMPACT_DEPTH]; /* of those, when the last will be there, if nobody wants the drive meanwhile */
} stk_impact;

/* Sets `issue` of the entries of list [n] that are worth it; `absent` [n] says which are candidates: among the first n_used of
 * their layer, and not in memory. */
void stk_impact_choose(stk_impact *impact, stk_ahead *list, const bool *absent, uint32_t n);

#endif
