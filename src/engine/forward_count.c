/* forward_count: what a step goes over and computes, for figures beside the time of its stages. */
#include "forward.h"

/* A matrix whose rows are each read once for n tokens. */
static void count_product(stk_stages *s, enum stk_type type, uint64_t n_rows, uint64_t n_in, uint64_t n) {
    uint64_t ops = 2 * n_rows * n_in * n;
    s->bytes += stk_matrix_bytes(type, n_rows, n_in);
    *(stk_type_is_quantized(type) ? &s->int8_ops : &s->float_ops) += ops;
}

static void count_matrix(stk_stages *s, const stk_matrix *m, uint64_t n) {
    if (m->n_rows && n) count_product(s, m->type, m->n_rows, m->n_in, n);
}

/* Positions of each sequence once a step, whatever the cache lines do; keys and values of each visible one for every token. */
static void count_attention(stk_forward *f) {
    const stk_hparams *hp = &f->c.model->hp;
    stk_kv_config kv;
    stk_kv_get_config(f->c.kv, &kv);
    uint64_t position =
        hp->n_head_kv * ((uint64_t)hp->head_dim * (kv.k_f16 ? 2 : 4) + (uint64_t)hp->value_dim * (kv.v_f16 ? 2 : 4));
    uint64_t query = 2 * (uint64_t)hp->n_head * (hp->head_dim + hp->value_dim);
    for (uint32_t t = 0; t < f->step->n_tok; t++) {
        uint64_t visible = (uint64_t)f->step->pos[t] + 1;
        bool last = t + 1 == f->step->n_tok || f->step->seq[t + 1] != f->step->seq[t];
        if (last) f->stages.bytes += visible * position * hp->n_layer;
        f->stages.float_ops += visible * query * hp->n_layer;
    }
}

void stk_forward_count_dense(stk_forward *f) {
    const stk_hparams *hp = &f->c.model->hp;
    const stk_matrix *embedding = &f->c.dense->token_embd;
    for (uint32_t l = 0; l < hp->n_layer; l++) {
        const stk_dense_layer *w = &f->c.dense->layers[l];
        const stk_matrix *all[] = {&w->q, &w->k, &w->v, &w->o, &w->router};
        for (size_t i = 0; i < STK_ARRAY_LEN(all); i++) count_matrix(&f->stages, all[i], f->step->n_tok);
    }
    count_matrix(&f->stages, &f->c.dense->output, f->n_logit_row);
    f->stages.bytes += f->step->n_tok * stk_stripe_bytes(embedding->type, embedding->n_in) / STK_STRIPE;
    count_attention(f);
}

void stk_forward_count_ahead(stk_forward *f) {
    for (uint32_t d = 0; d < f->n_ahead; d++) count_matrix(&f->stages, &f->c.routers->layers[f->layer + d + 1], f->step->n_tok);
}

void stk_forward_count_experts(stk_forward *f, const stk_class *cls) {
    for (uint32_t i = 0; i < f->n_task; i++)
        for (uint32_t p = 0; p < STK_N_PART; p++)
            if (f->tasks[i].phases & (p == STK_DOWN ? STK_PHASE_DOWN : STK_PHASE_UP))
                count_product(&f->stages, cls->part[p].type, cls->part[p].n_rows, cls->part[p].n_in, f->tasks[i].decision->n_tok);
}
