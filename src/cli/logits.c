/*
 * logits: the raw output of the model for given tokens, for comparing with other programs: little-endian float32 [n_tokens,
 * n_vocab], row by row. The file appears whole or not at all: it is written beside its name and renamed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session.h"

typedef struct output {
    FILE *file;
    char *path;      /* where the result belongs; links are followed */
    char *temporary; /* NULL: written in place (a pipe, a device, stdout) */
} output;

static int output_fail(const char *path) { return cli_fail(CLI_FAILED, "writing the logits", "%s: %s", path, strerror(errno)); }

static int output_open(output *out, const char *name) {
    struct stat st;
    if (!strcmp(name, "-")) {
        out->file = stdout;
        out->path = strdup("stdout");
        return out->path ? CLI_OK : output_fail(name);
    }
    bool exists = stat(name, &st) == 0;
    out->path = exists ? realpath(name, NULL) : strdup(name);
    if (!out->path) return output_fail(name);
    if (exists && !S_ISREG(st.st_mode)) {
        out->file = fopen(out->path, "wbe");
        return out->file ? CLI_OK : output_fail(name);
    }
    size_t n = strlen(out->path) + sizeof ".XXXXXX";
    out->temporary = malloc(n);
    if (!out->temporary) return output_fail(name);
    snprintf(out->temporary, n, "%s.XXXXXX", out->path);
    int fd = mkstemp(out->temporary);
    if (fd < 0) {
        free(out->temporary);
        out->temporary = NULL;
        return output_fail(name);
    }
    mode_t mask = umask(0);
    umask(mask);
    out->file = fchmod(fd, 0666 & ~mask) == 0 ? fdopen(fd, "wb") : NULL;
    if (out->file) return CLI_OK;
    int rc = output_fail(name);
    close(fd);
    return rc;
}

/* Ends the file: in its place when `rc` is CLI_OK and the last bytes could be written, else removed. Returns rc or the failure of
 * ending it. */
static int output_close(output *out, int rc) {
    if (out->file == stdout) {
        if (rc == CLI_OK && fflush(stdout) != 0) rc = output_fail(out->path);
    } else if (out->file && fclose(out->file) != 0 && rc == CLI_OK) {
        rc = output_fail(out->path);
    }
    if (out->temporary && rc == CLI_OK && rename(out->temporary, out->path) != 0) rc = output_fail(out->path);
    if (out->temporary && rc != CLI_OK) unlink(out->temporary);
    free(out->temporary);
    free(out->path);
    return rc;
}

typedef struct logits_run {
    const cli_settings *settings;
    cli_session session;
    int32_t *ids;        /* [tokens + greedy] */
    uint8_t *all_logits; /* [n_batch] ones */
    output out;
} logits_run;

/* The likeliest token, the lowest id on ties. */
static int32_t likeliest(const float *logits, uint32_t n_vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* A step over ids [first, first + n), whose rows are written; *last is the row of the last one. */
static int step(logits_run *r, size_t first, size_t n, const float **last) {
    size_t n_vocab = r->session.info.n_vocab;
    stk_batch batch = {.struct_bytes = sizeof batch, .n = (uint32_t)n, .token = r->ids + first, .logits = r->all_logits};
    int rc = cli_session_step(&r->session, &batch);
    if (rc < 0) return cli_fail_stk(rc, "computing");
    for (size_t i = 0; i < n; i++) {
        *last = stk_get_logits(r->session.engine, (uint32_t)i);
        if (fwrite(*last, sizeof(float), n_vocab, r->out.file) != n_vocab) return output_fail(r->out.path);
    }
    return CLI_OK;
}

/* Steps through the tokens in the chunks that were asked for, then on with the likeliest ones. */
static int compute(logits_run *r) {
    const cli_settings *s = r->settings;
    size_t n_token = s->tokens.n, n_greedy = (size_t)s->n_greedy;
    const float *last = NULL;
    int rc = CLI_OK;
    for (size_t done = 0, turn = 0, n; done < n_token && rc == CLI_OK; turn++, done += n) {
        n = s->chunk.n ? (size_t)s->chunk.v[turn % s->chunk.n] : (size_t)s->n_batch;
        if (n > n_token - done) n = n_token - done;
        rc = step(r, done, n, &last);
    }
    for (size_t i = n_token; i < n_token + n_greedy && rc == CLI_OK; i++) {
        r->ids[i] = likeliest(last, r->session.info.n_vocab);
        rc = step(r, i, 1, &last);
    }
    return rc;
}

static int report(const logits_run *r) {
    const cli_settings *s = r->settings;
    stk_stats stats = cli_session_stats(&r->session);
    cli_print_table(NULL, &stats, s->n_stats > 0);
    if (!s->json) return CLI_OK;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "n_tokens", (double)s->tokens.n + (double)s->n_greedy);
    cJSON_AddNumberToObject(json, "n_vocab", r->session.info.n_vocab);
    cJSON_AddItemToObject(json, "greedy", cJSON_CreateIntArray(r->ids + s->tokens.n, (int)s->n_greedy));
    cli_json_stats(json, "stats", &stats);
    cli_json_memory(json, &r->session.memory);
    return cli_json_print(json);
}

