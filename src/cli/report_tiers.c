/* report_tiers: the figures of a replay with VRAM. */
#include "session.h"

static double share(uint64_t part, uint64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }
static double speed(const stk_replay_tiers *t) { return t->step_ns ? (double)t->n_token * 1e9 / (double)t->step_ns : 0; }

void cli_json_tiers(cJSON *json, const char *name, const stk_replay_tiers *t) {
    cJSON *o = cJSON_AddObjectToObject(json, name);
    cJSON_AddNumberToObject(o, "tokens", (double)t->n_token);
    cJSON_AddNumberToObject(o, "tok_s", speed(t));
    cJSON_AddNumberToObject(o, "events", (double)t->n_event);
    cJSON_AddNumberToObject(o, "lookups", (double)t->n_lookup);
    cJSON_AddNumberToObject(o, "in_vram", (double)t->n_vram);
    cJSON_AddNumberToObject(o, "in_ram", (double)t->n_ram);
    cJSON_AddNumberToObject(o, "on_gpu", (double)t->n_gpu);
    cJSON_AddNumberToObject(o, "fetched", (double)t->n_fetch);
    cJSON_AddNumberToObject(o, "bypassed", (double)t->n_bypass);
    cJSON_AddNumberToObject(o, "on_cpu", (double)t->n_cpu);
    cJSON_AddNumberToObject(o, "link_bytes", (double)t->link_bytes);
    cJSON_AddNumberToObject(o, "read_bytes", (double)t->read_bytes);
    cJSON_AddNumberToObject(o, "step_ns", (double)t->step_ns);
    cJSON_AddNumberToObject(o, "dense_ns", (double)t->dense_ns);
    cJSON_AddNumberToObject(o, "event_ns", (double)t->event_ns);
    cJSON_AddNumberToObject(o, "cpu_ns", (double)t->cpu_ns);
    cJSON_AddNumberToObject(o, "nvme_ns", (double)t->nvme_ns);
    cJSON_AddNumberToObject(o, "link_ns", (double)t->link_ns);
    cJSON_AddNumberToObject(o, "gpu_ns", (double)t->gpu_ns);
}

static int print_phase(const char *name, const stk_replay_tiers *t) {
    char a[32], b[32];
    if (!t->n_event) return CLI_OK;
    int rc =
        cli_print("%-8s %llu tokens, %.2f tok/s; experts %.1f %% in VRAM, %.1f %% in RAM; computed %.1f %% on the GPU from "
                  "VRAM, %.1f %% copied there, %.1f %% on the CPU\n",
                  name, (unsigned long long)t->n_token, speed(t), share(t->n_vram, t->n_lookup), share(t->n_ram, t->n_lookup),
                  share(t->n_gpu, t->n_lookup), share(t->n_fetch + t->n_bypass, t->n_lookup), share(t->n_cpu, t->n_lookup));
    if (rc != CLI_OK) return rc;
    return cli_print(
        "         of the time %.1f %% dense, %.1f %% experts, while which worked: cpu %.0f %%, link %.0f %%, gpu %.0f %%, nvme "
        "%.0f %%; %s over the link, %s read\n",
        share(t->dense_ns, t->step_ns), share(t->event_ns, t->step_ns), share(t->cpu_ns, t->event_ns),
        share(t->link_ns, t->event_ns), share(t->gpu_ns, t->event_ns), share(t->nvme_ns, t->event_ns),
        cli_bytes_text(t->link_bytes, a), cli_bytes_text(t->read_bytes, b));
}

int cli_report_tiers(const stk_replay_result *r, const stk_replay_detail *d) {
    char a[32], b[32];
    int rc = cli_print("mode %s; %s of experts in VRAM, %s in RAM; predicted %.3f s, %.2f tok/s\n", d->policy,
                       cli_bytes_text(d->vram_bytes, a), cli_bytes_text(r->ram_bytes, b), (double)r->virtual_ns * 1e-9,
                       cli_tokens_per_second(&r->stats));
    if (rc == CLI_OK) rc = print_phase("prefill", &d->tiers_prefill);
    if (rc == CLI_OK) rc = print_phase("decode", &d->tiers_decode);
    return rc;
}
