/* gain: one event in closed form. */
#include "gain.h"

#include "io/drive.h"

static const double part_share = 1.0 / 3; /* gate, up and down: the first part of a read is packed when it has come, and the work
                                             on the last is left when all have */

void stk_gain_times_of(const stk_cost *cost, const stk_gain_size *size, uint32_t n_tok, stk_gain_times *out) {
    out->compute_ns = stk_cost_expert_ns(cost, size->payload_bytes, 1); /* a token each, or little more */
    out->pack_ns = stk_cost_arrive_ns(cost, size->payload_bytes);
    out->read_ns = stk_cost_read_ns(cost, size->read_bytes);
    out->latency_ns = cost->nvme_latency_ns + cost->wake_ns;
    out->dense_ns = stk_cost_dense_layer_ns(cost, n_tok) + cost->event_ns;
    out->drag_ns = cost->read_ns_per_byte * (double)size->read_bytes;
    out->held_ns = STK_MIN(out->read_ns, stk_cost_read_ns(cost, stk_drive_ahead_bytes(cost->nvme_bytes_per_ns)));
}

/* n_absent >= 1, or none. */
static double event_ns(const stk_gain_times *t, double n, double n_absent, double n_ahead) {
    double there = (n - n_absent) * t->compute_ns + n_ahead * t->pack_ns, each = t->compute_ns + t->pack_ns;
    if (n_absent <= 0) return there;
    double cpu = STK_MAX(there, t->latency_ns + part_share * t->read_ns) + n_absent * each;
    double drive = t->latency_ns + n_absent * t->read_ns + part_share * each;
    return STK_MAX(cpu, drive);
}

double stk_gain_event_ns(const stk_gain_times *t, double n, double n_absent, double n_ahead) {
    if (n_absent >= 1) return event_ns(t, n, n_absent, n_ahead);
    double none = event_ns(t, n, 0, n_ahead), one = event_ns(t, n, 1, n_ahead);
    return none + STK_MAX(n_absent, 0.0) * (one - none);
}

double stk_gain_saved_ns(const stk_gain_times *t, double n, double n_absent_besides, double n_ahead) {
    return stk_gain_event_ns(t, n, n_absent_besides + 1, n_ahead) - stk_gain_event_ns(t, n, n_absent_besides, n_ahead + 1);
}