/* Checks what was asked for against the model and takes memory for it. */
static int prepare(logits_run *r, uint32_t *n_ctx) {
    const cli_settings *s = r->settings;
    size_t n = s->tokens.n + (size_t)s->n_greedy;
    *n_ctx = s->n_ctx ? (uint32_t)s->n_ctx : (uint32_t)n;
    int rc = cli_session_check_tokens(&r->session, &s->tokens);
    if (rc) return rc;
    if (n > INT32_MAX || n > *n_ctx)
        return cli_fail(CLI_FAILED, "logits", "%zu tokens, but the context holds %u (-c)", n, *n_ctx);
    for (size_t i = 0; i < s->chunk.n; i++)
        if (s->chunk.v[i] > s->n_batch)
            return cli_fail(CLI_USAGE, "logits", "a chunk of %d is more than one step takes (-b %lld)", s->chunk.v[i],
                            (long long)s->n_batch);
    r->ids = malloc(n * sizeof *r->ids);
    r->all_logits = malloc((size_t)s->n_batch);
    if (!r->ids || !r->all_logits) return cli_fail(CLI_FAILED, "logits", "out of memory for %zu tokens", n);
    memcpy(r->ids, s->tokens.v, s->tokens.n * sizeof *r->ids);
    memset(r->all_logits, 1, (size_t)s->n_batch);
    return CLI_OK;
}

static int open_and_compute(logits_run *r) {
    uint32_t n_ctx, n_batch = (uint32_t)r->settings->n_batch;
    int rc = cli_session_open_model(&r->session, r->settings->model);
    if (rc == CLI_OK && stk_model_owns_file(r->session.model, r->settings->output))
        rc = cli_fail(CLI_USAGE, "logits", "-o %s: that is a file of the model; name another", r->settings->output);
    if (rc == CLI_OK) rc = prepare(r, &n_ctx);
    if (rc == CLI_OK) rc = cli_session_open_engine(&r->session, r->settings, n_ctx, n_batch, n_batch);
    if (rc) return rc;
    rc = output_open(&r->out, r->settings->output);
    if (rc == CLI_OK) rc = compute(r);
    rc = output_close(&r->out, rc);
    return rc == CLI_OK ? report(r) : rc;
}

int cli_logits(const cli_settings *settings) {
    logits_run r = {.settings = settings};
    if (!settings->model) return cli_fail(CLI_USAGE, "logits", "which model? (-m FILE)");
    if (!settings->tokens.n) return cli_fail(CLI_USAGE, "logits", "which tokens? (--tokens 1,2,3)");
    if (!settings->output) return cli_fail(CLI_USAGE, "logits", "where to? (-o FILE, or -o - for stdout)");
    if (settings->json && !strcmp(settings->output, "-"))
        return cli_fail(CLI_USAGE, "logits", "-o - and --json both want stdout");
    int rc = open_and_compute(&r);
    rc = cli_session_close(&r.session, rc);
    free(r.ids);
    free(r.all_logits);
    return rc;
}
