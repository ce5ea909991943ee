/* profile_file: JSON in, checked field by field; JSON out, beside the file first; a profile's layers for another budget. */
#include "profile_file.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, MAX_BYTES = 4 << 20 };
static const double most_number = 1e18;

/* ---- In ------------------------------------------------------------------------------------------------------------------ */

/* A number in [0, most]; a whole one where asked for. */
static int get_number(const cJSON *from, const char *key, double most, bool whole, double *out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble) || item->valuedouble < 0 || item->valuedouble > most ||
        (whole && item->valuedouble != floor(item->valuedouble)))
        return stk_fail(STK_EFORMAT, "\"%s\" is missing or no %snumber from 0 to %g", key, whole ? "whole " : "", most);
    *out = item->valuedouble;
    return STK_OK;
}

static int get_u32(const cJSON *from, const char *key, uint32_t most, uint32_t *out) {
    double x = 0;
    STK_TRY(get_number(from, key, most, true, &x));
    *out = (uint32_t)x;
    return STK_OK;
}

static int get_text(const cJSON *from, const char *key, char *out, size_t bytes) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= bytes)
        return stk_fail(STK_EFORMAT, "\"%s\" is missing or no text of less than %zu bytes", key, bytes);
    memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    return STK_OK;
}

static int get_object(const cJSON *from, const char *key, const cJSON **out) {
    *out = cJSON_GetObjectItemCaseSensitive(from, key);
    return cJSON_IsObject(*out) ? STK_OK : stk_fail(STK_EFORMAT, "no object \"%s\"", key);
}

static int get_layers(const cJSON *root, stk_profile_file *p) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "layer_slots"), *item;
    if (!list) return STK_OK;
    uint32_t n = 0;
    if (p->scope != STK_SCOPE_LAYER || !cJSON_IsArray(list) || (uint32_t)cJSON_GetArraySize(list) != p->n_layer)
        return stk_fail(STK_EFORMAT, "\"layer_slots\" is no list of %u numbers beside the scope \"layer\"", p->n_layer);
    p->layer_slots = calloc(p->n_layer, sizeof *p->layer_slots);
    if (!p->layer_slots) return stk_fail(STK_ENOMEM, "out of memory for %u layers", p->n_layer);
    cJSON_ArrayForEach(item, list) {
        double x = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(x >= 1 && x <= p->n_expert) || x != floor(x))
            return stk_fail(STK_EFORMAT, "\"layer_slots\": entry %u is no number from 1 to %u", n, p->n_expert);
        p->layer_slots[n++] = (uint32_t)x;
    }
    return STK_OK;
}

/* For the reader alone: what is missing is 0. */
static void get_expected(const cJSON *root, stk_profile_file *p) {
    const cJSON *from = cJSON_GetObjectItemCaseSensitive(root, "expected");
    const struct {
        const char *key;
        double *to;
    } all[] = {{"tok_s", &p->tok_s},
               {"hit_rate", &p->hit_rate},
               {"default_tok_s", &p->default_tok_s},
               {"default_hit_rate", &p->default_hit_rate},
               {"margin", &p->margin},
               {"margin_low", &p->margin_low},
               {"margin_high", &p->margin_high},
               {"bound_hit_rate", &p->bound_hit_rate}};
    for (size_t i = 0; i < STK_ARRAY_LEN(all); i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, all[i].key);
        *all[i].to = cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : 0;
    }
}

