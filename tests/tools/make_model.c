/*
 * make_model: writes a small GGUF mixture-of-experts model of random weights, the same bytes on every machine, for the gates:
 * sizes that are no multiples of anything, every format in one model, and the forms in which experts are stored. `stoker synth`
 * writes the shapes of real models.
 *
 *     make_model PRESET OUT.gguf [KEY=VALUE...]
 *
 * Keys override the preset: layers, experts, used, vocab, ctx, seed, tied (0 or 1), types (see `mixes`), version (2 or 3), form
 * (how experts are stored: stacked; fused, gate and up in one tensor; single, one tensor an expert, as files once were), parts
 * (above 1: a split model OUT-00001-of-0000N.gguf). The tokenizer is byte-level BPE: bytes, merges of two letters, fillers.
 * Memory use is a few MB whatever the size.
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/model/gguf_write.h"
#include "src/synth/synth_blocks.h"
#include "src/synth/synth_vocab.h"

enum { MAX_TENSOR = 16384, MAX_LAYER = 64 };
#define ALL UINT64_MAX

typedef struct shape {
    const char *name, *arch;
    uint64_t embd, layers, heads, kv, head_dim, experts, used, ff, vocab, ctx;
    double theta;
    const char *types;
    uint64_t tied, seed, version, parts;
    const char *form;
} shape;

static const shape presets[] = {
    {"r768", "qwen3moe", 768, 4, 12, 4, 64, 16, 4, 768, 500, 4096, 1e6, "mixed", 0, 1, 3, 1, "stacked"},
    {"r2048", "llama", 2048, 2, 16, 4, 128, 8, 2, 1792, 500, 4096, 1e6, "mixed", 0, 1, 3, 1, "stacked"},
    {"r352", "qwen3moe", 352, 3, 6, 3, 48, 11, 3, 160, 333, 4096, 1e4, "small", 1, 1, 3, 1, "stacked"},
};

enum role { EMBD, ATTN_Q, ATTN_K, ATTN_V, ATTN_O, GATE, UP, DOWN, OUTPUT, N_ROLE };

/* Types by role for layer i of a mix: letter (i % strlen) of the role's text. */
typedef struct mix {
    const char *name;
    const char *role[N_ROLE];
} mix;
/* Letters: f F32, h F16, b BF16, 0 Q4_0, 8 Q8_0, 4 Q4_K, 5 Q5_K, 6 Q6_K. */
static const mix mixes[] = {
    {"mixed", {"6", "48h5", "8b45", "6584", "5480", "4486", "4485", "6480", "6"}},
    {"small", {"8", "80h", "b80", "h8b", "b0f", "80b", "80b", "08b", "8"}},
    {"f32", {"f", "f", "f", "f", "f", "f", "f", "f", "f"}},
    {"f16", {"h", "h", "h", "h", "h", "h", "h", "h", "h"}},
    {"bf16", {"b", "b", "b", "b", "b", "b", "b", "b", "b"}},
    {"q8_0", {"8", "8", "8", "8", "8", "8", "8", "8", "8"}},
    {"q4_0", {"0", "0", "0", "0", "0", "0", "0", "0", "0"}},
    {"q4_k", {"4", "4", "4", "4", "4", "4", "4", "4", "4"}},
    {"q5_k", {"5", "5", "5", "5", "5", "5", "5", "5", "5"}},
    {"q6_k", {"6", "6", "6", "6", "6", "6", "6", "6", "6"}},
};

typedef struct tensor {
    char name[64];
    enum stk_type type;
    uint32_t n_dim;
    uint64_t dim[3];
    float std, mean;
    uint64_t bytes;
    const char *holds[2];   /* of experts: one matrix or two fused ones, such as "ffn_gate", "ffn_up"; else NULL */
    uint64_t layer, expert; /* of experts: of the first matrix */
} tensor;

static tensor tensors[MAX_TENSOR];
static uint64_t n_tensor;

static void die(const char *what, const char *detail) {
    fprintf(stderr, "make_model: %s%s%s\n", what, *detail ? ": " : "", detail);
    exit(1);
}

/* ---- What the model holds ---- */

