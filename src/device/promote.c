/* promote: the copies under way, and whether they pay. */
#include "promote.h"

#include <math.h>
#include <stdlib.h>

/* A use counts for about so many that follow; so many uses saved are staked before there must be a gain; of promotions that are
 * not wanted, one in so many is made all the same. */
static const double decay = 1.0 - 1.0 / 8192;
enum { STAKE = 16, PROBE = 64 };
static const double rate_keep = 0.96; /* as lrfu */

int stk_promote_open(stk_promote *p, uint32_t n_layer, uint32_t n_expert) {
    const size_t n_key = (size_t)n_layer * n_expert;
    *p = (stk_promote){.n_expert = n_expert,
                       .first = calloc(n_key, 1),
                       .rate = calloc(n_key, sizeof *p->rate),
                       .used = calloc(n_key, sizeof *p->used),
                       .n_event = calloc(n_layer, sizeof *p->n_event)};
    p->keep[0] = 1;
    for (uint32_t i = 1; i < STK_PROMOTE_KEEP; i++) p->keep[i] = p->keep[i - 1] * rate_keep;
    if (p->first && p->rate && p->used && p->n_event) return STK_OK;
    stk_promote_close(p);
    return stk_fail(STK_ENOMEM, "out of memory for promotions");
}

void stk_promote_close(stk_promote *p) {
    free(p->first);
    free(p->rate);
    free(p->used);
    free(p->n_event);
    *p = (stk_promote){0};
}

void stk_promote_first(stk_promote *p, uint32_t key) { p->first[key] = 1; }

void stk_promote_event(stk_promote *p, uint32_t layer) { p->n_event[layer]++; }

double stk_promote_rate(const stk_promote *p, uint32_t key) {
    uint32_t ago = p->n_event[key / p->n_expert] - p->used[key];
    return ago < STK_PROMOTE_KEEP ? p->rate[key] * p->keep[ago] : 0;
}

void stk_promote_used(stk_promote *p, uint32_t key, double share, bool resident, double saved_ns) {
    p->rate[key] = stk_promote_rate(p, key) + share;
    p->used[key] = p->n_event[key / p->n_expert];
    p->gained_ns *= decay;
    p->spent_ns *= decay;
    p->chance_ns2 *= decay * decay;
    p->saved_ns = p->saved_ns > 0 ? p->saved_ns + (saved_ns - p->saved_ns) / 64 : saved_ns;
    if (resident == (p->first[key] != 0)) return;
    p->gained_ns += resident ? saved_ns : -saved_ns;
    p->chance_ns2 += saved_ns * saved_ns;
}

bool stk_promote_wanted(stk_promote *p) {
    p->n_asked++;
    if (p->n == STK_PROMOTE_MAX) return false;
    return p->gained_ns + STAKE * p->saved_ns >= p->spent_ns + sqrt(p->chance_ns2) || p->n_asked % PROBE == 0;
}

void stk_promote_begin(stk_promote *p, uint32_t key, uint32_t victim, uint64_t bytes) {
    if (victim != UINT32_MAX) stk_promote_end(p, victim);
    p->copies[p->n++] = (stk_promote_copy){key, (double)bytes};
}

double stk_promote_left(const stk_promote *p, uint32_t key) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->copies[i].key == key) return p->copies[i].left_bytes;
    return 0;
}

void stk_promote_end(stk_promote *p, uint32_t key) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->copies[i].key != key) p->copies[kept++] = p->copies[i];
    p->n = kept;
}

double stk_promote_run(stk_promote *p, double bytes_per_ns, double ns) {
    double left = ns;
    while (p->n && left > 0) {
        double need = p->copies[0].left_bytes / bytes_per_ns;
        if (need > left) {
            p->copies[0].left_bytes -= left * bytes_per_ns;
            return ns;
        }
        left -= need;
        stk_promote_end(p, p->copies[0].key);
    }
    return ns - STK_MAX(left, 0.0);
}

void stk_promote_spent(stk_promote *p, double ns) { p->spent_ns += ns; }
