/*
 * import_mrt8: expert ids alone, a byte each: "MRT8", u32 n_layer, n_expert, k, n_seq; for each sequence u32 n_tok, n_prefill,
 * then n_tok * n_layer * k bytes, token by token, 0xff for none. All numbers little-endian. Each token is a step.
 */
#include <stdlib.h>
#include <string.h>

#include "traces/import.h"
#include "traces/source.h"

typedef struct mrt8 {
    stk_input *in;
    uint32_t n_layer, n_expert, k, n_seq;
    uint32_t seq; /* running, from 0 */
    uint32_t n_tok, n_prefill;
    uint32_t tok, layer; /* next */
    uint64_t n_step;
    int32_t seq_id, pos, token;
    uint8_t logits;
    uint8_t *row;  /* [n_layer, k] the running token */
    uint16_t *ids; /* [k] */
    trace_count count;
} mrt8;

static uint32_t u32(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }

static int get(mrt8 *m, void *out, size_t bytes, const char *what) {
    int64_t n = stk_input_read(m->in, out, bytes);
    if (n < 0) return (int)n;
    if ((size_t)n == bytes) return 0;
    return stk_fail(STK_EFORMAT, "mrt8: cut off at byte %llu, within %s", (unsigned long long)stk_input_offset(m->in), what);
}

static int read_head(mrt8 *m) {
    uint8_t head[20];
    STK_TRY(get(m, head, sizeof head, "the header"));
    m->n_layer = u32(head + 4);
    m->n_expert = u32(head + 8);
    m->k = u32(head + 12);
    m->n_seq = u32(head + 16);
    if (!m->n_layer || m->n_layer > IMPORT_MAX_LAYER || !m->n_expert || m->n_expert > 255 || !m->k || m->k > m->n_expert)
        return stk_fail(STK_EFORMAT, "mrt8: byte 4: %u layers of %u experts, %u a token", m->n_layer, m->n_expert, m->k);
    return 0;
}

static int make_header(const mrt8 *m, uint64_t bytes, stk_trace_header *header) {
    uint32_t *layers = calloc(m->n_layer, sizeof *layers);
    uint64_t *sizes = calloc(m->n_layer, sizeof *sizes);
    int rc = layers && sizes ? 0 : stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; rc == 0 && i < m->n_layer; i++) {
        layers[i] = i;
        sizes[i] = bytes;
    }
    if (rc == 0)
        rc = stk_import_header(
            header,
            &(import_shape){
                .n_layer = m->n_layer, .n_expert = m->n_expert, .k = m->k, .n_batch = 1, .model_layer = layers, .bytes = sizes});
    free(layers);
    free(sizes);
    return rc;
}

static void mrt8_close(void *state) {
    mrt8 *m = state;
    if (!m) return;
    free(m->row);
    free(m->ids);
    stk_trace_count_close(&m->count);
    free(m);
}

static int open_state(mrt8 *m, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    STK_TRY(read_head(m));
    *sized = expert_bytes != 0;
    STK_TRY(make_header(m, expert_bytes ? expert_bytes : STK_SOURCE_EXPERT_BYTES, header));
    m->row = malloc((size_t)m->n_layer * m->k);
    m->ids = calloc(m->k, sizeof *m->ids);
    if (!m->row || !m->ids) return stk_fail(STK_ENOMEM, "out of memory");
    return stk_trace_count_open(&m->count, m->n_expert);
}

static int mrt8_open(void **state, stk_input *in, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    mrt8 *m = calloc(1, sizeof *m);
    *state = m;
    if (!m) return stk_fail(STK_ENOMEM, "out of memory");
    m->in = in;
    m->layer = UINT32_MAX;
    return open_state(m, expert_bytes, header, sized);
}

/* The next sequence that has tokens: 1, or 0 at the end. */
static int next_sequence(mrt8 *m) {
    uint8_t head[8];
    while (m->seq < m->n_seq) {
        STK_TRY(get(m, head, sizeof head, "the head of a sequence"));
        m->n_tok = u32(head);
        m->n_prefill = u32(head + 4);
        if (m->n_tok > INT32_MAX || m->n_prefill > m->n_tok || m->seq > INT32_MAX)
            return stk_fail(STK_EFORMAT, "mrt8: byte %llu: sequence %u of %u tokens, %u of them a prompt",
                            (unsigned long long)stk_input_offset(m->in) - 8, m->seq, m->n_tok, m->n_prefill);
        m->seq_id = (int32_t)m->seq++;
        m->tok = 0;
        if (m->n_tok) return 1;
    }
    uint8_t byte;
    int64_t more = stk_input_read(m->in, &byte, 1);
    if (more > 0)
        return stk_fail(STK_EFORMAT, "mrt8: byte %llu: more after the last sequence",
                        (unsigned long long)stk_input_offset(m->in) - 1);
    return (int)more;
}

static int next_token(mrt8 *m, stk_trace_record *record) {
    if (m->tok == m->n_tok) {
        int rc = next_sequence(m);
        if (rc <= 0) return rc;
    }
    STK_TRY(get(m, m->row, (size_t)m->n_layer * m->k, "a token"));
    m->pos = (int32_t)m->tok;
    m->logits = m->tok >= m->n_prefill;
    m->token = -1;
    m->tok++;
    m->layer = 0;
    record->kind = STK_TRACE_STEP;
    record->step = (stk_trace_step){
        .step = m->n_step++, .n_tok = 1, .seq = &m->seq_id, .pos = &m->pos, .token = &m->token, .logits = &m->logits};
    return 1;
}

static int mrt8_read(void *state, stk_trace_record *record) {
    mrt8 *m = state;
    if (m->layer >= m->n_layer) return next_token(m, record);
    const uint8_t *row = m->row + (size_t)m->layer * m->k;
    for (uint32_t i = 0; i < m->k; i++) {
        if (row[i] >= m->n_expert && row[i] != 0xff) {
            unsigned long long token_at = stk_input_offset(m->in) - (unsigned long long)m->n_layer * m->k;
            return stk_fail(STK_EFORMAT, "mrt8: byte %llu: expert %u of %u", token_at + (size_t)(row - m->row) + i, row[i],
                            m->n_expert);
        }
        m->ids[i] = row[i] == 0xff ? STK_NO_EXPERT : row[i];
    }
    record->kind = STK_TRACE_EVENT;
    stk_event *e = &record->event;
    stk_event_clear(e);
    e->step = m->n_step - 1;
    e->layer = m->layer++;
    e->n_tok = 1;
    e->k = m->k;
    e->n_expert = m->n_expert;
    e->seq = &m->seq_id;
    e->pos = &m->pos;
    e->token = &m->token;
    e->ids = m->ids;
    stk_trace_count(&m->count, e);
    return 1;
}

const import_ops stk_import_mrt8 = {"mrt8", mrt8_open, mrt8_read, mrt8_close};