static int get_all(const cJSON *root, stk_profile_file *p) {
    const cJSON *model, *budget;
    char scope[16];
    double version = 0, bytes = 0;
    if (!cJSON_IsObject(root)) return stk_fail(STK_EFORMAT, "no JSON object");
    STK_TRY(get_number(root, "stoker_profile", most_number, true, &version));
    if (version != VERSION)
        return stk_fail(STK_EUNSUPPORTED, "version %g of the form; this build reads version %d: tune again", version, VERSION);
    STK_TRY(get_object(root, "model", &model));
    STK_TRY(get_text(model, "name", p->model, sizeof p->model));
    STK_TRY(get_u32(model, "layers", 1 << 16, &p->n_layer));
    STK_TRY(get_u32(model, "experts", (1 << 16) - 2, &p->n_expert));
    STK_TRY(get_u32(model, "experts_used", p->n_expert, &p->k));
    STK_TRY(get_object(root, "budget", &budget));
    STK_TRY(get_number(budget, "ram_bytes", most_number, true, &bytes));
    STK_TRY(get_number(budget, "fraction", 1, false, &p->fraction));
    p->ram_bytes = (uint64_t)bytes;
    if (!p->ram_bytes && p->fraction == 0) return stk_fail(STK_EFORMAT, "\"budget\" has neither bytes nor a fraction");
    STK_TRY(get_text(root, "policy", p->policy, sizeof p->policy));
    STK_TRY(get_text(root, "scope", scope, sizeof scope));
    if (strcmp(scope, "global") != 0 && strcmp(scope, "layer") != 0)
        return stk_fail(STK_EFORMAT, "\"scope\" is \"%s\"; there are global and layer", scope);
    p->scope = scope[0] == 'l' ? STK_SCOPE_LAYER : STK_SCOPE_GLOBAL;
    STK_TRY(get_layers(root, p));
    STK_TRY(get_text(root, "predictor", p->predictor, sizeof p->predictor));
    STK_TRY(get_u32(root, "lookahead", 3, &p->depth));
    get_expected(root, p);
    return STK_OK;
}

int stk_profile_file_load(const char *path, stk_profile_file *out) {
    char *text;
    size_t bytes;
    *out = (stk_profile_file){0};
    STK_TRY(stk_text_file_load(path, "profile", MAX_BYTES, &text, &bytes));
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    free(text);
    int rc = root ? get_all(root, out) : stk_fail(STK_EFORMAT, "no JSON");
    cJSON_Delete(root);
    return rc < 0 ? stk_fail_in(rc, "profile %s", path) : STK_OK;
}

void stk_profile_file_fini(stk_profile_file *profile) {
    free(profile->layer_slots);
    *profile = (stk_profile_file){0};
}

/* ---- Out ----------------------------------------------------------------------------------------------------------------- */

static void add_expected(cJSON *root, const stk_profile_file *p) {
    cJSON *o = cJSON_AddObjectToObject(root, "expected");
    cJSON_AddNumberToObject(o, "tok_s", p->tok_s);
    cJSON_AddNumberToObject(o, "hit_rate", p->hit_rate);
    cJSON_AddNumberToObject(o, "default_tok_s", p->default_tok_s);
    cJSON_AddNumberToObject(o, "default_hit_rate", p->default_hit_rate);
    cJSON_AddNumberToObject(o, "margin", p->margin);
    cJSON_AddNumberToObject(o, "margin_low", p->margin_low);
    cJSON_AddNumberToObject(o, "margin_high", p->margin_high);
    cJSON_AddNumberToObject(o, "bound_hit_rate", p->bound_hit_rate);
}

static void add_from(cJSON *root, const stk_profile_from *from) {
    cJSON *o = cJSON_AddObjectToObject(root, "from"), *traces = cJSON_AddArrayToObject(o, "traces");
    for (uint32_t i = 0; i < from->n_trace; i++) cJSON_AddItemToArray(traces, cJSON_CreateString(from->traces[i]));
    cJSON_AddNumberToObject(o, "sequences", (double)from->n_sequence);
    cJSON_AddNumberToObject(o, "tokens", (double)from->n_token);
    cJSON_AddStringToObject(o, "io", from->io);
    cJSON_AddStringToObject(o, "cost", from->cost);
    cJSON_AddStringToObject(o, "stoker", stk_version());
}