static enum stk_type pick(const shape *s, enum role role, uint64_t layer) {
    const mix *m = NULL;
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        if (!strcmp(mixes[i].name, s->types)) m = &mixes[i];
    }
    if (!m) die("no such types", s->types);
    char c = m->role[role][layer % strlen(m->role[role])];
    switch (c) {
    case 'f': return STK_TYPE_F32;
    case 'h': return STK_TYPE_F16;
    case 'b': return STK_TYPE_BF16;
    case '0': return STK_TYPE_Q4_0;
    case '8': return STK_TYPE_Q8_0;
    case '4': return STK_TYPE_Q4_K;
    case '5': return STK_TYPE_Q5_K;
    default: return STK_TYPE_Q6_K;
    }
}

/* Adds a tensor of n rows (0: a vector) times m matrices (0: one); dim 0 is n_in. Weights of a matrix keep the size of what they
 * multiply. */
static tensor *add(const char *name, enum stk_type type, uint64_t n_in, uint64_t n, uint64_t m) {
    if (n_tensor == MAX_TENSOR) die("too many tensors", name);
    const stk_type_info *info = stk_type_info_get(type);
    if (n_in % info->block) die("the row is no multiple of the block", name);
    tensor *t = &tensors[n_tensor++];
    *t = (tensor){.type = type,
                  .n_dim = m   ? 3
                           : n ? 2
                               : 1,
                  .dim = {n_in, n ? n : 1, m ? m : 1},
                  .std = (float)(1.0 / sqrt((double)n_in))};
    snprintf(t->name, sizeof t->name, "%s.weight", name);
    t->bytes = n_in / info->block * info->block_bytes * t->dim[1] * t->dim[2];
    return t;
}

static void add_norm(const char *name, uint64_t n) {
    tensor *t = add(name, STK_TYPE_F32, n, 0, 0);
    t->mean = 1.0f;
    t->std = 0.1f;
}

static const char *in_layer(uint64_t layer, const char *name) {
    static char text[48];
    snprintf(text, sizeof text, "blk.%" PRIu64 ".%s", layer, name);
    return text;
}

/* Matrices `first` and, where they are fused, `second` of all experts of a layer, or of expert `only`. */
static void add_expert(const shape *s, uint64_t layer, const char *name, const char *first, const char *second, uint64_t only) {
    bool down = !strcmp(first, "ffn_down");
    enum stk_type type = pick(s, down ? DOWN : !strcmp(first, "ffn_up") ? UP : GATE, layer);
    uint64_t rows = down ? s->embd : s->ff;
    tensor *t = add(in_layer(layer, name), type, down ? s->ff : s->embd, second ? 2 * rows : rows, only == ALL ? s->experts : 0);
    t->holds[0] = first;
    t->holds[1] = second;
    t->layer = layer;
    t->expert = only == ALL ? 0 : only;
}

static void add_experts(const shape *s, uint64_t l) {
    static const char *const parts[] = {"ffn_gate", "ffn_down", "ffn_up"};
    char name[32];
    if (!strcmp(s->form, "single")) {
        for (uint64_t i = 0; i < 3 * s->experts; i++) {
            snprintf(name, sizeof name, "%s.%" PRIu64, parts[i % 3], i / 3);
            add_expert(s, l, name, parts[i % 3], NULL, i / 3);
        }
    } else if (!strcmp(s->form, "fused")) {
        if (pick(s, GATE, l) != pick(s, UP, l)) die("gate and up of different types cannot be fused", "");
        add_expert(s, l, "ffn_gate_up_exps", "ffn_gate", "ffn_up", ALL);
        add_expert(s, l, "ffn_down_exps", "ffn_down", NULL, ALL);
    } else if (!strcmp(s->form, "stacked")) {
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%s_exps", parts[i]);
            add_expert(s, l, name, parts[i], NULL, ALL);
        }
    } else
        die("no such form", s->form);
}

