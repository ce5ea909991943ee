/*
 * packed: the form of a packed model (stk_pack): a GGUF file in which all weights lie as in memory, so that reads need no
 * permutation, and in which one read brings an expert.
 *
 *     metadata   general.architecture "stoker-packed": other programs do not know it and refuse the file
 *                general.alignment 4096
 *                stoker.packed.version u32, stoker.packed.architecture (what general.architecture was)
 *                stoker.packed.types i32 [n_layer, 3]: ggml types of each layer's gate, up and down
 *                and everything else as it was, but for split.*
 *     tensors    the dense weights under their names, types and shapes. A matrix whose stripes (experts/layout.h) take the bytes
 *                of its rows lies in stripes; all that models are made of do. Vectors, and others, lie as they were.
 *                blk.N.ffn_exps.packed I8 [stride, n_expert]: the experts of a layer; one is gate, up and down in stripes, each
 * at a multiple of 256 bytes of it (stk_class_packed) stoker.packed.seal I8: struct stk_packed_seal, last
 *
 * The seal's first sum is checked when the file is opened, the others by stk_pack_check. They are against damage, not malice:
 * everything that is not the value of a weight is checked as in any other file.
 *
 * Who may call it: src/. Pure but for reading the file.
 */
#ifndef STK_PACKED_H
#define STK_PACKED_H

#include "model.h"

#define STK_PACKED_ARCH      "stoker-packed"
#define STK_PACKED_ARCH_KEY  "stoker.packed.architecture"
#define STK_PACKED_VERSION   "stoker.packed.version"
#define STK_PACKED_TYPES     "stoker.packed.types"
#define STK_PACKED_EXPERTS   "ffn_exps.packed" /* of a layer */
#define STK_PACKED_SEAL      "stoker.packed.seal"
#define STK_PACKED_SEAL_WORD UINT64_C(0x314c4145534b5453) /* "STKSEAL1" */

enum { STK_PACKED_FORMAT = 1, STK_PACKED_TYPE_I8 = 24, STK_PACKED_ALIGN = STK_DIRECT_ALIGN };

typedef struct stk_packed_seal {
    uint64_t word;
    uint64_t head;  /* stk_hash(head bytes, metadata and directory) */
    uint64_t n;     /* sums that follow */
    uint64_t sum[]; /* of each dense tensor, in the directory's order, then of each expert: stk_hash(bytes, its bytes) */
} stk_packed_seal;

/* *version: of a packed file, or 0 for any other. Errors: STK_EFORMAT, STK_EUNSUPPORTED (a version that this build does not know;
 * several parts). */
int stk_packed_version(const stk_gguf *g, uint32_t *version) STK_CHECKED;

/* Whether a dense matrix of a packed model lies in stripes. */
bool stk_packed_in_stripes(const stk_weight *w);

/* Where the experts of a layer lie, extents [n_expert]. `layer` has its rows and columns; takes the types, and sets `packed`.
 * Errors: STK_EFORMAT. */
int stk_packed_find_experts(const stk_model *model, uint32_t l, stk_layer_experts *layer, stk_extent *extents) STK_CHECKED;

/* Calls `visit` for every dense weight of a bound model under the name that it has in a packed file, in the order of that; a tied
 * output is left out. Ends with the first result below 0. */
typedef int (*stk_packed_visit)(void *user, const char *name, const stk_weight *weight);
int stk_packed_each_dense(const stk_model *model, stk_packed_visit visit, void *user) STK_CHECKED;

/* Sums that the seal of a bound model holds. */
uint64_t stk_packed_n_sum(const stk_model *model);
/* Reads the seal of a bound model, and checks its form and the sum of the head. *seal is malloced. Errors: STK_EFORMAT (names
 * what is damaged), STK_EIO, STK_ENOMEM. */
int stk_packed_read_seal(const stk_model *model, stk_packed_seal **seal) STK_CHECKED;

/* Takes the caller's struct, of whatever size it was compiled with; NULL: the defaults. STK_EINVAL. */
int stk_pack_options_take(stk_pack_options *o, const stk_pack_options *given) STK_CHECKED;

#endif
