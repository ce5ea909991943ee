/* promote: the copies under way, and whether they pay. */
#include "promote.h"

#include <stdlib.h>

/* A use counts for about so many that follow; so many uses saved are staked before there must be a gain; of promotions that are
 * not wanted, one in so many is made all the same. */
static const double decay = 1.0 - 1.0 / 8192;
enum { STAKE = 64, PROBE = 64 };

int stk_promote_open(stk_promote *p, uint32_t n_key) {
    *p = (stk_promote){.first = calloc(n_key, 1)};
    return p->first ? STK_OK : stk_fail(STK_ENOMEM, "out of memory for promotions");
}

void stk_promote_close(stk_promote *p) {
    free(p->first);
    *p = (stk_promote){0};
}

void stk_promote_first(stk_promote *p, uint32_t key) { p->first[key] = 1; }

void stk_promote_used(stk_promote *p, uint32_t key, bool resident, double saved_ns) {
    p->gained_ns *= decay;
    p->spent_ns *= decay;
    p->saved_ns = p->saved_ns > 0 ? p->saved_ns + (saved_ns - p->saved_ns) / 64 : saved_ns;
    p->gained_ns += saved_ns * ((int)resident - (int)p->first[key]);
}

bool stk_promote_wanted(stk_promote *p) {
    p->n_asked++;
    if (p->n == STK_PROMOTE_MAX) return false;
    return p->gained_ns + STAKE * p->saved_ns >= p->spent_ns || p->n_asked % PROBE == 0;
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
