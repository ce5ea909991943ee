/*
 * tokenid: what this very token used when it was seen before, in every layer (Lina, ATC 2023, and others: early layers route by
 * token). A table of so many token ids in sets of WAYS, the one longest not used leaves; for each id and layer the 2k experts
 * used most, by counts that the frequent ones win (Misra and Gries 1982). Memory: entries * layers * (8k + 1) bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "predict/panel.h"

enum { WAYS = 4, VISITS_MAX = 200, NOBODY = -1 };

struct stk_part {
    uint32_t n_layer, n_expert, n_top, n_set, width;
    uint32_t clock;
    uint32_t *tokens;                   /* [n_set, WAYS] id + 1, 0 for none */
    uint32_t *used;                     /* [n_set, WAYS] clock of the last use */
    uint8_t *visits;                    /* [n_set, WAYS, n_layer] */
    uint16_t *experts;                  /* [n_set, WAYS, n_layer, n_top, 2] expert + 1 (0: free), count */
    int64_t entry_of[STK_TRACK_TOKENS]; /* of the sampled tokens, NOBODY for none */
};

static void tokenid_close(stk_part *s) {
    if (!s) return;
    free(s->tokens);
    free(s->used);
    free(s->visits);
    free(s->experts);
    free(s);
}

static int tokenid_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor tokenid: out of memory");
    s->n_layer = config->model->n_layer;
    s->n_expert = config->model->n_expert;
    s->n_top = STK_MIN(2 * config->model->k, s->n_expert);
    s->width = config->width;
    s->n_set = ((uint32_t)config->values[0] + WAYS - 1) / WAYS;
    size_t n = (size_t)s->n_set * WAYS, n_list = n * s->n_layer;
    s->tokens = calloc(n, sizeof *s->tokens);
    s->used = calloc(n, sizeof *s->used);
    s->visits = calloc(n_list, sizeof *s->visits);
    s->experts = calloc(n_list, 2 * s->n_top * sizeof *s->experts);
    if (!s->tokens || !s->used || !s->visits || !s->experts) {
        tokenid_close(s);
        return stk_fail(STK_ENOMEM, "predictor tokenid: out of memory for %zu token ids", n);
    }
    *out = s;
    return 0;
}

static uint16_t *list_of(const stk_part *s, size_t entry, uint32_t layer) {
    return s->experts + (entry * s->n_layer + layer) * 2 * s->n_top;
}

/* The entry of a token id; one is made where there is none. */
static int64_t enter(stk_part *s, int32_t token) {
    if (token < 0) return NOBODY;
    uint32_t key = (uint32_t)token + 1;
    size_t first = (size_t)(((uint64_t)(key * 2654435761u) * s->n_set) >> 32) * WAYS, at = first;
    for (size_t i = first; i < first + WAYS; i++) {
        if (s->tokens[i] == key) {
            s->used[i] = s->clock;
            return (int64_t)i;
        }
        if (s->tokens[i] == 0 ? s->tokens[at] != 0 : s->tokens[at] != 0 && s->used[i] < s->used[at]) at = i;
    }
    s->tokens[at] = key;
    s->used[at] = s->clock;
    memset(s->visits + at * s->n_layer, 0, s->n_layer);
    memset(list_of(s, at, 0), 0, (size_t)s->n_layer * 2 * s->n_top * sizeof *s->experts);
    return (int64_t)at;
}

static void begin_step(stk_part *s, const stk_track *track) {
    if (s->clock == UINT32_MAX) { /* who was used when is forgotten, once in four billion steps */
        memset(s->used, 0, (size_t)s->n_set * WAYS * sizeof *s->used);
        s->clock = 0;
    }
    s->clock++;
    for (uint32_t i = 0; i < track->n_tok; i++) s->entry_of[i] = enter(s, track->tok[i].token);
    /* A later token of the step may have taken the entry of an earlier one. */
    for (uint32_t i = 0; i < track->n_tok; i++)
        if (s->entry_of[i] != NOBODY && s->tokens[s->entry_of[i]] != (uint32_t)track->tok[i].token + 1) s->entry_of[i] = NOBODY;
}

