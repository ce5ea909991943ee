/* run: generates text after a prompt. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "session.h"
#include "timeline.h"

/* Why generation ended; the names stand in the JSON. */
enum stop { STOP_NONE, STOP_END, STOP_LENGTH, STOP_CONTEXT, STOP_SIGNAL };
static const char *const stop_names[] = {"none", "end", "length", "context", "interrupted"};

typedef struct generation {
    const cli_settings *settings;
    cli_settings fallen; /* in their place once the device is lost */
    cli_session session;
    stk_sampler *sampler;
    stk_decoder *decoder;
    uint32_t n_ctx;
    int32_t *ids; /* [n_ctx + 1] the prompt, then what was generated */
    size_t n_prompt, n_made;
    cli_buffer text; /* of what was generated, for --json */
    enum stop stop;
    stk_stats prefill, decode;
    cli_timeline timeline;
} generation;

/* The prompt as the user gave it: -p, -f or stdin. */
static int prompt_get(const cli_settings *s, cli_buffer *text) {
    if (!!s->prompt + !!s->file + !!s->tokens.n > 1) return cli_fail(CLI_USAGE, "run", "-p, -f and --tokens exclude one another");
    if (s->tokens.n) return CLI_OK;
    if (s->prompt) return cli_buffer_add(text, s->prompt, strlen(s->prompt));
    if (!s->file && isatty(STDIN_FILENO)) return cli_fail(CLI_USAGE, "run", "no prompt: give -p TEXT, -f FILE, or pipe one in");
    int rc = cli_read_file(text, s->file);
    if (rc == CLI_OK && text->bytes && text->data[text->bytes - 1] == '\n') text->bytes--;
    return rc;
}

static int prompt_wrap_chat(const stk_model *model, cli_buffer *text) {
    int rc = cli_buffer_add(text, "", 1);
    if (rc) return rc;
    stk_chat_message message = {"user", text->data};
    int64_t need = stk_chat_format(model, &message, 1, NULL, 0);
    if (need < 0) return cli_fail_stk((int)need, "--chat");
    char *out = malloc((size_t)need + 1);
    if (!out) return cli_fail(CLI_FAILED, "--chat", "out of memory");
    need = stk_chat_format(model, &message, 1, out, (size_t)need + 1);
    free(text->data);
    *text = (cli_buffer){out, need < 0 ? 0 : (size_t)need, need < 0 ? 0 : (size_t)need};
    return need < 0 ? cli_fail_stk((int)need, "--chat") : CLI_OK;
}

/* The prompt's ids: of --tokens as they are, else of the text. *ids is the caller's to free. */
static int prompt_ids(generation *g, cli_buffer *text, int32_t **ids) {
    const cli_list *given = &g->settings->tokens;
    uint32_t flags = STK_TOKENIZE_BOS | STK_TOKENIZE_SPECIAL;
    if (!given->n) {
        int rc = g->settings->chat ? prompt_wrap_chat(g->session.model, text) : CLI_OK;
        return rc ? rc : cli_session_tokenize(&g->session, text->data ? text->data : "", text->bytes, flags, ids, &g->n_prompt);
    }
    *ids = malloc(given->n * sizeof **ids);
    if (!*ids) return cli_fail(CLI_FAILED, "run", "out of memory for %zu tokens", given->n);
    memcpy(*ids, given->v, given->n * sizeof **ids);
    g->n_prompt = given->n;
    return cli_session_check_tokens(&g->session, given);
}

/* Puts the prompt's ids where those that are generated will follow. */
static int prompt_tokenize(generation *g, cli_buffer *text) {
    int32_t *ids = NULL;
    int rc = prompt_ids(g, text, &ids);
    if (rc == CLI_OK && g->n_prompt == 0) rc = cli_fail(CLI_USAGE, "run", "the prompt is empty");
    if (rc == CLI_OK && g->n_prompt > g->n_ctx)
        rc = cli_fail(CLI_FAILED, "run", "the prompt has %zu tokens, the context holds %u; shorten it or raise -c", g->n_prompt,
                      g->n_ctx);
    if (rc == CLI_OK) {
        g->ids = malloc(((size_t)g->n_ctx + 1) * sizeof *g->ids);
        if (g->ids)
            memcpy(g->ids, ids, g->n_prompt * sizeof *ids);
        else
            rc = cli_fail(CLI_FAILED, "run", "out of memory for %u positions", g->n_ctx);
    }
    free(ids);
    return rc;
}

static int seed_choose(cli_settings *s) {
    uint32_t drawn;
    if (s->seed >= 0) return CLI_OK;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
        return cli_fail(CLI_FAILED, "run", "no random seed to be had; give --seed");
    s->seed = drawn;
    return CLI_OK;
}

