/*
 * warm: the file that carries over what a cache and a predictor know from one run to the next of the same model: residency and
 * the policy's state as stk_cache_save gives them, the predictor's state, and which model they belong to. Written whole or not at
 * all (out_file.h), with a checksum.
 *
 *     "stkwarm\0"  u32 version  u32 0  u64 model id  u64 cache_bytes  u64 predictor_bytes  64 bytes model name
 *     64 bytes predictor as the user named it, both filled up with zeros;  cache state;  predictor state;  u64 checksum
 *
 * Little-endian. Who may call it: src/. Threads: one owner.
 */
#ifndef STK_WARM_H
#define STK_WARM_H

#include "src/model/model.h"

enum { STK_WARM_NAME_BYTES = 64 };

/* What a file holds. */
typedef struct stk_warm {
    char predictor[STK_WARM_NAME_BYTES]; /* "" for none */
    const void *cache, *predictor_state; /* point into `data` */
    uint64_t cache_bytes, predictor_bytes;
    void *data; /* owned */
} stk_warm;

/* A number that two models share only if their tensors have the same names, types, shapes and places, and the same first bytes of
 * every router. Reads a page a layer. STK_EIO. */
int stk_warm_model_id(const stk_model *model, uint64_t *id) STK_CHECKED;

/*
 * 1: *warm is what the file says; 0: there is none, it is empty, or it is damaged, which a log line says. Errors: STK_EFORMAT (no
 * file of this kind), STK_EINVAL (of another model), STK_EIO, STK_ENOMEM. Close in any case.
 */
int stk_warm_read(stk_warm *warm, const char *path, uint64_t model_id) STK_CHECKED;
void stk_warm_close(stk_warm *warm);

/* Writes what *warm points to (`data` is not looked at). Errors: STK_EIO, STK_ENOSPC, STK_ENOMEM. */
int stk_warm_write(const stk_warm *warm, const char *path, uint64_t model_id, const char *model_name) STK_CHECKED;

#endif
