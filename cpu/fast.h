/*
 * fast: products of float weights in a CPU's BF16 units (AVX512-BF16, AMX), for sessions that give up the same bits everywhere
 * for speed. Activations are rounded to BF16, and so are weights of F16 and F32; sums are float32, in an order that is the unit's
 * own.
 *
 * oneDNN multiplies. Stripes of BF16 rows (experts/layout.h) are what it calls BA16a16b2a, so it takes weights where they lie;
 * F16 and F32 become BF16 a few stripes at a time, in a worker's own memory. Its kernels are made at open for the row lengths
 * that the model has, and a product allocates nothing. It is found at run time (dlopen): a build with it runs where it is
 * missing.
 *
 * What a product returns depends on the kernels of the machine, and on how many tokens are in the call, never on which worker
 * computes it.
 *
 * Who may call it: src/. Threads: calls that name different workers may run at the same time.
 */
#ifndef STK_FAST_H
#define STK_FAST_H

#include "cpu/cpu.h"

enum {
    STK_FAST_TOKENS = 32, /* most tokens of a product */
    /* Fewer are left to the exact kernels: a core reads weights at 20 to 40 GB/s, which is arithmetic for about five tokens. */
    STK_FAST_LEAST = 6,
    STK_FAST_STRIPES = 4, /* that are multiplied at a time */
    STK_FAST_WIDTHS = 8,  /* most row lengths */
};

/* What multiplies: oneDNN, or plain loops in tests. */
typedef struct stk_fast_unit {
    const char *name;
    /* A product of n_tok tokens, n_rows (whole stripes) and n_in, to be run by n_worker workers. STK_EUNSUPPORTED: not here. */
    int (*open)(void **shape, uint32_t n_tok, uint32_t n_rows, uint32_t n_in, uint32_t n_worker);
    void (*close)(void *shape); /* NULL is nothing */
    uint64_t (*bytes)(const void *shape);
    /* c [n_tok, n_rows] f32 = a [n_tok, n_in] BF16 times stripes w of BF16. False: it failed. */
    bool (*run)(void *shape, uint32_t worker, const uint16_t *a, const void *w, float *c);
} stk_fast_unit;

/* oneDNN. NULL after stk_fail(STK_EUNSUPPORTED): not in this build, not installed, or not for this CPU's units. */
const stk_fast_unit *stk_fast_onednn(void);
/* "oneDNN 2.6.3", or "no oneDNN here: " and why; NULL where the build has none. */
const char *stk_fast_onednn_name(void);

typedef struct stk_fast stk_fast;

/* For rows of n_in[0..n) elements; lengths that are no multiple of 32, and repeated ones, are passed over. unit: NULL is oneDNN.
 * Errors: STK_EUNSUPPORTED, STK_ENOMEM. */
int stk_fast_open(stk_fast **out, const stk_fast_unit *unit, const uint32_t *n_in, uint32_t n, uint32_t n_worker) STK_CHECKED;
void stk_fast_close(stk_fast **fast);
/* Memory that it holds. */
uint64_t stk_fast_bytes(const stk_fast *fast);

/* Whether it has products of this type and row length, for so many tokens. fast may be NULL. */
bool stk_fast_serves(const stk_fast *fast, enum stk_type type, uint32_t n_in, uint32_t n_tok);
/* x [n] f32 -> BF16, half to even. */
void stk_fast_round(const stk_fast *fast, const float *x, uint32_t n, uint16_t *out);
/* As the products of cpu.h; m->x are rows of BF16 that start even, m->next is not used. */
void stk_fast_product(stk_fast *fast, uint32_t worker, enum stk_type type, const stk_matmul *m);
/* STK_EIO if a product since open has failed, of any worker; oneDNN does so where it lacks memory. fast may be NULL. */
int stk_fast_check(const stk_fast *fast) STK_CHECKED;
/* To be called before a worker's products read rows whose contents have changed. fast may be NULL. */
void stk_fast_forget(stk_fast *fast, uint32_t worker);

#endif
