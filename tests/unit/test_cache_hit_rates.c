/*
 * cache: hit rates of real routing against published figures.
 *
 * The route.csv traces hold what the engine that wrote them found in its own LRU cache over all layers, lookup by lookup; it
 * computed the prompt as one event a layer. Its cache was counted in bytes and experts differ in size by layer, so agreement
 * falls just short of whole.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "cache/cache.h"

enum { MAX_LAYER = 64, MAX_EXPERT = 256, MAX_K = 8 };

/* An event under construction. */
typedef struct input {
    stk_event event;
    uint16_t distinct[MAX_EXPERT];
    uint32_t counts[MAX_EXPERT];
    uint32_t n[MAX_EXPERT];
} input;

static void finish(input *in) {
    in->event = (stk_event){.distinct = in->distinct, .counts = in->counts};
    for (uint32_t expert = 0; expert < MAX_EXPERT; expert++) {
        if (!in->n[expert]) continue;
        in->counts[in->event.n_distinct] = in->n[expert];
        in->distinct[in->event.n_distinct++] = (uint16_t)expert;
    }
    memset(in->n, 0, sizeof in->n);
}

static int look_up(stk_cache *cache, uint32_t layer, input *in, const stk_decision **list) {
    finish(in);
    int n = stk_cache_event(cache, layer, &in->event, list);
    cr_assert_geq(n, 0, "%s", stk_error_detail());
    return n;
}

/* One cache for all layers, or (n_layer classes) one for each. */
static stk_cache *open_cache(const char *policy, uint32_t n_layer, uint32_t n_expert, uint32_t k, uint32_t n_slot,
                             bool one_a_layer, const stk_future *future) {
    stk_cache_class classes[MAX_LAYER];
    uint32_t layer_class[MAX_LAYER];
    for (uint32_t i = 0; i < n_layer; i++) {
        classes[i] = (stk_cache_class){.n_slot = n_slot, .n_transit = k};
        layer_class[i] = one_a_layer ? i : 0;
    }
    const stk_cache_config config = {.n_layer = n_layer,
                                     .n_expert = n_expert,
                                     .k = k,
                                     .n_class = one_a_layer ? n_layer : 1,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .policy = policy,
                                     .future = future};
    stk_cache *cache;
    cr_assert_eq(stk_cache_open(&cache, &config), 0, "%s", stk_error_detail());
    return cache;
}

/* ---- route.csv ---------------------------------------------------------------------------------------------------------- */

typedef struct row {
    uint32_t phase, step, layer, rank, expert, resident;
} row;

/* Prompt rows by layer, then decode rows by token; each token's experts together. */
static int by_use(const void *a, const void *b) {
    const row *x = a, *y = b;
    if (x->phase != y->phase) return x->phase < y->phase ? -1 : 1;
    uint32_t x1 = x->phase ? x->step : x->layer, x2 = x->phase ? x->layer : x->step;
    uint32_t y1 = y->phase ? y->step : y->layer, y2 = y->phase ? y->layer : y->step;
    if (x1 != y1) return x1 < y1 ? -1 : 1;
    if (x2 != y2) return x2 < y2 ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

static row *parse_rows(char *text, size_t *n_row) {
    row *rows = malloc(sizeof *rows * (strlen(text) / 12 + 1));
    *n_row = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        row *r = &rows[*n_row];
        if (*line == '#' || *line == 't') continue;
        int n = sscanf(line, "%*u,%u,%u,%u,%u,%u,%*f,%u", &r->phase, &r->step, &r->layer, &r->rank, &r->expert, &r->resident);
        cr_assert(n == 6 && r->layer < MAX_LAYER && r->expert < MAX_EXPERT, "%s", line);
        ++*n_row;
    }
    qsort(rows, *n_row, sizeof *rows, by_use);
    return rows;
}

static bool same_event(const row *a, const row *b) {
    return a->phase == b->phase && a->layer == b->layer && (a->phase == 0 || a->step == b->step);
}