static int sampler_open(generation *g) {
    const cli_settings *s = g->settings;
    stk_sampler_options o;
    stk_sampler_options_default(&o, sizeof o);
    o.top_k = (int32_t)s->top_k;
    o.temperature = (float)s->temp;
    o.top_p = (float)s->top_p;
    o.min_p = (float)s->min_p;
    o.repeat_penalty = (float)s->repeat_penalty;
    o.repeat_last_n = (int32_t)s->repeat_last_n;
    o.seed = (uint64_t)s->seed;
    int rc = stk_sampler_open(&g->sampler, &o, g->session.info.n_vocab);
    if (rc >= 0) rc = stk_decoder_open(&g->decoder, g->session.model, 0);
    return rc < 0 ? cli_fail_stk(rc, "run") : CLI_OK;
}

/* A step over ids [first, first + n) of sequence 0. Returns its code. */
static int compute(generation *g, size_t first, size_t n) {
    stk_batch batch = {.struct_bytes = sizeof batch, .n = (uint32_t)n, .token = g->ids + first};
    int rc = cli_session_step(&g->session, &batch);
    if (rc == STK_ECANCELED && cli_signal()) g->stop = STOP_SIGNAL;
    return rc;
}

/* The device is lost: another engine without it computes everything before position `first` again. */
static int fall_back(generation *g, size_t first) {
    cli_settings *s = &g->fallen;
    *s = *g->settings;
    s->device = "none";
    s->vram = NULL;
    s->trace = NULL;
    cli_say("stoker: warning: %s; the CPU goes on from here, with other bits of attention than the device's", stk_error_detail());
    cli_signals_watch(NULL);
    if (stk_engine_close(&g->session.engine) < 0) cli_say("stoker: warning: ending the trace: %s", stk_error_detail());
    int rc = cli_session_open_engine(&g->session, s, g->n_ctx, (uint32_t)s->n_batch, 1);
    size_t n_batch = (size_t)s->n_batch;
    for (size_t i = 0; i < first && rc == CLI_OK; i += n_batch) {
        int done = compute(g, i, first - i < n_batch ? first - i : n_batch);
        if (done < 0) rc = cli_fail_stk(done, "computing");
    }
    if (rc == CLI_OK) g->prefill = cli_session_stats(&g->session); /* what follows is counted from here */
    return rc;
}

/* A step whose last logits are in *logits. */
static int step(generation *g, size_t first, size_t n, const float **logits) {
    int rc = compute(g, first, n);
    if (rc == STK_ELOST && g->settings->device_fallback) {
        int fell = fall_back(g, first);
        if (fell) return fell;
        rc = compute(g, first, n);
    }
    if (rc < 0) return cli_fail_stk(rc, "computing");
    *logits = stk_get_logits(g->session.engine, (uint32_t)n - 1);
    return CLI_OK;
}

static int prefill(generation *g, const float **logits) {
    size_t n_batch = (size_t)g->settings->n_batch;
    int rc = CLI_OK;
    for (size_t i = 0; i < g->n_prompt && rc == CLI_OK; i++) {
        int accepted = stk_sampler_accept(g->sampler, g->ids[i]);
        if (accepted < 0) rc = cli_fail_stk(accepted, "sampling");
    }
    for (size_t i = 0; i < g->n_prompt && rc == CLI_OK; i += n_batch)
        rc = step(g, i, g->n_prompt - i < n_batch ? g->n_prompt - i : n_batch, logits);
    g->prefill = cli_session_stats(&g->session);
    return rc;
}

static int emit(generation *g, const char *text, int64_t bytes) {
    if (bytes < 0) return cli_fail_stk((int)bytes, "decoding text");
    if (bytes == 0) return CLI_OK;
    return g->settings->json ? cli_buffer_add(&g->text, text, (size_t)bytes) : cli_write(text, (size_t)bytes);
}

/* Samples the next token and prints it; one that ends the text sets g->stop instead. */
static int take_token(generation *g, const float *logits) {
    const char *text = NULL;
    int32_t id = stk_sampler_sample(g->sampler, logits);
    if (id < 0) return cli_fail_stk(id, "sampling");
    if (stk_token_is_end(g->session.model, id) == 1 && !g->settings->ignore_eos) {
        g->stop = STOP_END;
        return CLI_OK;
    }
    int rc = stk_sampler_accept(g->sampler, id);
    if (rc < 0) return cli_fail_stk(rc, "sampling");
    g->ids[g->n_prompt + g->n_made++] = id;
    int64_t bytes = stk_decoder_put(g->decoder, id, &text);
    return emit(g, text, bytes);
}

static int generate(generation *g) {
    const float *logits = NULL;
    const char *text = NULL;
    int64_t most = g->settings->n_predict;
    int rc = prefill(g, &logits);
    if (rc == CLI_OK && most == 0) g->stop = STOP_LENGTH;
    while (rc == CLI_OK && g->stop == STOP_NONE) {
        rc = take_token(g, logits);
        if (rc || g->stop) break;
        if (most >= 0 && g->n_made >= (uint64_t)most)
            g->stop = STOP_LENGTH;
        else if (g->n_prompt + g->n_made > g->n_ctx)
            g->stop = STOP_CONTEXT; /* no position is left for the newest token */
        else
            rc = step(g, g->n_prompt + g->n_made - 1, 1, &logits);
    }
    if (rc && g->stop != STOP_SIGNAL) return rc;
    int64_t bytes = stk_decoder_flush(g->decoder, &text);
    int rc2 = emit(g, text, bytes);
    return rc ? rc : rc2;
}

