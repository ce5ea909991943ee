/* score: counters per depth; a list per depth and layer waits for its event. */
#include "predict/score.h"

#include <stdlib.h>
#include <string.h>

#include "predict/predictors.h"

enum { NOT_THERE = 0xffffffff };

struct stk_score {
    stk_predictor_config config;
    uint32_t cap;
    uint32_t *n;           /* [DEPTH_MAX, n_layer] length of the list that waits, NOT_THERE for none */
    stk_suggestion *lists; /* [DEPTH_MAX, n_layer, cap] */
    uint8_t *used;         /* [n_expert], all 0 between calls */
    stk_score_figures figures[STK_PREDICT_DEPTH_MAX];
};

void stk_score_close(stk_score **score) {
    if (!*score) return;
    free((*score)->n);
    free((*score)->lists);
    free((*score)->used);
    free(*score);
    *score = NULL;
}

int stk_score_open(stk_score **out, const stk_predictor_config *config, uint32_t cap) {
    STK_TRY(stk_predictor_config_check("score", config));
    if (cap == 0 || cap > config->n_expert)
        return stk_fail(STK_EINVAL, "score card: lists of %u suggestions for %u experts", cap, config->n_expert);
    stk_score *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "score card: out of memory");
    size_t n_list = (size_t)STK_PREDICT_DEPTH_MAX * config->n_layer;
    s->config = *config;
    s->config.params = NULL;
    s->cap = cap;
    s->n = malloc(n_list * sizeof *s->n);
    s->lists = calloc(n_list * cap, sizeof *s->lists);
    s->used = calloc(config->n_expert, sizeof *s->used);
    if (!s->n || !s->lists || !s->used) {
        stk_score_close(&s);
        return stk_fail(STK_ENOMEM, "score card: out of memory for %zu lists of %u suggestions", n_list, cap);
    }
    memset(s->n, 0xff, n_list * sizeof *s->n);
    *out = s;
    return 0;
}

int stk_score_suggested(stk_score *s, uint32_t layer, uint32_t depth, const stk_suggestion *list, uint32_t n) {
    if (layer >= s->config.n_layer || depth == 0 || depth > STK_PREDICT_DEPTH_MAX || n > s->cap)
        return stk_fail(STK_EINVAL, "score card: %u suggestions for layer %u of %u, depth %u; at most %u fit", n, layer,
                        s->config.n_layer, depth, s->cap);
    for (uint32_t i = 0; i < n; i++)
        if (list[i].expert >= s->config.n_expert || !(list[i].p >= 0.0f && list[i].p <= 1.0f))
            return stk_fail(STK_EINVAL, "score card: suggestion of expert %u with probability %g", list[i].expert,
                            (double)list[i].p);
    size_t at = (size_t)(depth - 1) * s->config.n_layer + layer;
    s->n[at] = n;
    if (n) memcpy(s->lists + at * s->cap, list, n * sizeof *list);
    return 0;
}

static void add(stk_score_ratio *ratio, bool used) {
    ratio->n++;
    ratio->n_used += used;
}

static void compare(const stk_score *s, stk_score_figures *f, const stk_suggestion *list, uint32_t n, uint32_t n_distinct) {
    f->n_event++;
    f->n_lookup += n_distinct;
    for (uint32_t i = 0; i < n; i++) {
        bool used = s->used[list[i].expert];
        f->n_found += used && i < n_distinct;
        f->n_found2 += used && i < 2 * n_distinct;
        f->p_sum += (double)list[i].p;
        add(&f->all, used);
        add(&f->by_rank[STK_MIN(i, STK_SCORE_RANKS - 1)], used);
        add(&f->by_p[STK_MIN((uint32_t)(list[i].p * STK_SCORE_BUCKETS), STK_SCORE_BUCKETS - 1)], used);
    }
}

int stk_score_event(stk_score *s, const stk_event *event) {
    STK_TRY(stk_predictor_event_check("score", &s->config, event));
    for (uint32_t i = 0; i < event->n_distinct; i++) s->used[event->distinct[i]] = 1;
    for (uint32_t d = 0; d < STK_PREDICT_DEPTH_MAX; d++) {
        size_t at = (size_t)d * s->config.n_layer + event->layer;
        if (s->n[at] == NOT_THERE) continue;
        compare(s, &s->figures[d], s->lists + at * s->cap, s->n[at], event->n_distinct);
        s->n[at] = NOT_THERE;
    }
    for (uint32_t i = 0; i < event->n_distinct; i++) s->used[event->distinct[i]] = 0;
    return 0;
}

void stk_score_cost(stk_score *s, uint32_t depth, uint64_t ns) {
    for (uint32_t d = 0; d < STK_PREDICT_DEPTH_MAX; d++) {
        if (depth != 0 && depth != d + 1) continue;
        s->figures[d].n_call++;
        s->figures[d].ns += ns;
    }
}

void stk_score_get(const stk_score *s, uint32_t depth, stk_score_figures *figures) {
    *figures = depth >= 1 && depth <= STK_PREDICT_DEPTH_MAX ? s->figures[depth - 1] : (stk_score_figures){0};
}

void stk_score_reset(stk_score *s) { memset(s->figures, 0, sizeof s->figures); }

stk_score_ratio stk_score_at(const stk_score_figures *f, float p) {
    stk_score_ratio sum = {0, 0};
    uint32_t first = p > 0.0f ? STK_MIN((uint32_t)(STK_MIN(p, 1.0f) * STK_SCORE_BUCKETS), STK_SCORE_BUCKETS - 1) : 0;
    for (uint32_t i = first; i < STK_SCORE_BUCKETS; i++) {
        sum.n += f->by_p[i].n;
        sum.n_used += f->by_p[i].n_used;
    }
    return sum;
}
