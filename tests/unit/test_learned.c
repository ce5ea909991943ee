/* learned: that it learns, repeats itself, trusts no saved state, and what it is worth on real routing. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache.h"
#include "cache/policies.h"
#include "routes.h"

enum { MAX_LAYER = 64, MAX_SET = 64 };

static uint32_t next_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static stk_cache *open_cache(const char *policy, const routes *r, uint32_t n_slot, bool one_a_layer) {
    stk_cache_class classes[MAX_LAYER];
    uint32_t layer_class[MAX_LAYER];
    for (uint32_t i = 0; i < r->n_layer; i++) {
        classes[i] = (stk_cache_class){one_a_layer ? n_slot : n_slot * r->n_layer, r->k};
        layer_class[i] = one_a_layer ? i : 0;
    }
    const stk_cache_config config = {.n_layer = r->n_layer,
                                     .n_expert = r->n_expert,
                                     .k = r->k,
                                     .n_class = one_a_layer ? r->n_layer : 1,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .policy = policy};
    stk_cache *cache;
    cr_assert_eq(stk_cache_open(&cache, &config), 0, "%s", stk_error_detail());
    return cache;
}

/* One token of one layer; returns the hits. */
static uint32_t look_up(stk_cache *cache, const routes *r, uint32_t layer, int32_t pos, const uint16_t *ids) {
    static const uint32_t counts[MAX_SET] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint16_t distinct[MAX_SET];
    uint32_t n = 0, n_hit = 0;
    for (uint32_t i = 0; i < r->k && ids[i] != ROUTES_NONE; i++, n++) {
        uint32_t at = n;
        for (; at > 0 && distinct[at - 1] > ids[i]; at--) distinct[at] = distinct[at - 1];
        distinct[at] = ids[i];
    }
    if (!n) return 0;
    const stk_event event = {.layer = layer,
                             .n_tok = 1,
                             .k = r->k,
                             .n_expert = r->n_expert,
                             .n_distinct = n,
                             .pos = &pos,
                             .ids = ids,
                             .distinct = distinct,
                             .counts = counts};
    const stk_decision *list;
    int n_decided = stk_cache_event(cache, layer, &event, &list);
    cr_assert_eq(n_decided, (int)n, "%s", stk_error_detail());
    for (uint32_t i = 0; i < n; i++) n_hit += list[i].kind == STK_HIT;
    return n_hit;
}

/* Sequences of skewed random routing in which every third token repeats the one of 16 tokens before. */
static void make_routes(routes *r, uint32_t n_layer, uint32_t n_expert, uint32_t k, uint32_t n_tok) {
    *r = (routes){.n_layer = n_layer, .n_expert = n_expert, .k = k, .n_seq = 1};
    size_t row = (size_t)n_layer * k;
    uint64_t rng = 7;
    cr_assert_not_null(r->n_tok = calloc(1, sizeof *r->n_tok));
    cr_assert_not_null(r->ids = calloc(n_tok * row, sizeof *r->ids));
    r->n_tok[0] = n_tok;
    for (uint32_t t = 0; t < n_tok; t++)
        for (uint32_t layer = 0; layer < n_layer; layer++) {
            uint16_t *ids = r->ids + t * row + (size_t)layer * k;
            if (t >= 16 && t % 3 == 0) {
                memcpy(ids, ids - 16 * row, k * sizeof *ids);
                continue;
            }
            for (uint32_t i = 0; i < k;) {
                ids[i] = (uint16_t)next_random(&rng, 1 + next_random(&rng, n_expert));
                uint32_t j = 0;
                while (ids[j] != ids[i]) j++;
                i += i == j;
            }
        }
}

static uint32_t play(stk_cache *cache, const routes *r, uint32_t begin, uint32_t end) {
    uint32_t n_hit = 0;
    for (uint32_t t = begin; t < end; t++)
        for (uint32_t layer = 0; layer < r->n_layer; layer++)
            n_hit += look_up(cache, r, layer, (int32_t)t, r->ids + ((size_t)t * r->n_layer + layer) * r->k);
    return n_hit;
}

