/*
 * prefetch: what is read ahead of its use: it asks the predictor at every event, keeps its score card, and lets the chooser
 * (chooser.h) say what of it is worth its bytes. That a read yields to demand is io's business, that an expert leaves for it the
 * cache's.
 *
 * Who may call it: src/. Pure but for what the cache says of residency; all memory is taken at open.
 */
#ifndef STK_PREFETCH_H
#define STK_PREFETCH_H

#include "cache/cache.h"
#include "chooser.h"
#include "predict/score.h"
#include "src/stoker.h"

/* A step of more tokens is a prompt's: it uses nearly every expert, and there is little to predict. */
enum { STK_LOOKAHEAD_TOKENS = 8 };

typedef struct stk_prefetch stk_prefetch;

typedef struct stk_prefetch_config {
    const char *predictor;
    const char *params;   /* of it; NULL: none */
    uint32_t depth;       /* layers ahead, 1 to STK_PREDICT_DEPTH_MAX */
    uint32_t n_layer;     /* MoE layers */
    uint32_t n_expert, k; /* of a layer; of a token */
    uint64_t seed;
    const stk_cache *cache;       /* borrowed */
    const stk_gain_size *sizes;   /* [n_layer] of an expert; NULL: no times will be told */
    uint32_t rule;                /* STK_AHEAD_... */
    const stk_predictor_ops *ops; /* instead of the built-in one named `predictor`; NULL: that one */
    void *ops_user;
} stk_prefetch_config;

/* Errors: STK_EINVAL (no such predictor, depth), STK_ENOMEM. */
int stk_prefetch_open(stk_prefetch **out, const stk_prefetch_config *config) STK_CHECKED;
void stk_prefetch_close(stk_prefetch **prefetch);

/* How many routers of layers after `layer` the predictor wants to hear in a step of n_tok tokens. */
uint32_t stk_prefetch_lookahead(const stk_prefetch *prefetch, uint32_t layer, uint32_t n_tok);

/* Tells the predictor of an event, and lists what it expects of the layers ahead, nearest layer first, the likeliest first;
 * `issue` marks what is worth reading now. now: NULL, no times are known. *list lives until the next call. Returns how many. */
int stk_prefetch_choose(stk_prefetch *prefetch, const stk_event *event, const stk_lookahead *look, const stk_gain_now *now,
                        stk_ahead **list) STK_CHECKED;
/* As stk_chooser_may_evict. */
bool stk_prefetch_may_evict(const stk_prefetch *prefetch, uint32_t i, uint32_t victim);

/* The predictor's state, as stk_predictor_ops. save: 0 where there is none worth keeping. */
int64_t stk_prefetch_save(const stk_prefetch *prefetch, void *out, size_t cap);
int stk_prefetch_load(stk_prefetch *prefetch, const void *data, size_t bytes) STK_CHECKED;

/* How predictions `depth` layers ahead did. */
void stk_prefetch_count(const stk_prefetch *prefetch, uint32_t depth, stk_predict_count *count);

#endif
