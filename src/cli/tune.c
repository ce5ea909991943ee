/* tune: finds the best expert cache for traces of a model. */
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* The bar, with the time that is left as the replays so far took it. */
typedef struct bar {
    double started_at;
    uint64_t first_done; /* replays that an earlier search had done */
    bool begun;
} bar;

static int progress(void *user, const char *what, uint64_t done, uint64_t total) {
    enum { WIDTH = 28 };
    static const char full[] = "============================";
    bar *b = user;
    char left[32] = "";
    if (cli_signal()) return 1;
    if (strcmp(what, "tune") != 0) return cli_progress(NULL, what, done, total);
    if (!b->begun) *b = (bar){cli_now(), done, true};
    double took = cli_now() - b->started_at, n = (double)(done - b->first_done);
    if (n >= 4 && took > 1) {
        double seconds = took / n * (double)(total - done);
        if (seconds < 90)
            snprintf(left, sizeof left, ", about %.0f s left", seconds);
        else
            snprintf(left, sizeof left, ", about %.0f min left", seconds / 60);
    }
    cli_progress_text("tuning [%-*.*s] %llu of about %llu replays%s", WIDTH, (int)(WIDTH * done / (total ? total : 1)), full,
                      (unsigned long long)done, (unsigned long long)total, left);
    return 0;
}

/* ---- The result ---------------------------------------------------------------------------------------------------------- */

static const char *scope_text(const stk_tune_result *r) {
    return r->scope == STK_SCOPE_GLOBAL ? "one cache for all layers"
           : r->fitted                  ? "fitted slots for each layer"
                                        : "equal slots for each layer";
}

static int report_json(const cli_settings *s, const stk_tune_result *r) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "policy", r->policy);
    cJSON_AddStringToObject(json, "scope", r->scope == STK_SCOPE_LAYER ? "layer" : "global");
    cJSON_AddBoolToObject(json, "fitted", r->fitted != 0);
    cJSON_AddStringToObject(json, "predictor", r->predictor);
    cJSON_AddNumberToObject(json, "lookahead", r->depth);
    cJSON_AddBoolToObject(json, "timed", r->timed != 0);
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"ram_bytes", (double)r->ram_bytes},
                   {"fraction", r->fraction},
                   {"hit_rate", r->hit_rate},
                   {"default_hit_rate", r->default_hit_rate},
                   {"bound_hit_rate", r->bound_hit_rate},
                   {"cache_hit_rate", r->cache_hit_rate},
                   {"default_cache_hit_rate", r->default_cache_hit_rate},
                   {"tok_s", r->tok_s},
                   {"default_tok_s", r->default_tok_s},
                   {"margin", r->margin},
                   {"margin_low", r->margin_low},
                   {"margin_high", r->margin_high},
                   {"parts", r->n_fold},
                   {"tied", r->n_tied},
                   {"tie_margin", r->tie_margin},
                   {"configurations", r->n_config},
                   {"replays", r->n_replay},
                   {"resumed", r->n_resumed},
                   {"sequences", (double)r->n_sequence},
                   {"tokens", (double)r->n_token}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        cJSON_AddNumberToObject(json, numbers[i].name, numbers[i].value);
    if (s->output) cJSON_AddStringToObject(json, "profile", s->output);
    if (s->report) cJSON_AddStringToObject(json, "report", s->report);
    return cli_json_print(json);
}

