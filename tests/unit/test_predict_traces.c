/*
 * predict: what the predictors are worth on real routing. DeepSeek-V2-Lite: learned from the even prompts, reported on the odd
 * ones, and the other way round; expert ids only, each token a step.
 */
#include <criterion/criterion.h>

#include "cache/cache.h"
#include "tests/alloc_count.h"
#include "tests/predict_traces.h"

/* ---- Recall and prefetch of the mix ------------------------------------------------------------------------------------- */

enum { N_P = 8 };
static const float least_p[N_P] = {0.10f, 0.11f, 0.12f, 0.13f, 0.14f, 0.15f, 0.17f, 0.20f};

/* A cache a layer, of a quarter of its experts; what is not in it and likely enough is fetched beside it. */
typedef struct prefetcher {
    stk_cache *cache;
    uint32_t n_expert;
    uint64_t n_lookup, n_miss, n_covered[N_P], n_fetch[N_P];
    double coverage, fetches; /* means of both halves, at the p that was chosen on the other half; the latter by the LRU's */
} prefetcher;

static void open_cache(prefetcher *f, const pt_trace *t) {
    stk_cache_class classes[64];
    uint32_t layer_class[64];
    for (uint32_t l = 0; l < t->n_layer; l++) {
        classes[l] = (stk_cache_class){.n_slot = t->n_expert / 4};
        layer_class[l] = l;
    }
    const stk_cache_config config = {.n_layer = t->n_layer,
                                     .n_expert = t->n_expert,
                                     .k = t->k,
                                     .n_class = t->n_layer,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .policy = "lru"};
    cr_assert_eq(stk_cache_open(&f->cache, &config), 0, "%s", stk_error_detail());
    f->n_expert = t->n_expert;
}

static void hear(void *user, const stk_event *event, const stk_suggestion *list, int n) {
    prefetcher *f = user;
    uint32_t first = event->layer * f->n_expert;
    f->n_lookup += event->n_distinct;
    for (uint32_t i = 0; i < event->n_distinct; i++) f->n_miss += stk_cache_slot(f->cache, first + event->distinct[i]) < 0;
    for (uint32_t t = 0; t < N_P; t++) {
        for (int i = 0; i < n && list[i].p >= least_p[t]; i++)
            f->n_fetch[t] += stk_cache_slot(f->cache, first + list[i].expert) < 0;
        for (uint32_t i = 0; i < event->n_distinct; i++) {
            bool covered =
                stk_cache_slot(f->cache, first + event->distinct[i]) >= 0 || pe_p(list, n, event->distinct[i]) >= least_p[t];
            f->n_covered[t] += covered;
            f->n_fetch[t] += !covered;
        }
    }
    const stk_decision *decisions;
    cr_assert_geq(stk_cache_event(f->cache, event->layer, event, &decisions), 0);
}

static void forget_counts(prefetcher *f) {
    f->n_lookup = f->n_miss = 0;
    memset(f->n_covered, 0, sizeof f->n_covered);
    memset(f->n_fetch, 0, sizeof f->n_fetch);
}

/* The lowest p that keeps to twice the LRU's fetches, less a margin for other text. */
static uint32_t choose_p(const prefetcher *f) {
    uint32_t i = 0;
    while (i + 1 < N_P && (double)f->n_fetch[i] > 1.95 * (double)f->n_miss) i++;
    return i;
}

static void run_part(const stk_predictor_ops *ops, stk_predictor *p, const pt_trace *t, uint32_t begin, uint32_t end,
                     uint64_t *step, stk_score *card, prefetcher *f) {
    for (uint32_t s = begin; s < end; s += 2) {
        if (f) cr_assert_eq(stk_cache_clear(f->cache), 0);
        cr_assert(pt_run(ops, p, t, s, step, card, card ? 1 : 0, f ? hear : NULL, f));
    }
}

