/*
 * check: what the parts of the kernel checker share: random numbers, memory between guard pages, comparison to the bit, and the
 * description of the case at hand, which a failure or a fault prints.
 *
 * A check compares one operation of a table with the reference over many cases and returns false at the first difference.
 */
#ifndef STK_CHECK_H
#define STK_CHECK_H

#include "cpu/ref.h"
#include "cpu/tables.h"

/* ---- Random numbers: the same seed, the same cases ---- */
void check_seed(uint64_t seed);
uint64_t check_seed_get(void);
uint32_t check_random(void);
uint32_t check_below(uint32_t n);
float check_uniform(void); /* in (-1, 1) */

/* ---- Cases and failures ---- */
void check_begin(const stk_cpu_ops *ops, const char *op); /* starts a check; what follows is described under these names */
void check_case(const char *fmt, ...) STK_PRINTF(1, 2);   /* describes the next call and counts it */
uint64_t check_n_case(void);
bool check_fail(const char *fmt, ...) STK_PRINTF(1, 2); /* prints the description and this; returns false */
void check_catch_faults(void);                          /* a fault prints the description and exits with CHECK_FAULT */

enum { CHECK_MISMATCH = 1, CHECK_FAULT = 3, CHECK_SKIPPED = 77 };

/* Equal bits, where NaN equals NaN. */
bool check_floats(const char *what, const float *want, const float *got, uint32_t n);
/* After a call: rounding, masks and flushing are as before. */
bool check_mxcsr(void);

/* ---- Memory between two guard pages ---- */
typedef struct guard {
    uint8_t *begin, *end; /* usable bytes; pages on either side fault */
    uint8_t *at;          /* what is placed: [at, at + bytes) */
    size_t bytes;
    uint8_t fill; /* of all the rest */
} guard;

enum { FILL_NAN = 0xff, FILL_CANARY = 0xa5 };

void guard_open(guard *g, size_t bytes);
/* Puts `bytes` bytes, aligned to `align`, as near to the end as `slack` more bytes allow (0: up to the guard page, if the
 * alignment suits); everything, those bytes too, is `fill`. Writable. */
void *guard_place(guard *g, size_t bytes, size_t align, size_t slack, uint8_t fill);
/* Makes it readable only, for inputs. */
void guard_protect(guard *g);
/* False, with a failure, where anything outside the placed bytes has changed. */
bool guard_intact(const guard *g, const char *what);

/* ---- The checks ---- */
bool check_quantize(const stk_cpu_ops *ops);
bool check_quantize_groups(const stk_cpu_ops *ops);
bool check_matmul(const stk_cpu_ops *ops, enum stk_type type);
bool check_rmsnorm(const stk_cpu_ops *ops);
bool check_silu_mul(const stk_cpu_ops *ops);
bool check_add(const stk_cpu_ops *ops);
bool check_axpy(const stk_cpu_ops *ops);
bool check_rope(const stk_cpu_ops *ops);
bool check_softmax(const stk_cpu_ops *ops);
bool check_f32_to_f16(const stk_cpu_ops *ops);
bool check_attend(const stk_cpu_ops *ops);
/* Every entry is there, and the products are not those of the reference under another name. */
bool check_table(const stk_cpu_ops *ops);

/* One operation by its name in stk_cpu_ops. */
typedef struct check_op {
    const char *name;
    bool (*check)(const stk_cpu_ops *ops);
} check_op;
extern const check_op check_ops[];
extern const uint32_t check_n_op;

/* ---- Test data (check_data.c) ---- */

/* n activations in one of CHECK_N_STYLE styles. */
enum { CHECK_N_STYLE = 10 };
const char *check_style_name(uint32_t style);
void check_fill_activations(uint32_t style, float *x, uint32_t n);
/* Rows as in a file, in one of CHECK_N_FLAVOUR flavours. */
enum { CHECK_N_FLAVOUR = 5 };
const char *check_flavour_name(uint32_t flavour);
void check_fill_rows(enum stk_type type, uint32_t flavour, uint32_t n_rows, uint32_t n_in, uint8_t *rows);

/* ---- Other modes ---- */
int check_bench(const char *table);
/* Runs the checks on kernels that are broken on purpose; 0 when each is caught. */
int check_self_test(void);

#endif
