#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gates/probe.h"

static const struct verb {
    const char *name;
    int (*run)(probe *p);
} verbs[] = {
    {"bits", probe_bits},     {"greedy", probe_greedy}, {"stats", probe_stats}, {"seqs", probe_seqs},
    {"steady", probe_steady}, {"cancel", probe_cancel}, {"eio", probe_eio},
};

/* "7" is a count of drawn tokens, "1,2,3" a list. */
static void parse_tokens(probe *p, const char *text) {
    p->n_tokens = 1;
    for (const char *c = text; *c; c++) p->n_tokens += *c == ',';
    if (p->n_tokens == 1) {
        p->n_tokens = (uint32_t)strtoul(text, NULL, 10);
        return;
    }
    p->tokens = probe_alloc(p->n_tokens * sizeof *p->tokens);
    char *at = (char *)text;
    for (uint32_t i = 0; i < p->n_tokens; i++) p->tokens[i] = (int32_t)strtol(at + (i > 0), &at, 10);
}

static void parse(probe *p, const char *key, const char *value) {
    stk_engine_options *o = &p->options;
    uint64_t n = strtoull(value, NULL, 10);
    if (!strcmp(key, "ram"))
        o->ram_bytes = n;
    else if (!strcmp(key, "io"))
        o->io = value;
    else if (!strcmp(key, "cpu"))
        o->cpu = value;
    else if (!strcmp(key, "policy"))
        o->policy = value;
    else if (!strcmp(key, "predictor"))
        o->predictor = value;
    else if (!strcmp(key, "lookahead"))
        o->predict_depth = (uint32_t)n;
    else if (!strcmp(key, "trace"))
        o->trace = value;
    else if (!strcmp(key, "t"))
        o->n_threads = (uint32_t)n;
    else if (!strcmp(key, "ctx"))
        o->n_ctx = (uint32_t)n;
    else if (!strcmp(key, "batch"))
        o->n_batch = (uint32_t)n;
    else if (!strcmp(key, "seqs"))
        o->n_seq_max = (uint32_t)n;
    else if (!strcmp(key, "seed"))
        o->seed = n;
    else if (!strcmp(key, "mlock"))
        o->mlock = (uint32_t)n;
    else if (!strcmp(key, "kv"))
        o->kv_k_type = o->kv_v_type = !strcmp(value, "f32") ? STK_KV_F32 : STK_KV_F16;
    else if (!strcmp(key, "tokens"))
        parse_tokens(p, value);
    else if (!strcmp(key, "device"))
        o->device = value;
    else if (!strcmp(key, "vram"))
        o->vram_bytes = n ? n : STK_NO_VRAM;
    else if (!strcmp(key, "vram_policy"))
        o->vram_policy = value;
    else if (!strcmp(key, "cpu_layers"))
        o->n_cpu_layers = (uint32_t)n;
    else if (!strcmp(key, "pin"))
        o->pin_bytes = n;
    else if (!strcmp(key, "place"))
        p->place = (uint32_t)n;
    else if (!strcmp(key, "n"))
        p->n = (uint32_t)n;
    else
        probe_die("no such key: %s", key);
}

int main(int argc, char **argv) {
    probe p = {.options.struct_bytes = sizeof p.options};
    if (argc < 3) probe_die("usage: probe VERB MODEL [KEY=VALUE...]");
    stk_engine_options_default(&p.options, sizeof p.options);
    p.options.n_batch = 512;
    p.path = argv[2];
    for (int i = 3; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) probe_die("KEY=VALUE expected: %s", argv[i]);
        *value = 0;
        parse(&p, argv[i], value + 1);
    }
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(argv[1], verbs[i].name)) continue;
        int rc = verbs[i].run(&p);
        free(p.tokens);
        return rc;
    }
    probe_die("no such verb: %s", argv[1]);
}
