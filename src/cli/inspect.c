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

enum { MAX_TYPE = 64 };

typedef struct total {
    const char *name;
    uint64_t n, bytes;
} total;

typedef struct inspection {
    cli_session session;
    total kinds[N_KIND], types[MAX_TYPE];
    size_t n_type;
    stk_expert_class_info *classes; /* [n_class] */
    size_t n_class;
    bool checked; /* the sums of a packed model */
} inspection;

/* Whether `name` is of routed experts: stacked ("_exps.") or, in old files, one tensor an expert ("ffn_up.3.weight"). */
static bool is_expert(const char *name) {
    unsigned layer, expert;
    char part[16];
    return strstr(name, "_exps.") || sscanf(name, "blk.%u.ffn_%15[a-z].%u.", &layer, part, &expert) == 3;
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
    if (is_expert(name)) return KIND_EXPERTS;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strstr(name, rules[i].part)) return rules[i].kind;
    return KIND_OTHER;
}

static void add_type(inspection *in, const char *name, uint64_t n, uint64_t bytes) {
    size_t i = 0;
    while (i < in->n_type && strcmp(in->types[i].name, name) != 0) i++;
    if (i == MAX_TYPE) return; /* ggml has fewer types */
    if (i == in->n_type) in->types[in->n_type++].name = name;
    in->types[i].n += n;
    in->types[i].bytes += bytes;
}

/* The matrices of packed experts count as the tensors that they were. */
static void add_packed_types(inspection *in) {
    for (size_t i = 0; i < in->n_class; i++) {
        const stk_expert_class_info *c = &in->classes[i];
        uint64_t n = (uint64_t)in->session.info.n_expert * c->n_layer;
        add_type(in, c->gate_type, c->n_layer, c->gate_bytes * n);
        add_type(in, c->up_type, c->n_layer, c->up_bytes * n);
        add_type(in, c->down_type, c->n_layer, c->down_bytes * n);
    }
}

static int tensor_get(const inspection *in, uint64_t i, stk_tensor_info *t) {
    *t = (stk_tensor_info){.struct_bytes = sizeof *t};
    int rc = stk_model_get_tensor(in->session.model, i, t);
    return rc < 0 ? cli_fail_stk(rc, "inspect") : CLI_OK;
}

static int collect_classes(inspection *in) {
    in->n_class = (size_t)stk_model_n_expert_class(in->session.model);
    in->classes = calloc(in->n_class + 1, sizeof *in->classes);
    if (!in->classes) return cli_fail(CLI_FAILED, "inspect", "out of memory");
    for (size_t i = 0; i < in->n_class; i++) {
        in->classes[i].struct_bytes = sizeof in->classes[i];
        int rc = stk_model_get_expert_class(in->session.model, i, &in->classes[i]);
        if (rc < 0) return cli_fail_stk(rc, "inspect");
    }
    return CLI_OK;
}

static int collect(inspection *in) {
    stk_tensor_info t;
    bool packed = in->session.info.packed != 0;
    int rc = collect_classes(in);
    for (uint64_t i = 0; i < stk_model_n_tensor(in->session.model) && rc == CLI_OK; i++) {
        rc = tensor_get(in, i, &t);
        if (rc != CLI_OK) break;
        enum kind kind = kind_of(t.name);
        in->kinds[kind].n++;
        in->kinds[kind].bytes += t.bytes;
        if (!packed || (kind != KIND_EXPERTS && kind != KIND_OTHER)) add_type(in, t.type_name, 1, t.bytes);
    }
    if (packed) add_packed_types(in);
    return rc;
}

/* Reads all of a packed model. */
static int check(const inspection *in) {
    stk_pack_options o;
    stk_pack_options_default(&o, sizeof o);
    o.progress = cli_progress;
    int rc = stk_pack_check(in->session.model, &o);
    cli_progress_clear();
    return rc < 0 ? cli_fail_stk(rc, "inspect") : CLI_OK;
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
        const stk_expert_class_info *c = &in->classes[i];
        rc = cli_print("  %12s each in %u layers: gate %s up %s down %s\n", cli_bytes_text(c->bytes, a), c->n_layer, c->gate_type,
                       c->up_type, c->down_type);
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
    if (rc == CLI_OK && i->packed)
        rc = cli_print("packed (form %u): all weights lie as in memory, one contiguous range an expert; for Stoker alone%s\n",
                       i->packed, in->checked ? "; its checksums are right" : "");
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
        cJSON_AddStringToObject(o, "gate", in->classes[i].gate_type);
        cJSON_AddStringToObject(o, "up", in->classes[i].up_type);
        cJSON_AddStringToObject(o, "down", in->classes[i].down_type);
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
        {"packed", i->packed},
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
    if (rc == CLI_OK && settings->check) {
        rc = check(&in);
        in.checked = rc == CLI_OK;
    }
    if (rc == CLI_OK) rc = settings->json ? print_json(&in, settings->list_tensors) : print_text(&in, settings->list_tensors);
    free(in.classes);
    rc = cli_session_close(&in.session, rc);
    return rc;
}