/* Learned from one half of the prompts, reported on the other; the means of both ways. What the prefetcher's p should be is told
 * by the later prompts of the half that is learned from. */
static void both_halves(const char *name, const pt_trace *t, double *recall, double *recall2, prefetcher *f) {
    const stk_predictor_ops *ops = stk_predictor_find(name);
    const stk_predictor_config config = {.n_layer = t->n_layer, .n_expert = t->n_expert, .k = t->k, .params = "depth=1"};
    *recall = *recall2 = 0.0;
    for (uint32_t half = 0; half < 2; half++) {
        stk_predictor *p;
        stk_score *card, *unread;
        stk_score_figures figures;
        uint64_t step = 0;
        uint32_t at = 0, middle = half + t->n_seq / 4 * 2;
        cr_assert_eq(ops->open(&p, &config), 0, "%s", stk_error_detail());
        cr_assert_eq(stk_score_open(&card, &config, t->n_expert), 0);
        cr_assert_eq(stk_score_open(&unread, &config, t->n_expert), 0);
        run_part(ops, p, t, half, middle, &step, NULL, NULL);
        if (f) forget_counts(f);
        run_part(ops, p, t, middle, t->n_seq, &step, f ? unread : NULL, f);
        if (f) {
            at = choose_p(f);
            cr_log_info("chosen: p = %.2f, fetches %.3f x the LRU's", (double)least_p[at],
                        (double)f->n_fetch[at] / (double)f->n_miss);
            forget_counts(f);
        }
        run_part(ops, p, t, 1 - half, t->n_seq, &step, card, f);
        if (f) {
            f->coverage += 0.5 * (double)f->n_covered[at] / (double)f->n_lookup;
            f->fetches += 0.5 * (double)f->n_fetch[at] / (double)f->n_miss;
        }
        stk_score_get(card, 1, &figures);
        *recall += 50.0 * (double)figures.n_found / (double)figures.n_lookup;
        *recall2 += 50.0 * (double)figures.n_found2 / (double)figures.n_lookup;
        double told = figures.p_sum / (double)figures.all.n_used;
        cr_assert(told > 0.9 && told < 1.1, "%s: probabilities add up to %.3f of what was used", name, told);
        stk_score_close(&card);
        stk_score_close(&unread);
        ops->close(p);
    }
}

static void open_deepseek(pt_trace *t) {
    if (!ALLOC_COUNTED) cr_skip_test("a million events take minutes under a sanitizer");
    if (!pt_mrt8(t, STK_SHARED "/traces/dsv2lite_a.mrt8.xz"))
        cr_skip_test("no " STK_SHARED "/traces/dsv2lite_a.mrt8.xz, or no xz");
}

Test(predict_traces, the_mix_on_deepseek_v2_lite) {
    static pt_trace t;
    prefetcher f = {0};
    double recall, recall2;
    open_deepseek(&t);
    open_cache(&f, &t);
    both_halves("mix", &t, &recall, &recall2, &f);
    cr_log_info("mix: recall@6 %.2f %%, recall@12 %.2f %%", recall, recall2);
    cr_log_info("prefetch: coverage %.2f %%, fetches %.3f x the LRU's", 100.0 * f.coverage, f.fetches);
    cr_assert_geq(recall, 62.0);
    cr_assert_geq(recall2, 81.0);
    cr_assert_geq(f.coverage, 0.85);
    cr_assert_leq(f.fetches, 2.0);
    stk_cache_close(&f.cache);
    pt_free(&t);
}

