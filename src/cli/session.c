/* session: opening and closing a model and its engine. */
#include "session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cli_session_open_model(cli_session *session, const char *path) {
    memset(session, 0, sizeof *session);
    int rc = stk_model_open(&session->model, path);
    if (rc < 0) return cli_fail_stk(rc, "opening the model");
    session->info.struct_bytes = sizeof session->info;
    rc = stk_model_get_info(session->model, &session->info);
    return rc < 0 ? cli_fail_stk(rc, "opening the model") : CLI_OK;
}

/* What was reserved on the device. */
static void print_device(const cli_session *session) {
    const stk_memory_info *m = &session->memory;
    char a[32], b[32], c[32], d[32], e[32];
    if (!m->device) return;
    cli_note("device  %s: %u of %u layers, dense %s, KV %s, buffers %s, experts %s (%u of %u fit), %s pinned", m->device,
             m->n_device_layer, session->info.n_layer, cli_bytes_text(m->vram_dense_bytes, a),
             cli_bytes_text(m->vram_kv_bytes, b), cli_bytes_text(m->vram_buffer_bytes, c), cli_bytes_text(m->vram_bytes, d),
             m->n_vram_slot, m->n_expert, cli_bytes_text(m->pinned_bytes, e));
}

/* What was reserved, and what computes and reads. */
static void print_budget(const cli_session *session) {
    const stk_model_info *i = &session->info;
    const stk_memory_info *m = &session->memory;
    char a[32], b[32], c[32], d[32], e[32];
    cli_note("model   %s%s%s: %u layers, %u experts of which a token uses %u, %s", i->arch, *i->name ? " " : "", i->name,
             i->n_layer, i->n_expert, i->n_expert_used, cli_bytes_text(i->file_bytes, a));
    cli_note("memory  dense %s, KV %s (%u positions), experts %s (%u of %u fit; the least is %s), buffers %s",
             cli_bytes_text(m->dense_bytes, a), cli_bytes_text(m->kv_bytes, b), m->n_ctx, cli_bytes_text(m->ram_bytes, c),
             m->n_slot, m->n_expert, cli_bytes_text(m->ram_bytes_min, d), cli_bytes_text(m->buffer_bytes, e));
    cli_note("uses    %u thread%s, %s kernels, %s reads, %s%s, %s%s in huge pages", m->n_threads, m->n_threads == 1 ? "" : "s",
             m->cpu, m->io, m->policy, strcmp(m->scope, "layer") == 0 ? " for each layer" : "",
             strcmp(m->predictor, "none") == 0 ? "nothing read ahead, " : "", cli_bytes_text(m->huge_bytes, a));
    print_device(session);
    if (m->float_mode == STK_FLOAT_FAST)
        cli_note("floats  fast, by %s: bits may differ between machines, threads and tokens at a time, not with what is cached",
                 stk_float_fast_name());
}

/* --device, -ngl, --vram and what belongs to them. */
static int set_device(const cli_session *session, const cli_settings *s, stk_engine_options *o) {
    o->device = s->device;
    o->vram_policy = s->vram_policy;
    o->vram_cap_bytes = s->vram_cap_bytes;
    o->pin_bytes = s->pin_bytes;
    o->staging_bytes = s->staging_bytes;
    uint32_t n_layer = session->info.n_layer;
    o->n_cpu_layers = s->n_gpu_layers < 0 || s->n_gpu_layers > n_layer ? 0 : n_layer - (uint32_t)s->n_gpu_layers;
    if (!s->vram) return CLI_OK;
    if (!cli_size_parse(s->vram, &o->vram_bytes))
        return cli_fail(CLI_USAGE, "--vram", "it takes a size such as 512M or 8G, or 0, not '%s'", s->vram);
    if (o->vram_bytes == 0) o->vram_bytes = STK_NO_VRAM;
    return CLI_OK;
}

const char *cli_cost_path(const cli_settings *s, char *out, size_t bytes) {
    stk_machine_info m = {.struct_bytes = sizeof m};
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] != '/') cache = NULL;
    if ((!cache && (!home || home[0] != '/')) || stk_get_machine(&m) < 0) return NULL;
    int n = snprintf(out, bytes, "%s%s/stoker/cost-", cache ? cache : home, cache ? "" : "/.cache");
    if (n < 0 || (size_t)n + sizeof m.name + 64 > bytes) return NULL;
    char *end = out + n;
    for (const char *p = m.name; *p; p++) { /* letters and digits, anything else between them as one dash */
        if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9'))
            *end++ = *p;
        else if (end[-1] != '-')
            *end++ = '-';
    }
    if (end[-1] != '-') *end++ = '-';
    unsigned n_threads = s->n_threads ? (unsigned)s->n_threads : m.n_threads;
    snprintf(end, bytes - (size_t)(end - out), "%s-%ut.json", s->cpu ? s->cpu : m.cpu, n_threads);
    return out;
}

