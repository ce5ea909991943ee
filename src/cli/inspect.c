/* inspect: what is in a GGUF model, by kind, by type and by size of expert, and what running it takes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* What a tensor is for, told from its name. */
enum kind {
    KIND_EXPERTS,
    KIND_SHARED,
    KIND_ATTENTION,
    KIND_FFN,
    KIND_ROUTER,
    KIND_NORMS,
    KIND_EMBEDDING,
    KIND_OUTPUT,
    KIND_OTHER,
    N_KIND
};
static const char *const kind_names[N_KIND] = {"experts", "shared experts", "attention", "dense ffn", "router",
                                               "norms",   "embedding",      "output",    "other"};

enum { MAX_TYPE = 64, N_PART = 3 };
static const char *const part_names[N_PART] = {"gate", "up", "down"};

typedef struct total {
    const char *name;
    uint64_t n, bytes;
} total;

/* Layers whose experts have the same types and size. */
typedef struct expert_class {
    const char *type[N_PART]; /* NULL when the model has no such matrix; the type of gate_up stands for both */
    uint64_t bytes;           /* of one expert */
    uint32_t n_layer;
} expert_class;

typedef struct inspection {
    cli_session session;
    total kinds[N_KIND], types[MAX_TYPE];
    size_t n_type;
    expert_class *classes; /* [n_layer] one a layer, merged by merge_classes */
    size_t n_class;
} inspection;

/* Whether `name` is a matrix of routed experts: stacked ("_exps.") or, in old files, one tensor an expert ("ffn_up.3.weight"). */
static bool is_expert(const char *name, bool *stacked) {
    unsigned layer, expert;
    char part[16];
    *stacked = strstr(name, "_exps.") != NULL;
    return *stacked || sscanf(name, "blk.%u.ffn_%15[a-z].%u.", &layer, part, &expert) == 3;
}

static enum kind kind_of(const char *name) {
    static const struct {
        const char *part;
        enum kind kind;
    } rules[] = {
        {"_norm", KIND_NORMS},     {"_shexp", KIND_SHARED},        {"ffn_gate_inp", KIND_ROUTER},
        {"attn_", KIND_ATTENTION}, {"token_embd", KIND_EMBEDDING}, {"output", KIND_OUTPUT},
        {"ffn_", KIND_FFN},
    };
    bool stacked;
    if (is_expert(name, &stacked)) return KIND_EXPERTS;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strstr(name, rules[i].part)) return rules[i].kind;
    return KIND_OTHER;
}

static void add_type(inspection *in, const stk_tensor_info *t) {
    size_t i = 0;
    while (i < in->n_type && strcmp(in->types[i].name, t->type_name) != 0) i++;
    if (i == MAX_TYPE) return; /* ggml has fewer types */
    if (i == in->n_type) in->types[in->n_type++].name = t->type_name;
    in->types[i].n++;
    in->types[i].bytes += t->bytes;
}

/* Adds a tensor of experts to the class of its layer. */
static void add_expert(inspection *in, const stk_tensor_info *t, bool stacked) {
    unsigned layer;
    uint64_t n = stacked ? t->dim[2] : in->session.info.n_expert;
    if (sscanf(t->name, "blk.%u.", &layer) != 1 || layer >= in->session.info.n_layer || n == 0) return;
    expert_class *c = &in->classes[layer];
    c->n_layer = 1;
    c->bytes += t->bytes / n;
    for (int p = 0; p < N_PART; p++)
        if (strstr(t->name, part_names[p])) c->type[p] = t->type_name;
}

