/*
 * recall: which past tokens resemble the present one, and which experts followed them. Tokens that are
 * routed alike in some layers are routed alike in the others, so one list serves all layers, and those of all instances of policy
 * `learned` in a cache.
 *
 * Every STK_RECALL_STRIDE-th layer counts how many experts the present token shares with each of the last STK_LANES_WINDOW. These
 * counts add up, decaying, along the diagonal: the likeness of a token continues that of the token before it to the one before
 * the present. The likest are the matches; a layer of its own adds what it shares with them.
 *
 * Who may call it: cache/learned.c, and the tool that fits the prior. Pure; all memory is taken at open. All arithmetic is of
 * integers.
 */
#ifndef STK_RECALL_H
#define STK_RECALL_H

#include "cache/learned_lanes.h"
#include "src/event.h"

enum {
    STK_RECALL_STRIDE = 6,   /* of the layers that tell likeness */
    STK_RECALL_MAX_SET = 15, /* a token with more experts resembles none */
    STK_RECALL_MATCHES = 20,
    STK_RECALL_LIKENESS = 512 /* is below this */
};

typedef struct stk_recall stk_recall;

/* n_layer: of all instances together. Each instance opens it; the first call makes it, later ones share *recall. */
int stk_recall_open(stk_recall **recall, uint32_t n_layer, uint32_t n_expert) STK_CHECKED;
/* Each instance closes it; the last call frees it. */
void stk_recall_close(stk_recall **recall);

/* Hears of an event of a layer. */
void stk_recall_observe(stk_recall *recall, uint32_t layer, const stk_event *event);
/* The matches of the present token as the layer sees them: their likeness; over 2k it is 0 to 16. Returns how many there are. */
uint32_t stk_recall_matches(stk_recall *recall, uint32_t layer, uint16_t likeness[STK_RECALL_MATCHES]);
/* Of these matches, those of this layer: votes[g][e] [LAGS, n_expert padded] = the sum of of[i] for each time it used expert e in
 * lag group g after match i; the sum of all of[] is at most STK_LANES_VOTES. */
void stk_recall_vote(stk_recall *recall, const uint8_t of[STK_RECALL_MATCHES], uint8_t *votes);

/* Bytes of the state; save writes all of it. */
size_t stk_recall_state_bytes(const stk_recall *recall);
void stk_recall_save(const stk_recall *recall, void *out);
/* STK_EFORMAT when the bytes of a state that anybody may have written hold what cannot be. */
int stk_recall_check(const stk_recall *recall, const void *data) STK_CHECKED;
/* Of a state that was checked. */
void stk_recall_load(stk_recall *recall, const void *data);

#endif
