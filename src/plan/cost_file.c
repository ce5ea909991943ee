/* cost_file: JSON in, checked field by field; JSON out, beside the file first; tables for models. */
#include "cost_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/text_file.h"

enum { VERSION = 1, MAX_BYTES = 1 << 20 };
static const double most_number = 1e18;

const enum stk_type stk_cost_formats[STK_COST_N_FORMAT] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,
                                                           STK_TYPE_Q4_0, STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K};

/* ---- In ---- */

static int get_object(const cJSON *from, const char *key, const cJSON **out) {
    *out = cJSON_GetObjectItemCaseSensitive(from, key);
    return cJSON_IsObject(*out) ? STK_OK : stk_fail(STK_EFORMAT, "no object \"%s\"", key);
}

static bool is_positive(const cJSON *item) {
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) && item->valuedouble > 0 && item->valuedouble <= most_number;
}

static int get_number(const cJSON *from, const char *key, double *out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!is_positive(item)) return stk_fail(STK_EFORMAT, "\"%s\" is missing or no positive number", key);
    *out = item->valuedouble;
    return STK_OK;
}

/* 0 where there is none. */
static int get_optional(const cJSON *from, const char *key, double *out) {
    *out = 0;
    return cJSON_HasObjectItem(from, key) ? get_number(from, key, out) : STK_OK;
}

static int get_list(const cJSON *from, const char *key, double out[STK_COST_POINTS]) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(from, key), *item;
    int n = 0;
    if (!cJSON_IsArray(list)) return stk_fail(STK_EFORMAT, "\"%s\" is missing or no list", key);
    cJSON_ArrayForEach(item, list) {
        if (n == STK_COST_POINTS || !is_positive(item))
            return stk_fail(STK_EFORMAT, "\"%s\" is no list of %d positive numbers (entry %d)", key, STK_COST_POINTS, n);
        out[n++] = item->valuedouble;
    }
    return n == STK_COST_POINTS ? STK_OK : stk_fail(STK_EFORMAT, "\"%s\" has %d numbers, expected %d", key, n, STK_COST_POINTS);
}

static int get_text(const cJSON *from, const char *key, char *out, size_t bytes) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= bytes)
        return stk_fail(STK_EFORMAT, "\"%s\" is missing or no text of less than %zu bytes", key, bytes);
    memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    return STK_OK;
}

static int get_format(const cJSON *from, stk_cost_format *out) {
    STK_TRY(get_list(from, "expert_ns_per_byte", out->expert_ns_per_byte));
    return get_number(from, "arrive_ns_per_byte", &out->arrive_ns_per_byte);
}

static int get_formats(const cJSON *root, stk_cost_file *f) {
    const cJSON *formats, *one;
    STK_TRY(get_object(root, "formats", &formats));
    for (int i = 0; i < STK_COST_N_FORMAT; i++) {
        const char *name = stk_type_info_get(stk_cost_formats[i])->name;
        STK_TRY(get_object(formats, name, &one));
        int rc = get_format(one, &f->formats[i]);
        if (rc < 0) return stk_fail_in(rc, "format %s", name);
    }
    return STK_OK;
}

static int get_model(const cJSON *root, stk_cost_file *f) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    double bytes = 0;
    if (!model) return STK_OK;
    STK_TRY(get_object(root, "model", &model));
    STK_TRY(get_text(model, "name", f->model, sizeof f->model));
    STK_TRY(get_number(model, "file_bytes", &bytes));
    STK_TRY(get_format(model, &f->experts));
    STK_TRY(get_list(model, "dense_layer_ns", f->dense_layer_ns));
    STK_TRY(get_list(model, "dense_step_ns", f->dense_step_ns));
    STK_TRY(get_optional(model, "event_ns", &f->event_ns));
    STK_TRY(get_optional(model, "lookahead_ns", &f->lookahead_ns));
    STK_TRY(get_optional(model, "read_ns_per_byte", &f->read_ns_per_byte));
    f->model_bytes = (uint64_t)bytes;
    f->has_model = true;
    return STK_OK;
}

static int get_gpu(const cJSON *root, stk_cost_file_gpu *g) {
    const cJSON *gpu = cJSON_GetObjectItemCaseSensitive(root, "gpu"), *formats, *one;
    if (!gpu) return STK_OK;
    STK_TRY(get_object(root, "gpu", &gpu));
    STK_TRY(get_text(gpu, "name", g->name, sizeof g->name));
    if (!g->name[0]) return stk_fail(STK_EFORMAT, "the GPU's \"name\" is empty");
    const struct {
        const char *key;
        double *to;
    } numbers[] = {{"vram_bytes", &g->vram_bytes},
                   {"launch_ns", &g->launch_ns},
                   {"return_ns", &g->return_ns},
                   {"link_bytes_per_s", &g->link_bytes_per_s},
                   {"link_bytes_per_s_computing", &g->link_bytes_per_s_computing},
                   {"link_latency_ns", &g->link_latency_ns},
                   {"cpu_slowdown", &g->cpu_slowdown},
                   {"dense_layer_ns", &g->dense_layer_ns}};
    for (size_t i = 0; i < STK_ARRAY_LEN(numbers); i++) STK_TRY(get_number(gpu, numbers[i].key, numbers[i].to));
    STK_TRY(get_list(gpu, "dense_ns_per_byte", g->dense_ns_per_byte));
    STK_TRY(get_object(gpu, "formats", &formats));
    for (int i = 0; i < STK_COST_N_FORMAT; i++) {
        const char *name = stk_type_info_get(stk_cost_formats[i])->name;
        STK_TRY(get_object(formats, name, &one));
        int rc = get_list(one, "expert_ns_per_byte", g->expert_ns_per_byte[i]);
        if (rc < 0) return stk_fail_in(rc, "format %s of the GPU", name);
    }
    return STK_OK;
}

