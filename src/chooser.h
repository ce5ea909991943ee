/*
 * chooser: which of the experts that a predictor expects are worth reading ahead. A predictor says how likely an expert is used;
 * what counts here is how likely that is of an expert that is not resident, which is less: the cache has kept what is used often.
 * So the chooser learns, by depth and by what the predictor said, how often an absent expert was then used, whether it was read
 * ahead or not.
 *
 * Who may call it: src/ (the engine and the replay use the same). Pure, no clock; all memory is taken at open.
 */
#ifndef STK_CHOOSER_H
#define STK_CHOOSER_H

#include "cache/cache.h"
#include "predict/predict.h"

typedef struct stk_chooser stk_chooser;

/* cap: most experts that are expected at one event. `cache` is borrowed. Errors: STK_ENOMEM. */
int stk_chooser_open(stk_chooser **out, const stk_cache *cache, uint32_t n_expert, uint32_t cap) STK_CHECKED;
void stk_chooser_close(stk_chooser **chooser);

/* An event has come: what was expected of its layer is settled; what was expected of layers that an earlier step did not reach
 * is forgotten. */
void stk_chooser_settle(stk_chooser *chooser, const stk_event *event);
/* Copies to out [n] those of list [n] that are expected at most `depth` layers after `layer`. Returns how many. */
uint32_t stk_chooser_near(const stk_chooser *chooser, uint32_t layer, uint32_t depth, const stk_ahead *list, uint32_t n,
                          stk_ahead *out);
/* Sets `issue` of each expert in list [n], which the predictor expects of layers after `layer`, that of the latest event: whether
 * it is absent and worth its bytes. */
void stk_chooser_choose(stk_chooser *chooser, uint32_t layer, stk_ahead *list, uint32_t n);

#endif
