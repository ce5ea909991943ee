/* impact: the next layers, simulated as often as there are candidates. */
#include "impact.h"

/* From now until the last of the layers ahead is computed. What is not there in time counts as absent by the share that is
 * missing. */
static double simulate(const stk_impact *s) {
    double t = s->now->cpu_ns, late = 0; /* by how much demand holds up what is read ahead */
    for (uint32_t d = 0; d < s->depth; d++) {
        t += s->times.dense_ns;
        double missing = s->n_ahead[d] > 0 ? STK_MAX(s->finish_ns[d] + late - t, 0.0) / s->times.read_ns : 0;
        missing = STK_MIN(missing, s->n_ahead[d]);
        double n_absent = s->n_absent[d] + missing;
        t += stk_gain_event_ns(&s->times, s->now->n_used, n_absent, s->n_ahead[d] - missing);
        late += s->n_absent[d] * s->times.read_ns;
    }
    return t;
}

/* Adds one expert of a layer to what is chosen, or takes it back. */
static void move(stk_impact *s, uint32_t d, double by, double finish_ns) {
    s->n_ahead[d] += by;
    s->n_absent[d] -= by;
    s->finish_ns[d] = finish_ns;
}

void stk_impact_choose(stk_impact *s, stk_ahead *list, const bool *absent, uint32_t n) {
    double end = s->now->demand_ns + s->now->ahead_ns;
    for (uint32_t i = 0; i < n; i++) list[i].issue = false;
    for (;;) {
        double before = simulate(s), most = 0;
        uint32_t best = n;
        end += s->times.read_ns;
        for (uint32_t i = 0; i < n; i++) {
            if (!absent[i] || list[i].issue) continue;
            uint32_t d = list[i].key / s->n_expert - s->layer - 1;
            double finish = s->finish_ns[d];
            move(s, d, 1, end);
            double gain = before - simulate(s);
            move(s, d, -1, finish);
            if (gain <= most) continue;
            most = gain;
            best = i;
        }
        if (best == n) return;
        list[best].issue = true;
        move(s, list[best].key / s->n_expert - s->layer - 1, 1, end);
    }
}