/* Six pairs of experts in turn, eight slots: lru never hits, and what leaves should be what comes back the latest. */
Test(learned, learns_a_loop_that_lru_misses) {
    routes r = {.n_layer = 1, .n_expert = 16, .k = 2};
    stk_cache *lru = open_cache("lru", &r, 8, true), *learned = open_cache("learned", &r, 8, true);
    uint32_t n_lru = 0, n_learned = 0;
    for (uint32_t t = 0; t < 1200; t++) {
        const uint16_t ids[2] = {(uint16_t)(t % 6 * 2), (uint16_t)(t % 6 * 2 + 1)};
        uint32_t a = look_up(lru, &r, 0, (int32_t)t, ids), b = look_up(learned, &r, 0, (int32_t)t, ids);
        if (t < 600) continue;
        n_lru += a;
        n_learned += b;
    }
    cr_assert_eq(n_lru, 0);
    cr_assert_geq(n_learned, 1200 / 2, "%u of 1200", n_learned); /* the best possible is 2 in 3, or a little less */
    stk_cache_close(&lru);
    stk_cache_close(&learned);
}

/* From the least slots, where hits make room for misses, to all; with a cache a layer and one for all layers. */
Test(learned, repeats_itself_at_every_size) {
    routes r;
    make_routes(&r, 3, 20, 4, 400);
    for (uint32_t n_slot = 4; n_slot <= 20; n_slot += 4)
        for (uint32_t scope = 0; scope < 2; scope++) {
            stk_cache *a = open_cache("learned", &r, n_slot, scope == 0), *b = open_cache("learned", &r, n_slot, scope == 0);
            cr_assert_eq(play(a, &r, 0, 400), play(b, &r, 0, 400));
            cr_assert_eq(stk_cache_hash(a), stk_cache_hash(b));
            cr_assert_eq(stk_cache_clear(a), 0);
            cr_assert_neq(stk_cache_hash(a), stk_cache_hash(b));
            cr_assert_gt(play(a, &r, 0, 400), 0);
            stk_cache_close(&a);
            stk_cache_close(&b);
        }
    routes_free(&r);
}

/* ---- States ------------------------------------------------------------------------------------------------------------- */

static const stk_policy_ops *const ops = &stk_policy_learned;

/* Drives the policy as the cache does; `steps` from `begin` on. Returns a hash of who left. */
static uint64_t drive(stk_policy *p, const routes *r, uint32_t n_slot, uint8_t *resident, uint32_t begin, uint32_t end) {
    uint64_t hash = 0;
    uint32_t n = 0;
    for (uint32_t e = 0; e < r->n_expert; e++) n += resident[e];
    for (uint32_t t = begin; t < end; t++) {
        const uint16_t *ids = r->ids + (size_t)t * r->k;
        uint32_t keys[MAX_SET];
        uint64_t busy[1] = {0};
        int32_t pos = (int32_t)t;
        const stk_event event = {.n_tok = 1, .k = r->k, .pos = &pos, .ids = ids};
        for (uint32_t i = 0; i < r->k; i++) busy[0] |= (uint64_t)1 << ids[i];
        for (uint32_t e = 0, i = 0; e < r->n_expert; e++)
            if (busy[0] >> e & 1) keys[i++] = e;
        cr_assert_eq(ops->touch(p, &event, keys, r->k), 0);
        for (uint32_t i = 0; i < r->k; i++) {
            uint32_t key;
            if (resident[keys[i]] || !ops->admit(p, keys[i])) continue;
            if (n == n_slot) {
                if (!ops->victim(p, busy, &key)) {
                    busy[0] = 0;
                    cr_assert_eq(ops->victim(p, busy, &key), 1);
                }
                cr_assert(resident[key] && !(busy[0] >> key & 1));
                hash = (hash ^ key) * 0x9e3779b97f4a7c15u;
                resident[key] = 0;
                cr_assert_eq(ops->evicted(p, key), 0);
                n--;
            }
            cr_assert_eq(ops->inserted(p, keys[i], STK_WHY_DEMAND), 0);
            resident[keys[i]] = 1;
            n++;
        }
    }
    return hash;
}

typedef struct saved {
    stk_policy *p;
    routes r;
    uint8_t resident[64];
    unsigned char *state;
    size_t bytes;
} saved;

static void make_saved(saved *s, const stk_policy_config *config) {
    memset(s, 0, sizeof *s);
    make_routes(&s->r, 1, config->n_expert, 3, 200);
    cr_assert_eq(ops->open(&s->p, config), 0);
    drive(s->p, &s->r, config->n_slot, s->resident, 0, 100);
    s->bytes = (size_t)ops->save(s->p, NULL, 0);
    cr_assert_not_null(s->state = malloc(s->bytes));
    s->state[0] = 0x5a;
    cr_assert_eq(ops->save(s->p, s->state, s->bytes - 1), (int64_t)s->bytes);
    cr_assert_eq(s->state[0], 0x5a, "nothing is written where it does not fit");
    cr_assert_eq(ops->save(s->p, s->state, s->bytes), (int64_t)s->bytes);
}

