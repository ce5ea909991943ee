/*
 * probe: small experiments on the public C API, for gates that the command line cannot express. One program, one verb an
 * experiment; it uses stoker.h alone and links the shared library, as a stranger would.
 *
 *     probe VERB MODEL [KEY=VALUE...]
 *
 * Keys: ram, io, cpu, policy, t, ctx, batch, seqs, kv (f16 or f32), mlock, seed, trace, tokens (a count or a list), n; device,
 * vram (0: none), vram_policy, cpu_layers, pin, place (a number of STK_PLACE_...).
 * A verb prints its results as lines `key value` and returns 0; a violated expectation prints one line on stderr and exits
 * with 1.
 */
#ifndef STK_TESTS_PROBE_H
#define STK_TESTS_PROBE_H

#include <stdbool.h>

#include "src/stoker.h"

typedef struct probe {
    const char *path;
    stk_engine_options options;
    stk_model *model;
    stk_model_info info;
    stk_engine *engine;
    int32_t *tokens; /* [n_tokens] */
    uint32_t n_tokens;
    uint32_t place; /* STK_PLACE_... */
    uint32_t n;     /* what the verb makes of it */
    uint32_t last;  /* entry of the last step that has logits */
} probe;

/* The verbs. */
int probe_bits(probe *p);   /* the tokens in steps of n_batch; prints a hash of all logits, and counters */
int probe_greedy(probe *p); /* n tokens after `tokens`, the lowest id on ties */
int probe_stats(probe *p);  /* a prompt, then n greedy steps; prints counters and memory */
int probe_seqs(probe *p);   /* sequences among others equal sequences alone; trimmed and repeated positions too */
int probe_steady(probe *p); /* decode steps allocate nothing */
int probe_cancel(probe *p); /* cancelled steps take nothing back but themselves; the trace of it verifies */
int probe_eio(probe *p);    /* the same for a read that fails (io=emu:...,eio=N) */

/* Ends the program with one line on stderr. */
_Noreturn void probe_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Returns rc; ends the program with the API's detail when it is negative. */
int64_t probe_must(int64_t rc, const char *what);
void *probe_alloc(size_t bytes);

void probe_open(probe *p);
void probe_close(probe *p);
/* A token stream of its own for every `stream`, the same on every machine. */
void probe_draw_tokens(const probe *p, uint32_t stream, uint32_t n, int32_t *out);
int32_t probe_argmax(const float *logits, uint32_t n);
stk_stats probe_get_stats(const probe *p);
/* One step of n tokens of sequence 0 with logits of the last: returns stk_step's code. */
int probe_step(probe *p, const int32_t *tokens, uint32_t n);
/* All of p->tokens in steps of at most n_batch; any failure ends the program. */
void probe_prefill(probe *p);
/* [n_vocab] of the last entry of the last step. */
const float *probe_logits(const probe *p);
void probe_print(const probe *p);
/* Verifies the trace at options.trace against these counters of the live run. */
void probe_verify_trace(const probe *p, const stk_stats *live);

/* Allocation calls (malloc and its family, mmap, munmap) of all threads while armed; see probe_steady.c. */
void probe_count_allocations(bool armed);
uint64_t probe_allocations(void);

#endif
