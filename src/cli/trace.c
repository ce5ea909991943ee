/* trace: looks into traces, cuts, merges and converts them. */
#include <string.h>

#include "session.h"

/* ---- info --------------------------------------------------------------------------------------------------------------- */

typedef struct contents {
    uint64_t n_event, n_step, n_prefill, n_decode; /* tokens of steps, by phase */
    uint64_t n_sequence;
    int64_t max_seq;
    bool weights, scores, tokens;
} contents;

/* Counts an event; the first of a step also as that step. */
static void take_event(contents *c, const stk_trace_event *e, uint64_t *step) {
    c->n_event++;
    c->weights |= e->weights != NULL;
    c->scores |= e->n_top > 0;
    if (e->step == *step) return;
    *step = e->step;
    c->n_step++;
    *(e->decode ? &c->n_decode : &c->n_prefill) += e->n_tok;
    for (uint32_t i = 0; i < e->n_tok; i++) {
        c->tokens |= e->token[i] >= 0;
        c->n_sequence += e->pos[i] == 0 || e->seq[i] > c->max_seq;
        if (e->seq[i] > c->max_seq) c->max_seq = e->seq[i];
    }
}

static int read_all(stk_trace *trace, contents *c) {
    stk_trace_event e = {.struct_bytes = sizeof e};
    uint64_t step = UINT64_MAX;
    int rc;
    *c = (contents){.max_seq = -1};
    while ((rc = stk_trace_next(trace, &e)) == 1) {
        take_event(c, &e, &step);
        if (cli_signal()) return cli_signal_exit();
    }
    return rc < 0 ? cli_fail_stk(rc, "trace") : CLI_OK;
}

static void info_json(cJSON *list, const char *path, const stk_trace_info *i, const contents *c, bool cut) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "trace", path);
    cJSON_AddStringToObject(o, "format", i->format);
    cJSON_AddStringToObject(o, "model", i->model);
    cJSON_AddStringToObject(o, "policy", i->policy);
    cJSON_AddStringToObject(o, "io", i->io);
    cJSON_AddNumberToObject(o, "layers", i->n_layer);
    cJSON_AddNumberToObject(o, "experts", i->n_expert);
    cJSON_AddNumberToObject(o, "k", i->k);
    cJSON_AddNumberToObject(o, "n_batch", i->n_batch);
    cJSON_AddNumberToObject(o, "expert_bytes", (double)i->expert_bytes);
    cJSON_AddBoolToObject(o, "bytes_known", i->sized != 0);
    cJSON_AddBoolToObject(o, "recorded", i->recorded != 0);
    cJSON_AddNumberToObject(o, "n_slot", (double)i->n_slot);
    cJSON_AddNumberToObject(o, "ram_bytes", (double)i->ram_bytes);
    cJSON_AddNumberToObject(o, "steps", (double)c->n_step);
    cJSON_AddNumberToObject(o, "events", (double)c->n_event);
    cJSON_AddNumberToObject(o, "sequences", (double)c->n_sequence);
    cJSON_AddNumberToObject(o, "prefill_tokens", (double)c->n_prefill);
    cJSON_AddNumberToObject(o, "decode_tokens", (double)c->n_decode);
    cJSON_AddBoolToObject(o, "weights", c->weights);
    cJSON_AddBoolToObject(o, "scores", c->scores);
    cJSON_AddBoolToObject(o, "token_ids", c->tokens);
    cJSON_AddBoolToObject(o, "complete", !cut);
    cJSON_AddItemToArray(list, o);
}