static int report(const stk_tune_result *r) {
    char bytes[32];
    int rc = cli_print("%s, %s", r->policy, scope_text(r));
    if (rc == CLI_OK && r->depth) rc = cli_print(", %s %u layer%s ahead\n", r->predictor, r->depth, r->depth == 1 ? "" : "s");
    if (rc == CLI_OK && !r->depth) rc = cli_print(", nothing read ahead\n");
    if (rc == CLI_OK)
        rc = cli_print("%s of expert slots, %.1f %% of all; %u configurations, %u replays\n", cli_bytes_text(r->ram_bytes, bytes),
                       100 * r->fraction, r->n_config, r->n_replay);
    if (rc == CLI_OK && r->timed)
        rc = cli_print("predicted %.2f tok/s, the default %.2f: %+.1f %% (parts from %+.1f to %+.1f %%)\n", r->tok_s,
                       r->default_tok_s, 100 * r->margin, 100 * r->margin_low, 100 * r->margin_high);
    if (rc == CLI_OK && !r->timed)
        rc = cli_print("%.1f %% fewer misses than the default (parts from %.1f to %.1f %%)\n", 100 * r->margin,
                       100 * r->margin_low, 100 * r->margin_high);
    if (rc == CLI_OK) rc = cli_print("%.2f %% hits, the default %.2f %%\n", 100 * r->hit_rate, 100 * r->default_hit_rate);
    if (rc == CLI_OK)
        rc =
            cli_print("without reading ahead %.2f %% hits, the default %.2f %%; belady-bypass, which knows what comes, %.2f %%\n",
                      100 * r->cache_hit_rate, 100 * r->default_cache_hit_rate, 100 * r->bound_hit_rate);
    if (rc == CLI_OK && r->n_tied > 1)
        rc = cli_print("%u configurations are as good as far as these traces can tell, the best of them by %.1f %%; this is the "
                       "simplest\n",
                       r->n_tied, 100 * r->tie_margin);
    return rc;
}

/* ---- The verb ------------------------------------------------------------------------------------------------------------ */

static int check(const cli_settings *s) {
    const char *outputs[] = {s->output, s->report, s->state};
    if (s->ram_bytes && s->fraction > 0) return cli_fail(CLI_USAGE, "tune", "--ram and --fraction exclude one another");
    for (int i = 0; i < 3; i++)
        for (int k = 0; outputs[i] && k < s->n_operand; k++)
            if (strcmp(outputs[i], s->operands[k]) == 0)
                return cli_fail(CLI_USAGE, "tune", "%s is one of the traces; name another file", outputs[i]);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (outputs[i] && outputs[k] && strcmp(outputs[i], outputs[k]) == 0)
                return cli_fail(CLI_USAGE, "tune", "%s is to be two things at the same time", outputs[i]);
    return CLI_OK;
}

static int search(const cli_settings *s, const stk_model *model, const char *state, stk_tune_result *r) {
    stk_tune_options o;
    bar b = {0};
    o.struct_bytes = sizeof o;
    stk_tune_options_default(&o, sizeof o);
    o.n_threads = (uint32_t)s->n_job;
    o.ram_bytes = s->ram_bytes;
    o.fraction = s->fraction;
    o.io = s->io;
    o.cost = s->cost;
    o.expert_bytes = s->expert_bytes;
    o.seed = (uint64_t)s->seed;
    o.model = model;
    o.model_shape = s->shape;
    o.profile = s->output;
    o.report = s->report;
    o.state = state;
    o.progress = progress;
    o.progress_user = &b;
    int rc = stk_tune((const char *const *)s->operands, (uint32_t)s->n_operand, &o, r);
    cli_progress_clear();
    if (rc == STK_ECANCELED && cli_signal() && state)
        cli_say("stoker: tune: what was done is in %s; the same command goes on there", state);
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "tune", "%s", stk_error_detail());
    return rc < 0 ? cli_fail_stk(rc, "tune") : CLI_OK;
}

int cli_tune(const cli_settings *s) {
    stk_tune_result r = {.struct_bytes = sizeof r};
    stk_model *model = NULL;
    char *state = NULL;
    int rc = check(s);
    if (rc == CLI_OK && !s->state && s->output) {
        size_t bytes = strlen(s->output) + sizeof ".state";
        state = malloc(bytes);
        if (!state) return cli_fail(CLI_FAILED, "tune", "out of memory");
        snprintf(state, bytes, "%s.state", s->output);
    }
    if (rc == CLI_OK && s->model) {
        int opened = stk_model_open(&model, s->model);
        if (opened < 0) rc = cli_fail_stk(opened, "opening the model");
    }
    if (rc == CLI_OK) rc = search(s, model, s->state ? s->state : state, &r);
    stk_model_close(&model);
    free(state);
    if (rc == CLI_OK && r.n_resumed) cli_note("%u of %u replays were taken from an earlier search", r.n_resumed, r.n_replay);
    if (rc == CLI_OK) rc = s->json ? report_json(s, &r) : report(&r);
    if (rc == CLI_OK && s->output) cli_note("run with it: stoker run -m MODEL --profile %s", s->output);
    return rc;
}
