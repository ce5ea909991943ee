/*
 * perplexity: how well the model predicts a text. The text is tokenized whole, without BOS, and cut into chunks of -c tokens; a
 * last partial chunk is dropped. Each chunk is run alone; every token but its first is scored given those before it. The result
 * is exp of the mean negative log likelihood.
 */
#include <math.h>
#include <stdlib.h>

#include "session.h"

typedef struct measure {
    const cli_settings *settings;
    cli_session session;
    int32_t *ids; /* [n] the text */
    size_t n;
    uint32_t chunk;
    uint8_t *all_logits; /* [n_batch] ones */
    uint64_t n_scored;
    double sum; /* of the negative log likelihoods */
} measure;

/* -log softmax(logits)[id] */
static double surprise(const float *logits, uint32_t n_vocab, int32_t id) {
    float top = -INFINITY;
    double sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) top = logits[i] > top ? logits[i] : top;
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - (double)top);
    return log(sum) - ((double)logits[id] - (double)top);
}

/* Scores ids [1, chunk) of one chunk. Its last token predicts nothing that is scored and is not computed. */
static int score_chunk(measure *m, const int32_t *ids) {
    uint32_t n_batch = (uint32_t)m->settings->n_batch, n_vocab = m->session.info.n_vocab;
    int rc = stk_seq_trim(m->session.engine, 0, 0);
    for (uint32_t i = 0; i + 1 < m->chunk && rc >= 0; i += n_batch) {
        uint32_t n = m->chunk - 1 - i < n_batch ? m->chunk - 1 - i : n_batch;
        stk_batch batch = {.struct_bytes = sizeof batch, .n = n, .token = ids + i, .logits = m->all_logits};
        rc = cli_session_step(&m->session, &batch);
        for (uint32_t k = 0; k < n && rc >= 0; k++) {
            int32_t next = ids[i + k + 1];
            if (next < 0 || (uint32_t)next >= n_vocab)
                return cli_fail(CLI_FAILED, "perplexity", "token %d is beyond the vocabulary", next);
            m->sum += surprise(stk_get_logits(m->session.engine, k), n_vocab, next);
            m->n_scored++;
        }
    }
    return rc < 0 ? cli_fail_stk(rc, "computing") : CLI_OK;
}

static int score_text(measure *m) {
    size_t n_chunk = m->n / m->chunk;
    int rc = CLI_OK;
    for (size_t i = 0; i < n_chunk && rc == CLI_OK; i++) {
        rc = score_chunk(m, m->ids + i * m->chunk);
        if (rc == CLI_OK)
            cli_progress_text("chunk %zu of %zu, perplexity %.4f", i + 1, n_chunk, exp(m->sum / (double)m->n_scored));
    }
    cli_progress_clear();
    return rc;
}

static int report(const measure *m) {
    double perplexity = exp(m->sum / (double)m->n_scored);
    stk_stats stats = cli_session_stats(&m->session);
    int rc;
    if (!isfinite(perplexity)) return cli_fail(CLI_FAILED, "perplexity", "the model's logits are not finite");
    cli_print_table(NULL, &stats, m->settings->n_stats > 0);
    cli_print_predicted(m->session.engine);
    if (!m->settings->json) {
        rc = cli_print("perplexity %.5f over %llu scored tokens\n", perplexity, (unsigned long long)m->n_scored);
    } else {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddNumberToObject(json, "perplexity", perplexity);
        cJSON_AddNumberToObject(json, "n_tokens", (double)m->n);
        cJSON_AddNumberToObject(json, "n_scored", (double)m->n_scored);
        cJSON_AddNumberToObject(json, "chunk", m->chunk);
        cli_json_stats(json, "stats", &stats);
        cli_json_predicted(json, m->session.engine);
        cli_json_memory(json, &m->session.memory);
        rc = cli_json_print(json);
    }
    return rc;
}

static int measure_text(measure *m, const cli_buffer *text) {
    int rc = cli_session_open_model(&m->session, m->settings->model);
    if (rc) return rc;
    m->chunk = cli_session_context(&m->session, m->settings, 512);
    if (m->chunk < 2) return cli_fail(CLI_USAGE, "perplexity", "a chunk needs at least 2 tokens (-c)");
    rc = cli_session_tokenize(&m->session, text->data ? text->data : "", text->bytes, 0, &m->ids, &m->n);
    if (rc) return rc;
    if (m->n < m->chunk)
        return cli_fail(CLI_FAILED, "perplexity", "%s has %zu tokens, one chunk needs %u (-c)", m->settings->file, m->n,
                        m->chunk);
    uint32_t n_batch = (uint32_t)m->settings->n_batch;
    m->all_logits = malloc(n_batch);
    if (!m->all_logits) return cli_fail(CLI_FAILED, "perplexity", "out of memory");
    for (uint32_t i = 0; i < n_batch; i++) m->all_logits[i] = 1;
    if (n_batch > m->chunk) n_batch = m->chunk;
    rc = cli_session_open_engine(&m->session, m->settings, m->chunk, n_batch, n_batch);
    if (rc == CLI_OK) rc = score_text(m);
    return rc == CLI_OK ? report(m) : rc;
}

int cli_perplexity(const cli_settings *settings) {
    measure m = {.settings = settings};
    cli_buffer text = {0};
    if (!settings->model) return cli_fail(CLI_USAGE, "perplexity", "which model? (-m FILE)");
    if (!settings->file) return cli_fail(CLI_USAGE, "perplexity", "which text? (-f FILE)");
    int rc = cli_read_file(&text, settings->file);
    if (rc == CLI_OK) rc = measure_text(&m, &text);
    rc = cli_session_close(&m.session, rc);
    free(text.data);
    free(m.ids);
    free(m.all_logits);
    return rc;
}
