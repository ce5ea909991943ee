/* replay: drives the cache and the scheduler with traces, without a model. */
#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "timeline.h"

typedef struct figures {
    stk_replay_result result;
    stk_replay_detail detail;       /* layers are owned */
    const stk_replay_detail *other; /* the same with the other --reset, NULL: not asked for */
} figures;

static double hit_rate(const stk_replay_count *c) { return c->n_lookup ? (double)c->n_hit / (double)c->n_lookup : 0; }

static double tokens_per_second(const stk_replay_count *c) {
    return c->step_ns ? (double)c->n_token * 1e9 / (double)c->step_ns : 0;
}

static bool tiered(const cli_settings *s) { return s->vram_bytes || s->mode || (s->tier && strncmp(s->tier, "vram=", 5) == 0); }

static stk_replay_count sum(const stk_replay_detail *d) {
    const stk_replay_count *a = &d->prefill, *b = &d->decode;
    return (stk_replay_count){.n_lookup = a->n_lookup + b->n_lookup, .n_hit = a->n_hit + b->n_hit};
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------- */

static void json_count(cJSON *json, const char *name, const stk_replay_count *c) {
    cJSON *o = cJSON_AddObjectToObject(json, name);
    cJSON_AddNumberToObject(o, "tokens", (double)c->n_token);
    cJSON_AddNumberToObject(o, "events", (double)c->n_event);
    cJSON_AddNumberToObject(o, "lookups", (double)c->n_lookup);
    cJSON_AddNumberToObject(o, "hits", (double)c->n_hit);
    cJSON_AddNumberToObject(o, "misses", (double)c->n_miss);
    cJSON_AddNumberToObject(o, "evictions", (double)c->n_evict);
    cJSON_AddNumberToObject(o, "hit_rate", hit_rate(c));
    cJSON_AddNumberToObject(o, "bytes", (double)c->bytes);
    cJSON_AddNumberToObject(o, "read_bytes", (double)c->read_bytes);
    cJSON_AddNumberToObject(o, "tok_s", tokens_per_second(c));
    cJSON_AddNumberToObject(o, "step_ns", (double)c->step_ns);
    cJSON_AddNumberToObject(o, "dense_ns", (double)c->dense_ns);
    cJSON_AddNumberToObject(o, "expert_ns", (double)c->expert_ns);
    cJSON_AddNumberToObject(o, "arrive_ns", (double)c->arrive_ns);
    cJSON_AddNumberToObject(o, "wait_ns", (double)c->wait_ns);
}

static void json_traces(cJSON *json, const cli_settings *s) {
    cJSON_AddStringToObject(json, "trace", s->operand);
    if (s->n_operand < 2) return;
    cJSON *list = cJSON_AddArrayToObject(json, "traces");
    for (int i = 0; i < s->n_operand; i++) cJSON_AddItemToArray(list, cJSON_CreateString(s->operands[i]));
}

static int report_json(const cli_settings *s, const figures *f) {
    const stk_replay_result *r = &f->result;
    const stk_replay_detail *d = &f->detail;
    const stk_stats *t = &r->stats;
    bool reset = s->reset && strcmp(s->reset, "sequence") == 0;
    cJSON *json = cJSON_CreateObject();
    json_traces(json, s);
    cJSON_AddStringToObject(json, "policy", d->policy);
    cJSON_AddStringToObject(json, "scope", d->scope == STK_SCOPE_LAYER ? "layer" : "global");
    cJSON_AddStringToObject(json, "reset", reset ? "sequence" : "none");
    cJSON_AddNumberToObject(json, "sequences", (double)d->n_sequence);
    cJSON_AddNumberToObject(json, "events", (double)t->n_event);
    cJSON_AddNumberToObject(json, "hits", (double)t->n_hit);
    cJSON_AddNumberToObject(json, "misses", (double)t->n_miss);
    cJSON_AddNumberToObject(json, "hit_rate", cli_hit_rate(t));
    cJSON_AddNumberToObject(json, "bytes", (double)t->bytes);
    cJSON_AddBoolToObject(json, "bytes_known", d->sized != 0);
    if (s->io || s->cost)
        cJSON_AddNumberToObject(json, "tok_s", cli_tokens_per_second(t));
    else
        cJSON_AddNullToObject(json, "tok_s");
    cJSON_AddBoolToObject(json, "complete", r->complete != 0);
    cJSON_AddNumberToObject(json, "n_slot", (double)r->n_slot);
    cJSON_AddNumberToObject(json, "n_expert", (double)d->n_expert);
    cJSON_AddNumberToObject(json, "token_slots", (double)d->token_slots);
    cJSON_AddNumberToObject(json, "ram_bytes", (double)r->ram_bytes);
    if (s->verify) cJSON_AddBoolToObject(json, "verified", true); /* a difference is an error and prints no object */
    cJSON_AddNumberToObject(json, "virtual_ns", (double)r->virtual_ns);
    cJSON_AddNumberToObject(json, "tokens_per_second", cli_tokens_per_second(t));
    json_count(json, "prefill", &d->prefill);
    json_count(json, "decode", &d->decode);
    if (f->other) {
        stk_replay_count all = sum(f->other), own = sum(d);
        cJSON_AddNumberToObject(json, "hit_rate_cold", hit_rate(&all));
        cJSON_AddNumberToObject(json, "hit_rate_carried", hit_rate(&own));
    }
    if (tiered(s)) {
        cJSON_AddStringToObject(json, "mode", d->policy);
        cJSON_AddNumberToObject(json, "vram_bytes", (double)d->vram_bytes);
        cli_json_tiers(json, "prefill_tiers", &d->tiers_prefill);
        cli_json_tiers(json, "decode_tiers", &d->tiers_decode);
    }
    cli_json_predicted_counts(json, d->predicted);
    cli_json_stats(json, "stats", t);
    return cli_json_print(json);
}

/* ---- Text --------------------------------------------------------------------------------------------------------------- */

/* Of what a prediction is made up. */
static void shares_text(const stk_replay_count *c, char *text, size_t bytes) {
    double percent = 100 / (double)c->step_ns;
    snprintf(text, bytes,
             ", %.2f tok/s: %.1f %% dense, %.1f %% experts, %.1f %% bringing them into their layout, %.1f %% waiting for reads",
             tokens_per_second(c), percent * (double)c->dense_ns, percent * (double)c->expert_ns, percent * (double)c->arrive_ns,
             percent * (double)c->wait_ns);
}

static int print_phase(const char *name, const stk_replay_count *c, bool timed) {
    char bytes[32], speed[160] = "";
    if (!c->n_event) return CLI_OK;
    if (timed && c->step_ns) shares_text(c, speed, sizeof speed);
    return cli_print("%-8s %llu tokens, %llu lookups, %.2f %% hits, %s read%s\n", name, (unsigned long long)c->n_token,
                     (unsigned long long)c->n_lookup, 100 * hit_rate(c), cli_bytes_text(c->bytes, bytes), speed);
}

static int report(const cli_settings *s, const figures *f) {
    const stk_replay_result *r = &f->result;
    const stk_replay_detail *d = &f->detail;
    const stk_stats *t = &r->stats;
    char a[32], b[32], c[32];
    int rc = cli_print("%llu steps, %llu tokens, %llu events; policy %s, scope %s; %llu slots for %llu experts, %s\n",
                       (unsigned long long)t->n_step, (unsigned long long)t->n_token, (unsigned long long)t->n_event, d->policy,
                       d->scope == STK_SCOPE_LAYER ? "layer" : "global", (unsigned long long)r->n_slot,
                       (unsigned long long)d->n_expert, cli_bytes_text(r->ram_bytes, a));
    if (rc == CLI_OK)
        rc = cli_print("%llu lookups, %.2f %% hits, %llu misses, %llu evictions; %s of experts read, %s asked of the drive\n",
                       (unsigned long long)t->n_lookup, 100 * cli_hit_rate(t), (unsigned long long)t->n_miss,
                       (unsigned long long)t->n_evict, cli_bytes_text(t->bytes, b), cli_bytes_text(t->read_bytes, c));
    bool timed = s->io || s->cost;
    if (rc == CLI_OK) rc = print_phase("prefill", &d->prefill, timed);
    if (rc == CLI_OK) rc = print_phase("decode", &d->decode, timed);
    if (rc == CLI_OK && f->other) {
        stk_replay_count all = sum(f->other);
        rc = cli_print("%llu sequences: %.2f %% hits if each starts cold, %.2f %% as above, carried over\n",
                       (unsigned long long)d->n_sequence, 100 * hit_rate(&all), 100 * cli_hit_rate(t));
    }
    if (rc == CLI_OK && timed)
        rc = cli_print("predicted %.3f s, %.2f tok/s\n", (double)r->virtual_ns * 1e-9, cli_tokens_per_second(t));
    if (rc == CLI_OK) rc = cli_report_predicted(d->predicted);
    if (rc == CLI_OK && s->verify) rc = cli_print("every decision and counter equals the recorded run\n");
    return rc;
}

/* ---- CSV ---------------------------------------------------------------------------------------------------------------- */

static void csv_row(FILE *out, const stk_replay_layer *l, const char *phase, const stk_replay_count *c) {
    if (!c->n_event) return;
    fprintf(out, "%u,%s,%u,%llu,%llu,%llu,%llu,%llu,%.6f,%llu,%llu\n", l->layer, phase, l->n_slot, (unsigned long long)c->n_event,
            (unsigned long long)c->n_lookup, (unsigned long long)c->n_hit, (unsigned long long)c->n_miss,
            (unsigned long long)c->n_evict, hit_rate(c), (unsigned long long)c->bytes, (unsigned long long)c->read_bytes);
}

static int write_csv(const char *path, const stk_replay_detail *d) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return cli_fail(CLI_FAILED, "replay", "--csv: out of memory");
    fprintf(out, "layer,phase,n_slot,events,lookups,hits,misses,evictions,hit_rate,bytes,read_bytes\n");
    for (uint32_t i = 0; i < d->n_layer; i++) {
        csv_row(out, &d->layers[i], "prefill", &d->layers[i].prefill);
        csv_row(out, &d->layers[i], "decode", &d->layers[i].decode);
    }
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    int rc =
        failed ? cli_fail(CLI_FAILED, "replay", "--csv: out of memory") : cli_write_file(path, "figures by layer", text, bytes);
    free(text);
    return rc;
}