static void drop_saved(saved *s) {
    ops->close(s->p);
    routes_free(&s->r);
    free(s->state);
}

Test(learned, a_loaded_state_goes_on_as_the_saved_one) {
    const stk_policy_config config = {.n_key = 20, .n_expert = 20, .n_slot = 5};
    saved s;
    make_saved(&s, &config);
    stk_policy *other;
    uint8_t resident[64];
    cr_assert_eq(ops->open(&other, &config), 0);
    cr_assert_eq(ops->inserted(other, 1, STK_WHY_WARM), 0); /* load replaces what was there */
    cr_assert_eq(ops->load(other, s.state, s.bytes), 0, "%s", stk_error_detail());
    memcpy(resident, s.resident, sizeof resident);
    cr_assert_eq(drive(s.p, &s.r, 5, s.resident, 100, 200), drive(other, &s.r, 5, resident, 100, 200));
    unsigned char *again = malloc(s.bytes);
    cr_assert_eq(ops->save(s.p, s.state, s.bytes), (int64_t)s.bytes);
    cr_assert_eq(ops->save(other, again, s.bytes), (int64_t)s.bytes);
    cr_assert_arr_eq(again, s.state, s.bytes);
    free(again);
    ops->close(other);
    drop_saved(&s);
}

/* Changed bytes and every kind of cut: refused without effect, or a state that works. */
Test(learned, hostile_states_do_no_harm) {
    const stk_policy_config config = {.n_key = 20, .n_expert = 20, .n_slot = 5};
    saved s;
    make_saved(&s, &config);
    unsigned char *bad = malloc(s.bytes), *now = malloc(s.bytes);
    uint64_t rng = 1;
    uint32_t n_refused = 0;
    for (size_t n = 0; n < s.bytes; n += 1 + n / 16) cr_assert_eq(ops->load(s.p, s.state, n), STK_EFORMAT);
    for (uint32_t i = 0; i < 3000; i++) {
        uint8_t resident[64] = {0};
        memcpy(bad, s.state, s.bytes);
        size_t at = i % 3 == 0 ? i / 3 % 1600 : i % 3 == 1 ? s.bytes - 1 - i / 3 % 20 : next_random(&rng, (uint32_t)s.bytes);
        bad[at] ^= (unsigned char)(1 + next_random(&rng, 255));
        if (ops->load(s.p, bad, s.bytes) < 0) {
            n_refused++;
            cr_assert_eq(ops->save(s.p, now, s.bytes), (int64_t)s.bytes);
            cr_assert_arr_eq(now, s.state, s.bytes);
            continue;
        }
        for (uint32_t key = 0; key < 20; key++) resident[key] = bad[s.bytes - 20 + key] & 1;
        drive(s.p, &s.r, 5, resident, 100, 140);
        cr_assert_eq(ops->load(s.p, s.state, s.bytes), 0);
    }
    cr_assert_gt(n_refused, 100);
    free(bad);
    free(now);
    drop_saved(&s);
}

Test(learned, knows_no_layer_beyond_its_own) {
    const stk_policy_config config = {.n_key = 10, .n_expert = 10, .n_slot = 4};
    const stk_event event = {.k = 1};
    const uint32_t other[1] = {25};
    stk_policy *p;
    cr_assert_eq(ops->open(&p, &config), 0);
    cr_assert_eq(ops->touch(p, &event, other, 1), STK_ESTATE);
    cr_assert_eq(ops->admit(p, 10), STK_ESTATE);
    cr_assert_eq(ops->inserted(p, 9, STK_WHY_DEMAND), 0);
    cr_assert_eq(ops->inserted(p, 10, STK_WHY_DEMAND), STK_ESTATE);
    ops->close(p);
}

/* A prompt of many tokens as one event, an event without ids, router scores, and a prefetched expert that must not leave before
 * its layer's next event. */
