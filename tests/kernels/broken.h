/*
 * broken: kernels that are wrong on purpose, each in the way of a bug that kernels of this kind have had. The checker must catch
 * every one.
 */
#ifndef STK_BROKEN_H
#define STK_BROKEN_H

#include "check.h"

typedef struct broken {
    const char *op;  /* the check that must catch it */
    const char *bug; /* what is wrong */
    void (*install)(stk_cpu_ops *ops);
} broken;

/* Puts kernel `fn` into `field` of a table. */
#define INSTALL(field, fn)                                                                                                       \
    static void install_##fn(stk_cpu_ops *ops) { ops->field = fn; }

extern const broken broken_products[];
extern const uint32_t n_broken_products;
extern const broken broken_vectors[];
extern const uint32_t n_broken_vectors;

#endif
