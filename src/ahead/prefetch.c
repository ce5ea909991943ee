/* prefetch: from suggestions to reads. */
#include "prefetch.h"

#include <stdlib.h>

struct stk_prefetch {
    stk_prefetch_config c;
    const stk_predictor_ops *ops;
    stk_predictor *predictor;
    stk_score *score;
    stk_chooser *chooser;
    uint32_t cap;              /* suggestions of a depth */
    stk_suggestion *suggested; /* [cap] */
    stk_ahead *list;           /* [depth * cap] */
};

static int open_predictor(stk_prefetch *p) {
    stk_predictor_config config = {p->c.n_layer, p->c.n_expert, p->c.k, p->c.seed, p->c.params, p->c.ops_user};
    p->c.params = NULL; /* the caller's */
    p->ops = p->c.ops ? p->c.ops : stk_predictor_find(p->c.predictor);
    if (!p->ops) return stk_predictor_unknown(p->c.predictor);
    p->cap = STK_MIN(2 * p->c.k, p->c.n_expert);
    p->suggested = calloc(p->cap, sizeof *p->suggested);
    p->list = calloc((size_t)p->c.depth * p->cap, sizeof *p->list);
    if (!p->suggested || !p->list) return stk_fail(STK_ENOMEM, "out of memory for predictions");
    STK_TRY(p->ops->open(&p->predictor, &config));
    STK_TRY(stk_score_open(&p->score, &config, p->cap));
    stk_chooser_config chooser = {p->c.cache, p->c.n_layer, p->c.n_expert, p->c.depth * p->cap, p->c.sizes, p->c.rule};
    p->c.sizes = NULL; /* the caller's */
    return stk_chooser_open(&p->chooser, &chooser);
}

int stk_prefetch_open(stk_prefetch **out, const stk_prefetch_config *config) {
    *out = NULL;
    stk_prefetch *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "out of memory for predictions");
    p->c = *config;
    int rc = open_predictor(p);
    if (rc < 0) stk_prefetch_close(&p);
    *out = p;
    return rc;
}

void stk_prefetch_close(stk_prefetch **prefetch) {
    stk_prefetch *p = *prefetch;
    if (!p) return;
    if (p->predictor) p->ops->close(p->predictor);
    stk_score_close(&p->score);
    stk_chooser_close(&p->chooser);
    free(p->suggested);
    free(p->list);
    free(p);
    *prefetch = NULL;
}

uint32_t stk_prefetch_lookahead(const stk_prefetch *p, uint32_t layer, uint32_t n_tok) {
    if (!p->ops->wants_lookahead || n_tok > STK_LOOKAHEAD_TOKENS) return 0;
    return STK_MIN(p->c.depth, p->c.n_layer - 1 - layer);
}

int stk_prefetch_choose(stk_prefetch *p, const stk_event *event, const stk_lookahead *look, const stk_gain_now *now,
                        stk_ahead **list) {
    int n = 0;
    STK_TRY(p->ops->observe(p->predictor, event, look));
    STK_TRY(stk_score_event(p->score, event));
    stk_chooser_settle(p->chooser, event);
    for (uint32_t d = 1; d <= p->c.depth && event->layer + d < p->c.n_layer; d++) {
        int got = p->ops->suggest(p->predictor, d, p->suggested, p->cap);
        if (got < 0) return got;
        STK_TRY(stk_score_suggested(p->score, event->layer + d, d, p->suggested, (uint32_t)got));
        for (int i = 0; i < got; i++) {
            const stk_suggestion *s = &p->suggested[i];
            p->list[n++] = (stk_ahead){.key = (event->layer + d) * p->c.n_expert + s->expert, .p = s->p};
        }
    }
    stk_chooser_choose(p->chooser, event->layer, p->list, (uint32_t)n, now);
    *list = p->list;
    return n;
}

bool stk_prefetch_may_evict(const stk_prefetch *p, uint32_t i, uint32_t victim) {
    return stk_chooser_may_evict(p->chooser, i, victim);
}

int64_t stk_prefetch_save(const stk_prefetch *p, void *out, size_t cap) {
    return p->ops->save ? p->ops->save(p->predictor, out, cap) : 0;
}

int stk_prefetch_load(stk_prefetch *p, const void *data, size_t bytes) {
    if (!p->ops->load) return bytes ? stk_fail(STK_EFORMAT, "predictor %s keeps no state", p->ops->name) : 0;
    return p->ops->load(p->predictor, data, bytes);
}

void stk_prefetch_count(const stk_prefetch *p, uint32_t depth, stk_predict_count *count) {
    stk_score_figures f;
    stk_score_get(p->score, depth, &f);
    *count = (stk_predict_count){f.n_event, f.n_lookup, f.n_found, f.n_found2, f.all.n, f.all.n_used};
}
