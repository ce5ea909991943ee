/*
 * import_jsonl: one JSON object a line. One with a "layer" is a row, a token in a layer; others say what the model is. The keys
 * are those of the columns of import_csv.c, lists being arrays.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "traces/import_rows.h"

/* 1: *out is the whole number under `key`; 0: there is none. */
static int get_number(const cJSON *o, const char *key, double least, double most, double *out) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (!v || cJSON_IsNull(v)) return 0;
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= least && v->valuedouble <= most) || v->valuedouble != floor(v->valuedouble))
        return stk_fail(STK_EFORMAT, "\"%s\" is not a whole number from %.0f to %.0f", key, least, most);
    *out = v->valuedouble;
    return 1;
}

static int get_i32(const cJSON *o, const char *key, int32_t *out) {
    double x = 0;
    int rc = get_number(o, key, -1, INT32_MAX, &x);
    if (rc == 1) *out = (int32_t)x;
    return rc;
}

static int get_ids(const cJSON *o, const char *key, bool none, uint16_t *ids, uint32_t *n) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(o, key), *v;
    *n = 0;
    if (!list) return 0;
    if (!cJSON_IsArray(list)) return stk_fail(STK_EFORMAT, "\"%s\" is not an array", key);
    cJSON_ArrayForEach(v, list) {
        double x = cJSON_IsNumber(v) ? v->valuedouble : -2;
        if (*n == IMPORT_MAX_K) return stk_fail(STK_EFORMAT, "\"%s\" has more than %d entries", key, IMPORT_MAX_K);
        if (!(x >= (none ? -1 : 0) && x < STK_NO_EXPERT - 1) || x != floor(x))
            return stk_fail(STK_EFORMAT, "entry %u of \"%s\" is no expert", *n, key);
        ids[(*n)++] = x < 0 ? STK_NO_EXPERT : (uint16_t)x;
    }
    return 1;
}

/* As many as there are ids; all NaN if there are none. */
static int get_floats(const cJSON *o, const char *key, float *out, uint32_t n) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(o, key), *v;
    uint32_t i = 0;
    for (uint32_t j = 0; j < n; j++) out[j] = NAN;
    if (!list) return 0;
    if (!cJSON_IsArray(list) || (uint32_t)cJSON_GetArraySize(list) != n)
        return stk_fail(STK_EFORMAT, "\"%s\" is not an array of %u numbers", key, n);
    cJSON_ArrayForEach(v, list) {
        if (!cJSON_IsNumber(v) && !cJSON_IsNull(v)) return stk_fail(STK_EFORMAT, "entry %u of \"%s\" is not a number", i, key);
        out[i++] = cJSON_IsNumber(v) ? (float)v->valuedouble : NAN;
    }
    return 1;
}

static int get_phase(const cJSON *o, bool *decode) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, "phase");
    if (!v) return 0;
    const char *text = cJSON_IsString(v) ? v->valuestring : "";
    bool is_number = cJSON_IsNumber(v);
    *decode = strcmp(text, "decode") == 0 || (is_number && v->valuedouble == 1);
    if (*decode || strcmp(text, "prefill") == 0 || (is_number && v->valuedouble == 0)) return 0;
    return stk_fail(STK_EFORMAT, "\"phase\" is not \"prefill\" or \"decode\"");
}

static int get_facts(const cJSON *o, import_facts *facts) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(o, "model"), *list, *v;
    double x = 0;
    int rc;
    uint32_t layer = 0;
    if (cJSON_IsString(model)) strncpy(facts->model, model->valuestring, sizeof facts->model - 1);
    STK_TRY(rc = get_number(o, "n_expert", 1, STK_NO_EXPERT - 1, &x));
    if (rc) facts->n_expert = (uint32_t)x;
    STK_TRY(rc = get_number(o, "k", 1, IMPORT_MAX_K, &x));
    if (rc) facts->k = (uint32_t)x;
    list = cJSON_GetObjectItemCaseSensitive(o, "expert_bytes");
    if (!cJSON_IsArray(list)) {
        STK_TRY(rc = get_number(o, "expert_bytes", 1, (double)IMPORT_MAX_BYTES, &x));
        if (rc) facts->bytes = (uint64_t)x;
        return 0;
    }
    cJSON_ArrayForEach(v, list) { /* by layer; 0 where it has no experts */
        if (layer == IMPORT_MAX_LAYER || !cJSON_IsNumber(v) ||
            !(v->valuedouble >= 0 && v->valuedouble <= (double)IMPORT_MAX_BYTES))
            return stk_fail(STK_EFORMAT, "entry %u of \"expert_bytes\" is no size", layer);
        facts->of_layer[layer] = (uint64_t)v->valuedouble;
        facts->seen[layer] = facts->of_layer[layer] > 0;
        layer++;
    }
    return 0;
}

static int get_row(const cJSON *o, import_row *row) {
    double x = 0;
    int rc;
    STK_TRY(rc = get_number(o, "layer", 0, IMPORT_MAX_LAYER - 1, &x));
    if (!rc) return stk_fail(STK_EFORMAT, "\"layer\" is null");
    row->layer = (uint32_t)x;
    STK_TRY(rc = get_number(o, "step", 0, 0x1p53, &x));
    if (rc) row->step = (int64_t)x;
    STK_TRY(get_i32(o, "seq", &row->seq));
    STK_TRY(get_i32(o, "pos", &row->pos));
    STK_TRY(get_i32(o, "token", &row->token));
    if (row->seq < 0) return stk_fail(STK_EFORMAT, "\"seq\" is negative");
    STK_TRY(get_phase(o, &row->decode));
    STK_TRY(rc = get_ids(o, "experts", true, row->experts, &row->n));
    if (!rc) return stk_fail(STK_EFORMAT, "a row without \"experts\"");
    STK_TRY(get_floats(o, "weights", row->weights, row->n));
    STK_TRY(get_ids(o, "top_ids", false, row->top_ids, &row->n_top));
    STK_TRY(rc = get_floats(o, "top_scores", row->top_scores, row->n_top));
    if (row->n_top && !rc) return stk_fail(STK_EFORMAT, "\"top_ids\" without \"top_scores\"");
    STK_TRY(rc = get_number(o, "expert_bytes", 1, (double)IMPORT_MAX_BYTES, &x));
    if (rc) row->bytes = (uint64_t)x;
    return 1;
}

typedef struct jsonl {
    char unused; /* a line depends on none before */
} jsonl;

static int parse(void *parser, char *line, import_row *row, import_facts *facts) {
    (void)parser;
    const char *end;
    if (strncmp(line, "\xef\xbb\xbf", 3) == 0) line += 3;
    if (!line[strspn(line, " \t")]) return 0;
    cJSON *o = cJSON_ParseWithOpts(line, &end, true);
    if (!cJSON_IsObject(o)) {
        cJSON_Delete(o);
        return stk_fail(STK_EFORMAT, "not one JSON object, from byte %zu of the line", (size_t)(end ? end - line : 0));
    }
    int rc = cJSON_GetObjectItemCaseSensitive(o, "layer") ? get_row(o, row) : get_facts(o, facts);
    cJSON_Delete(o);
    return rc;
}

static const import_rows_format format = {sizeof(jsonl), parse, false};

static int jsonl_open(void **state, stk_input *in, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    return stk_import_rows_open(state, &format, in, expert_bytes, header, sized);
}

const import_ops stk_import_jsonl = {"jsonl", jsonl_open, stk_import_rows_read, stk_import_rows_close};
