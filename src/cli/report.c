/* report: figures for people and for machines. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session.h"

/* Every counter of stk_stats, for sums, --stats and JSON. */
static const struct counter {
    const char *name;
    size_t offset;
} counters[] = {
#define COUNTER(field)                                                                                                           \
    { #field, offsetof(stk_stats, field) }
    COUNTER(n_step),     COUNTER(n_token),    COUNTER(n_event),    COUNTER(n_lookup),       COUNTER(n_pair),
    COUNTER(n_hit),      COUNTER(n_miss),     COUNTER(n_evict),    COUNTER(n_wave),         COUNTER(bytes),
    COUNTER(read_bytes), COUNTER(step_ns),    COUNTER(dense_ns),   COUNTER(expert_ns),      COUNTER(arrive_ns),
    COUNTER(wait_ns),    COUNTER(io_ns),      COUNTER(trace_ns),   COUNTER(n_prefetch),     COUNTER(n_prefetch_used),
    COUNTER(n_switch),   COUNTER(n_vram_hit), COUNTER(n_fetch),    COUNTER(n_fetch_failed), COUNTER(n_return),
    COUNTER(n_host),     COUNTER(up_bytes),   COUNTER(down_bytes), COUNTER(device_ns),
#undef COUNTER
};
enum { N_COUNTER = sizeof counters / sizeof counters[0] };

static uint64_t counter_get(const stk_stats *stats, const struct counter *c) {
    uint64_t v;
    memcpy(&v, (const char *)stats + c->offset, sizeof v);
    return v;
}

stk_stats cli_stats_minus(const stk_stats *after, const stk_stats *before) {
    stk_stats out = *after;
    for (int i = 0; i < N_COUNTER; i++) {
        uint64_t v = counter_get(after, &counters[i]) - counter_get(before, &counters[i]);
        memcpy((char *)&out + counters[i].offset, &v, sizeof v);
    }
    return out;
}

double cli_hit_rate(const stk_stats *stats) { return stats->n_lookup ? (double)stats->n_hit / (double)stats->n_lookup : 0; }

/* What was read ahead in one span of steps may be used in the next. */
static uint64_t n_unused(const stk_stats *s) {
    return s->n_prefetch > s->n_prefetch_used ? s->n_prefetch - s->n_prefetch_used : 0;
}

double cli_prefetch_precision(const stk_stats *s) { return s->n_prefetch ? 1 - (double)n_unused(s) / (double)s->n_prefetch : 0; }

double cli_prefetch_waste(const stk_stats *s) {
    uint64_t n_read = s->n_prefetch + s->n_miss;
    return n_read ? (double)n_unused(s) / (double)n_read : 0;
}

double cli_tokens_per_second(const stk_stats *stats) {
    return stats->step_ns ? (double)stats->n_token * 1e9 / (double)stats->step_ns : 0;
}

static void print_phase(const char *name, const stk_stats *s) {
    cli_note("%-8s %6llu tokens in %8.2f s  %9.2f tok/s", name, (unsigned long long)s->n_token, (double)s->step_ns * 1e-9,
             cli_tokens_per_second(s));
}

/* Lookups that found their expert in memory, without a read of any kind. */
static double memory_rate(const stk_stats *s) {
    return s->n_lookup && s->n_hit > s->n_prefetch_used ? (double)(s->n_hit - s->n_prefetch_used) / (double)s->n_lookup : 0;
}

void cli_print_stats(const stk_stats *s, uint64_t n_token) {
    char bytes[32];
    if (isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) cli_say("%s", ""); /* text may stand on the line */
    cli_say(
        "stats    %6llu tokens  %8.2f tok/s  hits %5.1f %% memory %5.1f %% ahead  ahead %5.1f %% used %5.1f %% in vain  read %s",
        (unsigned long long)n_token, cli_tokens_per_second(s), 100 * memory_rate(s), 100 * (cli_hit_rate(s) - memory_rate(s)),
        100 * cli_prefetch_precision(s), 100 * cli_prefetch_waste(s), cli_bytes_text(s->read_bytes, bytes));
}

void cli_print_table(const stk_stats *prefill, const stk_stats *decode, bool every_counter) {
    stk_stats all = *decode, none = {0};
    char a[32], b[32];
    if (prefill) {
        stk_stats rest = cli_stats_minus(&none, prefill); /* modulo 2^64 */
        all = cli_stats_minus(decode, &rest);
    }
    cli_note("%s", "");
    if (prefill) print_phase("prefill", prefill);
    print_phase(prefill ? "decode" : "steps", decode);
    cli_note("experts  %6llu lookups, %.1f %% hits (%.1f %% in memory, %.1f %% read ahead), %llu misses",
             (unsigned long long)all.n_lookup, 100 * cli_hit_rate(&all), 100 * memory_rate(&all),
             100 * (cli_hit_rate(&all) - memory_rate(&all)), (unsigned long long)all.n_miss);
    if (all.n_prefetch)
        cli_note(
            "ahead    %6llu experts read, %.1f %% of them used; %.1f %% of all reads were in vain; turned off or on %llu times",
            (unsigned long long)all.n_prefetch, 100 * cli_prefetch_precision(&all), 100 * cli_prefetch_waste(&all),
            (unsigned long long)all.n_switch);
    cli_note("read     %s of experts, %s asked of the drive", cli_bytes_text(all.bytes, a), cli_bytes_text(all.read_bytes, b));
    if (all.n_vram_hit || all.n_fetch)
        cli_note("device   %llu hits in VRAM, %llu fetched, %llu went back to RAM, %s up, %s down, %.2f s waiting for it",
                 (unsigned long long)all.n_vram_hit, (unsigned long long)all.n_fetch, (unsigned long long)all.n_return,
                 cli_bytes_text(all.up_bytes, a), cli_bytes_text(all.down_bytes, b), (double)all.device_ns * 1e-9);
    cli_note("time     %.2f s computing (%.2f dense, %.2f experts, %.2f arrivals), %.2f s in I/O, %.2f s waiting for it",
             (double)(all.dense_ns + all.expert_ns + all.arrive_ns) * 1e-9, (double)all.dense_ns * 1e-9,
             (double)all.expert_ns * 1e-9, (double)all.arrive_ns * 1e-9, (double)all.io_ns * 1e-9, (double)all.wait_ns * 1e-9);
    for (int i = 0; every_counter && i < N_COUNTER; i++)
        cli_note("         %-12s %llu", counters[i].name, (unsigned long long)counter_get(&all, &counters[i]));
}

static double share(uint64_t part, uint64_t all) { return all ? (double)part / (double)all : 0; }

/* How predictions `depth` layers ahead did, as text [160]; false: there were none. */
static bool predicted_text(const stk_predict_count *c, uint32_t depth, char *text, size_t bytes) {
    if (c->n_event == 0) return false;
    snprintf(text, bytes,
             "%u layer%s ahead: %.1f %% of the experts used were among as many predicted, %.1f %% among twice as many", depth,
             depth > 1 ? "s" : "", 100 * share(c->n_found, c->n_lookup), 100 * share(c->n_found2, c->n_lookup));
    return true;
}

static void get_predicted(const stk_engine *engine, stk_predict_count counts[CLI_N_DEPTH]) {
    for (uint32_t i = 0; i < CLI_N_DEPTH; i++)
        if (stk_engine_get_predicted(engine, i + 1, &counts[i]) < 0) counts[i] = (stk_predict_count){0};
}

void cli_print_predicted(const stk_engine *engine) {
    stk_predict_count counts[CLI_N_DEPTH];
    char text[160];
    get_predicted(engine, counts);
    for (uint32_t i = 0; i < CLI_N_DEPTH; i++)
        if (predicted_text(&counts[i], i + 1, text, sizeof text)) cli_note("         %s", text);
}

int cli_report_predicted(const stk_predict_count counts[CLI_N_DEPTH]) {
    char text[160];
    int rc = CLI_OK;
    for (uint32_t i = 0; rc == CLI_OK && i < CLI_N_DEPTH; i++)
        if (predicted_text(&counts[i], i + 1, text, sizeof text)) rc = cli_print("%s\n", text);
    return rc;
}

void cli_json_predicted_counts(cJSON *json, const stk_predict_count counts[CLI_N_DEPTH]) {
    cJSON *all = cJSON_AddArrayToObject(json, "predicted");
    for (uint32_t i = 0; i < CLI_N_DEPTH; i++) {
        const stk_predict_count *c = &counts[i];
        if (c->n_event == 0) continue;
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "depth", i + 1);
        cJSON_AddNumberToObject(o, "n_event", (double)c->n_event);
        cJSON_AddNumberToObject(o, "n_lookup", (double)c->n_lookup);
        cJSON_AddNumberToObject(o, "recall", share(c->n_found, c->n_lookup));
        cJSON_AddNumberToObject(o, "recall2", share(c->n_found2, c->n_lookup));
        cJSON_AddNumberToObject(o, "precision", share(c->n_used, c->n_predicted));
        cJSON_AddItemToArray(all, o);
    }
}

