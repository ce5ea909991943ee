/*
 * track: what predictors remember of the running step and of each sequence: the experts that a token has chosen so far, layer by
 * layer, and those of its sequence's token before.
 *
 * Of a step with many tokens a sample is followed, evenly spread and with the last token in it; each stands for its neighbours.
 * A sequence begins anew where a token has position 0. More than STK_TRACK_SEQS sequences share the memory: the one that was
 * longest not heard of is forgotten.
 *
 * For an event: stk_track_begin, then learning (the sample's paths end with the layer before, `before` is the token before), then
 * stk_track_commit, then looking ahead.
 *
 * Who may call it: predict/.
 */
#ifndef STK_TRACK_H
#define STK_TRACK_H

#include "predict/predictors.h"

enum {
    STK_TRACK_TOKENS = 32,
    STK_TRACK_SEQS = 32,
    STK_TRACK_LEARN = 4, /* tokens of an event that costly learning looks at: the last ones of the sample */
    STK_TRACK_RUN = 32,  /* tokens of a sequence and event that cheap learning looks at: the last ones */
    STK_TRACK_ABSENT = -1
};

typedef struct stk_track_token {
    int32_t seq, pos, token;
    uint32_t slot; /* of its sequence */
    uint32_t n;    /* tokens of the step that it stands for */
    int64_t at;    /* index in the latest event, or ABSENT */
    bool last;     /* of its sequence in this step */
    bool follows;  /* the token before it was in an earlier step: stk_track_before knows its experts of layers to come */
} stk_track_token;

/* Tokens begin .. end - 1 of the event, of one sequence, one after the other. */
typedef struct stk_track_run {
    uint32_t begin, end, slot;
} stk_track_run;

typedef struct stk_track {
    uint32_t n_layer, n_expert, k;
    uint64_t step;
    uint32_t layer;  /* of the latest event */
    uint32_t n_step; /* tokens of the step */
    bool begun, new_step;
    uint32_t n_tok;
    stk_track_token tok[STK_TRACK_TOKENS];
    uint16_t *path;           /* [TOKENS, n_layer, k], STK_NO_EXPERT where unknown */
    uint16_t *before;         /* [SEQS, n_layer, k] */
    uint32_t *layer_n_expert; /* [n_layer] experts of a layer, as far as it was seen */
    struct {
        int32_t seq, pos; /* of its latest token; pos before the running step */
        int32_t next_pos; /* after it */
        uint64_t used;    /* 0: free */
        bool restarted;   /* in this step: what was kept for the slot is of another sequence */
    } slots[STK_TRACK_SEQS];
    uint64_t clock;
} stk_track;

int stk_track_init(stk_track *t, const stk_predictor_config *config) STK_CHECKED;
void stk_track_fini(stk_track *t);
/* As after init. */
void stk_track_reset(stk_track *t);
void stk_track_begin(stk_track *t, const stk_event *event);
void stk_track_commit(stk_track *t, const stk_event *event);

/* Experts [k] of sampled token i in a layer of the running step. */
static inline const uint16_t *stk_track_path(const stk_track *t, uint32_t i, uint32_t layer) {
    return t->path + ((size_t)i * t->n_layer + layer) * t->k;
}

/* Experts [k] of a sequence's latest token that has passed a layer. */
static inline const uint16_t *stk_track_before(const stk_track *t, uint32_t slot, uint32_t layer) {
    return t->before + ((size_t)slot * t->n_layer + layer) * t->k;
}

/* Whether that is the token right before the one that a look `depth` layers ahead from sampled token i is about. */
static inline bool stk_track_has_before(const stk_track *t, uint32_t depth, uint32_t i) {
    return t->tok[i].slot < STK_TRACK_SEQS && (t->tok[i].follows || t->layer + depth >= t->n_layer);
}

/* While learning: experts of the token before the i-th sampled one in the event's layer, in this event or an earlier step; NULL
 * where it is not known. event->k or t->k of them: *k. */
const uint16_t *stk_track_predecessor(const stk_track *t, const stk_event *event, uint32_t i, uint32_t *k);

/* The run that begins at token *at, its last STK_TRACK_RUN tokens; moves *at behind it. False at the end. */
bool stk_track_next_run(const stk_track *t, const stk_event *event, uint32_t *at, stk_track_run *run);

#endif
