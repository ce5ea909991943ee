/* engine_float: whether an engine's float products give up their bits for speed. */
#include <string.h>

#include "engine.h"

const char *stk_float_fast_name(void) { return stk_fast_onednn_name(); }

/* Whether a product other than a router's is of float weights: routers stay exact, for which experts a token gets is no matter of
 * rounding. */
static bool has_float_products(const stk_model *m, const stk_catalogue *cat) {
    bool any = !stk_type_is_quantized(m->output.type);
    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        const stk_layer *w = &m->layers[l];
        const stk_weight *all[] = {&w->attn_q, &w->attn_k, &w->attn_v, &w->attn_output};
        for (size_t i = 0; i < STK_ARRAY_LEN(all); i++) any = any || (all[i]->n_rows && !stk_type_is_quantized(all[i]->type));
    }
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        for (uint32_t p = 0; p < STK_N_PART; p++) any = any || !stk_type_is_quantized(stk_catalogue_class(cat, c)->part[p].type);
    return any;
}

static int open_fast(stk_engine *e) {
    const stk_hparams *hp = &e->model->hp;
    const uint32_t n_in[] = {hp->n_embd, hp->n_head * hp->value_dim, hp->n_ff_expert};
    if (!has_float_products(e->model, e->experts))
        return stk_fail(STK_EUNSUPPORTED, "the model has no weights of F32, F16 or BF16 that it would serve");
    if (e->o.cpu && e->o.cpu[0] && e->ops != stk_cpu_ops_get(NULL))
        return stk_fail(STK_EUNSUPPORTED, "the kernels are to be no better than %s", e->o.cpu);
    return stk_fast_open(&e->fast, NULL, n_in, STK_ARRAY_LEN(n_in), stk_pool_n_worker(e->pool));
}

int stk_engine_float_open(stk_engine *e) {
    if (e->o.float_mode != STK_FLOAT_FAST) return STK_OK;
    int rc = open_fast(e);
    if (rc == STK_EUNSUPPORTED) { /* speed was allowed, not demanded */
        stk_log(STK_LOG_WARN, "float products stay exact: %s", stk_error_detail());
        return STK_OK;
    }
    STK_TRY(rc);
    e->memory.float_mode = STK_FLOAT_FAST;
    return STK_OK;
}