void cli_json_predicted(cJSON *json, const stk_engine *engine) {
    stk_predict_count counts[CLI_N_DEPTH];
    get_predicted(engine, counts);
    cli_json_predicted_counts(json, counts);
}

void cli_json_stats(cJSON *json, const char *name, const stk_stats *stats) {
    cJSON *o = cJSON_AddObjectToObject(json, name);
    for (int i = 0; i < N_COUNTER; i++) cJSON_AddNumberToObject(o, counters[i].name, (double)counter_get(stats, &counters[i]));
    cJSON_AddNumberToObject(o, "hit_rate", cli_hit_rate(stats));
    cJSON_AddNumberToObject(o, "hit_rate_memory", memory_rate(stats));
    cJSON_AddNumberToObject(o, "prefetch_precision", cli_prefetch_precision(stats));
    cJSON_AddNumberToObject(o, "prefetch_waste", cli_prefetch_waste(stats));
}

void cli_json_memory(cJSON *json, const stk_memory_info *m) {
    cJSON *o = cJSON_AddObjectToObject(json, "memory");
    cJSON_AddNumberToObject(o, "n_slot", m->n_slot);
    cJSON_AddNumberToObject(o, "n_expert", m->n_expert);
    cJSON_AddNumberToObject(o, "n_ctx", m->n_ctx);
    cJSON_AddNumberToObject(o, "dense_bytes", (double)m->dense_bytes);
    cJSON_AddNumberToObject(o, "kv_bytes", (double)m->kv_bytes);
    cJSON_AddNumberToObject(o, "ram_bytes", (double)m->ram_bytes);
    cJSON_AddNumberToObject(o, "ram_bytes_min", (double)m->ram_bytes_min);
    cJSON_AddNumberToObject(o, "buffer_bytes", (double)m->buffer_bytes);
    cJSON_AddNumberToObject(o, "huge_bytes", (double)m->huge_bytes);
    cJSON_AddStringToObject(o, "io", m->io);
    cJSON_AddStringToObject(o, "cpu", m->cpu);
    cJSON_AddNumberToObject(o, "n_threads", m->n_threads);
    if (!m->device) return;
    cJSON *device = cJSON_AddObjectToObject(o, "device");
    cJSON_AddStringToObject(device, "name", m->device);
    cJSON_AddNumberToObject(device, "n_layer", m->n_device_layer);
    cJSON_AddNumberToObject(device, "n_slot", m->n_vram_slot);
    cJSON_AddNumberToObject(device, "vram_bytes", (double)m->vram_bytes);
    cJSON_AddNumberToObject(device, "dense_bytes", (double)m->vram_dense_bytes);
    cJSON_AddNumberToObject(device, "kv_bytes", (double)m->vram_kv_bytes);
    cJSON_AddNumberToObject(device, "buffer_bytes", (double)m->vram_buffer_bytes);
    cJSON_AddNumberToObject(device, "free_bytes", (double)m->vram_free_bytes);
    cJSON_AddNumberToObject(device, "pinned_bytes", (double)m->pinned_bytes);
    cJSON_AddNumberToObject(o, "n_warm", m->n_warm);
}

/* cJSON's strings end at a 0 byte, which a model may well generate. */
void cli_json_text(cJSON *json, const char *name, const char *text, size_t bytes) {
    cli_buffer out = {0};
    int rc = cli_buffer_add(&out, "\"", 1);
    for (size_t i = 0; i < bytes && rc == CLI_OK; i++) {
        char escape[8];
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            rc = cli_buffer_add(&out, (char[]){'\\', (char)c}, 2);
        else if (c < 0x20)
            rc = cli_buffer_add(&out, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
        else
            rc = cli_buffer_add(&out, &c, 1);
    }
    if (rc == CLI_OK && cli_buffer_add(&out, "\"", 2) == CLI_OK) cJSON_AddRawToObject(json, name, out.data);
    free(out.data);
}

int cli_json_print(cJSON *json) {
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text) return cli_fail(CLI_FAILED, "printing JSON", "out of memory");
    int rc = cli_print("%s\n", text);
    cJSON_free(text);
    return rc;
}
