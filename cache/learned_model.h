/*
 * learned_model: how soon each expert of a layer will be wanted again, learned while running. The part of policy `learned` that
 * knows nothing of residency.
 *
 * Of each expert a layer keeps a few features, all from its own past: use counts decayed at several rates, long-run popularity,
 * whether the present token uses it, the router's scores of those that just missed, and an episodic recall: which experts
 * followed the tokens before that resembled the present one (recall.h). An expert's score is a weighted sum of them and
 * stands for the mean of g^(d-1), d being the number of tokens to its next use. The horizon 1 / (1 - g) is as long as an expert
 * would stay in a cache of that size.
 *
 * The weights are those of a ridge regression: the shipped prior stands for some samples, and to them are added those seen here.
 * Every STK_LEARNED_PERIOD tokens all experts' features are put aside; the tokens that follow give their labels.
 *
 * Who may call it: cache/learned.c and the tool that fits the prior. Pure; all memory is the caller's, one block a layer, so that
 * saving is copying. Every sum is taken in a fixed order.
 */
#ifndef STK_LEARNED_MODEL_H
#define STK_LEARNED_MODEL_H

#include "cache/recall.h"

enum {
    STK_LEARNED_N_DECAY = 4,                                           /* decayed counts */
    STK_LEARNED_N_FADING = STK_LANES_FADING,                           /* these, popularity and near misses */
    STK_LEARNED_N_FEATURE = 2 + STK_LEARNED_N_FADING + STK_LANES_LAGS, /* enum stk_learned_feature */
    STK_LEARNED_N_HORIZON = 6,
    STK_LEARNED_PERIOD = 32,
    STK_LEARNED_MOST = 8,          /* no feature is more */
    STK_LEARNED_MOST_WEIGHT = 1000 /* the other way either */
};

enum stk_learned_feature {
    STK_LEARNED_ONE,
    STK_LEARNED_DECAY, /* [STK_LEARNED_N_DECAY]; these and the two that follow fade */
    STK_LEARNED_POPULAR = STK_LEARNED_DECAY + STK_LEARNED_N_DECAY,
    STK_LEARNED_NEAR,
    STK_LEARNED_NOW,
    STK_LEARNED_RECALL /* [STK_LANES_LAGS] */
};

/* Sums over samples, of which there are n: features by features (the lower triangle), and by the labels of each horizon. */
typedef struct stk_learned_sums {
    double n;
    double xx[STK_LEARNED_N_FEATURE][STK_LEARNED_N_FEATURE];
    double xy[STK_LEARNED_N_HORIZON][STK_LEARNED_N_FEATURE];
} stk_learned_sums;

/* The shipped prior (learned_prior.c): mean products of features, and the weights of each horizon. */
extern const float stk_learned_prior_xx[STK_LEARNED_N_FEATURE][STK_LEARNED_N_FEATURE];
extern const float stk_learned_prior_w[STK_LEARNED_N_HORIZON][STK_LEARNED_N_FEATURE];

typedef struct stk_learned_layer_head {
    uint64_t n_seen;                   /* tokens in all */
    uint64_t n_token;                  /* of the running sequence */
    uint64_t n_sample;                 /* n_token when the sample was put aside, 0: none is */
    float scale[STK_LEARNED_N_FADING]; /* what the rows are to be multiplied by */
} stk_learned_layer_head;

/* A layer's state: a view of its block. */
typedef struct stk_learned_layer {
    stk_learned_layer_head *head;
    float *fading; /* [N_FADING, n_pad] decayed counts, popularity, near misses; each over its scale */
    float *score;  /* [n_pad] */
    float *sample; /* [N_FEATURE, n_pad] put aside */
    uint32_t *due; /* [n_pad] tokens from then to the first use, 0: none yet */
} stk_learned_layer;

typedef struct stk_learned_model {
    uint32_t n_expert, n_pad, n_layer;
    uint32_t often;   /* samples up to which each is put aside */
    uint32_t horizon; /* index of the horizon in use */
    uint32_t k;       /* experts of a token; 0 until the first event */
    float weights[STK_LEARNED_N_FEATURE];
    stk_learned_sums sums;
    const stk_lanes *lanes;
    stk_recall *recall;                                         /* borrowed */
    float *scratch;                                             /* [n_pad] */
    uint8_t *votes;                                             /* [LAGS, n_pad] of the latest token's matches */
    uint64_t *bits;                                             /* [n_pad / 64] all 0 between calls */
    uint16_t *set;                                              /* [n_expert] */
    float label[STK_LEARNED_N_HORIZON][STK_LEARNED_PERIOD + 1]; /* by tokens to the next use; 0: none */
    float match_weight[STK_RECALL_LIKENESS];                    /* by likeness */
} stk_learned_model;

/* A layer's block of zeros is empty once it has been initialised. Bytes are a multiple of 64. */
size_t stk_learned_layer_bytes(uint32_t n_expert);
stk_learned_layer stk_learned_layer_at(uint32_t n_expert, void *block);
void stk_learned_layer_init(const stk_learned_layer *layer);
/* STK_EFORMAT when a saved block that anybody may have written holds what cannot be. */
int stk_learned_layer_check(const stk_learned_layer *layer, uint32_t n_expert) STK_CHECKED;

void stk_learned_model_init(stk_learned_model *m, uint32_t n_expert, uint32_t n_layer, stk_recall *recall, float *scratch,
                            uint8_t *votes, uint64_t *bits, uint16_t *set);
uint32_t stk_learned_pad(uint32_t n_expert);

/* The horizon for a cache of `slots` a layer, k experts a token; sets the weights. */
void stk_learned_set_size(stk_learned_model *m, double slots, uint32_t k);
/* Works the weights out from the prior and the sums. */
void stk_learned_solve(stk_learned_model *m);
/* The weights that suit `sums` and prior_n samples of the prior best. False when the sums are none that samples can have. */
bool stk_learned_regress(const stk_learned_sums *sums, uint32_t horizon, double prior_n,
                         double w[STK_LEARNED_N_FEATURE]) STK_CHECKED;

/* An event of layer `number` of the recall: learns from it, and leaves the scores of all its experts in layer->score. */
void stk_learned_observe(stk_learned_model *m, const stk_learned_layer *layer, uint32_t number, const stk_event *event);

#endif