/* ---- The verb ----------------------------------------------------------------------------------------------------------- */

/* One tier of a list, "ram=24G,"; where it ends, or NULL: it is another. *bytes stays 0 where the size is none. */
static const char *parse_tier(const char *text, const char *name, uint64_t *bytes) {
    char size[32];
    size_t n = strlen(name), end = strcspn(text, ",");
    if (strncmp(text, name, n) != 0 || text[n] != '=' || text[end] != ',') return NULL;
    snprintf(size, sizeof size, "%.*s", (int)(end - n - 1), text + n + 1);
    if (end - n - 1 >= sizeof size || !cli_size_parse(size, bytes)) *bytes = 0;
    return text + end + 1;
}

/* vram=SIZE,ram=SIZE,nvme: what lies over what, the drive last; vram may be left out. */
static int parse_tiers(const char *text, uint64_t *vram_bytes, uint64_t *ram_bytes) {
    const char *after_vram = parse_tier(text, "vram", vram_bytes), *rest = after_vram ? after_vram : text;
    rest = parse_tier(rest, "ram", ram_bytes);
    if (!rest || strcmp(rest, "nvme") != 0)
        return cli_fail(CLI_USAGE, "--tier", "'%s': tiers are vram=SIZE,ram=SIZE,nvme, the drive last; vram may be left out",
                        text);
    if (!*ram_bytes || (after_vram && !*vram_bytes))
        return cli_fail(CLI_USAGE, "--tier", "'%s': a size is one such as 512M or 8G", text);
    return CLI_OK;
}

