/*
 * learned_model: how soon each expert of a layer will be wanted again, learned while running. The part of policy `learned` that
 * knows nothing of residency.
 *
 * Of each expert a layer keeps a few features, all from its own past: use counts decayed at several rates, long-run popularity,
 * whether the present token uses it, the router's scores of those that just missed, and an episodic recall: which experts
 * followed at the moments of this sequence that resembled the present one. An expert's score is a weighted sum of them and stands
 * for the mean of g^(d-1), d being the number of tokens to its next use. The horizon 1 / (1 - g) is as long as an expert would
 * stay in a cache of that size.
 *
 * The weights are those of a ridge regression: the shipped prior stands for some samples, and to them are added those seen here.
 * Every STK_LEARNED_PERIOD tokens all experts' features are put aside; the tokens that follow give their labels.
 *
 * Who may call it: cache/learned.c and the tool that fits the prior. Pure; all memory is the caller's, one block a layer, so that
 * saving is copying. Every sum is taken in a fixed order.
 */
#ifndef STK_LEARNED_MODEL_H
#define STK_LEARNED_MODEL_H

#include "src/base.h"
#include "src/event.h"

enum {
    STK_LEARNED_N_DECAY = 4,    /* decayed counts */
    STK_LEARNED_N_LAG = 4,      /* groups of recalled tokens: the next, the one after, 3 to 4, 5 to 8 */
    STK_LEARNED_N_FEATURE = 12, /* enum stk_learned_feature */
    STK_LEARNED_N_HORIZON = 6,
    STK_LEARNED_PERIOD = 32,
    STK_LEARNED_WINDOW = 1024, /* tokens that recall looks back */
    STK_LEARNED_MAX_SET = 15   /* experts of a token that recall can represent */
};

enum stk_learned_feature {
    STK_LEARNED_ONE,
    STK_LEARNED_DECAY, /* [STK_LEARNED_N_DECAY] */
    STK_LEARNED_NOW = STK_LEARNED_DECAY + STK_LEARNED_N_DECAY,
    STK_LEARNED_POPULAR,
    STK_LEARNED_NEAR,
    STK_LEARNED_RECALL /* [STK_LEARNED_N_LAG] */
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

/* A layer's state: a view of its block. */
typedef struct stk_learned_layer {
    struct stk_learned_layer_head *head;
    float *decay;     /* [N_DECAY, n_pad] */
    float *popular;   /* [n_pad] */
    float *near;      /* [n_pad] */
    float *recall;    /* [n_pad] weighted sum of the recall features, of the latest token */
    float *score;     /* [n_pad] */
    float *sample;    /* [N_FEATURE, n_pad] put aside */
    uint32_t *due;    /* [n_pad] tokens from then to the first use, 0: none yet */
    uint64_t *counts; /* [2, 4, WINDOW / 64] experts shared with each past token, as bit planes: of the latest two tokens */
    uint16_t *sets;   /* [WINDOW, MAX_SET + 1] the experts of past tokens; the last entry is how many */
    uint64_t *used;   /* [n_expert, WINDOW / 64] the same by expert; not part of the saved block */
} stk_learned_layer;

typedef struct stk_learned_layer_head {
    uint64_t n_seen;   /* tokens in all */
    uint64_t n_token;  /* of the running sequence */
    uint64_t n_sample; /* n_token when the sample was put aside, 0: none is */
} stk_learned_layer_head;

typedef struct stk_learned_model {
    uint32_t n_expert, n_pad;
    uint32_t horizon; /* index of the horizon in use */
    uint32_t k;       /* experts of a token; 0 until the first event */
    float weights[STK_LEARNED_N_FEATURE];
    stk_learned_sums sums;
    float *scratch;                                             /* [n_pad] */
    uint16_t *set;                                              /* [n_expert] */
    float label[STK_LEARNED_N_HORIZON][STK_LEARNED_PERIOD + 1]; /* by tokens to the next use; 0: none */
    float match_weight[6 * STK_LEARNED_MAX_SET + 1];            /* by likeness */
} stk_learned_model;

/* Bytes of a layer's saved block, and of the part behind it that can be worked out from the former. Multiples of 64. */
void stk_learned_layer_bytes(uint32_t n_expert, size_t *saved, size_t *derived);
stk_learned_layer stk_learned_layer_at(uint32_t n_expert, void *saved, void *derived);
/* STK_EFORMAT when a saved block that anybody may have written holds what cannot be. Works `used` out. */
int stk_learned_layer_check(const stk_learned_layer *layer, uint32_t n_expert) STK_CHECKED;

void stk_learned_model_init(stk_learned_model *m, uint32_t n_expert, float *scratch, uint16_t *set);
uint32_t stk_learned_pad(uint32_t n_expert);

/* The horizon for a cache of `slots` a layer, k experts a token; sets the weights. */
void stk_learned_set_size(stk_learned_model *m, double slots, uint32_t k);
/* Works the weights out from the prior and the sums. */
void stk_learned_solve(stk_learned_model *m);
/* The weights that suit `sums` and prior_n samples of the prior best. False when the sums are none that samples can have. */
bool stk_learned_regress(const stk_learned_sums *sums, uint32_t horizon, double prior_n,
                         double w[STK_LEARNED_N_FEATURE]) STK_CHECKED;

/* An event of the layer: learns from it, and leaves the scores of all its experts in layer->score. */
void stk_learned_observe(stk_learned_model *m, stk_learned_layer *layer, const stk_event *event);

#endif
