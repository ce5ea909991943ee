/*
 * predict_traces: routing of real models for the tests and benchmarks of predictors, each token as a step of its own, and what a
 * predictor makes of it. Formats: mrt8, route.csv, the JSON of switch_base8, and our own traces.
 */
#ifndef STK_TEST_PREDICT_TRACES_H
#define STK_TEST_PREDICT_TRACES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "predict/score.h"
#include "tests/predict_events.h"
#include "traces/trace.h"

enum { PT_SEQ = 64, PT_TOK = 1 << 16 };

typedef struct pt_trace {
    uint32_t n_layer, n_expert, k, n_seq;
    uint32_t n_tok[PT_SEQ];
    uint16_t *ids[PT_SEQ];   /* [n_tok, n_layer, k]; STK_NO_EXPERT where the layer has no event */
    int32_t *tokens[PT_SEQ]; /* [n_tok]; -1 where unknown */
} pt_trace;

static inline void pt_free(pt_trace *t) {
    for (uint32_t s = 0; s < t->n_seq; s++) {
        free(t->ids[s]);
        free(t->tokens[s]);
    }
    memset(t, 0, sizeof *t);
}

/* A further sequence of n_tok tokens; nothing is known of them. */
static inline void pt_add(pt_trace *t, uint32_t n_tok) {
    if (t->n_seq == PT_SEQ || n_tok > PT_TOK) abort();
    size_t n = (size_t)n_tok * t->n_layer * t->k;
    t->n_tok[t->n_seq] = n_tok;
    t->ids[t->n_seq] = malloc(n * sizeof **t->ids + 1);
    t->tokens[t->n_seq] = malloc(n_tok * sizeof **t->tokens + 1);
    memset(t->ids[t->n_seq], 0xff, n * sizeof **t->ids);
    memset(t->tokens[t->n_seq], 0xff, n_tok * sizeof **t->tokens);
    t->n_seq++;
}

static inline uint16_t *pt_ids(const pt_trace *t, uint32_t seq, uint32_t tok, uint32_t layer) {
    return t->ids[seq] + ((size_t)tok * t->n_layer + layer) * t->k;
}

/* Whether the file is there and of this format. xz unpacks it. */
static inline bool pt_mrt8(pt_trace *t, const char *path) {
    char command[4096], magic[4];
    uint32_t head[4], size[2];
    memset(t, 0, sizeof *t);
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    fclose(f);
    snprintf(command, sizeof command, "exec xz -dc '%s'", path);
    f = popen(command, "r");
    bool good = f && fread(magic, 1, 4, f) == 4 && !memcmp(magic, "MRT8", 4) && fread(head, 4, 4, f) == 4 && head[3] <= PT_SEQ;
    if (good) t->n_layer = head[0], t->n_expert = head[1], t->k = head[2];
    for (uint32_t s = 0; good && s < head[3]; s++) {
        if (fread(size, 4, 2, f) != 2) good = false;
        if (!good) break;
        pt_add(t, size[0]);
        for (size_t i = 0; i < (size_t)size[0] * t->n_layer * t->k; i++) {
            int id = fgetc(f);
            t->ids[s][i] = id == 0xff ? STK_NO_EXPERT : (uint16_t)id;
        }
    }
    if (f) pclose(f);
    return good;
}

static inline bool pt_route(pt_trace *t, const char *path) {
    char line[512];
    memset(t, 0, sizeof *t);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    uint32_t n_prompt = 0, phase, step, layer, slot, expert;
    while (fgets(line, sizeof line, f)) {
        const char *sizes = strstr(line, "n_layer=");
        if (sizes && sscanf(sizes, "n_layer=%u n_expert=%u n_expert_used=%u", &t->n_layer, &t->n_expert, &t->k) == 3)
            pt_add(t, 1024);
        if (sscanf(line, "%*u,%u,%u,%u,%u,%u", &phase, &step, &layer, &slot, &expert) != 5) continue;
        if (phase == 0 && step >= n_prompt) n_prompt = step + 1;
        uint32_t tok = phase ? n_prompt + step : step;
        if (tok >= 1024 || layer >= t->n_layer || slot >= t->k) abort();
        pt_ids(t, 0, tok, layer)[slot] = (uint16_t)expert;
        t->n_tok[0] = tok + 1;
    }
    fclose(f);
    return t->n_seq == 1;
}

