/*
 * chooser: which of the experts that a predictor expects are worth reading ahead.
 *
 * A predictor says how likely an expert is used; what counts here is how likely that is of an expert that is not resident, which
 * is less: the cache has kept what is used often. So the chooser learns, by depth and by what the predictor said, how often an
 * absent expert was then used, whether it was read ahead or not.
 *
 * By value, an expert is read ahead if its probability times the stall that it saves (gain.h: what the event ahead takes with and
 * without it, as far as the read can be over in time) exceeds what its bytes cost: work that they slow down, demand that waits
 * for pieces in flight, and the use that is lost with the expert that leaves for it. It may not take the place of one that is
 * expected to be used more.
 *
 * What is learned depends on events and predictions alone. Times come from the caller; where there are none, an expert is read
 * ahead if it is as likely used as not.
 *
 * Who may call it: src/ (the engine and the replay use the same). Pure, no clock; all memory is taken at open.
 */
#ifndef STK_CHOOSER_H
#define STK_CHOOSER_H

#include "cache/cache.h"
#include "gain.h"
#include "predict/predict.h"
#include "src/stoker.h"

typedef struct stk_chooser stk_chooser;

typedef struct stk_chooser_config {
    const stk_cache *cache; /* borrowed */
    uint32_t n_layer, n_expert;
    uint32_t cap;               /* most experts that are expected at one event */
    const stk_gain_size *sizes; /* [n_layer] of an expert; copied; NULL: no times will be told */
    uint32_t rule;              /* STK_AHEAD_...; IMPACT is impact.h */
} stk_chooser_config;

/* Errors: STK_ENOMEM. */
int stk_chooser_open(stk_chooser **out, const stk_chooser_config *config) STK_CHECKED;
void stk_chooser_close(stk_chooser **chooser);

/* An event has come: what was expected of its layer is settled; what was expected of layers that an earlier step did not reach
 * is forgotten. */
void stk_chooser_settle(stk_chooser *chooser, const stk_event *event);
/* Copies to out [n] those of list [n] that are expected at most `depth` layers after `layer`. Returns how many. */
uint32_t stk_chooser_near(const stk_chooser *chooser, uint32_t layer, uint32_t depth, const stk_ahead *list, uint32_t n,
                          stk_ahead *out);
/* Sets `issue` of each expert in list [n], which the predictor expects of layers after `layer`, that of the latest event: whether
 * it is absent and worth its bytes. now: NULL, no times are known. */
void stk_chooser_choose(stk_chooser *chooser, uint32_t layer, stk_ahead *list, uint32_t n, const stk_gain_now *now);
/* Whether entry i of the list may still be read ahead where `victim` (STK_NO_KEY: nobody) would leave for it. */
bool stk_chooser_may_evict(const stk_chooser *chooser, uint32_t i, uint32_t victim);

/* How likely the next event of its layer uses an expert, by how often the latest did. */
float stk_chooser_use(const stk_chooser *chooser, uint32_t key);

#endif