static bool same_type(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

static void merge_classes(inspection *in) {
    for (uint32_t l = 0; l < in->session.info.n_layer; l++) {
        expert_class c = in->classes[l];
        size_t i = 0;
        if (!c.n_layer) continue;
        for (; i < in->n_class; i++) {
            const expert_class *d = &in->classes[i];
            if (d->bytes == c.bytes && same_type(d->type[0], c.type[0]) && same_type(d->type[1], c.type[1]) &&
                same_type(d->type[2], c.type[2]))
                break;
        }
        if (i < in->n_class)
            in->classes[i].n_layer++;
        else
            in->classes[in->n_class++] = c; /* n_class <= l: the entry has been read */
    }
}

static int tensor_get(const inspection *in, uint64_t i, stk_tensor_info *t) {
    *t = (stk_tensor_info){.struct_bytes = sizeof *t};
    int rc = stk_model_get_tensor(in->session.model, i, t);
    return rc < 0 ? cli_fail_stk(rc, "inspect") : CLI_OK;
}

static int collect(inspection *in) {
    stk_tensor_info t;
    bool stacked;
    in->classes = calloc((size_t)in->session.info.n_layer + 1, sizeof *in->classes);
    if (!in->classes) return cli_fail(CLI_FAILED, "inspect", "out of memory");
    for (uint64_t i = 0; i < stk_model_n_tensor(in->session.model); i++) {
        if (tensor_get(in, i, &t)) return CLI_FAILED;
        total *k = &in->kinds[kind_of(t.name)];
        k->n++;
        k->bytes += t.bytes;
        add_type(in, &t);
        if (is_expert(t.name, &stacked)) add_expert(in, &t, stacked);
    }
    merge_classes(in);
    return CLI_OK;
}

/* Bytes of K and V of one position in f16. */
static uint64_t kv_bytes(const stk_model_info *i) { return UINT64_C(2) * 2 * i->n_layer * i->n_head_kv * i->head_dim; }

/* ---- For people ---------------------------------------------------------------------------------------------------------- */

static int print_meta(const inspection *in) {
    const char *key, *type, *text;
    int rc = cli_print("\nmetadata\n");
    for (uint64_t i = 0; i < stk_model_n_meta(in->session.model) && rc == CLI_OK; i++) {
        int got = stk_model_get_meta(in->session.model, i, &key, &type, &text);
        rc = got < 0 ? cli_fail_stk(got, "inspect") : cli_print("  %-44s %-8s %s\n", key, type, text);
    }
    return rc;
}

static int print_totals(const char *title, const total *totals, const char *const *names, size_t n) {
    char a[32];
    int rc = cli_print("\n%s\n", title);
    for (size_t i = 0; i < n && rc == CLI_OK; i++)
        if (totals[i].n)
            rc = cli_print("  %-16s %6" PRIu64 " tensors  %12s\n", names ? names[i] : totals[i].name, totals[i].n,
                           cli_bytes_text(totals[i].bytes, a));
    return rc;
}

static int print_classes(const inspection *in) {
    char a[32];
    int rc = in->n_class ? cli_print("\nexperts, by size\n") : CLI_OK;
    for (size_t i = 0; i < in->n_class && rc == CLI_OK; i++) {
        const expert_class *c = &in->classes[i];
        rc = cli_print("  %12s each in %u layers:", cli_bytes_text(c->bytes, a), c->n_layer);
        for (int p = 0; p < N_PART && rc == CLI_OK; p++)
            if (c->type[p]) rc = cli_print(" %s %s", part_names[p], c->type[p]);
        if (rc == CLI_OK) rc = cli_print("\n");
    }
    return rc;
}

static int print_tensors(const inspection *in) {
    stk_tensor_info t;
    int rc = cli_print("\ntensors\n");
    for (uint64_t i = 0; i < stk_model_n_tensor(in->session.model) && rc == CLI_OK; i++) {
        char shape[96];
        size_t n = 0;
        rc = tensor_get(in, i, &t);
        for (uint32_t d = 0; d < t.n_dim && d < 4; d++)
            n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRIu64, d ? " x " : "", t.dim[d]);
        if (rc == CLI_OK)
            rc = cli_print("  %-36s %-6s %-22s file %u, offset %" PRIu64 ", %" PRIu64 " bytes\n", t.name, t.type_name,
                           n ? shape : "1", t.file, t.offset, t.bytes);
    }
    return rc;
}

static int print_text(const inspection *in, bool tensors) {
    const stk_model_info *i = &in->session.info;
    uint32_t n_ctx = i->n_ctx_train && i->n_ctx_train < 4096 ? i->n_ctx_train : 4096;
    char a[32], b[32], c[32];
    int rc = cli_print("%s%s%s: %.1f million parameters in %u file%s, %s\n", i->arch, *i->name ? " " : "", i->name,
                       (double)i->n_param * 1e-6, i->n_file, i->n_file == 1 ? "" : "s", cli_bytes_text(i->file_bytes, a));
    if (rc == CLI_OK)
        rc = cli_print("%u layers, n_embd %u, %u heads of %u (%u for K and V), vocabulary %u, context %u\n", i->n_layer,
                       i->n_embd, i->n_head, i->head_dim, i->n_head_kv, i->n_vocab, i->n_ctx_train);
    if (rc == CLI_OK && i->n_expert)
        rc = cli_print("%u experts in each of %u layers, a token uses %u: %s of experts, %s of everything else\n", i->n_expert,
                       i->n_moe_layer, i->n_expert_used, cli_bytes_text(i->expert_bytes, a), cli_bytes_text(i->dense_bytes, b));
    if (rc == CLI_OK) rc = print_meta(in);
    if (rc == CLI_OK) rc = print_totals("bytes, by kind", in->kinds, kind_names, N_KIND);
    if (rc == CLI_OK) rc = print_totals("bytes, by type", in->types, NULL, in->n_type);
    if (rc == CLI_OK) rc = print_classes(in);
    if (rc == CLI_OK && tensors) rc = print_tensors(in);
    if (rc == CLI_OK)
        rc = cli_print("\nto run it\n  %s stay in memory; a context of %u takes %s of KV in f16\n",
                       cli_bytes_text(i->dense_bytes, a), n_ctx, cli_bytes_text(kv_bytes(i) * n_ctx, b));
    if (rc == CLI_OK && i->n_expert)
        rc = cli_print("  --ram: %lluK hold every expert, %lluK are the least\n  a token reads %s of weights\n",
                       (unsigned long long)(i->ram_bytes_all + 1023) / 1024, (unsigned long long)(i->ram_bytes_min + 1023) / 1024,
                       cli_bytes_text(i->token_bytes, c));
    return rc;
}

