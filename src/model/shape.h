/*
 * shape: how large a model's experts are and where they lie, for traces that do not say: of a model's file, or of a shape that
 * `stoker synth` knows, in a file as it would write it.
 *
 * Who may call it: src/. Pure.
 */
#ifndef STK_SHAPE_H
#define STK_SHAPE_H

#include "io/io.h"
#include "model.h"
#include "traces/trace.h"

/* Fills what a trace's header says of experts: n_layer (those that have some), n_expert, k, n_part, classes without slots,
 * layer_class, model_layer and extents; all else 0. STK_ENOMEM. */
int stk_shape_of_model(const stk_model *model, stk_trace_header *out) STK_CHECKED;
/* name: "qwen3-30b-a3b" or "qwen3-30b-a3b:Q8_0"; a name alone is Q4_K_M. STK_EINVAL lists the names, STK_ENOMEM. */
int stk_shape_of_name(const char *name, stk_trace_header *out) STK_CHECKED;

void stk_shape_close(stk_trace_header *shape);
/* One of the two, or neither (NULL): 1: *out is to be closed, 0: neither, or an error; STK_EINVAL: both. */
int stk_shape_choose(const stk_model *model, const char *name, stk_trace_header *out) STK_CHECKED;

/* Extents of a layer's experts as they are asked for, out [n_expert, STK_N_PART]. io: whose alignment they have; NULL: that of
 * direct reads. */
void stk_shape_extents(const stk_catalogue *cat, uint32_t layer, const stk_io *io, stk_trace_extent *out);

#endif
