/* stages: the clock, and the names of what it tells apart. */
#include "stages.h"

#include <string.h>

enum {
    SPANS_PER_LAYER = 128, /* two for each of 40 reads, and the stages themselves */
    ROW_BYTES = STK_N_STAGE * sizeof(uint64_t),
};

uint64_t stk_stages_bytes(uint32_t n_layer) { return (uint64_t)(n_layer + 1) * (ROW_BYTES + SPANS_PER_LAYER * sizeof(stk_span)); }

void stk_stages_place(stk_stages *s, uint32_t n_layer, void *memory) {
    *s = (stk_stages){.n_layer = n_layer, .row = n_layer, .n_span_max = (n_layer + 1) * SPANS_PER_LAYER, .ns = memory};
    s->spans = memory ? (stk_span *)(void *)(s->ns + (size_t)(n_layer + 1) * STK_N_STAGE) : NULL;
}

void stk_stages_reset(stk_stages *s, bool on) {
    uint32_t n_layer = s->n_layer;
    stk_stages_place(s, n_layer, s->ns);
    memset(s->ns, 0, (size_t)(n_layer + 1) * ROW_BYTES);
    s->on = on;
}

void stk_stages_begin(stk_stages *s, uint32_t n_tok) {
    if (!s->on) return;
    s->row = s->n_layer;
    s->n_span = 0;
    s->n_step++;
    s->n_token += n_tok;
    s->begin_ns = s->last_ns = stk_now_ns();
}

void stk_stages_end(stk_stages *s, uint32_t stage) {
    uint64_t now = stk_now_ns(), ns = now - s->last_ns;
    s->ns[(size_t)s->row * STK_N_STAGE + stage] += ns;
    if (s->n_span < s->n_span_max)
        s->spans[s->n_span++] = (stk_span){.begin_ns = s->last_ns - s->begin_ns,
                                           .ns = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns,
                                           .layer = (uint16_t)s->row,
                                           .stage = (uint16_t)stage};
    s->last_ns = now;
}

const char *stk_stage_name(uint32_t stage) {
    static const char *const names[STK_N_STAGE] = {
        [STK_STAGE_EMBED] = "embed",     [STK_STAGE_NORM] = "norm",       [STK_STAGE_QKV] = "qkv",
        [STK_STAGE_ROPE] = "rope",       [STK_STAGE_ATTEND] = "attend",   [STK_STAGE_ATTN_OUT] = "attn_out",
        [STK_STAGE_ROUTER] = "router",   [STK_STAGE_CACHE] = "cache",     [STK_STAGE_IO] = "io",
        [STK_STAGE_PACK] = "pack",       [STK_STAGE_GATE_UP] = "gate_up", [STK_STAGE_DOWN] = "down",
        [STK_STAGE_COMBINE] = "combine", [STK_STAGE_OUTPUT] = "output",   [STK_STAGE_BARRIER] = "barrier",
        [STK_STAGE_DEVICE] = "device",
    };
    return stage < STK_N_STAGE ? names[stage] : NULL;
}
