/* track: the sample of a step, the paths of its tokens, and the slots of sequences. */
#include "predict/track.h"

#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 3, N_EXPERT = 64, K = 2 };

static pe_input in;
static const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K};

static void open_it(stk_track *t) { cr_assert_eq(stk_track_init(t, &config), 0); }

/* n tokens of a sequence from pos on; token i uses experts (pos + i + layer) and the next. */
static void add(uint32_t layer, int32_t seq, int32_t pos, uint32_t n) {
    for (int32_t i = pos; i < pos + (int32_t)n; i++) {
        const uint16_t ids[K] = {(uint16_t)((uint32_t)i + layer) % N_EXPERT, (uint16_t)((uint32_t)i + layer + 1) % N_EXPERT};
        pe_token(&in, seq, i, 1000 + i, ids);
    }
}

static const stk_event *prompt(uint64_t step, uint32_t layer, int32_t seq, int32_t pos, uint32_t n) {
    pe_begin(&in, step, layer, K, N_EXPERT);
    add(layer, seq, pos, n);
    return pe_end(&in);
}

static void both(stk_track *t, const stk_event *event) {
    stk_track_begin(t, event);
    stk_track_commit(t, event);
}

Test(track, a_sample_is_even_ends_with_the_last_and_stands_for_all) {
    stk_track t;
    open_it(&t);
    for (uint32_t n = 1; n <= PE_TOK; n++) {
        stk_track_begin(&t, prompt(n, 0, 0, 0, n));
        uint32_t sum = 0;
        cr_assert(t.n_tok >= 1 && t.n_tok <= STK_TRACK_TOKENS && (n > STK_TRACK_TOKENS || t.n_tok == n));
        for (uint32_t i = 0; i < t.n_tok; i++) {
            sum += t.tok[i].n;
            cr_assert_eq(t.tok[i].at, (int64_t)sum - 1);
            cr_assert(t.tok[i].pos == (int32_t)sum - 1 && t.tok[i].token == 999 + (int32_t)sum);
            cr_assert_eq(t.tok[i].last, i + 1 == t.n_tok);
        }
        cr_assert_eq(sum, n);
        stk_track_commit(&t, &in.event);
    }
    stk_track_fini(&t);
}

Test(track, paths_and_the_token_before) {
    stk_track t;
    open_it(&t);
    for (uint32_t l = 0; l < N_LAYER; l++) both(&t, prompt(0, l, 9, 0, 5));
    cr_assert(!t.tok[0].follows && t.tok[4].last);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        const stk_event *event = prompt(1, l, 9, 5, 1);
        stk_track_begin(&t, event);
        cr_assert_eq(t.new_step, l == 0);
        cr_assert(t.tok[0].follows);
        uint32_t k;
        const uint16_t *before = stk_track_predecessor(&t, event, 0, &k);
        cr_assert(before && k == K && before[0] == 4 + l && before[1] == 5 + l);
        cr_assert_eq(stk_track_path(&t, 0, l)[0], STK_NO_EXPERT);
        stk_track_commit(&t, event);
        cr_assert_eq(stk_track_path(&t, 0, l)[0], 5 + l);
        cr_assert_eq(stk_track_before(&t, t.tok[0].slot, l)[0], 5 + l);
        if (l + 1 < N_LAYER) cr_assert_eq(stk_track_before(&t, t.tok[0].slot, l + 1)[0], 4 + l + 1);
    }
    /* Inside a prompt it is the neighbour; after a gap nobody. */
    const stk_event *event = prompt(2, 0, 9, 20, 3);
    uint32_t k;
    stk_track_begin(&t, event);
    cr_assert_null(stk_track_predecessor(&t, event, 0, &k));
    cr_assert_eq(stk_track_predecessor(&t, event, 2, &k)[0], 21);
    stk_track_fini(&t);
}

Test(track, later_layers_may_have_fewer_tokens) {
    stk_track t;
    open_it(&t);
    both(&t, prompt(0, 0, 0, 0, 20));
    both(&t, prompt(0, 1, 0, 15, 5));
    for (uint32_t i = 0; i < 20; i++) cr_assert_eq(t.tok[i].at, i < 15 ? STK_TRACK_ABSENT : (int64_t)i - 15);
    cr_assert_eq(stk_track_path(&t, 3, 1)[0], STK_NO_EXPERT);
    cr_assert_eq(stk_track_path(&t, 16, 1)[0], 17);
    stk_track_fini(&t);
}

Test(track, runs_end_where_a_sequence_or_its_positions_break) {
    stk_track t;
    open_it(&t);
    pe_begin(&in, 0, 0, K, N_EXPERT);
    add(0, 1, 0, 100);
    add(0, 2, 7, 1);
    add(0, 2, 9, 2);
    const stk_event *event = pe_end(&in);
    stk_track_begin(&t, event);
    static const uint32_t want[3][2] = {{100 - STK_TRACK_RUN, 100}, {100, 101}, {101, 103}};
    stk_track_run run;
    uint32_t at = 0;
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(stk_track_next_run(&t, event, &at, &run));
        cr_assert(run.begin == want[i][0] && run.end == want[i][1]);
    }
    cr_assert_not(stk_track_next_run(&t, event, &at, &run));
    stk_track_fini(&t);
}

Test(track, the_sequence_longest_not_heard_of_makes_way) {
    stk_track t;
    open_it(&t);
    for (int32_t seq = 0; seq < STK_TRACK_SEQS; seq++) both(&t, prompt((uint64_t)seq, 0, seq, 0, 1));
    both(&t, prompt(100, 0, 0, 1, 1)); /* 0 is heard of again, 1 is the oldest */
    cr_assert(t.tok[0].follows);
    both(&t, prompt(101, 0, 500, 0, 1));
    cr_assert(!t.tok[0].follows && t.slots[t.tok[0].slot].restarted);
    both(&t, prompt(102, 0, 2, 1, 1));
    cr_assert(t.tok[0].follows && !t.slots[t.tok[0].slot].restarted);
    both(&t, prompt(103, 0, 1, 1, 1));
    cr_assert_not(t.tok[0].follows);
    both(&t, prompt(104, 0, 2, 0, 1)); /* the same number, another sequence */
    cr_assert(!t.tok[0].follows && t.slots[t.tok[0].slot].restarted);
    cr_assert_eq(stk_track_before(&t, t.tok[0].slot, 1)[0], STK_NO_EXPERT);
    stk_track_fini(&t);
}
