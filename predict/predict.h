/*
 * predict: which experts the layers ahead will want. A predictor hears of every event and suggests experts of a layer that lies
 * ahead, each with a probability; whether one is fetched is src/ahead/prefetch.h's business. Pure: no I/O, no clock, no threads,
 * no allocation after open, so that the engine, the replay and the tests drive the very same code.
 *
 * Who may call it: src/. Layers are dense MoE layer numbers. Each call returns 0 or a result, negative on error.
 */
#ifndef STK_PREDICT_H
#define STK_PREDICT_H

#include "src/base.h"
#include "src/event.h"

typedef struct stk_predictor stk_predictor;

enum { STK_PREDICT_DEPTH_MAX = 3 };

typedef struct stk_predictor_config {
    uint32_t n_layer;  /* MoE layers */
    uint32_t n_expert; /* most experts of a layer */
    uint32_t k;        /* most experts of a token */
    uint64_t seed;
    const char *params; /* "name=value,...", NULL for none */
    void *user;         /* of a predictor that is not built in */
} stk_predictor_config;

/* What the routers of the layers ahead say of today's hidden state: computed by the hub for predictors that ask for it. */
typedef struct stk_lookahead {
    uint32_t depth;      /* layers ahead that have scores; 0: none (a trace without them) */
    uint32_t n_tok;      /* of the event */
    uint32_t n_expert;   /* row length */
    const float *scores; /* [depth, n_tok, n_expert] router probabilities; row 0 is layer event->layer + 1 */
} stk_lookahead;

typedef struct stk_suggestion {
    uint16_t expert;
    float p; /* that at least one token of the layer's next event uses it; 0 to 1 */
} stk_suggestion;

typedef struct stk_predictor_ops {
    const char *name;
    const char *idea; /* one line for a list of predictors */
    bool wants_lookahead;
    int (*param)(uint32_t i, stk_param_info *out); /* 1: *out is parameter i; 0: there is none. NULL: none */
    int (*open)(stk_predictor **out, const stk_predictor_config *config);
    void (*close)(stk_predictor *p);
    /* The event of a layer, once a layer and step, layers ascending; a step with fewer layers than the model is possible (a
     * prompt's last layer). `ahead` is never NULL. */
    int (*observe)(stk_predictor *p, const stk_event *event, const stk_lookahead *ahead);
    /* Suggests experts of layer observed + depth (depth from 1; beyond the last layer it wraps to the next step's layers), best
     * first, ties to the lower id; at most cap. Returns how many. Does not change what later calls say. */
    int (*suggest)(const stk_predictor *p, uint32_t depth, stk_suggestion *out, uint32_t cap);
    /* The state as bytes: as stk_policy_ops. NULL: nothing worth keeping. */
    int64_t (*save)(const stk_predictor *p, void *out, size_t cap);
    int (*load)(stk_predictor *p, const void *data, size_t bytes);
} stk_predictor_ops;

/* NULL when there is no predictor of that name. */
const stk_predictor_ops *stk_predictor_find(const char *name);
/* Says what there is where that returned NULL; STK_EINVAL. */
int stk_predictor_unknown(const char *name);
/* Names of all predictors, NULL at the end. */
const char *const *stk_predictor_names(void);

#endif
