/* fit: sums of what a session reserves. */
#include "fit.h"

stk_kv_config stk_fit_kv(const stk_hparams *hp, const stk_fit_limits *l) {
    return (stk_kv_config){hp->n_layer, hp->n_head_kv, hp->head_dim, hp->value_dim, l->n_ctx, l->n_seq_max, l->k_f16, l->v_f16};
}

stk_fit_bytes stk_fit_fixed(const stk_model *model, const stk_fit_limits *l) {
    stk_kv_config kv = stk_fit_kv(&model->hp, l);
    stk_forward_config forward = {
        .model = model, .fast = l->fast, .n_batch = l->n_batch, .n_ctx = l->n_ctx, .n_logits = l->n_logits};
    uint64_t routers = l->looks_ahead ? stk_routers_bytes(model) : 0;
    return (stk_fit_bytes){stk_dense_bytes(model) + routers, stk_kv_bytes(&kv), stk_forward_bytes(&forward, l->n_worker)};
}

uint64_t stk_fit_margin(uint64_t free_bytes) { return STK_MAX(free_bytes / 16, (uint64_t)256 << 20); }

uint64_t stk_fit_slots(uint64_t free_bytes, uint64_t fixed, uint64_t least, uint64_t all) {
    uint64_t margin = stk_fit_margin(free_bytes);
    uint64_t room = free_bytes > fixed + margin ? free_bytes - fixed - margin : 0;
    return STK_MIN(STK_MAX(room, least), all);
}