static int check(const cli_settings *s) {
    int n_budget = (s->ram_bytes != 0) + (s->n_slot != 0) + (s->fraction != 0) + (s->tier != NULL);
    uint64_t vram = 0, ram = 0;
    if (s->tier && parse_tiers(s->tier, &vram, &ram) != CLI_OK) return CLI_USAGE;
    if (vram && s->vram_bytes) return cli_fail(CLI_USAGE, "replay", "--tier and --vram exclude one another");
    if (n_budget > 1) return cli_fail(CLI_USAGE, "replay", "--ram, --tier, --slots and --fraction exclude one another");
    if (s->verify &&
        (n_budget || s->policy || s->reset || s->n_operand > 1 || s->scope || s->predictor || s->n_ahead || s->profile))
        return cli_fail(
            CLI_USAGE, "replay",
            "--verify repeats one recorded run: it takes no --ram, --tier, --slots, --fraction, --policy, --scope, --reset, "
            "--predictor or --profile");
    return CLI_OK;
}

static void options_of(const cli_settings *s, const stk_model *model, stk_replay_options *o) {
    o->struct_bytes = sizeof *o;
    stk_replay_options_default(o, sizeof *o);
    o->verify = s->verify;
    o->ram_bytes = s->ram_bytes;
    o->n_slot = (uint64_t)s->n_slot;
    o->fraction = s->fraction;
    o->scope = !s->scope ? STK_SCOPE_AUTO : strcmp(s->scope, "layer") == 0 ? STK_SCOPE_LAYER : STK_SCOPE_GLOBAL;
    o->predictor = s->predictor;
    o->predict_depth = (uint32_t)s->n_ahead;
    o->profile = s->profile;
    o->model = model;
    o->model_shape = s->shape;
    o->reset = s->reset && strcmp(s->reset, "sequence") == 0 ? STK_RESET_SEQUENCE : STK_RESET_NONE;
    o->policy = s->policy;
    o->predictor = s->predictor;
    o->predict_depth = (uint32_t)s->n_ahead;
    o->ahead = strcmp(s->ahead, "impact") == 0   ? STK_AHEAD_IMPACT
               : strcmp(s->ahead, "likely") == 0 ? STK_AHEAD_LIKELY
                                                 : STK_AHEAD_VALUE;
    o->io = s->io;
    o->cost = s->cost;
    o->expert_bytes = s->expert_bytes;
    o->vram_bytes = s->vram_bytes;
    if (s->tier) (void)parse_tiers(s->tier, &o->vram_bytes, &o->ram_bytes); /* checked */
    o->mode = s->mode;
    o->uses_from = s->uses_from;
    o->seed = (uint64_t)s->seed;
    o->progress = cli_progress;
}

