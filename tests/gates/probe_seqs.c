/* probe seqs: the logits of a sequence are the same bits alone and among others, whatever the steps are made of. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gates/probe.h"

enum { N_SEQ = 3 };

typedef struct sequence {
    uint32_t n, done;
    int32_t *tokens; /* [n] */
    float *alone;    /* [n, n_vocab] */
} sequence;

static uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % below);
}

/* All logits of every sequence, one after another in an engine of its own, chunk by chunk. */
static void run_alone(probe *p, sequence *seqs) {
    uint8_t *want = probe_alloc(p->options.n_batch);
    memset(want, 1, p->options.n_batch);
    for (int s = 0; s < N_SEQ; s++) {
        sequence *q = &seqs[s];
        probe_must(stk_seq_trim(p->engine, 0, 0), "trim");
        for (uint32_t i = 0, n; i < q->n; i += n) {
            n = q->n - i < p->options.n_batch ? q->n - i : p->options.n_batch;
            stk_batch batch = {.struct_bytes = sizeof batch, .n = n, .token = q->tokens + i, .logits = want};
            probe_must(stk_step(p->engine, &batch), "alone");
            for (uint32_t j = 0; j < n; j++) {
                const float *row = stk_get_logits(p->engine, j);
                if (!row) probe_die("alone: no logits of entry %u", j);
                memcpy(q->alone + (size_t)(i + j) * p->info.n_vocab, row, p->info.n_vocab * sizeof *row);
            }
        }
    }
    free(want);
}

typedef struct mixed_step {
    int32_t *token, *seq, *pos;
    uint8_t *logits;
    uint32_t n;
} mixed_step;

/* A step of random length that takes the next positions of random sequences in random order; most entries ask for logits. */
static void mix(mixed_step *m, sequence *seqs, uint32_t n_batch, uint64_t *state) {
    uint32_t most = 1 + draw(state, draw(state, 3) ? 24 : n_batch);
    if (most > n_batch) most = n_batch;
    m->n = 0;
    while (m->n < most) {
        uint32_t left = 0, s = draw(state, N_SEQ);
        for (int k = 0; k < N_SEQ; k++) left += seqs[k].n - seqs[k].done;
        if (!left) return;
        while (seqs[s].done == seqs[s].n) s = (s + 1) % N_SEQ;
        m->token[m->n] = seqs[s].tokens[seqs[s].done];
        m->seq[m->n] = (int32_t)s;
        m->pos[m->n] = (int32_t)seqs[s].done++;
        m->logits[m->n++] = draw(state, 4) != 0;
    }
}

static void compare(const probe *p, const mixed_step *m, const sequence *seqs) {
    for (uint32_t i = 0; i < m->n; i++) {
        const float *row = stk_get_logits(p->engine, i);
        if (!row != !m->logits[i]) probe_die("among others: entry %u %s logits", i, row ? "has" : "has no");
        const float *alone = seqs[m->seq[i]].alone + (size_t)m->pos[i] * p->info.n_vocab;
        if (row && memcmp(row, alone, p->info.n_vocab * sizeof *row) != 0)
            probe_die("sequence %d, position %d: logits differ from those of the sequence alone", m->seq[i], m->pos[i]);
    }
}

static uint64_t run_mixed(probe *p, sequence *seqs) {
    uint32_t b = p->options.n_batch;
    mixed_step m = {probe_alloc(b * 4), probe_alloc(b * 4), probe_alloc(b * 4), probe_alloc(b), 0};
    uint64_t state = p->options.seed, n_step = 0;
    for (int s = 0; s < N_SEQ; s++) probe_must(stk_seq_trim(p->engine, s, 0), "trim");
    for (;; n_step++) {
        mix(&m, seqs, b, &state);
        if (!m.n) break;
        stk_batch batch = {
            .struct_bytes = sizeof batch, .n = m.n, .token = m.token, .seq = m.seq, .pos = m.pos, .logits = m.logits};
        probe_must(stk_step(p->engine, &batch), "among others");
        compare(p, &m, seqs);
        sequence *back = &seqs[draw(&state, N_SEQ)];
        if (n_step % 5 != 4 || !back->done) continue;
        back->done -= 1 + draw(&state, back->done < 70 ? back->done : 70); /* take positions back, across a page at times */
        probe_must(stk_seq_trim(p->engine, (int32_t)(back - seqs), (int32_t)back->done), "trim");
    }
    free(m.token), free(m.seq), free(m.pos), free(m.logits);
    return n_step;
}

int probe_seqs(probe *p) {
    sequence seqs[N_SEQ] = {0};
    if (p->options.n_seq_max < N_SEQ) p->options.n_seq_max = N_SEQ;
    p->options.n_logits = p->options.n_batch;
    probe_open(p);
    for (uint32_t s = 0; s < N_SEQ; s++) { /* p->n positions together: a half, a third, the rest */
        seqs[s].n = s == 0 ? p->n / 2 : s == 1 ? p->n / 3 : p->n - p->n / 2 - p->n / 3;
        seqs[s].tokens = probe_alloc(seqs[s].n * sizeof(int32_t));
        seqs[s].alone = probe_alloc((size_t)seqs[s].n * p->info.n_vocab * sizeof(float));
        probe_draw_tokens(p, s, seqs[s].n, seqs[s].tokens);
    }
    run_alone(p, seqs);
    printf("steps %llu\n", (unsigned long long)run_mixed(p, seqs));
    for (int s = 0; s < N_SEQ; s++) free(seqs[s].tokens), free(seqs[s].alone);
    probe_close(p);
    return 0;
}