static void add_all(const shape *s) {
    uint64_t q = s->heads * s->head_dim, kv = s->kv * s->head_dim;
    tensor *t = add("token_embd", pick(s, EMBD, 0), s->embd, s->vocab, 0);
    t->std = s->tied ? 2.0f * t->std : 1.0f;
    for (uint64_t l = 0; l < s->layers; l++) {
        add_norm(in_layer(l, "attn_norm"), s->embd);
        add(in_layer(l, "attn_q"), pick(s, ATTN_Q, l), s->embd, q, 0)->std *= 1.5f;
        add(in_layer(l, "attn_k"), pick(s, ATTN_K, l), s->embd, kv, 0)->std *= 1.5f;
        add(in_layer(l, "attn_v"), pick(s, ATTN_V, l), s->embd, kv, 0);
        add(in_layer(l, "attn_output"), pick(s, ATTN_O, l), q, s->embd, 0);
        if (!strcmp(s->arch, "qwen3moe")) {
            add_norm(in_layer(l, "attn_q_norm"), s->head_dim);
            add_norm(in_layer(l, "attn_k_norm"), s->head_dim);
        }
        add_norm(in_layer(l, "ffn_norm"), s->embd);
        add(in_layer(l, "ffn_gate_inp"), STK_TYPE_F32, s->embd, s->experts, 0);
        add_experts(s, l);
    }
    add_norm("output_norm", s->embd);
    if (!s->tied) add("output", pick(s, OUTPUT, 0), s->embd, s->vocab, 0)->std *= 3.0f;
}

/* ---- The file ----------------------------------------------------------------------------------------------------------- */

static FILE *file;

static void put(const void *p, size_t n) {
    if (fwrite(p, 1, n, file) != n) die("write failed", "");
}

static const char *of(const shape *s, const char *name) {
    static char text[64];
    snprintf(text, sizeof text, "%s.%s", s->arch, name);
    return text;
}

static void put_model_keys(stk_gguf_writer *w, const shape *s) {
    char name[48];
    snprintf(name, sizeof name, "random-%s-%s", s->name, s->types);
    stk_gguf_put_str(w, "general.architecture", s->arch);
    stk_gguf_put_str(w, "general.name", name);
    stk_gguf_put_u32(w, "general.quantization_version", 2);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"context_length", s->ctx},
        {"embedding_length", s->embd},
        {"block_count", s->layers},
        {"feed_forward_length", !strcmp(s->arch, "llama") ? s->ff : s->ff * s->used},
        {"attention.head_count", s->heads},
        {"attention.head_count_kv", s->kv},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim},
        {"rope.dimension_count", s->head_dim},
        {"expert_count", s->experts},
        {"expert_used_count", s->used},
        {"vocab_size", s->vocab},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        stk_gguf_put_u32(w, of(s, counts[i].key), (uint32_t)counts[i].value);
    stk_gguf_put_f32(w, of(s, "attention.layer_norm_rms_epsilon"), 1e-6f);
    stk_gguf_put_f32(w, of(s, "rope.freq_base"), (float)s->theta);
    if (!strcmp(s->arch, "qwen3moe")) stk_gguf_put_u32(w, of(s, "expert_feed_forward_length"), (uint32_t)s->ff);
    stk_synth_put_vocab(w, (uint32_t)s->vocab);
}

static void put_split_keys(stk_gguf_writer *w, const shape *s, uint64_t part) {
    stk_gguf_put_u16(w, "split.no", (uint16_t)part);
    stk_gguf_put_u16(w, "split.count", (uint16_t)s->parts);
    stk_gguf_put_i32(w, "split.tensors.count", (int32_t)n_tensor);
}

/* n weights of a tensor whose seed comes from `name`. */
static void put_matrix(const shape *s, const tensor *t, const char *name, uint64_t n) {
    static uint8_t buffer[1 << 20];
    const stk_type_info *info = stk_type_info_get(t->type);
    uint64_t most = sizeof buffer / info->block_bytes * info->block;
    stk_synth_rng r;
    stk_synth_seed(&r, stk_synth_seed_of(s->seed, name));
    while (n) {
        uint64_t now = n < most ? n : most;
        stk_synth_fill(&r, t->type, t->std, now, buffer);
        for (uint64_t i = 0; t->mean != 0.0f && i < now; i++) { /* norms: F32 around 1 */
            float x;
            memcpy(&x, buffer + 4 * i, 4);
            x += t->mean;
            memcpy(buffer + 4 * i, &x, 4);
        }
        put(buffer, now / info->block * info->block_bytes);
        n -= now;
    }
}

/* Every matrix has a seed of its own, so that weights depend neither on how experts are stored nor on how a model is cut into
 * files. */
