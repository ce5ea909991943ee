/*
 * tally: what a replay counted, by layer and by phase, for both of its paths (decide.h and virtual.h).
 *
 * Who may call it: src/. Threads: one owner.
 */
#ifndef STK_TALLY_H
#define STK_TALLY_H

#include "cache/cache.h"
#include "traces/trace.h"

enum stk_phase { STK_PREFILL, STK_DECODE };

typedef struct stk_tally {
    const stk_trace_header *header;
    uint64_t *expert_read_bytes;   /* [n_layer, n_expert] what the drive is asked for */
    uint8_t *read;                 /* [n_layer, n_expert] 1 + phase in which it was counted as read, unless dropped since */
    stk_replay_count (*layers)[2]; /* [n_layer] by phase */
    stk_replay_count phases[2];    /* only n_token and times */
    enum stk_phase phase;          /* of the running step */
    uint64_t n_sequence;           /* begun */
    int64_t max_seq;               /* of all tokens before */
} stk_tally;

int stk_tally_open(stk_tally *t, const stk_trace_header *header) STK_CHECKED;
void stk_tally_close(stk_tally *t);

/* Whether a step reads a prompt: its tokens ask for no logits, or follow one another in the same sequence. */
enum stk_phase stk_tally_phase(const stk_trace_step *step);
/* A step begins: sets its phase. Returns whether a sequence begins in it: one at its first position, or one not seen before. */
bool stk_tally_step(stk_tally *t, const stk_trace_step *step);
/* What the cache decided of an event: list [n]. */
void stk_tally_event(stk_tally *t, uint32_t layer, const stk_decision *list, uint32_t n);
/* What it decided of an expert that is read ahead; counts for the expert's layer. */
void stk_tally_prefetch(stk_tally *t, const stk_decision *d);
/* An expert that was decided to be read never came. Returns whether its bytes had been counted: not where the recorded run read
 * what this one had. */
bool stk_tally_drop(stk_tally *t, uint32_t key);

/* Sums over layers and phases. */
void stk_tally_sum(const stk_tally *t, stk_replay_count *prefill, stk_replay_count *decode);

#endif