int stk_profile_file_save(const char *path, const stk_profile_file *p, const stk_profile_from *from) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "stoker_profile", VERSION);
    cJSON *model = cJSON_AddObjectToObject(root, "model"), *budget = cJSON_AddObjectToObject(root, "budget");
    cJSON_AddStringToObject(model, "name", p->model);
    cJSON_AddNumberToObject(model, "layers", p->n_layer);
    cJSON_AddNumberToObject(model, "experts", p->n_expert);
    cJSON_AddNumberToObject(model, "experts_used", p->k);
    cJSON_AddNumberToObject(budget, "ram_bytes", (double)p->ram_bytes);
    cJSON_AddNumberToObject(budget, "fraction", p->fraction);
    cJSON_AddStringToObject(root, "policy", p->policy);
    cJSON_AddStringToObject(root, "scope", p->scope == STK_SCOPE_LAYER ? "layer" : "global");
    cJSON *slots = p->layer_slots ? cJSON_AddArrayToObject(root, "layer_slots") : NULL;
    for (uint32_t i = 0; slots && i < p->n_layer; i++) cJSON_AddItemToArray(slots, cJSON_CreateNumber(p->layer_slots[i]));
    cJSON_AddStringToObject(root, "predictor", p->predictor);
    cJSON_AddNumberToObject(root, "lookahead", p->depth);
    add_expected(root, p);
    add_from(root, from);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (!text) return stk_fail(STK_ENOMEM, "profile %s: out of memory", path);
    int rc = stk_text_file_save(path, "profile", text, strlen(text));
    cJSON_free(text);
    return rc;
}

/* ---- For a model and a budget -------------------------------------------------------------------------------------------- */

int stk_profile_file_check(const stk_profile_file *p, const char *path, const char *name, uint32_t n_layer, uint32_t n_expert,
                           uint32_t k) {
    if (p->n_layer != n_layer || p->n_expert != n_expert || p->k != k)
        return stk_fail(STK_EINVAL,
                        "profile %s is of a model of %u layers of %u experts, %u a token; this one has %u of %u, %u a token: "
                        "tune with a trace of this model",
                        path, p->n_layer, p->n_expert, p->k, n_layer, n_expert, k);
    if (p->model[0] && name[0] && strncmp(p->model, name, sizeof p->model - 1) != 0)
        return stk_fail(STK_EINVAL, "profile %s is of the model \"%s\", this one is \"%s\": tune with a trace of this model",
                        path, p->model, name);
    return STK_OK;
}

static uint64_t bytes_of(const uint64_t *slot_bytes, const uint32_t *n_slot, uint32_t n_layer) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < n_layer; l++) bytes += slot_bytes[l] * n_slot[l];
    return bytes;
}

int stk_profile_file_layers(const stk_profile_file *p, const uint64_t *slot_bytes, uint64_t bytes, uint32_t least,
                            uint32_t *n_slot) {
    uint64_t own = bytes_of(slot_bytes, p->layer_slots, p->n_layer), least_bytes = 0;
    double scale = !bytes || bytes == p->ram_bytes ? 1 : (double)bytes / (double)own;
    least = STK_MIN(least, p->n_expert);
    for (uint32_t l = 0; l < p->n_layer; l++) {
        double n = scale * p->layer_slots[l];
        n_slot[l] = n >= p->n_expert ? p->n_expert : STK_MAX((uint32_t)n, least);
        least_bytes += least * slot_bytes[l];
    }
    uint64_t limit = bytes ? bytes : STK_MAX(own, least_bytes);
    if (limit < least_bytes)
        return stk_fail(STK_EBUDGET,
                        "%" PRIu64 " bytes of expert slots are too few: the least is %" PRIu64 " bytes, %u slots a layer", limit,
                        least_bytes, least);
    /* Layers that were raised to the least are paid for by those that have the most. */
    while (bytes_of(slot_bytes, n_slot, p->n_layer) > limit) {
        uint32_t most = UINT32_MAX;
        for (uint32_t l = 0; l < p->n_layer; l++)
            if (n_slot[l] > least && (most == UINT32_MAX || n_slot[l] > n_slot[most])) most = l;
        n_slot[most]--;
    }
    return STK_OK;
}