/* What each is known to reach on the first prompts, less half a point. */
Test(predict_traces, each_part_on_deepseek_v2_lite) {
    static const struct {
        const char *name;
        double recall, recall2;
    } want[] = {{"popularity", 10.9, 22.0}, {"previous", 27.7, 35.0}, {"history", 25.2, 40.9}, {"transition", 27.1, 43.5},
                {"crosslayer", 42.8, 61.8}, {"matrices", 21.1, 35.8}, {"path", 63.1, 81.8}};
    static pt_trace t;
    double recall, recall2;
    open_deepseek(&t);
    t.n_seq = 8; /* enough to tell, and quick */
    for (size_t i = 0; i < STK_ARRAY_LEN(want); i++) {
        both_halves(want[i].name, &t, &recall, &recall2, NULL);
        cr_log_info("%s: recall@6 %.2f %%, recall@12 %.2f %%", want[i].name, recall, recall2);
        cr_assert(recall >= want[i].recall && recall2 >= want[i].recall2, "%s: %.2f, %.2f", want[i].name, recall, recall2);
    }
    pt_free(&t);
}

/* A short trace from a cold start: the mix is at least as good as the best of its parts. */
Test(predict_traces, the_mix_from_a_cold_start) {
    static const char *const paths[] = {STK_SHARED "/traces/qwen.route.csv", STK_SHARED "/traces/gemma.route.csv",
                                        STK_SHARED "/traces/gptoss.route.csv"};
    for (size_t i = 0; i < STK_ARRAY_LEN(paths); i++) {
        static const char *const names[] = {"mix", "path", "crosslayer", "history"};
        double recall[STK_ARRAY_LEN(names)];
        static pt_trace t;
        if (!pt_route(&t, paths[i])) cr_skip_test("no %s", paths[i]);
        for (size_t j = 0; j < STK_ARRAY_LEN(names); j++) {
            const stk_predictor_ops *ops = stk_predictor_find(names[j]);
            const stk_predictor_config config = {.n_layer = t.n_layer, .n_expert = t.n_expert, .k = t.k, .params = "depth=1"};
            stk_predictor *p;
            stk_score *card;
            stk_score_figures figures;
            uint64_t step = 0;
            cr_assert_eq(ops->open(&p, &config), 0);
            cr_assert_eq(stk_score_open(&card, &config, t.n_expert), 0);
            cr_assert(pt_run(ops, p, &t, 0, &step, card, 1, NULL, NULL));
            stk_score_get(card, 1, &figures);
            recall[j] = (double)figures.n_found / (double)figures.n_lookup;
            cr_log_info("%s, %s: recall@k %.2f %%", paths[i] + sizeof STK_SHARED, names[j], 100.0 * recall[j]);
            if (j) cr_assert_gt(recall[0], recall[j] + 0.01);
            stk_score_close(&card);
            ops->close(p);
        }
        pt_free(&t);
    }
}

Test(predict_traces, a_steady_state_allocates_nothing) {
    if (!ALLOC_COUNTED) cr_skip_test("a sanitizer has its own malloc");
    static pe_input in;
    static stk_suggestion list[PE_EXPERT];
    for (const char *const *name = stk_predictor_names(); *name; name++) {
        const stk_predictor_ops *ops = stk_predictor_find(*name);
        const stk_predictor_config config = {.n_layer = 4, .n_expert = 32, .k = 4};
        stk_predictor *p;
        uint64_t rng = 1;
        cr_assert_eq(ops->open(&p, &config), 0);
        uint64_t before = alloc_count;
        for (uint32_t step = 0; step < 200; step++)
            for (uint32_t l = 0; l < 4; l++) {
                pe_begin(&in, step, l, 4, 32);
                for (int32_t i = 0; i < 1 + 50 * (step % 7 == 0); i++) {
                    uint16_t ids[4];
                    pe_random_ids(&rng, ids, 4, 32);
                    pe_token(&in, i / 3, (int32_t)step * 3 % 50 + i % 3, (int32_t)pe_random(&rng, 9999), ids);
                }
                (void)ops->observe(p, pe_end(&in), &pe_no_scores);
                for (uint32_t d = 1; d <= 3; d++) (void)ops->suggest(p, d, list, 32);
            }
        cr_assert_eq(alloc_count, before, "%s allocates", *name);
        ops->close(p);
    }
}