/* Of the decode lookups: how many hit, and how many the engine of the trace decided alike, in percent. */
static void replay_rows(const row *rows, size_t n_row, uint32_t n_slot, double *hit, double *agree) {
    stk_cache *cache = open_cache("lru", MAX_LAYER, MAX_EXPERT, MAX_K, n_slot, false, NULL);
    uint64_t n_lookup = 0, n_hit = 0, n_agree = 0;
    static input in;
    for (size_t begin = 0, end; begin < n_row; begin = end) {
        const stk_decision *list;
        uint32_t resident[MAX_EXPERT] = {0};
        for (end = begin; end < n_row && same_event(&rows[begin], &rows[end]); end++) {
            in.n[rows[end].expert]++;
            resident[rows[end].expert] = rows[end].resident;
        }
        int n = look_up(cache, rows[begin].layer, &in, &list);
        for (int i = 0; i < n && rows[begin].phase == 1; i++) {
            n_lookup++;
            n_hit += list[i].kind == STK_HIT;
            n_agree += (list[i].kind == STK_HIT) == resident[list[i].expert];
        }
    }
    *hit = 100.0 * (double)n_hit / (double)n_lookup;
    *agree = 100.0 * (double)n_agree / (double)n_lookup;
    stk_cache_close(&cache);
}

static void check_route(char *text, uint32_t n_slot, double want_hit) {
    size_t n_row;
    double hit, agree;
    row *rows = parse_rows(text, &n_row);
    replay_rows(rows, n_row, n_slot, &hit, &agree);
    cr_log_info("%u slots: %.2f %% hits, %.2f %% as in the engine", n_slot, hit, agree);
    cr_assert(hit > want_hit - 0.3 && hit < want_hit + 0.3, "%.2f %% hits, %.2f wanted", hit, want_hit);
    cr_assert_gt(agree, 99.7);
    free(rows);
    free(text);
}

static char *read_file(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*bytes + 1);
    cr_assert_eq(fread(text, 1, *bytes, f), *bytes);
    text[*bytes] = 0;
    fclose(f);
    return text;
}

Test(cache_hit_rates, gpt_oss_as_in_the_engine_of_the_trace) {
    size_t bytes;
    char *packed = read_file(STK_SAMPLES "/gptoss.route.csv.zst", &bytes);
    cr_assert_not_null(packed);
    size_t text_bytes = ZSTD_getFrameContentSize(packed, bytes);
    char *text = malloc(text_bytes + 1);
    cr_assert_eq(ZSTD_decompress(text, text_bytes, packed, bytes), text_bytes);
    text[text_bytes] = 0;
    free(packed);
    check_route(text, 237, 44.8);
}

Test(cache_hit_rates, qwen_and_gemma_as_in_the_engine_of_the_trace) {
    static const struct {
        const char *path;
        uint32_t n_slot;
        double hit;
    } cases[] = {{STK_SHARED "/traces/qwen.route.csv", 1468, 80.3}, {STK_SHARED "/traces/gemma.route.csv", 1064, 81.9}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        size_t bytes;
        char *text = read_file(cases[i].path, &bytes);
        if (!text) cr_skip_test("%s is not there", cases[i].path);
        check_route(text, cases[i].n_slot, cases[i].hit);
    }
}

/* ---- mrt8 --------------------------------------------------------------------------------------------------------------- */

enum { DS_LAYER = 26, DS_EXPERT = 64, DS_K = 6, DS_PROMPT = 38 };

static uint32_t read_u32(FILE *f) {
    uint32_t x;
    cr_assert_eq(fread(&x, sizeof x, 1, f), 1);
    return x;
}

