/*
 * part: one idea of what comes next. A part remembers what it needs of the events it hears of, and scores the experts of a layer
 * ahead for one token; a panel (panel.h) turns scores into probabilities, alone or mixed with other parts, and into suggestions.
 *
 * Who may call it: predict/.
 */
#ifndef STK_PART_H
#define STK_PART_H

#include "predict/track.h"

typedef struct stk_part stk_part;

typedef struct stk_part_param {
    const char *name;
    float value, least, most; /* value: where none is given */
    const char *what;
} stk_part_param;

typedef struct stk_part_config {
    const stk_predictor_config *model;
    uint32_t depth;      /* layers ahead that will be asked for */
    uint32_t width;      /* length of a row: n_expert rounded up to 16 */
    const float *values; /* of its parameters, in their order */
} stk_part_config;

/* Memory that is saved and loaded as it is. Each number of a loaded one is at most `most`, and at least -most where it is f32. */
typedef struct stk_part_blob {
    void *data;
    size_t n;
    enum { STK_BLOB_U8, STK_BLOB_U16, STK_BLOB_U32, STK_BLOB_F32 } type;
    uint32_t most;
} stk_part_blob;

enum { STK_PART_PARAMS = 3, STK_PART_BLOBS = 4 };

typedef struct stk_part_ops {
    const char *name;
    bool gives_odds; /* score gives log-odds; else anything that is larger for what is likelier, from 0 to 1 */
    uint32_t n_param;
    stk_part_param params[STK_PART_PARAMS];
    int (*open)(stk_part **out, const stk_part_config *config);
    void (*close)(stk_part *part);
    /* An event, between stk_track_begin and stk_track_commit. */
    void (*learn)(stk_part *part, const stk_track *track, const stk_event *event);
    /* The same event after stk_track_commit. NULL: nothing to do. */
    void (*look)(stk_part *part, const stk_track *track, const stk_event *event, const stk_lookahead *ahead);
    /*
     * Scores the experts of layer track->layer + depth for the i-th sampled token, or for the token that follows it where that
     * is a layer of the next step (i is then the last one of its sequence). Writes row [width], zeros behind n_expert. False:
     * knows nothing, row is not touched.
     */
    bool (*score)(const stk_part *part, const stk_track *track, uint32_t depth, uint32_t i, float *row);
    /* What is worth keeping; at most STK_PART_BLOBS. Returns how many. */
    uint32_t (*blobs)(const stk_part *part, stk_part_blob *blobs);
    /* After a load: what follows from the blobs. NULL: nothing. */
    void (*loaded)(stk_part *part);
} stk_part_ops;

extern const stk_part_ops stk_part_popularity, stk_part_previous, stk_part_history, stk_part_transition, stk_part_crosslayer,
    stk_part_tokenid, stk_part_matrices, stk_part_path, stk_part_gate;

/* Index of a token in an event, searched from the end; STK_TRACK_ABSENT. */
static inline int64_t stk_part_find(const stk_event *event, int32_t seq, int32_t pos) {
    int64_t i = (int64_t)event->n_tok - 1;
    while (i >= 0 && (event->seq[i] != seq || event->pos[i] != pos)) i--;
    return i;
}

/* Position of the token that a look at layer + depth from `pos` is about. */
static inline int32_t stk_part_pos(const stk_track *t, int32_t pos, uint32_t depth) {
    uint32_t wraps = (t->layer + depth) / t->n_layer;
    return pos > INT32_MAX - (int32_t)wraps ? INT32_MAX : pos + (int32_t)wraps;
}

/*
 * Rows of floats, multiples of 16 long. Vectors are spelled out because -O2 leaves such loops scalar; the bits are those of the
 * loops, for every compiler.
 */
typedef float stk_f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint16_t stk_u16x4 __attribute__((vector_size(8), aligned(2), may_alias));

static inline void stk_row_add(float *restrict to, const float *restrict from, float by, uint32_t width) {
    stk_f32x4 *t = (stk_f32x4 *)to;
    const stk_f32x4 *f = (const stk_f32x4 *)from;
    for (size_t i = 0; i < width / 4; i++) t[i] += by * f[i];
}

/* The conversion goes by way of signed numbers, for which there is an instruction. */
static inline void stk_row_add_u16(float *restrict to, const uint16_t *restrict from, float by, uint32_t width) {
    typedef int32_t i32x4 __attribute__((vector_size(16)));
    stk_f32x4 *t = (stk_f32x4 *)to;
    const stk_u16x4 *f = (const stk_u16x4 *)from;
    for (size_t i = 0; i < width / 4; i++) t[i] += by * __builtin_convertvector(__builtin_convertvector(f[i], i32x4), stk_f32x4);
}

/* to = the sum of rows in[0], in[1], ... of a table, in this order. Where the table is far larger than caches, ask for them
 * before (stk_row_prefetch). 32 columns at a time stay in registers. */
static inline void stk_row_sum(float *restrict to, const float *restrict table, const uint32_t *in, uint32_t n, uint32_t width) {
    uint32_t c = 0;
    for (; c + 32 <= width; c += 32) {
        stk_f32x4 s[8] = {{0}}, *t = (stk_f32x4 *)(to + c);
        for (uint32_t i = 0; i < n; i++) {
            const stk_f32x4 *f = (const stk_f32x4 *)(table + (size_t)in[i] * width + c);
            for (size_t j = 0; j < 8; j++) s[j] += f[j];
        }
        for (size_t j = 0; j < 8; j++) t[j] = s[j];
    }
    for (; c < width; c += 4) {
        stk_f32x4 s = {0};
        for (uint32_t i = 0; i < n; i++) s += *(const stk_f32x4 *)(table + (size_t)in[i] * width + c);
        *(stk_f32x4 *)(to + c) = s;
    }
}

/* to += from. */
static inline void stk_row_plus(float *restrict to, const float *restrict from, uint32_t width) {
    stk_f32x4 *t = (stk_f32x4 *)to;
    const stk_f32x4 *f = (const stk_f32x4 *)from;
    for (size_t i = 0; i < width / 4; i += 4)
        for (size_t j = 0; j < 4; j++) t[i + j] += f[i + j];
}

static inline void stk_row_scale(float *row, float by, uint32_t width) {
    stk_f32x4 *r = (stk_f32x4 *)row;
    for (size_t i = 0; i < width / 4; i++) r[i] *= by;
}

/* 16 sums, lane i of elements i, i + 16, ...; then halves onto halves. */
static inline float stk_row_dot(const float *restrict a, const float *restrict b, uint32_t width) {
    const stk_f32x4 *x = (const stk_f32x4 *)a, *y = (const stk_f32x4 *)b;
    stk_f32x4 s[4] = {{0}};
    for (size_t i = 0; i < width / 4; i += 4)
        for (size_t j = 0; j < 4; j++) s[j] += x[i + j] * y[i + j];
    s[0] += s[2];
    s[1] += s[3];
    s[0] += s[1];
    return (s[0][0] + s[0][2]) + (s[0][1] + s[0][3]);
}

/* Asks for a row that is added soon. */
static inline void stk_row_prefetch(const float *row, uint32_t width) {
    for (size_t e = 0; e < width; e += 16) __builtin_prefetch(row + e);
}

#endif