static int replay(const cli_settings *s, const stk_replay_options *o, stk_replay_result *result) {
    int rc = stk_replay_many((const char *const *)s->operands, (uint32_t)s->n_operand, o, result);
    cli_progress_clear();
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "replay", "%s", stk_error_detail());
    return rc < 0 ? cli_fail_stk(rc, "replay") : CLI_OK;
}

/* Room for the layers of the first trace, which are those of all. */
static int layers_open(const cli_settings *s, stk_replay_detail *d) {
    stk_trace *trace;
    stk_trace_info info = {.struct_bytes = sizeof info};
    int rc = stk_trace_open(&trace, s->operand);
    if (rc >= 0) rc = stk_trace_get_info(trace, &info);
    stk_trace_close(&trace);
    if (rc < 0) return cli_fail_stk(rc, "replay");
    d->layers = calloc(info.n_layer, sizeof *d->layers);
    d->n_layer_max = info.n_layer;
    return d->layers ? CLI_OK : cli_fail(CLI_FAILED, "replay", "out of memory");
}

/* Where sequences follow one another and nobody asked for one way, both are told. */
static int replay_both(const cli_settings *s, const stk_model *model, stk_timeline *timeline, figures *f,
                       stk_replay_detail *cold) {
    stk_replay_options o;
    options_of(s, model, &o);
    o.detail = &f->detail;
    o.timeline = timeline;
    int rc = replay(s, &o, &f->result);
    if (rc != CLI_OK || s->reset || s->verify || tiered(s) || f->detail.n_sequence < 2) return rc;
    stk_replay_result unused = {.struct_bytes = sizeof unused};
    o.io = o.cost = NULL;
    o.timeline = NULL;
    o.reset = STK_RESET_SEQUENCE;
    o.detail = cold;
    cli_log_open(s->verbose, true); /* warnings were given */
    rc = replay(s, &o, &unused);
    if (rc == CLI_OK) f->other = cold;
    return rc;
}

int cli_replay(const cli_settings *s) {
    figures f = {.result = {.struct_bytes = sizeof f.result}, .detail = {.struct_bytes = sizeof f.detail}};
    stk_replay_detail cold = {.struct_bytes = sizeof cold};
    stk_model *model = NULL;
    cli_timeline timeline = {0};
    int rc = check(s);
    if (rc == CLI_OK && s->model) {
        int opened = stk_model_open(&model, s->model);
        if (opened < 0) rc = cli_fail_stk(opened, "opening the model");
    }
    if (rc == CLI_OK && s->csv) rc = cli_try_file(s->csv, "figures by layer");
    if (rc == CLI_OK && s->csv) rc = layers_open(s, &f.detail);
    if (rc == CLI_OK) rc = cli_timeline_open(&timeline, s, model, 0, "step");
    if (rc == CLI_OK) rc = replay_both(s, model, timeline.work, &f, &cold);
    if (rc == CLI_OK && !f.result.complete) cli_say("stoker: warning: the trace is cut off; these are the figures up to the cut");
    if (rc == CLI_OK && s->csv) rc = write_csv(s->csv, &f.detail);
    if (rc == CLI_OK) rc = s->json ? report_json(s, &f) : tiered(s) ? cli_report_tiers(&f.result, &f.detail) : report(s, &f);
    if (rc == CLI_OK) rc = cli_timeline_save(&timeline, s->operand);
    cli_timeline_close(&timeline);
    free(f.detail.layers);
    stk_model_close(&model);
    return rc;
}