const char *cli_cost_choose(const cli_settings *s, char *out, size_t bytes) {
    if (s->cost) return s->cost;
    const char *path = cli_cost_path(s, out, bytes);
    if (!path || access(path, F_OK) != 0) return NULL;
    if (stk_cost_check(path) == 0) return path;
    cli_say("stoker: warning: %s; it is not used", stk_error_detail());
    return NULL;
}

/* Where `--warm auto` keeps what a model's cache holds; NULL when there is no such directory. */
static const char *warm_path(const cli_settings *s, char *out, size_t bytes) {
    if (!s->warm || strcmp(s->warm, "auto") != 0) return s->warm;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *name = strrchr(s->model, '/');
    if (cache && cache[0] != '/') cache = NULL;
    if (!cache && (!home || home[0] != '/')) return NULL;
    int n = snprintf(out, bytes, "%s%s/stoker/%s.warm", cache ? cache : home, cache ? "" : "/.cache", name ? name + 1 : s->model);
    return n > 0 && (size_t)n < bytes && cli_make_directories(out) == 0 ? out : NULL;
}

static bool same_file(const char *a, const char *b) {
    struct stat sa, sb;
    if (!a || !b) return false;
    if (!strcmp(a, b)) return true;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

int cli_session_open_engine(cli_session *session, const cli_settings *s, uint32_t n_ctx, uint32_t n_batch, uint32_t n_logits) {
    double start = cli_now();
    char cost[4096], warm[4096];
    if (same_file(s->trace, s->warm) || same_file(s->warm, s->file) || same_file(s->warm, s->output))
        return cli_fail(CLI_USAGE, "--warm", "%s is the file of another option, too; name another", s->warm);
    if (same_file(s->trace, s->file) || same_file(s->trace, s->output))
        return cli_fail(CLI_USAGE, "--trace", "%s is the file of another option, too; name another", s->trace);
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.n_ctx = n_ctx;
    o.n_batch = n_batch;
    o.n_logits = n_logits;
    o.n_threads = (uint32_t)s->n_threads;
    o.kv_k_type = strcmp(s->kv_k, "f32") == 0 ? STK_KV_F32 : STK_KV_F16;
    o.kv_v_type = strcmp(s->kv_v, "f32") == 0 ? STK_KV_F32 : STK_KV_F16;
    o.mlock = s->mlock;
    o.float_mode = strcmp(s->float_mode, "fast") == 0 ? STK_FLOAT_FAST : STK_FLOAT_EXACT;
    o.ram_bytes = s->ram_bytes;
    o.seed = (uint64_t)s->seed;
    o.io = s->io;
    o.policy = s->policy;
    o.predictor = s->predictor;
    o.predict_depth = (uint32_t)s->n_ahead;
    o.scope = s->scope;
    o.profile = s->profile;
    o.cpu = s->cpu;
    o.trace = s->trace;
    o.cost = cli_cost_choose(s, cost, sizeof cost);
    o.warm = warm_path(s, warm, sizeof warm);
    if (s->warm && !o.warm) return cli_fail(CLI_FAILED, "--warm auto", "there is no cache directory (HOME); name a file");
    o.no_watch = s->watch && strcmp(s->watch, "off") == 0;
    o.progress = cli_progress;
    int rc = set_device(session, s, &o);
    if (rc) return rc;
    rc = stk_engine_open(&session->engine, session->model, &o);
    cli_progress_clear();
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "opening the engine", "%s", stk_error_detail());
    if (rc < 0) return cli_fail_stk(rc, "opening the engine");
    session->open_seconds = cli_now() - start;
    session->settings = s;
    session->resize_at = s->resize_at;
    cli_signals_watch(session->engine);
    session->memory.struct_bytes = sizeof session->memory;
    rc = stk_engine_get_memory(session->engine, &session->memory);
    if (rc < 0) return cli_fail_stk(rc, "opening the engine");
    print_budget(session);
    if (session->memory.n_warm) cli_note("warm    %u experts are in memory as %s says", session->memory.n_warm, o.warm);
    return cli_signal_exit(); /* one that came before the engine could be told */
}