static int info_text(const char *path, const stk_trace_info *i, const contents *c, bool cut) {
    char bytes[32], ram[32];
    int rc = cli_print("%s: %s%s%s\n  %u layers of %u experts, %u a token; %s of experts%s\n", path, i->format,
                       i->model[0] ? ", " : "", i->model, i->n_layer, i->n_expert, i->k, cli_bytes_text(i->expert_bytes, bytes),
                       i->sized ? "" : ", assumed: the trace does not say");
    if (rc == CLI_OK)
        rc = cli_print(
            "  %llu sequences, %llu steps, %llu events; tokens: %llu of prompts, %llu decoded\n  holds experts%s%s%s%s\n",
            (unsigned long long)c->n_sequence, (unsigned long long)c->n_step, (unsigned long long)c->n_event,
            (unsigned long long)c->n_prefill, (unsigned long long)c->n_decode, c->weights ? ", weights" : "",
            c->scores ? ", router scores" : "", c->tokens ? ", token ids" : "", cut ? "; cut off" : "");
    if (rc == CLI_OK && i->recorded)
        rc = cli_print("  recorded with %llu slots (%s), policy %s, I/O %s\n", (unsigned long long)i->n_slot,
                       cli_bytes_text(i->ram_bytes, ram), i->policy, i->io);
    return rc;
}

static int info_file(const char *path, cJSON *list) {
    stk_trace *trace;
    stk_trace_info info = {.struct_bytes = sizeof info};
    contents c;
    int rc = stk_trace_open(&trace, path);
    if (rc >= 0) rc = stk_trace_get_info(trace, &info);
    rc = rc < 0 ? cli_fail_stk(rc, "trace") : read_all(trace, &c);
    if (rc == CLI_OK && list)
        info_json(list, path, &info, &c, stk_trace_is_cut(trace));
    else if (rc == CLI_OK)
        rc = info_text(path, &info, &c, stk_trace_is_cut(trace));
    stk_trace_close(&trace);
    return rc;
}

static int info(const cli_settings *s, char *const *paths, int n) {
    cJSON *list = s->json ? cJSON_CreateArray() : NULL;
    int rc = CLI_OK;
    for (int i = 0; rc == CLI_OK && i < n; i++) rc = info_file(paths[i], list);
    if (rc != CLI_OK || !list) {
        cJSON_Delete(list);
        return rc;
    }
    return cli_json_print(n == 1 ? cJSON_DetachItemFromArray(list, 0) : list);
}

/* ---- cut, merge, convert ------------------------------------------------------------------------------------------------ */

static int convert(const cli_settings *s, char *const *paths, int n) {
    stk_trace_convert_options o;
    if (!s->output) return cli_fail(CLI_USAGE, "trace", "%s needs -o FILE", s->operand);
    const char *dot = strrchr(s->output, '.');
    stk_trace_convert_options_default(&o, sizeof o);
    o.format = dot && strcmp(dot, ".csv") == 0 ? STK_TRACE_FORMAT_CSV : STK_TRACE_FORMAT_STOKER;
    o.first_step = (uint64_t)s->first_step;
    o.n_step = (uint64_t)s->n_step;
    o.expert_bytes = s->expert_bytes;
    o.progress = cli_progress;
    int rc = stk_trace_convert((const char *const *)paths, (uint32_t)n, s->output, &o);
    cli_progress_clear();
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "trace", "%s", stk_error_detail());
    return rc < 0 ? cli_fail_stk(rc, "trace") : CLI_OK;
}

int cli_trace(const cli_settings *s) {
    char *const *paths = s->operands + 1;
    int n = s->n_operand - 1;
    bool is_info = strcmp(s->operand, "info") == 0, is_cut = strcmp(s->operand, "cut") == 0,
         is_merge = strcmp(s->operand, "merge") == 0, is_convert = strcmp(s->operand, "convert") == 0;
    if (!is_info && !is_cut && !is_merge && !is_convert)
        return cli_fail(CLI_USAGE, "trace", "'%s' is not info, cut, merge or convert", s->operand);
    if (n > 1 && !is_info && !is_merge) return cli_fail(CLI_USAGE, "trace", "%s takes one trace", s->operand);
    if (is_info && (s->output || s->expert_bytes)) return cli_fail(CLI_USAGE, "trace", "info takes no -o and no --expert-bytes");
    if (!is_cut && (s->first_step || s->n_step)) return cli_fail(CLI_USAGE, "trace", "--from and --steps belong to cut");
    if (!is_info && s->json) return cli_fail(CLI_USAGE, "trace", "--json belongs to info");
    return is_info ? info(s, paths, n) : convert(s, paths, n);
}
