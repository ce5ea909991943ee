/* track: the sample of a step and the slots of sequences. */
#include "predict/track.h"

#include <stdlib.h>
#include <string.h>

void stk_track_fini(stk_track *t) {
    free(t->path);
    free(t->before);
    free(t->layer_n_expert);
    memset(t, 0, sizeof *t);
}

int stk_track_init(stk_track *t, const stk_predictor_config *config) {
    size_t row = (size_t)config->n_layer * config->k;
    memset(t, 0, sizeof *t);
    t->n_layer = config->n_layer;
    t->n_expert = config->n_expert;
    t->k = config->k;
    t->path = malloc(STK_TRACK_TOKENS * row * sizeof *t->path);
    t->before = malloc(STK_TRACK_SEQS * row * sizeof *t->before);
    t->layer_n_expert = malloc(t->n_layer * sizeof *t->layer_n_expert);
    if (!t->path || !t->before || !t->layer_n_expert) {
        stk_track_fini(t);
        return stk_fail(STK_ENOMEM, "predictor: out of memory for the paths of %u layers", config->n_layer);
    }
    stk_track_reset(t);
    return 0;
}

void stk_track_reset(stk_track *t) {
    size_t row = (size_t)t->n_layer * t->k;
    memset(t->path, 0xff, STK_TRACK_TOKENS * row * sizeof *t->path);
    memset(t->before, 0xff, STK_TRACK_SEQS * row * sizeof *t->before);
    memset(t->slots, 0, sizeof t->slots);
    for (uint32_t l = 0; l < t->n_layer; l++) t->layer_n_expert[l] = t->n_expert;
    t->begun = false;
    t->n_tok = 0;
    t->clock = 0;
}

/* The slot of a sequence, or STK_TRACK_SEQS. */
static uint32_t find_slot(const stk_track *t, int32_t seq) {
    uint32_t s = 0;
    while (s < STK_TRACK_SEQS && (t->slots[s].used == 0 || t->slots[s].seq != seq)) s++;
    return s;
}

/* A run of a step that begins: its slot is found, or taken from the sequence that was longest not heard of. */
static void enter(stk_track *t, int32_t seq, int32_t first_pos, int32_t last_pos) {
    uint32_t s = find_slot(t, seq);
    bool restarted = s == STK_TRACK_SEQS || first_pos == 0;
    if (s == STK_TRACK_SEQS) {
        s = 0;
        for (uint32_t i = 1; i < STK_TRACK_SEQS; i++)
            if (t->slots[i].used < t->slots[s].used) s = i;
    }
    if (restarted) {
        size_t row = (size_t)t->n_layer * t->k;
        memset(t->before + s * row, 0xff, row * sizeof *t->before);
    }
    t->slots[s].seq = seq;
    t->slots[s].restarted |= restarted;
    t->slots[s].pos = restarted ? -1 : t->slots[s].next_pos - 1;
    t->slots[s].next_pos = last_pos == INT32_MAX ? last_pos : last_pos + 1;
    t->slots[s].used = ++t->clock;
}

static bool continues(const stk_event *event, uint32_t i) {
    return event->seq[i] == event->seq[i - 1] && event->pos[i - 1] != INT32_MAX && event->pos[i] == event->pos[i - 1] + 1;
}

static uint32_t run_end(const stk_event *event, uint32_t begin) {
    uint32_t end = begin + 1;
    while (end < event->n_tok && continues(event, end)) end++;
    return end;
}

