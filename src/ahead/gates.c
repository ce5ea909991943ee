/* gates: recorded predictions as routers' scores. */
#include "gates.h"

#include <stdlib.h>
#include <string.h>

int stk_gates_open(stk_gates *g, uint32_t n_expert, uint32_t k, uint32_t depth) {
    *g = (stk_gates){.n_expert = n_expert, .k = k, .depth = depth};
    g->scores = calloc((size_t)depth * n_expert, sizeof *g->scores);
    g->ids = calloc(2 * (size_t)k + n_expert, sizeof *g->ids);
    g->reals = calloc((size_t)k + n_expert, sizeof *g->reals);
    g->counts = calloc(k, sizeof *g->counts);
    if (g->scores && g->ids && g->reals && g->counts) return STK_OK;
    stk_gates_close(g);
    return stk_fail(STK_ENOMEM, "out of memory for the replay");
}

void stk_gates_close(stk_gates *g) {
    free(g->scores);
    free(g->ids);
    free(g->reals);
    free(g->counts);
    *g = (stk_gates){0};
}

/* n things of a kept array, or NULL as it was. */
static const void *copy(void *to, const void *from, size_t n, size_t bytes) { return from ? memcpy(to, from, n * bytes) : NULL; }

const stk_event *stk_gates_keep(stk_gates *g, const stk_event *e) {
    if (e->n_tok != 1 || e->k > g->k || e->n_top > g->n_expert || e->n_distinct > g->k) return NULL;
    g->event = *e;
    g->event.seq = copy(&g->where[0], e->seq, 1, sizeof *e->seq);
    g->event.pos = copy(&g->where[1], e->pos, 1, sizeof *e->pos);
    g->event.token = copy(&g->where[2], e->token, 1, sizeof *e->token);
    g->event.ids = copy(g->ids, e->ids, e->k, sizeof *e->ids);
    g->event.distinct = copy(g->ids + g->k, e->distinct, e->n_distinct, sizeof *e->distinct);
    g->event.top_ids = copy(g->ids + 2 * (size_t)g->k, e->top_ids, e->n_top, sizeof *e->top_ids);
    g->event.weights = copy(g->reals, e->weights, e->k, sizeof *e->weights);
    g->event.top_scores = copy(g->reals + g->k, e->top_scores, e->n_top, sizeof *e->top_scores);
    g->event.counts = copy(g->counts, e->counts, e->n_distinct, sizeof *e->counts);
    return &g->event;
}

stk_lookahead stk_gates_look(stk_gates *g, const stk_trace_ahead *ahead) {
    stk_lookahead look = {.n_tok = 1, .n_expert = g->n_expert, .scores = g->scores};
    memset(g->scores, 0, (size_t)g->depth * g->n_expert * sizeof *g->scores);
    for (uint32_t i = 0; ahead && i < ahead->n; i++) {
        uint32_t layer = ahead->list[i].key / g->n_expert, d = layer - g->event.layer;
        if (layer <= g->event.layer || d > g->depth) continue;
        g->scores[(size_t)(d - 1) * g->n_expert + ahead->list[i].key % g->n_expert] = ahead->list[i].p;
        look.depth = STK_MAX(look.depth, d);
    }
    return look;
}