/* The numbers inside "selections": one expert a layer and token. */
static inline bool pt_switch(pt_trace *t, const char *path) {
    memset(t, 0, sizeof *t);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    char word[64] = "";
    t->n_layer = 6, t->n_expert = 8, t->k = 1;
    pt_add(t, 215);
    while (strncmp(word, "\"selections\"", 12) != 0 && fscanf(f, "%63s", word) == 1) continue;
    for (uint32_t i = 0; i < 215 * 6;) {
        int c = fgetc(f);
        if (c == EOF) break;
        if (c >= '0' && c <= '7') t->ids[0][i++] = (uint16_t)(c - '0');
    }
    fclose(f);
    return true;
}

/* One of our own, recorded with --batch-size 1: its sequences are added to those of *t, which is empty or of the same model. */
static inline bool pt_stoker(pt_trace *t, const char *path) {
    stk_trace_reader *r;
    stk_trace_record record;
    if (stk_trace_reader_open(&r, path) < 0) return false;
    const stk_trace_header *h = stk_trace_reader_header(r);
    if (t->n_seq && (t->n_layer != h->n_layer || t->n_expert != h->n_expert || t->k != h->k)) abort();
    t->n_layer = h->n_layer, t->n_expert = h->n_expert, t->k = h->k;
    uint32_t end = 0;
    while (stk_trace_read(r, &record) == 1) {
        if (record.kind == STK_TRACE_STEP && record.step.n_tok) {
            if (record.step.pos[0] == 0) pt_add(t, 8192), t->n_tok[t->n_seq - 1] = 0;
            end = t->n_tok[t->n_seq - 1] += record.step.n_tok;
            if (end > 8192) abort();
            memcpy(t->tokens[t->n_seq - 1] + end - record.step.n_tok, record.step.token, record.step.n_tok * sizeof(int32_t));
        }
        if (record.kind != STK_TRACE_EVENT) continue;
        const stk_event *e = &record.event;
        for (uint32_t i = 0; i < e->n_tok; i++)
            memcpy(pt_ids(t, t->n_seq - 1, end - e->n_tok + i, e->layer), e->ids + (size_t)i * e->k, e->k * sizeof *e->ids);
    }
    stk_trace_reader_close(&r);
    return t->n_seq > 0;
}

/* What is done with the suggestions of a layer before its event. */
typedef void pt_hear(void *user, const stk_event *event, const stk_suggestion *list, int n);

/* Runs a sequence through a predictor. Suggestions of depth 1 .. depth go to the card, those of depth 1 to `hear`; both may be
 * NULL. *step counts on. Returns false when a call fails. */
static inline bool pt_run(const stk_predictor_ops *ops, stk_predictor *p, const pt_trace *t, uint32_t seq, uint64_t *step,
                          stk_score *card, uint32_t depth, pt_hear *hear, void *user) {
    static pe_input in;
    static stk_suggestion list[STK_PREDICT_DEPTH_MAX][PE_EXPERT];
    int n[STK_PREDICT_DEPTH_MAX] = {0};
    uint32_t about = UINT32_MAX; /* layer of list[0] */
    for (uint32_t i = 0; i < t->n_tok[seq]; i++, ++*step)
        for (uint32_t l = 0; l < t->n_layer; l++) {
            const uint16_t *ids = pt_ids(t, seq, i, l);
            if (ids[0] == STK_NO_EXPERT) continue;
            pe_begin(&in, *step, l, t->k, t->n_expert);
            pe_token(&in, 0, (int32_t)i, t->tokens[seq][i], ids);
            const stk_event *event = pe_end(&in);
            if (hear) hear(user, event, list[0], about == l ? n[0] : 0);
            if (card && stk_score_event(card, event) < 0) return false;
            if (ops->observe(p, event, &pe_no_scores) < 0) return false;
            for (uint32_t d = 1; d <= depth; d++) {
                n[d - 1] = ops->suggest(p, d, list[d - 1], t->n_expert);
                uint32_t layer = (l + d) % t->n_layer;
                if (n[d - 1] < 0) return false;
                if (card && l + d < t->n_layer && stk_score_suggested(card, layer, d, list[d - 1], (uint32_t)n[d - 1]) < 0)
                    return false;
            }
            about = (l + 1) % t->n_layer;
        }
    return true;
}

#endif