/* ---- For machines -------------------------------------------------------------------------------------------------------- */

static void json_totals(cJSON *json, const char *name, const total *totals, const char *const *names, size_t n) {
    cJSON *o = cJSON_AddObjectToObject(json, name);
    for (size_t i = 0; i < n; i++) {
        if (!totals[i].n) continue;
        cJSON *t = cJSON_AddObjectToObject(o, names ? names[i] : totals[i].name);
        cJSON_AddNumberToObject(t, "tensors", (double)totals[i].n);
        cJSON_AddNumberToObject(t, "bytes", (double)totals[i].bytes);
    }
}

static int json_meta(cJSON *json, const inspection *in) {
    const char *key, *type, *text;
    cJSON *all = cJSON_AddObjectToObject(json, "metadata");
    for (uint64_t i = 0; i < stk_model_n_meta(in->session.model); i++) {
        int rc = stk_model_get_meta(in->session.model, i, &key, &type, &text);
        if (rc < 0) return cli_fail_stk(rc, "inspect");
        cJSON *o = cJSON_AddObjectToObject(all, key);
        cJSON_AddStringToObject(o, "type", type);
        cli_json_text(o, "text", text, strlen(text));
    }
    return CLI_OK;
}

static void json_classes(cJSON *json, const inspection *in) {
    cJSON *list = cJSON_AddArrayToObject(json, "expert_classes");
    for (size_t i = 0; i < in->n_class; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToArray(list, o);
        cJSON_AddNumberToObject(o, "bytes", (double)in->classes[i].bytes);
        cJSON_AddNumberToObject(o, "layers", in->classes[i].n_layer);
        for (int p = 0; p < N_PART; p++)
            if (in->classes[i].type[p]) cJSON_AddStringToObject(o, part_names[p], in->classes[i].type[p]);
    }
}

static int json_tensors(cJSON *json, const inspection *in) {
    stk_tensor_info t;
    cJSON *list = cJSON_AddArrayToObject(json, "tensors");
    for (uint64_t i = 0; i < stk_model_n_tensor(in->session.model); i++) {
        double dim[4];
        if (tensor_get(in, i, &t)) return CLI_FAILED;
        for (int d = 0; d < 4; d++) dim[d] = (double)t.dim[d];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToArray(list, o);
        cli_json_text(o, "name", t.name, strlen(t.name));
        cJSON_AddStringToObject(o, "type", t.type_name);
        cJSON_AddItemToObject(o, "dim", cJSON_CreateDoubleArray(dim, (int)(t.n_dim < 4 ? t.n_dim : 4)));
        cJSON_AddNumberToObject(o, "file", t.file);
        cJSON_AddNumberToObject(o, "offset", (double)t.offset);
        cJSON_AddNumberToObject(o, "bytes", (double)t.bytes);
    }
    return CLI_OK;
}

static int print_json(const inspection *in, bool tensors) {
    const stk_model_info *i = &in->session.info;
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"n_layer", i->n_layer},
        {"n_moe_layer", i->n_moe_layer},
        {"n_embd", i->n_embd},
        {"n_head", i->n_head},
        {"n_head_kv", i->n_head_kv},
        {"head_dim", i->head_dim},
        {"n_vocab", i->n_vocab},
        {"n_ctx_train", i->n_ctx_train},
        {"n_expert", i->n_expert},
        {"n_expert_used", i->n_expert_used},
        {"n_file", i->n_file},
        {"n_param", (double)i->n_param},
        {"file_bytes", (double)i->file_bytes},
        {"expert_bytes", (double)i->expert_bytes},
        {"dense_bytes", (double)i->dense_bytes},
        {"expert_bytes_min", (double)i->expert_bytes_min},
        {"expert_bytes_max", (double)i->expert_bytes_max},
        {"token_bytes", (double)i->token_bytes},
        {"kv_bytes_per_position", (double)kv_bytes(i)},
    };
    cJSON *json = cJSON_CreateObject();
    cli_json_text(json, "arch", i->arch, strlen(i->arch));
    cli_json_text(json, "name", i->name, strlen(i->name));
    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++)
        cJSON_AddNumberToObject(json, numbers[n].name, numbers[n].value);
    json_totals(json, "bytes_by_kind", in->kinds, kind_names, N_KIND);
    json_totals(json, "bytes_by_type", in->types, NULL, in->n_type);
    json_classes(json, in);
    int rc = json_meta(json, in);
    if (rc == CLI_OK && tensors) rc = json_tensors(json, in);
    if (rc == CLI_OK) return cli_json_print(json);
    cJSON_Delete(json);
    return rc;
}

int cli_inspect(const cli_settings *settings) {
    inspection in = {0};
    int rc = cli_session_open_model(&in.session, settings->operand);
    if (rc == CLI_OK) rc = collect(&in);
    if (rc == CLI_OK) rc = settings->json ? print_json(&in, settings->list_tensors) : print_text(&in, settings->list_tensors);
    free(in.classes);
    rc = cli_session_close(&in.session, rc);
    return rc;
}
