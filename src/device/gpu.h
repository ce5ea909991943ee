/*
 * gpu: what of the forward pass runs on a device: attention, norms, router and output of the last layers, the experts in its
 * memory, and the combination of all outputs of a layer that it has. Same arithmetic as forward*.c, other hardware.
 *
 * The layers from first_layer on are the device's for as long as the engine lives, and the output with them. Activations cross
 * where a layer of the CPU is followed by one of the device, and where an expert is computed elsewhere than its layer.
 *
 * One stream does all of this in order; the host waits for it once a layer, for the router's choice, and at the end of a step. So
 * memory of the host that a copy reads is free again after the next of these waits.
 *
 * Who may call it: forward*.c, engine*.c. Threads: the engine's owner. All memory is taken at open.
 */
#ifndef STK_GPU_H
#define STK_GPU_H

#include "device.h"
#include "link.h"
#include "src/engine/kv.h"
#include "src/model/dense.h"
#include "vram.h"

struct stk_forward;

typedef struct stk_gpu_matrix {
    enum stk_type type;
    uint32_t n_rows, n_in;
    const void *weights;
} stk_gpu_matrix;

typedef struct stk_gpu_layer {
    stk_gpu_matrix q, k, v, o, router;
    const float *attn_norm, *ffn_norm, *q_norm, *k_norm, *q_bias, *k_bias, *v_bias, *o_bias;
} stk_gpu_layer;

typedef struct stk_gpu_config {
    stk_device *device;
    const stk_model *model;
    const stk_kv_config *kv; /* of all layers */
    uint32_t first_layer;    /* n_layer: none is the device's */
    uint32_t n_batch, n_ctx, n_logits, n_top;
} stk_gpu_config;

/* What the experts of an event on the device are told: sized for the greatest event. Two of them, here and there. */
typedef struct stk_gpu_event {
    const void **slot; /* [n_expert] */
    uint32_t *first;   /* [n_expert + 1] */
    uint32_t *pairs;   /* [n_batch * k] */
    uint64_t bytes;
} stk_gpu_event;

typedef struct stk_gpu {
    stk_gpu_config c;
    stk_kv_config kv; /* of the device's layers */
    const stk_cuda_ops *ops;
    stk_gpu_layer *layers; /* [n_layer], those before first_layer empty */
    stk_gpu_matrix output;
    const float *output_norm;
    uint8_t *pages;
    uint64_t kv_bytes, dense_bytes, buffer_bytes;

    /* On the device. */
    float *x, *q, *k, *v, *proj, *scores, *ahead_scores, *gate, *up, *logits, *rope, *state;
    float *expert_out;                       /* [2 * n_batch * k, n_embd] its own by pair, then those of the CPU as they come */
    stk_cuda_rows norm, attn, ahead, hidden; /* as those of stk_forward */
    uint8_t *routed;                         /* the router's choice, see stk_gpu_route */
    uint32_t *seq, *pos, *table;             /* [n_batch], [n_batch], [n_seq_max, n_page] */
    uint32_t *rows;                          /* [n_batch * k] of expert_out, by pair */
    float *weights;                          /* [n_batch * k] */
    stk_gpu_event event;

    /* Their twins in the host's memory, pinned where that can be had. */
    void *host; /* NULL: host_map */
    void *host_map;
    uint8_t *host_routed;
    uint32_t *host_seq, *host_pos, *host_table, *host_rows;
    float *host_weights;
    stk_gpu_event host_event;
    uint32_t n_page;

    /* The experts of the running event (gpu_experts.c). */
    stk_link *link;    /* borrowed; NULL: none are on the device */
    uint32_t n_listed; /* in host_event */
    uint64_t kept;     /* bounce buffers with what left VRAM */
    bool launched, resident_ok, fetches_ran, fetched_ok;
    uint64_t wait_ns; /* in finish */
} stk_gpu;

/* Bytes on the device: dense weights, KV pages, buffers. Fills these three fields alone. */
void stk_gpu_measure(stk_gpu *g, const stk_gpu_config *config);
/* Uploads the weights of `dense`. Errors: STK_ENOMEM, STK_EIO. */
int stk_gpu_open(stk_gpu **out, const stk_gpu_config *config, const stk_dense *dense, const struct stk_forward *f) STK_CHECKED;
void stk_gpu_close(stk_gpu **g);

static inline bool stk_gpu_has_layer(const stk_gpu *g, uint32_t layer) { return g && layer >= g->c.first_layer; }
static inline bool stk_gpu_has_output(const stk_gpu *g) { return g && g->c.first_layer < g->c.model->hp.n_layer; }

/* gpu_layer.c; the step and the layer are those of f. begin takes in positions and pages; route does everything up to the
 * router's choice, which is in f->routing when it returns, and the experts' input in f->norm; output fills f->logits. */
int stk_gpu_begin(struct stk_forward *f, const uint32_t *page_table) STK_CHECKED;
int stk_gpu_route(struct stk_forward *f) STK_CHECKED;
int stk_gpu_combine(struct stk_forward *f) STK_CHECKED;
int stk_gpu_output(struct stk_forward *f) STK_CHECKED;

extern const stk_vram_ops stk_gpu_vram; /* gpu_experts.c; world: stk_forward */

#endif