Test(learned, takes_every_kind_of_event) {
    enum { N_TOK = 40, K = 2, N_TOP = 4, N = 12 };
    stk_policy *p;
    const stk_policy_config config = {.n_key = N, .n_expert = N, .n_slot = 6};
    uint16_t ids[N_TOK * K], top_ids[N_TOK * N_TOP], distinct[N];
    float top_scores[N_TOK * N_TOP];
    int32_t pos[N_TOK], seq[N_TOK] = {0};
    uint32_t keys[N];
    for (uint32_t t = 0; t < N_TOK; t++) {
        pos[t] = (int32_t)t;
        for (uint32_t i = 0; i < N_TOP; i++) {
            top_ids[t * N_TOP + i] = (uint16_t)((t + 3 * i) % N);
            top_scores[t * N_TOP + i] = 0.5f / (float)(i + 1);
        }
        memcpy(ids + (size_t)t * K, top_ids + (size_t)t * N_TOP, K * sizeof *ids);
    }
    for (uint32_t e = 0; e < N; e++) keys[e] = distinct[e] = (uint16_t)e;
    stk_event event = {.n_tok = N_TOK,
                       .k = K,
                       .n_top = N_TOP,
                       .n_expert = N,
                       .n_distinct = N,
                       .pos = pos,
                       .seq = seq,
                       .ids = ids,
                       .top_ids = top_ids,
                       .top_scores = top_scores,
                       .distinct = distinct};
    cr_assert_eq(ops->open(&p, &config), 0);
    cr_assert_eq(ops->touch(p, &event, keys, N), 0);
    for (uint32_t key = 0; key < 6; key++) cr_assert_eq(ops->inserted(p, key, key == 5 ? STK_WHY_PREFETCH : STK_WHY_DEMAND), 0);
    const stk_event bare = {.n_distinct = 2, .distinct = distinct};
    cr_assert_eq(ops->touch(p, &bare, keys, 2), 0);
    cr_assert_eq(ops->evicted(p, 4), 0);
    cr_assert_eq(ops->inserted(p, 9, STK_WHY_PREFETCH), 0);
    uint64_t busy[1] = {3};
    uint32_t key;
    for (uint32_t left = 0; left < 3; left++) {
        cr_assert_eq(ops->victim(p, busy, &key), 1);
        cr_assert_neq(key, 9);
        cr_assert_eq(ops->evicted(p, key), 0);
    }
    cr_assert_eq(ops->resized(p, 3), 0);
    ops->close(p);
}

/* Two instances of a cache share what they recall, and it is freed with the last of them: what layer 0 used has a say in what
 * leaves layer 1. */
Test(learned, layers_of_a_cache_recall_together) {
    enum { N = 32, N_TOK = 4000, N_SLOT = 4 };
    uint64_t left[2] = {0}; /* hash of the victims of layer 1 */
    for (uint32_t together = 0; together < 2; together++) {
        void *shared = NULL;
        stk_policy *p[2];
        uint8_t resident[N] = {0};
        uint64_t rng = 3;
        uint32_t word = 0;
        for (uint32_t i = 0; i < 2; i++) {
            const stk_policy_config config = {.n_key = N,
                                              .n_expert = N,
                                              .n_slot = N_SLOT,
                                              .layers = (const uint32_t[]){i},
                                              .shared = together ? &shared : NULL,
                                              .instance = i,
                                              .n_key_all = 2 * N};
            cr_assert_eq(ops->open(&p[i], &config), 0, "%s", stk_error_detail());
        }
        cr_assert_eq(shared != NULL, together == 1);
        for (int32_t t = 0; t < N_TOK; t++) {
            word = next_random(&rng, 8) ? (word + 1) % 24 : next_random(&rng, 24); /* words in order, mostly */
            for (uint32_t layer = 0; layer < 2; layer++) {
                /* In layer 1 many words share an expert, so it alone does not tell where in the order it is. */
                uint16_t id = (uint16_t)(layer == 0 ? word : word % 2 ? 0 : 1 + word * 7 % 24);
                uint32_t key = id;
                uint64_t busy[1] = {(uint64_t)1 << id};
                const stk_event event = {.layer = layer, .n_tok = 1, .k = 1, .pos = &t, .ids = &id};
                cr_assert_eq(ops->touch(p[layer], &event, &key, 1), 0);
                if (layer == 0) continue;
                if (resident[id] || !ops->admit(p[1], id)) continue;
                uint32_t n = 0;
                for (uint32_t e = 0; e < N; e++) n += resident[e];
                if (n == N_SLOT) {
                    cr_assert_eq(ops->victim(p[1], busy, &key), 1);
                    cr_assert_eq(ops->evicted(p[1], key), 0);
                    resident[key] = 0;
                    left[together] = (left[together] ^ key) * 0x9e3779b97f4a7c15u;
                }
                cr_assert_eq(ops->inserted(p[1], id, STK_WHY_DEMAND), 0);
                resident[id] = 1;
            }
        }
        for (uint32_t i = 0; i < 2; i++) ops->close(p[i]);
        cr_assert_null(shared);
    }
    cr_assert_neq(left[0], left[1]);
}

