/* probe cancel, eio: a step that is cancelled, or whose read fails, takes nothing back but itself; its repetition gives the same
 * bits. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gates/probe.h"

/* The logits [n_tokens, n_vocab] of an undisturbed run, token by token. */
static float *undisturbed(probe *p) {
    stk_engine_options disturbed = p->options;
    p->options.trace = NULL;
    p->options.io = NULL;
    probe_open(p);
    size_t row = p->info.n_vocab;
    float *all = probe_alloc(p->n_tokens * row * sizeof *all);
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        probe_must(probe_step(p, &p->tokens[i], 1), "undisturbed step");
        memcpy(all + i * row, probe_logits(p), row * sizeof *all);
    }
    probe_close(p);
    p->options = disturbed;
    return all;
}

static void expect_standing(const probe *p, uint32_t length) {
    int64_t n = probe_must(stk_seq_length(p->engine, 0), "length");
    if (n != length) probe_die("after a failed step the sequence has %lld positions, not %u", (long long)n, length);
}

static void expect_row(const probe *p, const float *all, uint32_t i) {
    if (memcmp(probe_logits(p), all + (size_t)i * p->info.n_vocab, p->info.n_vocab * sizeof *all) != 0)
        probe_die("position %u: logits differ from the undisturbed run", i);
}

static void finish(probe *p, float *all, uint32_t n_failed) {
    stk_stats live = probe_get_stats(p);
    printf("failed %u\nn_miss %llu\n", n_failed, (unsigned long long)live.n_miss);
    free(all);
    probe_close(p);
    if (p->options.trace) probe_verify_trace(p, &live);
}

static void *cancel_later(void *arg) {
    probe *p = arg;
    nanosleep(&(struct timespec){.tv_nsec = p->n * 1000L}, NULL);
    stk_cancel(p->engine);
    return NULL;
}

/* Every third step is cancelled: before it starts, or from another thread at some moment of it (which it may win). */
int probe_cancel(probe *p) {
    float *all = undisturbed(p);
    uint32_t n_failed = 0;
    probe_open(p);
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        pthread_t thread;
        bool threaded = i % 6 == 4;
        p->n = 37 * i; /* microseconds */
        if (i % 6 == 1) stk_cancel(p->engine);
        if (threaded && pthread_create(&thread, NULL, cancel_later, p)) probe_die("no thread");
        int rc = probe_step(p, &p->tokens[i], 1);
        if (threaded) {
            pthread_join(thread, NULL);
            if (rc == 0) { /* the cancellation came too late and stays for the step after this one */
                expect_row(p, all, i);
                if (++i == p->n_tokens) break;
                rc = probe_step(p, &p->tokens[i], 1);
            }
        }
        if (threaded || i % 6 == 1) {
            if (rc != STK_ECANCELED) probe_die("a cancelled step returned %d", rc);
            n_failed++;
            expect_standing(p, i);
            rc = probe_step(p, &p->tokens[i], 1);
        }
        probe_must(rc, "step");
        expect_row(p, all, i);
    }
    finish(p, all, n_failed);
    return 0;
}

int probe_eio(probe *p) {
    float *all = undisturbed(p);
    uint32_t n_failed = 0;
    probe_open(p);
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        int rc = probe_step(p, &p->tokens[i], 1);
        if (rc == STK_EIO && n_failed == 0) {
            n_failed++;
            if (!strlen(stk_error_detail())) probe_die("the error says nothing");
            printf("detail %s\n", stk_error_detail());
            expect_standing(p, i);
            rc = probe_step(p, &p->tokens[i], 1);
        }
        probe_must(rc, "step");
        expect_row(p, all, i);
    }
    finish(p, all, n_failed);
    return 0;
}