static void begin_step(stk_track *t, const stk_event *event) {
    t->step = event->step;
    t->n_step = event->n_tok;
    for (uint32_t s = 0; s < STK_TRACK_SEQS; s++) t->slots[s].restarted = false;
    for (uint32_t i = 0, end; i < event->n_tok; i = end) {
        end = run_end(event, i);
        enter(t, event->seq[i], event->pos[i], event->pos[end - 1]);
    }
    uint32_t stride = (event->n_tok + STK_TRACK_TOKENS - 1) / STK_TRACK_TOKENS;
    t->n_tok = stride ? (event->n_tok + stride - 1) / stride : 0;
    memset(t->path, 0xff, (size_t)t->n_tok * t->n_layer * t->k * sizeof *t->path);
    for (uint32_t i = 0; i < t->n_tok; i++) {
        uint32_t at = event->n_tok - 1 - (t->n_tok - 1 - i) * stride;
        stk_track_token *tok = &t->tok[i];
        *tok = (stk_track_token){.seq = event->seq[at], .pos = event->pos[at], .token = event->token[at]};
        tok->slot = find_slot(t, tok->seq);
        tok->n = i == 0 ? at + 1 : stride;
        tok->last = at + 1 == event->n_tok || event->seq[at + 1] != event->seq[at];
        /* A sequence whose slot was taken by a later one of the same step is followed without its past. */
        tok->follows = tok->slot < STK_TRACK_SEQS && t->slots[tok->slot].pos >= 0 && tok->pos == t->slots[tok->slot].pos + 1;
        tok->last = tok->last && tok->slot < STK_TRACK_SEQS;
    }
}

void stk_track_begin(stk_track *t, const stk_event *event) {
    t->new_step = !t->begun || event->step != t->step || event->layer <= t->layer;
    t->begun = true;
    t->layer = event->layer;
    t->layer_n_expert[event->layer] = event->n_expert ? event->n_expert : t->n_expert;
    if (t->new_step) begin_step(t, event);
    /* Later events may hold fewer tokens, in the same order. */
    uint32_t at = 0;
    for (uint32_t i = 0; i < t->n_tok; i++) {
        uint32_t j = at;
        while (j < event->n_tok && (event->seq[j] != t->tok[i].seq || event->pos[j] != t->tok[i].pos)) j++;
        t->tok[i].at = j < event->n_tok ? (int64_t)j : STK_TRACK_ABSENT;
        if (j < event->n_tok) at = j + 1;
    }
}

static void copy_ids(const stk_track *t, uint16_t *to, const stk_event *event, uint32_t at) {
    for (uint32_t j = 0; j < t->k; j++) to[j] = j < event->k ? event->ids[(size_t)at * event->k + j] : STK_NO_EXPERT;
}

void stk_track_commit(stk_track *t, const stk_event *event) {
    for (uint32_t i = 0; i < t->n_tok; i++)
        if (t->tok[i].at != STK_TRACK_ABSENT)
            copy_ids(t, t->path + ((size_t)i * t->n_layer + event->layer) * t->k, event, (uint32_t)t->tok[i].at);
    uint32_t at = 0;
    stk_track_run run;
    while (stk_track_next_run(t, event, &at, &run))
        copy_ids(t, t->before + ((size_t)run.slot * t->n_layer + event->layer) * t->k, event, run.end - 1);
}

const uint16_t *stk_track_predecessor(const stk_track *t, const stk_event *event, uint32_t i, uint32_t *k) {
    const stk_track_token *tok = &t->tok[i];
    if (tok->at > 0 && continues(event, (uint32_t)tok->at)) {
        *k = event->k;
        return event->ids + (size_t)(tok->at - 1) * event->k;
    }
    *k = t->k;
    return tok->follows ? stk_track_before(t, tok->slot, event->layer) : NULL;
}

bool stk_track_next_run(const stk_track *t, const stk_event *event, uint32_t *at, stk_track_run *run) {
    while (*at < event->n_tok) {
        uint32_t begin = *at, end = run_end(event, begin);
        *at = end;
        run->slot = find_slot(t, event->seq[begin]);
        if (run->slot == STK_TRACK_SEQS) continue;
        run->begin = end - begin > STK_TRACK_RUN ? end - STK_TRACK_RUN : begin;
        run->end = end;
        return true;
    }
    return false;
}
