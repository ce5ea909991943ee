/* doctor: what the machine has, what to do about what it lacks, and measuring what things take on it. */
#include <stdlib.h>
#include <string.h>

#include "session.h"

typedef struct doctor {
    const cli_settings *settings;
    cli_session session; /* its model, if one is given */
    cJSON *json;         /* NULL: text */
    cJSON *findings;
    int rc; /* of printing */
} doctor;

static const char *const level_names[] = {"ok", "note", "problem"};

static void take_finding(void *user, int level, const char *topic, const char *found, const char *advice) {
    doctor *d = user;
    if (d->json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "topic", topic);
        cJSON_AddStringToObject(o, "level", level_names[level]);
        cJSON_AddStringToObject(o, "found", found);
        cJSON_AddStringToObject(o, "advice", advice);
        cJSON_AddItemToArray(d->findings, o);
        return;
    }
    if (d->rc == CLI_OK) d->rc = cli_print("%-8s %-14s %s\n", level_names[level], topic, found);
    if (d->rc == CLI_OK && *advice) d->rc = cli_print("%-23s -> %s\n", "", advice);
}

/* ---- Calibration ---- */

static double number(const cJSON *o, const char *a, const char *b) {
    const cJSON *item = cJSON_GetObjectItem(b ? cJSON_GetObjectItem(o, a) : o, b ? b : a);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static double entry(const cJSON *o, const char *key, int i) {
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetObjectItem(o, key), i);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* How fast experts are computed, by format, or those of the model: GB of weights a second at 1, 8, 64 and 512 tokens an expert.
 */
static int print_format(const char *name, const cJSON *f) {
    int rc = cli_print("%-10s", name);
    for (int i = 0; i <= 9 && rc == CLI_OK; i += 3) rc = cli_print(" %9.2f", 1 / entry(f, "expert_ns_per_byte", i));
    return rc == CLI_OK ? cli_print(" %9.2f\n", 1 / number(f, "arrive_ns_per_byte", NULL)) : rc;
}

static int print_calibration(const char *path, const cJSON *c) {
    const cJSON *one, *model = cJSON_GetObjectItem(c, "model");
    int rc = cli_print("\nmemory %.1f GB/s, 8-bit %.0f GOP/s, float32 %.0f GFLOP/s, an empty job %.2f us, a barrier %.2f us\n",
                       number(c, "limits", "read_bytes_per_s") * 1e-9, number(c, "limits", "int8_ops_per_s") * 1e-9,
                       number(c, "limits", "float_ops_per_s") * 1e-9, number(c, "limits", "run_ns") * 1e-3,
                       number(c, "limits", "barrier_ns") * 1e-3);
    if (rc == CLI_OK)
        rc = cli_print(
            "drive %.2f GB/s, %.2f GB/s while computing, which then takes %.2f times as long; %.0f us for a small read\n",
            number(c, "drive", "bytes_per_s") * 1e-9, number(c, "drive", "bytes_per_s_computing") * 1e-9,
            number(c, "drive", "compute_slowdown"), number(c, "drive", "latency_ns") * 1e-3);
    if (rc == CLI_OK) rc = cli_print("\n%-10s %9s %9s %9s %9s %9s\n", "GB/s", "1 token", "8", "64", "512", "packing");
    cJSON_ArrayForEach(one, cJSON_GetObjectItem(c, "formats")) if (rc == CLI_OK) rc = print_format(one->string, one);
    if (rc == CLI_OK && model) rc = print_format("the model", model);
    if (rc == CLI_OK && model)
        rc = cli_print("\ndense part of a layer %.1f us at 1 token, %.1f us at 512; of a step besides %.1f us and %.1f us\n",
                       entry(model, "dense_layer_ns", 0) * 1e-3, entry(model, "dense_layer_ns", 9) * 1e-3,
                       entry(model, "dense_step_ns", 0) * 1e-3, entry(model, "dense_step_ns", 9) * 1e-3);
    return rc == CLI_OK ? cli_print("written to %s\n", path) : rc;
}

/* Shows what has been written. */
static int show_calibration(doctor *d, const char *path) {
    cli_buffer text = {0};
    int rc = cli_read_file(&text, path);
    cJSON *c = rc == CLI_OK ? cJSON_ParseWithLength(text.data, text.bytes) : NULL;
    free(text.data);
    if (rc == CLI_OK && !c) rc = cli_fail(CLI_FAILED, "doctor", "%s: it cannot be read back", path);
    if (rc == CLI_OK && d->json) {
        cJSON_AddStringToObject(d->json, "file", path);
        cJSON_AddItemToObject(d->json, "calibration", c);
        return CLI_OK;
    }
    if (rc == CLI_OK) rc = print_calibration(path, c);
    cJSON_Delete(c);
    return rc;
}

static int calibration_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    if (cli_signal()) return 1;
    if (total < 1024) /* parts of the work; else bytes of the model */
        cli_progress_text("%s, %llu of %llu", what, (unsigned long long)done, (unsigned long long)total);
    else
        return cli_progress(NULL, what, done, total);
    return 0;
}

static int calibrate(doctor *d) {
    const cli_settings *s = d->settings;
    char path[4096];
    int rc = CLI_OK;
    if (s->output)
        snprintf(path, sizeof path, "%s", s->output);
    else if (!cli_cost_path(s, path, sizeof path))
        return cli_fail(CLI_USAGE, "doctor", "neither $XDG_CACHE_HOME nor $HOME names a directory: where to? (-o FILE)");
    else
        rc = cli_make_directories(path);
    if (rc) return rc;
    stk_calibrate_options o;
    stk_calibrate_options_default(&o, sizeof o);
    o.n_threads = (uint32_t)s->n_threads;
    o.ram_bytes = s->ram_bytes;
    o.cpu = s->cpu;
    o.io = s->io;
    o.progress = calibration_progress;
    rc = stk_calibrate(d->session.model, &o, path);
    cli_progress_clear();
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "doctor", "%s", stk_error_detail());
    if (rc < 0) return cli_fail_stk(rc, "calibrating");
    return show_calibration(d, path);
}

/* ---- The verb ---- */

static int examine(doctor *d) {
    int rc = stk_doctor(d->settings->model, take_finding, d);
    if (rc < 0) return cli_fail_stk(rc, "doctor");
    return d->rc;
}

int cli_doctor(const cli_settings *s) {
    doctor d = {.settings = s, .json = s->json ? cJSON_CreateObject() : NULL};
    if (s->output && !s->calibrate) return cli_fail(CLI_USAGE, "doctor", "-o is for --calibrate");
    if (s->output && strlen(s->output) >= 4096) return cli_fail(CLI_USAGE, "doctor", "-o: the name is too long");
    if (d.json) d.findings = cJSON_AddArrayToObject(d.json, "findings");
    int rc = s->model ? cli_session_open_model(&d.session, s->model) : CLI_OK;
    if (rc == CLI_OK) rc = examine(&d);
    if (rc == CLI_OK && s->calibrate) rc = calibrate(&d);
    rc = cli_session_close(&d.session, rc);
    if (d.json && rc == CLI_OK) return cli_json_print(d.json);
    cJSON_Delete(d.json);
    return rc;
}