static int report_json(const generation *g, const stk_stats *all) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "version", stk_version());
    cJSON_AddStringToObject(json, "arch", g->session.info.arch);
    cli_json_text(json, "name", g->session.info.name, strlen(g->session.info.name));
    cli_json_text(json, "text", g->text.data, g->text.bytes);
    cJSON_AddItemToObject(json, "prompt_tokens", cJSON_CreateIntArray(g->ids, (int)g->n_prompt));
    cJSON_AddItemToObject(json, "tokens", cJSON_CreateIntArray(g->ids + g->n_prompt, (int)g->n_made));
    cJSON_AddStringToObject(json, "stop", stop_names[g->stop]);
    cJSON_AddNumberToObject(json, "seed", (double)g->settings->seed);
    cJSON *seconds = cJSON_AddObjectToObject(json, "seconds"), *speed = cJSON_AddObjectToObject(json, "speed");
    cJSON_AddNumberToObject(seconds, "open", g->session.open_seconds);
    cJSON_AddNumberToObject(seconds, "prefill", (double)g->prefill.step_ns * 1e-9);
    cJSON_AddNumberToObject(seconds, "decode", (double)g->decode.step_ns * 1e-9);
    cJSON_AddNumberToObject(speed, "prefill", cli_tokens_per_second(&g->prefill));
    cJSON_AddNumberToObject(speed, "decode", cli_tokens_per_second(&g->decode));
    cli_json_stats(json, "stats", all);
    cli_json_stats(json, "stats_prefill", &g->prefill);
    cli_json_stats(json, "stats_decode", &g->decode);
    cli_json_predicted(json, g->session.engine);
    cli_json_memory(json, &g->session.memory);
    return cli_json_print(json);
}

static int report(generation *g) {
    stk_stats all = cli_session_stats(&g->session);
    g->decode = cli_stats_minus(&all, &g->prefill);
    int rc = g->settings->json ? report_json(g, &all) : CLI_OK;
    if (!g->settings->json) cli_note("%s", ""); /* the text need not end with a newline */
    if (g->stop == STOP_CONTEXT) cli_note("stoker: the context is full (%u tokens); a longer one is had with -c", g->n_ctx);
    cli_print_table(&g->prefill, &g->decode, g->settings->n_stats > 0);
    cli_print_predicted(g->session.engine);
    return rc;
}

static int start_timeline(generation *g) {
    uint64_t n_batch = (uint64_t)g->settings->n_batch, n_before = (g->n_prompt + n_batch - 1) / n_batch;
    int rc = cli_timeline_open(&g->timeline, g->settings, g->session.model, n_before, "token");
    if (rc != CLI_OK || !g->timeline.work) return rc;
    int set = stk_engine_set_timeline(g->session.engine, g->timeline.work);
    return set < 0 ? cli_fail_stk(set, "--timeline") : CLI_OK;
}

static int open_and_generate(generation *g, cli_buffer *prompt) {
    int rc = cli_session_open_model(&g->session, g->settings->model);
    if (rc) return rc;
    g->n_ctx = cli_session_context(&g->session, g->settings, 4096);
    rc = prompt_tokenize(g, prompt);
    if (rc == CLI_OK) rc = sampler_open(g); /* before the weights are read: a model without a tokenizer ends here */
    if (rc == CLI_OK) rc = cli_session_open_engine(&g->session, g->settings, g->n_ctx, (uint32_t)g->settings->n_batch, 1);
    if (rc) return rc;
    rc = start_timeline(g);
    if (rc) return rc;
    cli_note("prompt  %zu token%s, seed %lld", g->n_prompt, g->n_prompt == 1 ? "" : "s", (long long)g->settings->seed);
    rc = generate(g);
    if (rc && g->stop != STOP_SIGNAL) return rc;
    int rc2 = report(g);
    if (rc2 == CLI_OK) rc2 = cli_timeline_save(&g->timeline, g->session.info.name);
    return rc ? rc : rc2;
}

int cli_run(const cli_settings *settings) {
    cli_settings s = *settings;
    generation g = {.settings = &s};
    cli_buffer prompt = {0};
    if (!s.model) return cli_fail(CLI_USAGE, "run", "which model? (-m FILE)");
    int rc = cli_session_check_resize(&s);
    if (rc == CLI_OK) rc = seed_choose(&s);
    if (rc == CLI_OK) rc = prompt_get(&s, &prompt);
    if (rc == CLI_OK) rc = open_and_generate(&g, &prompt);
    stk_sampler_close(&g.sampler);
    stk_decoder_close(&g.decoder);
    rc = cli_session_close(&g.session, rc);
    cli_timeline_close(&g.timeline);
    free(prompt.data);
    free(g.text.data);
    free(g.ids);
    return rc;
}