/* ---- Steps -------------------------------------------------------------------------------------------------------------- */

/* The next TOKENS=SIZE of --resize-at; moves behind it. False: it is none. */
static bool take_resize(const char **at, uint64_t *n_token, uint64_t *bytes) {
    char *end, size[32];
    if (**at < '0' || **at > '9') return false;
    *n_token = strtoull(*at, &end, 10);
    size_t n = *end == '=' ? strcspn(end + 1, ",") : 0;
    if (n == 0 || n >= sizeof size) return false;
    memcpy(size, end + 1, n);
    size[n] = 0;
    *at = end + 1 + n + (end[1 + n] == ',');
    return cli_size_parse(size, bytes);
}

int cli_session_check_resize(const cli_settings *s) {
    uint64_t n_token, before = 0, bytes;
    for (const char *at = s->resize_at; at && *at; before = n_token)
        if (!take_resize(&at, &n_token, &bytes) || n_token < before)
            return cli_fail(CLI_USAGE, "--resize-at", "'%s' is no list of TOKENS=SIZE in order, such as 100=4G,200=8G",
                            s->resize_at);
    return CLI_OK;
}

static int resize_if_due(cli_session *session) {
    uint64_t n_token, bytes;
    char text[32];
    for (const char *at = session->resize_at; at && *at && take_resize(&at, &n_token, &bytes) && session->n_token >= n_token;) {
        session->resize_at = at;
        int rc = stk_engine_resize(session->engine, bytes);
        if (rc < 0) return rc;
        (void)stk_engine_get_memory(session->engine, &session->memory);
        cli_note("memory   experts have %s after %llu tokens: %u of %u fit", cli_bytes_text(session->memory.ram_bytes, text),
                 (unsigned long long)session->n_token, session->memory.n_slot, session->memory.n_expert);
    }
    return STK_OK;
}

int cli_session_step(cli_session *session, const stk_batch *batch) {
    uint64_t every = (uint64_t)session->settings->n_stats;
    int rc = stk_step(session->engine, batch);
    if (rc < 0) return rc;
    session->n_token += batch->n;
    if (every && session->n_token / every > session->told.n_token / every) {
        stk_stats now = cli_session_stats(session), span = cli_stats_minus(&now, &session->told);
        cli_print_stats(&span, session->n_token);
        session->told = now;
    }
    return resize_if_due(session);
}

int cli_session_close(cli_session *session, int rc) {
    cli_signals_watch(NULL);
    int closed = stk_engine_close(&session->engine);
    stk_model_close(&session->model);
    return rc == CLI_OK && closed < 0 ? cli_fail_stk(closed, "ending the run") : rc;
}

uint32_t cli_session_context(const cli_session *session, const cli_settings *settings, uint32_t most) {
    uint32_t n = session->info.n_ctx_train;
    if (settings->n_ctx && n && settings->n_ctx > n)
        cli_say("stoker: warning: -c %lld is beyond the %u positions that the model was trained for", (long long)settings->n_ctx,
                n);
    if (settings->n_ctx) return (uint32_t)settings->n_ctx;
    return n && n < most ? n : most;
}

int cli_session_tokenize(const cli_session *session, const char *text, size_t bytes, uint32_t flags, int32_t **ids, size_t *n) {
    size_t cap = bytes / 2 + 16; /* enough for nearly every text, which is then gone through once */
    for (*ids = NULL;; cap = *n) {
        free(*ids);
        *ids = malloc(cap * sizeof **ids);
        if (!*ids) return cli_fail(CLI_FAILED, "tokenizing", "out of memory for %zu tokens", cap);
        int64_t need = stk_tokenize(session->model, text, bytes, flags, *ids, cap);
        if (need < 0) return cli_fail_stk((int)need, "tokenizing");
        *n = (size_t)need;
        if (*n <= cap) return CLI_OK;
    }
}

int cli_session_check_tokens(const cli_session *session, const cli_list *tokens) {
    for (size_t i = 0; i < tokens->n; i++)
        if ((uint32_t)tokens->v[i] >= session->info.n_vocab)
            return cli_fail(CLI_USAGE, "--tokens", "%d (number %zu) is beyond the vocabulary of %u", tokens->v[i], i + 1,
                            session->info.n_vocab);
    return CLI_OK;
}

stk_stats cli_session_stats(const cli_session *session) {
    stk_stats stats = {.struct_bytes = sizeof stats};
    stk_engine_get_stats(session->engine, &stats);
    return stats;
}