static void put_weights(const shape *s, const tensor *t) {
    static const char zero[STK_GGUF_WRITE_ALIGN];
    if (!t->holds[0]) put_matrix(s, t, t->name, t->dim[0] * t->dim[1]);
    for (uint64_t e = 0; t->holds[0] && e < t->dim[2]; e++) {
        for (int i = 0; i < 2 && t->holds[i]; i++) {
            char name[32];
            snprintf(name, sizeof name, "%s.%" PRIu64, t->holds[i], t->expert + e);
            put_matrix(s, t, in_layer(t->layer, name), t->dim[0] * t->dim[1] / (t->holds[1] ? 2 : 1));
        }
    }
    put(zero, (size_t)(stk_align_up(t->bytes, STK_GGUF_WRITE_ALIGN) - t->bytes));
}

static void write_part(const shape *s, const char *path, uint64_t part, uint64_t from, uint64_t to) {
    stk_gguf_writer w = {0};
    const uint8_t *head;
    size_t head_bytes;
    if (part == 0) put_model_keys(&w, s);
    if (s->parts > 1) put_split_keys(&w, s, part);
    for (uint64_t i = from; i < to; i++) {
        const tensor *t = &tensors[i];
        stk_gguf_put_tensor(&w, t->name, t->type, t->n_dim, t->dim, t->bytes);
    }
    if (stk_gguf_write_head(&w, (uint32_t)s->version, &head, &head_bytes) < 0) die(stk_error_detail(), path);
    if (!(file = fopen(path, "wb"))) die("cannot create", path);
    put(head, head_bytes);
    stk_gguf_write_fini(&w);
    for (uint64_t i = from; i < to; i++) put_weights(s, &tensors[i]);
    if (fclose(file)) die("write failed", path);
}

/* Cuts after the tensor that reaches the part's share of all bytes. */
static void write_all(const shape *s, const char *path) {
    uint64_t total = 0, done = 0, from = 0;
    for (uint64_t i = 0; i < n_tensor; i++) total += tensors[i].bytes;
    for (uint64_t part = 0; part < s->parts; part++) {
        uint64_t to = from;
        while (to < n_tensor && (part + 1 == s->parts || done < total / s->parts * (part + 1))) done += tensors[to++].bytes;
        char name[4096];
        size_t stem = strlen(path) > 5 && !strcmp(path + strlen(path) - 5, ".gguf") ? strlen(path) - 5 : strlen(path);
        int n = s->parts < 2 ? snprintf(name, sizeof name, "%s", path)
                             : snprintf(name, sizeof name, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)stem, path, part + 1,
                                        s->parts);
        if (n < 0 || (size_t)n >= sizeof name) die("path too long", path);
        write_part(s, name, part, from, to);
        from = to;
    }
}

static void set(shape *s, char *arg) {
    char *value = strchr(arg, '=');
    if (!value) die("KEY=VALUE expected", arg);
    *value++ = 0;
    const struct {
        const char *key;
        uint64_t *n;
        const char **text;
    } keys[] = {
        {"layers", &s->layers, NULL}, {"experts", &s->experts, NULL}, {"used", &s->used, NULL}, {"vocab", &s->vocab, NULL},
        {"ctx", &s->ctx, NULL},       {"seed", &s->seed, NULL},       {"tied", &s->tied, NULL}, {"version", &s->version, NULL},
        {"parts", &s->parts, NULL},   {"types", NULL, &s->types},     {"form", NULL, &s->form}, {"arch", NULL, &s->arch},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(keys[i].key, arg)) continue;
        if (keys[i].text)
            *keys[i].text = value;
        else
            *keys[i].n = strtoull(value, NULL, 10);
        return;
    }
    die("no such key", arg);
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: make_model PRESET OUT.gguf [KEY=VALUE...]", "");
    shape s = {0};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (!strcmp(presets[i].name, argv[1])) s = presets[i];
    }
    if (!s.name) die("no such preset", argv[1]);
    for (int i = 3; i < argc; i++) set(&s, argv[i]);
    if (!s.layers || s.layers > MAX_LAYER || s.vocab < STK_SYNTH_MIN_VOCAB || !s.parts || s.parts > 999)
        die("a size is out of range", argv[1]);
    add_all(&s);
    write_all(&s, argv[2]);
    return 0;
}
