/*
 * promote: idle time of the link, spent on bringing experts into VRAM that the CPU has just computed, so that their next use is a
 * hit; those that were used most lately come first. Copies yield to demand; while the CPU computes they cost it some of the
 * memory's bandwidth. Whether that pays is counted: uses that hit beyond those that what lay in VRAM at first would have hit,
 * against the time that the CPU lost. Where it does not, or where the gain might be chance, promotion switches itself off but for
 * a few that tell when it would.
 *
 * Who may call it: plan_replay.c and tests. Pure; all memory is taken at open.
 */
#ifndef STK_PROMOTE_H
#define STK_PROMOTE_H

#include "src/plan/cost.h"

enum { STK_PROMOTE_MAX = 4, STK_PROMOTE_KEEP = 256 };

typedef struct stk_promote_copy {
    uint32_t key;
    double left_bytes;
} stk_promote_copy;

typedef struct stk_promote {
    stk_promote_copy copies[STK_PROMOTE_MAX]; /* [n] in the order in which they are carried */
    uint32_t n;
    uint32_t n_expert;
    uint8_t *first;             /* [n_key] was in VRAM at first */
    double *rate;               /* [n_key] uses lately, as of the layer's event `used` */
    uint32_t *used;             /* [n_key] */
    uint32_t *n_event;          /* [n_layer] */
    double gained_ns, spent_ns; /* decayed */
    double chance_ns2;          /* decayed: the variance of gained_ns if every use were as likely to gain as to lose */
    double saved_ns;            /* by a use, its running mean */
    uint64_t n_asked;
    double keep[STK_PROMOTE_KEEP]; /* what is left of a use after so many events of its layer */
} stk_promote;

int stk_promote_open(stk_promote *p, uint32_t n_layer, uint32_t n_expert) STK_CHECKED;
void stk_promote_close(stk_promote *p);
/* An expert is in VRAM before the first event. */
void stk_promote_first(stk_promote *p, uint32_t key);

/* An event of a layer begins, whose experts are told next. */
void stk_promote_event(stk_promote *p, uint32_t layer);
/* An expert is used by `share` of its tokens, which is worth `saved_ns` more in VRAM than elsewhere. */
void stk_promote_used(stk_promote *p, uint32_t key, double share, bool resident, double saved_ns);
/* How often an expert has been used lately: of two, the one to bring in first. */
double stk_promote_rate(const stk_promote *p, uint32_t key);
/* Whether another promotion is worth while, and has a place. */
bool stk_promote_wanted(stk_promote *p);
/* One begins, for which `victim` (UINT32_MAX: nobody) has left. */
void stk_promote_begin(stk_promote *p, uint32_t key, uint32_t victim, uint64_t bytes);
/* Bytes that are still to come, 0: none. */
double stk_promote_left(const stk_promote *p, uint32_t key);
/* The copy of an expert is over, or given up. */
void stk_promote_end(stk_promote *p, uint32_t key);
/* Lets copies go on for at most `ns`. Returns how long they did. */
double stk_promote_run(stk_promote *p, double bytes_per_ns, double ns);
/* What the CPU lost by copies beside it. */
void stk_promote_spent(stk_promote *p, double ns);

#endif
