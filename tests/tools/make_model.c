/*
 * make_model: writes a GGUF mixture-of-experts model of random weights, the same bytes on every machine.
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

#include "tests/tools/blocks.h"

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
    {"quarter", "qwen3moe", 2048, 12, 32, 4, 128, 128, 8, 768, 32000, 40960, 1e6, "q4_k_m", 0, 1, 3, 1, "stacked"},
    {"full", "qwen3moe", 2048, 48, 32, 4, 128, 128, 8, 768, 32000, 40960, 1e6, "q4_k_m", 0, 1, 3, 1, "stacked"},
    {"mixtral", "llama", 4096, 4, 32, 8, 128, 8, 2, 14336, 32000, 32768, 1e6, "q4_k_m", 0, 1, 3, 1, "stacked"},
};

enum role { EMBD, ATTN_Q, ATTN_K, ATTN_V, ATTN_O, GATE, UP, DOWN, OUTPUT, N_ROLE };

/* Types by role for layer i of a mix: letter (i % strlen) of the role's text. */
typedef struct mix {
    const char *name;
    const char *role[N_ROLE];
} mix;
/* Letters: f F32, h F16, b BF16, 0 Q4_0, 8 Q8_0, 4 Q4_K, 5 Q5_K, 6 Q6_K. Only q4_k_m depends on the depth (see pick). */
static const mix mixes[] = {
    {"mixed", {"6", "48h5", "8b45", "6584", "5480", "4486", "4485", "6480", "6"}},
    {"small", {"8", "80h", "b80", "h8b", "b0f", "80b", "80b", "08b", "8"}},
    {"q4_k_m", {"4", "4", "4", "6", "4", "4", "4", "6", "6"}},
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
    if (!strcmp(s->types, "q4_k_m") && (role == ATTN_V || role == DOWN)) { /* the first and last eighth and every third between */
        uint64_t n = s->layers;
        c = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2 ? '6' : '4';
    }
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
    uint32_t block, block_bytes;
    blocks_size(type, &block, &block_bytes);
    if (n_in % block) die("the row is no multiple of the block", name);
    tensor *t = &tensors[n_tensor++];
    *t = (tensor){.type = type,
                  .n_dim = m   ? 3
                           : n ? 2
                               : 1,
                  .dim = {n_in, n ? n : 1, m ? m : 1},
                  .std = (float)(1.0 / sqrt((double)n_in))};
    snprintf(t->name, sizeof t->name, "%s.weight", name);
    t->bytes = n_in / block * block_bytes * t->dim[1] * t->dim[2];
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

/* ---- The file ---- */

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STR = 8, ARR = 9, U16 = 2 };

static FILE *file;
static uint64_t n_written, n_key;
static int counting; /* counts keys and bytes, writes nothing */

static void put(const void *p, size_t n) {
    if (!counting && fwrite(p, 1, n, file) != n) die("write failed", "");
    n_written += n;
}
static void put32(uint32_t v) { put(&v, 4); }
static void put64(uint64_t v) { put(&v, 8); }
static void put_str(const char *s) {
    put64(strlen(s));
    put(s, strlen(s));
}
static void key(const char *name, uint32_t type) {
    put_str(name);
    put32(type);
    n_key++;
}
static void key_u32(const char *name, uint64_t v) {
    key(name, U32);
    put32((uint32_t)v);
}
static void key_f32(const char *name, double v) {
    float f = (float)v;
    key(name, F32);
    put(&f, 4);
}
static void key_str(const char *name, const char *v) {
    key(name, STR);
    put_str(v);
}
static const char *of(const shape *s, const char *name) {
    static char text[64];
    snprintf(text, sizeof text, "%s.%s", s->arch, name);
    return text;
}

/* UTF-8 of the character that stands for a byte in byte-level BPE: printable ones stand for themselves, the others for U+0100 and
 * up. */
static const char *letter(uint32_t byte) {
    static char text[2][4];
    static int turn;
    uint32_t cp = byte, n = 0;
    if (!((byte >= 33 && byte < 127) || (byte >= 161 && byte != 173))) {
        for (uint32_t b = 0; b < byte; b++) n += !((b >= 33 && b < 127) || (b >= 161 && b != 173));
        cp = 256 + n;
    }
    char *t = text[turn ^= 1];
    snprintf(t, 4, cp < 128 ? "%c" : "%c%c", cp < 128 ? (int)cp : (int)(0xc0 | cp >> 6), (int)(0x80 | (cp & 63)));
    return t;
}

static void merge(uint64_t i, const char *between, char out[12]) {
    uint32_t a = (uint32_t)(i / 26);
    snprintf(out, 12, "%s%s%s", letter(a ? 'a' + a - 1 : ' '), between, letter('a' + (uint32_t)(i % 26)));
}

static void put_tokenizer(const shape *s) {
    uint64_t n_merge = s->vocab < 257 ? 0 : s->vocab - 257 < 702 ? s->vocab - 257 : 702;
    char text[40];
    key_str("tokenizer.ggml.model", "gpt2");
    key_str("tokenizer.ggml.pre", "qwen2");
    key("tokenizer.ggml.tokens", ARR);
    put32(STR), put64(s->vocab);
    put_str("<|endoftext|>");
    for (uint64_t i = 1; i < s->vocab; i++) {
        if (i <= 256)
            put_str(letter((uint32_t)i - 1));
        else if (i - 257 < n_merge)
            merge(i - 257, "", text), put_str(text);
        else
            snprintf(text, sizeof text, "<|unused_%" PRIu64 "|>", i), put_str(text);
    }
    key("tokenizer.ggml.token_type", ARR);
    put32(I32), put64(s->vocab);
    for (uint64_t i = 0; i < s->vocab; i++) put32(i == 0 ? 3 : i < 257 + n_merge ? 1 : 5); /* control, normal, unused */
    key("tokenizer.ggml.merges", ARR);
    put32(STR), put64(n_merge);
    for (uint64_t i = 0; i < n_merge; i++) merge(i, " ", text), put_str(text);
    key_u32("tokenizer.ggml.bos_token_id", 0);
    key_u32("tokenizer.ggml.eos_token_id", 0);
    key("tokenizer.ggml.add_bos_token", BOOL);
    put("", 1);
}

