/* cost: the table of measured times. */
#include "cost.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { N_NUMBERS = sizeof(stk_cost) / sizeof(double), N_CPU_NUMBERS = offsetof(stk_cost, gpu) / sizeof(double) };

void stk_cost_default(stk_cost *cost) {
    memset(cost, 0, sizeof *cost);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        double n_tok = (double)(1u << i);
        cost->expert_ns_per_byte[i] = 0.05 + 0.02 * n_tok;
        cost->dense_layer_ns[i] = 3e5 + 1e5 * n_tok;
        cost->dense_step_ns[i] = 1e6 + 1e5 * n_tok;
    }
    cost->arrive_ns_per_byte = 0.1;
    cost->nvme_bytes_per_ns = 3.0;
    cost->nvme_latency_ns = 1e5;
    cost->event_ns = 2e4;
    cost->lookahead_ns = 5e3;
    cost->wake_ns = 5e4;
    cost->read_ns_per_byte = 0.05;
}

/* The points around n_tok: index of the lower one and the share of the upper one. */
static uint32_t locate(uint32_t n_tok, double *upper) {
    double at = n_tok > 1 ? log2((double)n_tok) : 0.0;
    if (at >= STK_COST_POINTS - 1) {
        *upper = 1.0;
        return STK_COST_POINTS - 2;
    }
    *upper = at - floor(at);
    return (uint32_t)at;
}

static double interpolate(const double *points, uint32_t n_tok) {
    double u;
    uint32_t i = locate(n_tok, &u);
    double y = points[i] + u * (points[i + 1] - points[i]);
    /* Past the last point, time grows with the tokens. */
    uint32_t last = 1u << (STK_COST_POINTS - 1);
    return n_tok > last ? y * n_tok / last : y;
}

double stk_cost_expert_ns(const stk_cost *cost, uint64_t payload_bytes, uint32_t n_tok) {
    return interpolate(cost->expert_ns_per_byte, n_tok) * (double)payload_bytes;
}
double stk_cost_arrive_ns(const stk_cost *cost, uint64_t payload_bytes) {
    return cost->arrive_ns_per_byte * (double)payload_bytes;
}
double stk_cost_read_ns(const stk_cost *cost, uint64_t bytes) { return (double)bytes / cost->nvme_bytes_per_ns; }
double stk_cost_dense_layer_ns(const stk_cost *cost, uint32_t n_tok) { return interpolate(cost->dense_layer_ns, n_tok); }
double stk_cost_dense_step_ns(const stk_cost *cost, uint32_t n_tok) { return interpolate(cost->dense_step_ns, n_tok); }

bool stk_cost_has_gpu(const stk_cost *cost) { return cost->gpu.link_bytes_per_ns > 0; }
double stk_cost_gpu_expert_ns(const stk_cost *cost, uint64_t payload_bytes, uint32_t n_tok) {
    return interpolate(cost->gpu.expert_ns_per_byte, n_tok) * (double)payload_bytes;
}
double stk_cost_copy_ns(const stk_cost *cost, uint64_t bytes, bool computing) {
    return (double)bytes / (computing ? cost->gpu.link_bytes_per_ns_computing : cost->gpu.link_bytes_per_ns);
}

static const double step_share = 0.125;

static void scale_points(double *points, uint32_t n_tok, double ratio) {
    if (!isfinite(ratio) || ratio <= 0) return;
    double u;
    uint32_t i = locate(n_tok, &u);
    points[i] *= 1.0 + step_share * (1.0 - u) * (ratio - 1.0);
    points[i + 1] *= 1.0 + step_share * u * (ratio - 1.0);
}

void stk_cost_learn_experts(stk_cost *cost, uint32_t n_tok, double predicted_ns, double measured_ns) {
    scale_points(cost->expert_ns_per_byte, n_tok, measured_ns / predicted_ns);
}
void stk_cost_learn_arrive(stk_cost *cost, uint64_t bytes, double measured_ns) {
    double ratio = measured_ns / stk_cost_arrive_ns(cost, bytes);
    if (isfinite(ratio) && ratio > 0) cost->arrive_ns_per_byte *= 1.0 + step_share * (ratio - 1.0);
}
void stk_cost_learn_dense_layer(stk_cost *cost, uint32_t n_tok, double measured_ns) {
    scale_points(cost->dense_layer_ns, n_tok, measured_ns / stk_cost_dense_layer_ns(cost, n_tok));
}
void stk_cost_learn_dense_step(stk_cost *cost, uint32_t n_tok, double measured_ns) {
    scale_points(cost->dense_step_ns, n_tok, measured_ns / stk_cost_dense_step_ns(cost, n_tok));
}
void stk_cost_learn_gpu_experts(stk_cost *cost, uint32_t n_tok, double predicted_ns, double measured_ns) {
    scale_points(cost->gpu.expert_ns_per_byte, n_tok, measured_ns / predicted_ns);
}
void stk_cost_learn_copy(stk_cost *cost, uint64_t bytes, bool computing, double measured_ns) {
    double ratio = (stk_cost_copy_ns(cost, bytes, computing) + cost->gpu.link_latency_ns) / measured_ns;
    double *rate = computing ? &cost->gpu.link_bytes_per_ns_computing : &cost->gpu.link_bytes_per_ns;
    if (isfinite(ratio) && ratio > 0) *rate *= 1.0 + step_share * (ratio - 1.0);
}

void stk_cost_learn_drive(stk_cost *cost, double bytes_per_ns) {
    if (isfinite(bytes_per_ns) && bytes_per_ns > 0) cost->nvme_bytes_per_ns = bytes_per_ns;
}

uint32_t stk_cost_export(const stk_cost *cost, double *out, uint32_t cap) {
    if (cap >= N_NUMBERS) memcpy(out, cost, sizeof *cost);
    return N_NUMBERS;
}

/* Numbers that older traces do not have are 0 there; what nothing has to be done for, that of bringing packed experts into their
 * layout, is 0, too. */
int stk_cost_import(stk_cost *cost, const double *in, uint32_t n) {
    enum {
        N_OLD = offsetof(stk_cost, event_ns) / sizeof(double),
        ARRIVE = offsetof(stk_cost, arrive_ns_per_byte) / sizeof(double)
    };
    double all[N_NUMBERS];
    stk_cost_default(cost);
    memcpy(all, cost, sizeof all);
    if (n < N_NUMBERS) return stk_fail(STK_EFORMAT, "cost table: %u numbers, expected %d", n, N_NUMBERS);
    bool gpu = false;
    for (uint32_t i = N_CPU_NUMBERS; i < N_NUMBERS; i++) gpu = gpu || in[i] != 0;
    for (uint32_t i = 0; i < (gpu ? N_NUMBERS : N_CPU_NUMBERS); i++) {
        if (i >= N_OLD && i < N_CPU_NUMBERS && in[i] == 0) continue;
        if (!isfinite(in[i]) || in[i] < 0 || (in[i] == 0 && i != ARRIVE))
            return stk_fail(STK_EFORMAT, "cost table: number %u is %g, expected a positive one", i, in[i]);
        all[i] = in[i];
    }
    memcpy(cost, all, sizeof *cost);
    return STK_OK;
}