static int get_all(const cJSON *root, stk_cost_file *f) {
    const cJSON *limits, *drive;
    double version = 0, n_threads = 0;
    if (!cJSON_IsObject(root)) return stk_fail(STK_EFORMAT, "no JSON object");
    STK_TRY(get_number(root, "stoker_cost", &version));
    if (version != VERSION) return stk_fail(STK_EFORMAT, "version %g; this build reads %d: calibrate again", version, VERSION);
    STK_TRY(get_text(root, "machine", f->machine, sizeof f->machine));
    STK_TRY(get_text(root, "cpu", f->cpu, sizeof f->cpu));
    STK_TRY(get_number(root, "threads", &n_threads));
    if (n_threads > 65536) return stk_fail(STK_EFORMAT, "\"threads\" is %g", n_threads);
    f->n_threads = (uint32_t)n_threads;
    STK_TRY(get_object(root, "limits", &limits));
    STK_TRY(get_number(limits, "read_bytes_per_s", &f->read_bytes_per_s));
    STK_TRY(get_number(limits, "int8_ops_per_s", &f->int8_ops_per_s));
    STK_TRY(get_number(limits, "float_ops_per_s", &f->float_ops_per_s));
    STK_TRY(get_number(limits, "run_ns", &f->run_ns));
    STK_TRY(get_number(limits, cJSON_HasObjectItem(limits, "phase_ns") ? "phase_ns" : "barrier_ns", &f->phase_ns)); /* older */
    STK_TRY(get_optional(limits, "wake_ns", &f->wake_ns));
    STK_TRY(get_object(root, "drive", &drive));
    STK_TRY(get_text(drive, "io", f->io, sizeof f->io));
    STK_TRY(get_number(drive, "bytes_per_s", &f->drive_bytes_per_s));
    STK_TRY(get_number(drive, "bytes_per_s_computing", &f->drive_bytes_per_s_computing));
    STK_TRY(get_number(drive, "compute_slowdown", &f->compute_slowdown));
    STK_TRY(get_number(drive, "latency_ns", &f->drive_latency_ns));
    STK_TRY(get_formats(root, f));
    STK_TRY(get_gpu(root, &f->gpu));
    return get_model(root, f);
}

int stk_cost_file_probe(const char *path, bool *is_one) {
    char head[64];
    FILE *file = fopen(path, "re");
    *is_one = !file && stk_machine_text(path, NULL);
    if (*is_one) return STK_OK;
    if (!file) return stk_fail_errno(errno, "cost file %s", path);
    size_t n = fread(head, 1, sizeof head - 1, file);
    int error = ferror(file) ? (errno ? errno : EIO) : 0;
    fclose(file);
    if (error) return stk_fail_errno(error, "cost file %s", path);
    head[n] = 0;
    *is_one = head[strspn(head, " \t\r\n")] == '{';
    return STK_OK;
}

int stk_cost_file_load(const char *path, stk_cost_file *out) {
    char *text;
    size_t bytes = 0;
    memset(out, 0, sizeof *out);
    const char *known = access(path, F_OK) == 0 ? NULL : stk_machine_text(path, &bytes);
    if (!known) STK_TRY(stk_text_file_load(path, "cost file", MAX_BYTES, &text, &bytes));
    cJSON *root = cJSON_ParseWithLength(known ? known : text, bytes);
    if (!known) free(text);
    int rc = root ? get_all(root, out) : stk_fail(STK_EFORMAT, "it cannot be parsed as JSON");
    cJSON_Delete(root);
    return rc < 0 ? stk_fail_in(rc, "cost file %s", path) : STK_OK;
}

int stk_cost_check(const char *path) {
    if (!path) return stk_fail(STK_EINVAL, "stk_cost_check: an argument is NULL");
    stk_cost_file *file = malloc(sizeof *file);
    int rc = file ? stk_cost_file_load(path, file) : stk_fail(STK_ENOMEM, "out of memory");
    free(file);
    return rc;
}

/* ---- Out ---- */