/* ---- Real routing ------------------------------------------------------------------------------------------------------- */

static routes read_or_skip(const char *name) {
    char path[512];
    routes r;
    snprintf(path, sizeof path, "%s/traces/%s", STK_SHARED, name);
    if (access(path, R_OK) != 0) cr_skip_test("%s is not there", path);
    if (!routes_read(&r, path)) cr_skip_test("%s cannot be read (is xz installed?)", path);
    return r;
}

/* Hit rate over sequences begin, begin + step, ...; residents are given up before each, what was learned is kept. */
static double hit_rate(stk_cache *cache, const routes *r, uint32_t begin, uint32_t step) {
    const uint16_t *ids = r->ids;
    stk_cache_counters counters;
    stk_cache_reset_counters(cache);
    for (uint32_t s = 0; s < r->n_seq; s++) {
        bool is_played = s >= begin && (s - begin) % step == 0;
        if (is_played) cr_assert_eq(stk_cache_clear(cache), 0);
        for (int32_t t = 0; t < (int32_t)r->n_tok[s]; t++)
            for (uint32_t layer = 0; layer < r->n_layer; layer++, ids += r->k)
                if (is_played) look_up(cache, r, layer, t, ids);
    }
    stk_cache_get_counters(cache, &counters);
    return 100.0 * (double)counters.n_hit / (double)counters.n_lookup;
}

/* Learned on the even sequences, measured on the odd ones, and the other way round. */
static double held_out(const routes *r, uint32_t n_slot) {
    double sum = 0;
    for (uint32_t part = 0; part < 2; part++) {
        stk_cache *cache = open_cache("learned", r, n_slot, true);
        (void)hit_rate(cache, r, part, 2);
        sum += hit_rate(cache, r, 1 - part, 2) / 2;
        stk_cache_close(&cache);
    }
    return sum;
}

/* The share of what an oracle gains over lru. The oracle's hit rates are those of Belady's choice with bypass on the same halves.
 */
Test(learned, closes_the_gap_on_held_out_sequences) {
    static const struct {
        uint32_t n_slot;
        double lru, oracle;
    } sizes[] = {{6, 26.52, 46.02}, {16, 48.02, 70.23}, {32, 71.71, 87.50}};
    routes r = read_or_skip("dsv2lite_a.mrt8.xz");
    double share = 0;
    for (size_t i = 0; i < STK_ARRAY_LEN(sizes); i++)
        share += 100 * (held_out(&r, sizes[i].n_slot) - sizes[i].lru) / (sizes[i].oracle - sizes[i].lru) / 3;
    cr_log_info("%.2f %% of the gap", share);
    cr_assert_geq(share, 34.0, "%.2f %%", share);
    routes_free(&r);
}

Test(learned, falls_behind_lru_nowhere) {
    static const char *const names[] = {"qwen.route.csv", "gemma.route.csv", "gptoss.route.csv",
                                        "switch_base8.router-trace.v2.json"};
    for (size_t i = 0; i < STK_ARRAY_LEN(names); i++) {
        routes r = read_or_skip(names[i]);
        for (uint32_t percent = 10; percent < 100; percent += percent < 20 ? 15 : 25) {
            uint32_t n_slot = STK_MAX((r.n_expert * percent + 50) / 100, r.k);
            for (uint32_t scope = 0; scope < 2; scope++) {
                stk_cache *lru = open_cache("lru", &r, n_slot, scope), *learned = open_cache("learned", &r, n_slot, scope);
                double of_lru = hit_rate(lru, &r, 0, 1), of_learned = hit_rate(learned, &r, 0, 1);
                cr_log_info("%s at %u %%, %s: %.2f, lru %.2f", names[i], percent, scope ? "layer" : "global", of_learned, of_lru);
                cr_assert_geq(of_learned, of_lru - 0.5, "%s at %u %%, %s: %.2f, lru %.2f", names[i], percent,
                              scope ? "layer" : "global", of_learned, of_lru);
                stk_cache_close(&lru);
                stk_cache_close(&learned);
            }
        }
        routes_free(&r);
    }
}
