/* plan: what would go where, and how fast, before anything is loaded. */
#include <string.h>

#include "session.h"

static int report_json(const stk_plan_info *p) {
    cJSON *json = cJSON_CreateObject();
    const struct {
        const char *name;
        uint64_t value;
    } sizes[] = {{"n_ctx", p->n_ctx},
                 {"n_ctx_max", p->n_ctx_max},
                 {"n_expert", p->n_expert},
                 {"n_slot_vram", p->n_slot_vram},
                 {"n_slot_ram", p->n_slot_ram},
                 {"dense_bytes", p->dense_bytes},
                 {"kv_bytes", p->kv_bytes},
                 {"buffer_bytes", p->buffer_bytes},
                 {"staging_bytes", p->staging_bytes},
                 {"vram_bytes", p->vram_bytes},
                 {"vram_used_bytes", p->vram_used_bytes},
                 {"vram_cap_bytes", p->vram_cap_bytes},
                 {"ram_bytes", p->ram_bytes},
                 {"ram_used_bytes", p->ram_used_bytes},
                 {"ram_free_bytes", p->ram_free_bytes},
                 {"nvme_bytes", p->nvme_bytes}};
    cJSON_AddStringToObject(json, "machine", p->machine);
    cJSON_AddStringToObject(json, "gpu", p->gpu_name);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        cJSON_AddNumberToObject(json, sizes[i].name, (double)sizes[i].value);
    cJSON_AddNumberToObject(json, "vram_hit", p->vram_hit);
    cJSON_AddNumberToObject(json, "ram_hit", p->ram_hit);
    cJSON_AddNumberToObject(json, "decode_tok_s", p->decode_tok_s);
    cJSON_AddNumberToObject(json, "decode_tok_s_uniform", p->decode_tok_s_uniform);
    cJSON_AddNumberToObject(json, "prefill_tok_s", p->prefill_tok_s);
    return cli_json_print(json);
}

static int print_gpu(const stk_plan_info *p) {
    char a[32], b[32], c[32], d[32], e[32], f[32];
    return cli_print("VRAM     %s of %s: dense weights %s, KV %s, buffers %s, %u experts %s\n",
                     cli_bytes_text(p->vram_used_bytes, a), cli_bytes_text(p->vram_cap_bytes, b),
                     cli_bytes_text(p->dense_bytes, c), cli_bytes_text(p->kv_bytes, d), cli_bytes_text(p->buffer_bytes, e),
                     p->n_slot_vram, cli_bytes_text(p->vram_bytes, f));
}

static int print_ram(const stk_plan_info *p) {
    char a[32], b[32], c[32], d[32], e[32], f[32];
    if (p->gpu)
        return cli_print("RAM      %s of %s free: buffers %s, staging %s, %u experts %s\n", cli_bytes_text(p->ram_used_bytes, a),
                         cli_bytes_text(p->ram_free_bytes, b), cli_bytes_text(p->buffer_bytes, c),
                         cli_bytes_text(p->staging_bytes, d), p->n_slot_ram, cli_bytes_text(p->ram_bytes, e));
    return cli_print("RAM      %s of %s free: dense weights %s, KV %s, buffers %s, %u experts %s\n",
                     cli_bytes_text(p->ram_used_bytes, a), cli_bytes_text(p->ram_free_bytes, b),
                     cli_bytes_text(p->dense_bytes, c), cli_bytes_text(p->kv_bytes, d), cli_bytes_text(p->buffer_bytes, e),
                     p->n_slot_ram, cli_bytes_text(p->ram_bytes, f));
}

static int report(const stk_plan_info *p, uint32_t n_batch) {
    char a[32];
    int rc = cli_print("%s%s%s\n", p->machine[0] ? p->machine : "a plain desktop (no cost table: see stoker doctor --calibrate)",
                       p->gpu ? ", " : "", p->gpu_name);
    if (rc == CLI_OK && p->gpu) rc = print_gpu(p);
    if (rc == CLI_OK) rc = print_ram(p);
    if (rc == CLI_OK) rc = cli_print("drive    %s of experts are read as they are needed\n", cli_bytes_text(p->nvme_bytes, a));
    if (rc == CLI_OK) rc = cli_print("context  %u positions; up to %u would fit\n", p->n_ctx, p->n_ctx_max);
    if (rc == CLI_OK && p->gpu)
        rc = cli_print("experts  expected %.0f %% in VRAM, %.0f %% in RAM\n", 100 * p->vram_hit, 100 * p->ram_hit);
    else if (rc == CLI_OK)
        rc = cli_print("experts  expected %.0f %% in RAM\n", 100 * p->ram_hit);
    if (rc == CLI_OK)
        rc = cli_print(
            "speed    decode about %.1f tok/s (%.1f where experts are drawn evenly), prompts in steps of %u about %.0f tok/s\n",
            p->decode_tok_s, p->decode_tok_s_uniform, n_batch, p->prefill_tok_s);
    return rc;
}

static uint32_t kv_type(const char *name) { return strcmp(name, "f32") == 0 ? STK_KV_F32 : STK_KV_F16; }

int cli_plan(const cli_settings *s) {
    cli_session session;
    stk_plan_options o;
    stk_plan_info info = {.struct_bytes = sizeof info};
    char cost[4096];
    if (!s->model) return cli_fail(CLI_USAGE, "plan", "no model: -m FILE");
    int rc = cli_session_open_model(&session, s->model);
    if (rc != CLI_OK) return rc;
    stk_plan_options_default(&o, sizeof o);
    o.n_ctx = (uint32_t)s->n_ctx;
    o.n_batch = (uint32_t)s->n_batch;
    o.n_threads = (uint32_t)s->n_threads;
    o.kv_k_type = kv_type(s->kv_k);
    o.kv_v_type = kv_type(s->kv_v);
    o.ram_bytes = s->ram_bytes;
    o.ram_free_bytes = s->ram_free_bytes;
    o.vram_bytes = s->vram_bytes;
    o.vram_cap_bytes = s->vram_cap_bytes;
    o.cost = cli_cost_choose(s, cost, sizeof cost);
    int got = stk_plan(session.model, &o, &info);
    if (got == STK_EINVAL)
        rc = cli_fail(CLI_USAGE, "plan", "%s", stk_error_detail());
    else if (got < 0)
        rc = cli_fail_stk(got, "plan");
    else
        rc = s->json ? report_json(&info) : report(&info, o.n_batch);
    return cli_session_close(&session, rc);
}
