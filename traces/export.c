/* export: one row a token and layer. */
#include "traces/export.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stk_export {
    FILE *out;
    char *path;
    uint32_t *model_layer; /* [n_layer] the header's */
    uint8_t *logits;       /* [n_batch] of the running step */
    uint32_t n_batch;
    bool first; /* its first event is yet to come */
};

static int failed(const stk_export *x) { return stk_fail_errno(errno, "%s", x->path); }

static int put_header(stk_export *x, const stk_trace_header *h) {
    size_t n = strcspn(h->model, " \t\r\n"); /* a value ends at a space */
    fprintf(x->out, "# stoker trace\n# model=%.*s n_layer=%u n_expert=%u k=%u\n", (int)n, h->model, h->n_layer, h->n_expert,
            h->k);
    for (uint32_t i = 0; i < h->n_layer; i++)
        fprintf(x->out, "# layer=%u expert_bytes=%llu\n", h->model_layer[i],
                (unsigned long long)h->classes[h->layer_class[i]].payload_bytes);
    fprintf(x->out, "step,seq,pos,token,phase,layer,experts,weights,top_ids,top_scores\n");
    return ferror(x->out) ? failed(x) : 0;
}

static int open_file(stk_export *x, const char *path, const stk_trace_header *h) {
    x->path = strdup(path);
    x->model_layer = malloc(sizeof *x->model_layer * h->n_layer);
    x->logits = calloc(h->n_batch, 1);
    if (!x->path || !x->model_layer || !x->logits) return stk_fail(STK_ENOMEM, "%s: out of memory", path);
    memcpy(x->model_layer, h->model_layer, sizeof *x->model_layer * h->n_layer);
    x->n_batch = h->n_batch;
    x->out = fopen(path, "we");
    return x->out ? put_header(x, h) : failed(x);
}

static void free_export(stk_export *x) {
    free(x->path);
    free(x->model_layer);
    free(x->logits);
    free(x);
}

int stk_export_open(stk_export **out, const char *path, const stk_trace_header *header) {
    *out = NULL;
    stk_export *x = calloc(1, sizeof *x);
    if (!x) return stk_fail(STK_ENOMEM, "%s: out of memory", path);
    int rc = open_file(x, path, header);
    if (rc >= 0) {
        *out = x;
        return rc;
    }
    if (x->out) fclose(x->out);
    free_export(x);
    return rc;
}

static void put_ids(FILE *out, const uint16_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] == STK_NO_EXPERT)
            fprintf(out, "%s-", i ? " " : "");
        else
            fprintf(out, "%s%u", i ? " " : "", ids[i]);
    }
}

/* Nine digits give every float back. */
static void put_floats(FILE *out, const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) fprintf(out, "%s%.9g", i ? " " : "", (double)x[i]);
}

static bool has_experts(const stk_event *e, uint32_t t) {
    for (uint32_t i = 0; i < e->k; i++)
        if (e->ids[(size_t)t * e->k + i] != STK_NO_EXPERT) return true;
    return false;
}

/* Scores are those of the router alone: a token that was routed nowhere may have ids of none. */
static bool has_scores(const stk_event *e, uint32_t t) {
    for (uint32_t i = 0; i < e->n_top; i++)
        if (e->top_ids[(size_t)t * e->n_top + i] == STK_NO_EXPERT) return false;
    return e->n_top > 0;
}

static void put_token(stk_export *x, const stk_event *e, uint32_t t) {
    size_t id = (size_t)t * e->k, top = (size_t)t * e->n_top;
    fprintf(x->out, "%llu,%d,%d,%d,%s,%u,", (unsigned long long)e->step, e->seq[t], e->pos[t], e->token[t],
            x->logits[t] ? "decode" : "prefill", x->model_layer[e->layer]);
    put_ids(x->out, e->ids + id, e->k);
    fputc(',', x->out);
    if (e->weights) put_floats(x->out, e->weights + id, e->k);
    fputc(',', x->out);
    if (has_scores(e, t)) put_ids(x->out, e->top_ids + top, e->n_top);
    fputc(',', x->out);
    if (has_scores(e, t)) put_floats(x->out, e->top_scores + top, e->n_top);
    fputc('\n', x->out);
}

int stk_export_write(stk_export *x, const stk_trace_record *record) {
    if (record->kind == STK_TRACE_STEP) {
        memcpy(x->logits, record->step.logits, STK_MIN(record->step.n_tok, x->n_batch));
        x->first = true;
    }
    if (record->kind != STK_TRACE_EVENT) return 0;
    const stk_event *e = &record->event;
    /* The first layer names the step's tokens; later ones leave out those that it routes nowhere, but not all. */
    for (uint32_t t = 0; t < e->n_tok; t++)
        if (x->first || has_experts(e, t) || (!e->n_distinct && t == 0)) put_token(x, e, t);
    x->first = false;
    return ferror(x->out) ? failed(x) : 0;
}

int stk_export_close(stk_export **export) {
    stk_export *x = *export;
    if (!x) return 0;
    bool bad = ferror(x->out) != 0;
    int rc = 0;
    if (fclose(x->out) != 0 || bad) rc = failed(x);
    free_export(x);
    *export = NULL;
    return rc;
}