static void put_model_keys(const shape *s) {
    char name[48];
    snprintf(name, sizeof name, "random-%s-%s", s->name, s->types);
    key_str("general.architecture", s->arch);
    key_str("general.name", name);
    key_u32("general.quantization_version", 2);
    key_u32(of(s, "context_length"), s->ctx);
    key_u32(of(s, "embedding_length"), s->embd);
    key_u32(of(s, "block_count"), s->layers);
    key_u32(of(s, "feed_forward_length"), !strcmp(s->arch, "llama") ? s->ff : s->ff * s->used);
    key_u32(of(s, "attention.head_count"), s->heads);
    key_u32(of(s, "attention.head_count_kv"), s->kv);
    key_u32(of(s, "attention.key_length"), s->head_dim);
    key_u32(of(s, "attention.value_length"), s->head_dim);
    key_f32(of(s, "attention.layer_norm_rms_epsilon"), 1e-6);
    key_f32(of(s, "rope.freq_base"), s->theta);
    key_u32(of(s, "rope.dimension_count"), s->head_dim);
    key_u32(of(s, "expert_count"), s->experts);
    key_u32(of(s, "expert_used_count"), s->used);
    key_u32(of(s, "vocab_size"), s->vocab);
    if (!strcmp(s->arch, "qwen3moe")) key_u32(of(s, "expert_feed_forward_length"), s->ff);
    put_tokenizer(s);
}

static void put_keys(const shape *s, uint64_t part) {
    if (part == 0) put_model_keys(s);
    if (s->parts < 2) return;
    key("split.no", U16);
    put(&(uint16_t){(uint16_t)part}, 2);
    key("split.count", U16);
    put(&(uint16_t){(uint16_t)s->parts}, 2);
    key("split.tensors.count", I32);
    put32((uint32_t)n_tensor);
}

static void put_infos(uint64_t from, uint64_t to) {
    uint64_t at = 0;
    for (uint64_t i = from; i < to; i++) {
        tensor *t = &tensors[i];
        put_str(t->name);
        put32(t->n_dim);
        for (uint32_t d = 0; d < t->n_dim; d++) put64(t->dim[d]);
        put32((uint32_t)t->type);
        put64(at);
        at += (t->bytes + 31) / 32 * 32;
    }
}

static void pad(void) {
    static const char zero[32];
    put(zero, (32 - n_written % 32) % 32);
}

/* n weights of a tensor whose seed comes from `name`. */
static void put_matrix(const shape *s, const tensor *t, const char *name, uint64_t n) {
    static uint8_t buffer[1 << 20];
    uint32_t block, block_bytes;
    blocks_size(t->type, &block, &block_bytes);
    uint64_t seed = s->seed, most = sizeof buffer / block_bytes * block;
    for (const char *c = name; *c; c++) seed = (seed ^ (uint8_t)*c) * 0x100000001b3u;
    rng r;
    rng_seed(&r, seed);
    while (n) {
        uint64_t now = n < most ? n : most;
        blocks_fill(&r, t->type, t->std, now, buffer);
        for (uint64_t i = 0; t->mean != 0.0f && i < now; i++) { /* norms: F32 around 1 */
            float x;
            memcpy(&x, buffer + 4 * i, 4);
            x += t->mean;
            memcpy(buffer + 4 * i, &x, 4);
        }
        put(buffer, now / block * block_bytes);
        n -= now;
    }
}

/* Every matrix has a seed of its own, so that weights depend neither on how experts are stored nor on how a model is cut into
 * files. */
static void put_weights(const shape *s, const tensor *t) {
    if (!t->holds[0]) put_matrix(s, t, t->name, t->dim[0] * t->dim[1]);
    for (uint64_t e = 0; t->holds[0] && e < t->dim[2]; e++) {
        for (int i = 0; i < 2 && t->holds[i]; i++) {
            char name[32];
            snprintf(name, sizeof name, "%s.%" PRIu64, t->holds[i], t->expert + e);
            put_matrix(s, t, in_layer(t->layer, name), t->dim[0] * t->dim[1] / (t->holds[1] ? 2 : 1));
        }
    }
    pad();
}

static void write_part(const shape *s, const char *path, uint64_t part, uint64_t from, uint64_t to) {
    counting = 1, n_key = 0;
    put_keys(s, part);
    uint64_t keys = n_key;
    counting = 0, n_written = 0;
    if (!(file = fopen(path, "wb"))) die("cannot create", path);
    put("GGUF", 4);
    put32((uint32_t)s->version);
    put64(to - from);
    put64(keys);
    put_keys(s, part);
    put_infos(from, to);
    pad();
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
    if (!s.layers || s.layers > MAX_LAYER || !s.vocab || !s.parts || s.parts > 999) die("a size is out of range", argv[1]);
    add_all(&s);
    write_all(&s, argv[2]);
    return 0;
}
