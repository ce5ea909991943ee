/* replay: drives the cache and the scheduler with a recorded trace, without a model. */
#include "session.h"

static int report_json(const cli_settings *s, const stk_replay_result *r) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "trace", s->operand);
    cJSON_AddBoolToObject(json, "complete", r->complete != 0);
    cJSON_AddNumberToObject(json, "n_slot", (double)r->n_slot);
    cJSON_AddNumberToObject(json, "ram_bytes", (double)r->ram_bytes);
    if (s->verify) cJSON_AddBoolToObject(json, "verified", true); /* a difference is an error and prints no object */
    cJSON_AddNumberToObject(json, "virtual_ns", (double)r->virtual_ns);
    cJSON_AddNumberToObject(json, "tokens_per_second", cli_tokens_per_second(&r->stats));
    cli_json_stats(json, "stats", &r->stats);
    return cli_json_print(json);
}

static int report(const cli_settings *s, const stk_replay_result *r) {
    const stk_stats *t = &r->stats;
    char a[32], b[32], c[32];
    int rc = cli_print("%llu steps, %llu tokens, %llu events; %llu slots, %s\n", (unsigned long long)t->n_step,
                       (unsigned long long)t->n_token, (unsigned long long)t->n_event, (unsigned long long)r->n_slot,
                       cli_bytes_text(r->ram_bytes, a));
    if (rc == CLI_OK)
        rc = cli_print("%llu lookups, %.2f %% hits, %llu misses, %llu evictions; %s of experts read, %s asked of the drive\n",
                       (unsigned long long)t->n_lookup, 100 * cli_hit_rate(t), (unsigned long long)t->n_miss,
                       (unsigned long long)t->n_evict, cli_bytes_text(t->bytes, b), cli_bytes_text(t->read_bytes, c));
    if (rc == CLI_OK && (s->io || s->cost))
        rc = cli_print("predicted %.3f s, %.2f tok/s\n", (double)r->virtual_ns * 1e-9, cli_tokens_per_second(t));
    if (rc == CLI_OK && s->verify) rc = cli_print("every decision and counter equals the recorded run\n");
    return rc;
}

int cli_replay(const cli_settings *s) {
    stk_replay_options o;
    stk_replay_result r = {.struct_bytes = sizeof r};
    if (s->ram_bytes && s->n_slot) return cli_fail(CLI_USAGE, "replay", "--ram and --slots exclude one another");
    if (s->verify && (s->ram_bytes || s->n_slot || s->policy))
        return cli_fail(CLI_USAGE, "replay", "--verify repeats the recorded run: it takes no --ram, --slots or --policy");
    o.struct_bytes = sizeof o;
    stk_replay_options_default(&o);
    o.verify = s->verify;
    o.ram_bytes = s->ram_bytes;
    o.n_slot = (uint64_t)s->n_slot;
    o.policy = s->policy;
    o.io = s->io;
    o.cost = s->cost;
    o.seed = (uint64_t)s->seed;
    o.progress = cli_progress;
    int rc = stk_replay(s->operand, &o, &r);
    cli_progress_clear();
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "replay", "%s", stk_error_detail());
    if (rc < 0) return cli_fail_stk(rc, "replay");
    if (!r.complete) cli_say("stoker: warning: the trace is cut off; these are the figures up to the cut");
    return s->json ? report_json(s, &r) : report(s, &r);
}