/* One more use of an expert: it counts up; or takes a free place; or the one with the least count counts down and makes way. */
static void count(uint16_t *list, uint32_t n_top, uint16_t expert) {
    uint32_t least = 0;
    for (uint32_t j = 0; j < n_top; j++) {
        if (list[2 * j] == expert + 1) {
            if (list[2 * j + 1] < VISITS_MAX) list[2 * j + 1]++;
            return;
        }
        if (list[2 * j + 1] < list[2 * least + 1]) least = j;
    }
    if (list[2 * least + 1] > 1) {
        list[2 * least + 1]--;
        return;
    }
    list[2 * least] = (uint16_t)(expert + 1);
    list[2 * least + 1] = 1;
}

static void tokenid_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    if (track->new_step) begin_step(s, track);
    for (uint32_t i = 0; i < track->n_tok; i++) {
        if (s->entry_of[i] == NOBODY || track->tok[i].at == STK_TRACK_ABSENT) continue;
        size_t entry = (size_t)s->entry_of[i];
        uint8_t *visits = &s->visits[entry * s->n_layer + event->layer];
        uint16_t *list = list_of(s, entry, event->layer);
        if (*visits >= VISITS_MAX) {
            *visits /= 2;
            for (uint32_t j = 0; j < s->n_top; j++) list[2 * j + 1] /= 2;
        }
        ++*visits;
        for (uint32_t j = 0; j < event->k; j++) {
            uint16_t id = event->ids[(size_t)track->tok[i].at * event->k + j];
            if (id != STK_NO_EXPERT) count(list, s->n_top, id);
        }
    }
}

static bool tokenid_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    uint32_t layer = track->layer + depth;
    if (layer >= s->n_layer || s->entry_of[i] == NOBODY) return false;
    size_t entry = (size_t)s->entry_of[i];
    uint32_t visits = s->visits[entry * s->n_layer + layer];
    if (visits == 0) return false;
    memset(row, 0, s->width * sizeof *row);
    const uint16_t *list = list_of(s, entry, layer);
    for (uint32_t j = 0; j < s->n_top; j++)
        if (list[2 * j] != 0) row[list[2 * j] - 1] = STK_MIN((float)list[2 * j + 1] / ((float)visits + 0.5f), 1.0f);
    return true;
}

static uint32_t tokenid_blobs(const stk_part *s, stk_part_blob *blobs) {
    size_t n = (size_t)s->n_set * WAYS, n_list = n * s->n_layer;
    blobs[0] = (stk_part_blob){s->tokens, n, STK_BLOB_U32, UINT32_MAX};
    blobs[1] = (stk_part_blob){s->visits, n_list, STK_BLOB_U8, VISITS_MAX};
    /* Counts obey the same limit as experts: VISITS_MAX of one expert a token are never exceeded by honest ones. */
    blobs[2] = (stk_part_blob){s->experts, n_list * 2 * s->n_top, STK_BLOB_U16, STK_MAX(s->n_expert, VISITS_MAX)};
    return 3;
}

/* An expert beyond the model, which the common limit lets through where VISITS_MAX is more, is dropped. */
static void tokenid_loaded(stk_part *s) {
    size_t n = (size_t)s->n_set * WAYS;
    for (size_t i = 0; i < n * s->n_layer * s->n_top; i++)
        if (s->experts[2 * i] > s->n_expert) s->experts[2 * i] = s->experts[2 * i + 1] = 0;
    memset(s->used, 0, n * sizeof *s->used);
    s->clock = 0;
    for (uint32_t i = 0; i < STK_TRACK_TOKENS; i++) s->entry_of[i] = NOBODY;
}

const stk_part_ops stk_part_tokenid = {.name = "tokenid",
                                       .n_param = 1,
                                       .params = {{"entries", 2048.0f, 4.0f, 1048576.0f, "token ids that are remembered"}},
                                       .open = tokenid_open,
                                       .close = tokenid_close,
                                       .learn = tokenid_learn,
                                       .score = tokenid_score,
                                       .blobs = tokenid_blobs,
                                       .loaded = tokenid_loaded};
STK_PANEL_SOLO(tokenid, 0x314b4f54, false, "what this token id used before"); /* "TOK1" */