static void add_format(cJSON *to, const stk_cost_format *f) {
    cJSON_AddItemToObject(to, "expert_ns_per_byte", cJSON_CreateDoubleArray(f->expert_ns_per_byte, STK_COST_POINTS));
    cJSON_AddNumberToObject(to, "arrive_ns_per_byte", f->arrive_ns_per_byte);
}

static void add_optional(cJSON *to, const char *key, double value) {
    if (value > 0) cJSON_AddNumberToObject(to, key, value);
}

static void add_gpu(cJSON *root, const stk_cost_file_gpu *g) {
    cJSON *gpu = cJSON_AddObjectToObject(root, "gpu");
    cJSON_AddStringToObject(gpu, "name", g->name);
    cJSON_AddNumberToObject(gpu, "vram_bytes", g->vram_bytes);
    cJSON_AddNumberToObject(gpu, "launch_ns", g->launch_ns);
    cJSON_AddNumberToObject(gpu, "return_ns", g->return_ns);
    cJSON_AddNumberToObject(gpu, "link_bytes_per_s", g->link_bytes_per_s);
    cJSON_AddNumberToObject(gpu, "link_bytes_per_s_computing", g->link_bytes_per_s_computing);
    cJSON_AddNumberToObject(gpu, "link_latency_ns", g->link_latency_ns);
    cJSON_AddNumberToObject(gpu, "cpu_slowdown", g->cpu_slowdown);
    cJSON_AddNumberToObject(gpu, "dense_layer_ns", g->dense_layer_ns);
    cJSON_AddItemToObject(gpu, "dense_ns_per_byte", cJSON_CreateDoubleArray(g->dense_ns_per_byte, STK_COST_POINTS));
    cJSON *formats = cJSON_AddObjectToObject(gpu, "formats");
    for (int i = 0; i < STK_COST_N_FORMAT; i++)
        cJSON_AddItemToObject(cJSON_AddObjectToObject(formats, stk_type_info_get(stk_cost_formats[i])->name),
                              "expert_ns_per_byte", cJSON_CreateDoubleArray(g->expert_ns_per_byte[i], STK_COST_POINTS));
}

static char *print_all(const stk_cost_file *f) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "stoker_cost", VERSION);
    cJSON_AddStringToObject(root, "machine", f->machine);
    cJSON_AddStringToObject(root, "cpu", f->cpu);
    cJSON_AddNumberToObject(root, "threads", f->n_threads);
    cJSON *limits = cJSON_AddObjectToObject(root, "limits"), *drive = cJSON_AddObjectToObject(root, "drive");
    cJSON_AddNumberToObject(limits, "read_bytes_per_s", f->read_bytes_per_s);
    cJSON_AddNumberToObject(limits, "int8_ops_per_s", f->int8_ops_per_s);
    cJSON_AddNumberToObject(limits, "float_ops_per_s", f->float_ops_per_s);
    cJSON_AddNumberToObject(limits, "run_ns", f->run_ns);
    cJSON_AddNumberToObject(limits, "phase_ns", f->phase_ns);
    add_optional(limits, "wake_ns", f->wake_ns);
    cJSON_AddStringToObject(drive, "io", f->io);
    cJSON_AddNumberToObject(drive, "bytes_per_s", f->drive_bytes_per_s);
    cJSON_AddNumberToObject(drive, "bytes_per_s_computing", f->drive_bytes_per_s_computing);
    cJSON_AddNumberToObject(drive, "compute_slowdown", f->compute_slowdown);
    cJSON_AddNumberToObject(drive, "latency_ns", f->drive_latency_ns);
    cJSON *formats = cJSON_AddObjectToObject(root, "formats");
    for (int i = 0; i < STK_COST_N_FORMAT; i++)
        add_format(cJSON_AddObjectToObject(formats, stk_type_info_get(stk_cost_formats[i])->name), &f->formats[i]);
    if (f->gpu.name[0]) add_gpu(root, &f->gpu);
    if (f->has_model) {
        cJSON *model = cJSON_AddObjectToObject(root, "model");
        cJSON_AddStringToObject(model, "name", f->model);
        cJSON_AddNumberToObject(model, "file_bytes", (double)f->model_bytes);
        add_format(model, &f->experts);
        cJSON_AddItemToObject(model, "dense_layer_ns", cJSON_CreateDoubleArray(f->dense_layer_ns, STK_COST_POINTS));
        cJSON_AddItemToObject(model, "dense_step_ns", cJSON_CreateDoubleArray(f->dense_step_ns, STK_COST_POINTS));
        add_optional(model, "event_ns", f->event_ns);
        add_optional(model, "lookahead_ns", f->lookahead_ns);
        add_optional(model, "read_ns_per_byte", f->read_ns_per_byte);
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}

int stk_cost_file_save(const char *path, const stk_cost_file *file) {
    char *text = print_all(file);
    int rc = text ? stk_text_file_save(path, "cost file", text, strlen(text)) : stk_fail(STK_ENOMEM, "out of memory");
    cJSON_free(text);
    return rc;
}