/* DeepSeek-V2-Lite: the tokens of each prompt, and the experts of all [sum of n_tok, DS_LAYER, DS_K]. */
static unsigned char *read_mrt8(uint32_t *n_tok) {
    static const char path[] = STK_SHARED "/traces/dsv2lite_a.mrt8.xz";
    FILE *probe = fopen(path, "rb");
    if (!probe) cr_skip_test("%s is not there", path);
    fclose(probe);
    FILE *f = popen("exec xz -dc " STK_SHARED "/traces/dsv2lite_a.mrt8.xz", "r");
    char magic[4];
    if (!f || fread(magic, 1, 4, f) != 4) cr_skip_test("xz does not run");
    cr_assert_arr_eq(magic, "MRT8", 4);
    uint32_t n_layer = read_u32(f), n_expert = read_u32(f), k = read_u32(f), n_prompt = read_u32(f);
    cr_assert(n_layer == DS_LAYER && n_expert == DS_EXPERT && k == DS_K && n_prompt == DS_PROMPT);
    unsigned char *ids = NULL;
    size_t n = 0;
    for (uint32_t prompt = 0; prompt < DS_PROMPT; prompt++) {
        n_tok[prompt] = read_u32(f);
        (void)read_u32(f);
        size_t more = (size_t)n_tok[prompt] * DS_LAYER * DS_K;
        ids = realloc(ids, n + more);
        cr_assert_eq(fread(ids + n, 1, more, f), more);
        n += more;
    }
    pclose(f);
    return ids;
}

static void fill(input *in, const unsigned char *ids) {
    for (uint32_t j = 0; j < DS_K; j++) in->n[ids[j]]++;
    finish(in);
}

static stk_future *find_future(const unsigned char *ids, const uint32_t *n_tok) {
    static input in;
    stk_future *future;
    cr_assert_eq(stk_future_open(&future, DS_LAYER, DS_EXPERT, NULL), 0);
    for (uint32_t prompt = 0; prompt < DS_PROMPT; prompt++) {
        stk_future_cut(future);
        for (uint32_t i = 0; i < n_tok[prompt] * DS_LAYER; i++, ids += DS_K) {
            fill(&in, ids);
            cr_assert_eq(stk_future_add(future, i % DS_LAYER, &in.event), 0);
        }
    }
    cr_assert_eq(stk_future_end(future), 0);
    return future;
}

/* Each prompt from empty slots; what a policy remembers of experts that left stays. */
static double hit_rate(const char *policy, uint32_t n_slot, const unsigned char *ids, const uint32_t *n_tok,
                       const stk_future *future) {
    static input in;
    stk_cache *cache = open_cache(policy, DS_LAYER, DS_EXPERT, DS_K, n_slot, true, future);
    for (uint32_t prompt = 0; prompt < DS_PROMPT; prompt++) {
        cr_assert_eq(stk_cache_clear(cache), 0);
        for (uint32_t i = 0; i < n_tok[prompt] * DS_LAYER; i++, ids += DS_K) {
            const stk_decision *list;
            fill(&in, ids);
            cr_assert_eq(stk_cache_event(cache, i % DS_LAYER, &in.event, &list), DS_K, "%s", stk_error_detail());
        }
    }
    stk_cache_counters n;
    stk_cache_get_counters(cache, &n);
    stk_cache_close(&cache);
    return 100.0 * (double)n.n_hit / (double)n.n_lookup;
}

Test(cache_hit_rates, deepseek_v2_lite_a_quarter_and_a_half) {
    static const struct {
        const char *policy;
        double quarter, half;
    } cases[] = {
        {"lru", 47.9, 71.7}, {"lru2", 48.9, 73.1}, {"lfu", 31.6, 57.6}, {"belady", 66.9, 86.8}, {"belady-bypass", 70.2, 87.5}};
    uint32_t n_tok[DS_PROMPT];
    unsigned char *ids = read_mrt8(n_tok);
    stk_future *future = find_future(ids, n_tok);
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++)
        for (int half = 0; half < 2; half++) {
            double want = half ? cases[i].half : cases[i].quarter;
            double hit = hit_rate(cases[i].policy, DS_EXPERT / (half ? 2 : 4), ids, n_tok, future);
            cr_log_info("%s: %.2f %% hits", cases[i].policy, hit);
            cr_assert(hit > want - 0.3 && hit < want + 0.3, "%s: %.2f %% hits, %.2f wanted", cases[i].policy, hit, want);
        }
    stk_future_close(&future);
    free(ids);
}
